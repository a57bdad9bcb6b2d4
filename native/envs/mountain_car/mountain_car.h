/* Mountain Car, as Gymnasium's MountainCar-v0 has it (Moore, 1990): a car that is too weak for the
   hill must swing back and forth to climb it. */
#include "fugu_env.h"

#define MOUNTAIN_CAR_LEFT -1.2f
#define MOUNTAIN_CAR_RIGHT 0.6f
#define MOUNTAIN_CAR_GOAL 0.5f
#define MOUNTAIN_CAR_TOP_SPEED 0.07f

typedef struct MountainCar {
    FuguEnv base;
    float position, speed;
    float force, gravity, goal_speed;
} MountainCar;

static const FuguSetting mountain_car_settings[] = {
    FUGU_MAX_STEPS(200),
    FUGU_REAL(MountainCar, force, 0.001, 0, 1, "of the motor, in speed a step"),
    FUGU_REAL(MountainCar, gravity, 0.0025, 0, 1, "on the steepest slope, in speed a step"),
    FUGU_REAL(MountainCar, goal_speed, 0, -0.07, 0.07, "that the car must have at the flag"),
};

static void mountain_car_describe(const MountainCar* env, FuguSpec* spec) {
    (void)env;
    FuguGroup* agent = fugu_group(spec, "agent", 1);
    fugu_floats(&agent->observation, "", 0, MOUNTAIN_CAR_LEFT, MOUNTAIN_CAR_RIGHT, 2,
                "position; speed");
    fugu_discrete(&agent->action, "", 0, 3, "accelerate left; coast; accelerate right");
    spec->reward = "-1 for every step";
    fugu_log(spec, "solved");
    fugu_key(spec, "left", 0);
    fugu_key(spec, "down", 1);
    fugu_key(spec, "right", 2);
    fugu_picture(spec, 6, 4, 30);
}

static inline void mountain_car_init(MountainCar* env) {
    (void)env;
}

static inline void mountain_car_reset(MountainCar* env) {
    env->position = fugu_uniform(&env->base.random, -0.6f, -0.4f);
    env->speed = 0.0f;
}

static inline void mountain_car_step(MountainCar* env, FuguIO* io) {
    const int64_t action = *(const int64_t*)io->groups[0].actions;
    const float push = (float)(action - 1) * env->force;
    const float speed = env->speed + (push - env->gravity * fugu_cos(3.0f * env->position));
    env->speed = fugu_clamp(speed, -MOUNTAIN_CAR_TOP_SPEED, MOUNTAIN_CAR_TOP_SPEED);
    env->position = fugu_clamp(env->position + env->speed, MOUNTAIN_CAR_LEFT, MOUNTAIN_CAR_RIGHT);
    if (env->position == MOUNTAIN_CAR_LEFT && env->speed < 0)
        env->speed = 0.0f; /* the wall takes it all */
    io->groups[0].rewards[0] = -1.0f;
    io->terminated = env->position >= MOUNTAIN_CAR_GOAL && env->speed >= env->goal_speed;
    io->log[0] += io->terminated ? 1.0f : 0.0f;
}

static inline void mountain_car_observe(MountainCar* env, FuguIO* io) {
    float* observation = io->groups[0].observations;
    observation[0] = env->position;
    observation[1] = env->speed;
}

static float mountain_car_picture_x(float position) {
    return (position - MOUNTAIN_CAR_LEFT) * (6.0f / (MOUNTAIN_CAR_RIGHT - MOUNTAIN_CAR_LEFT));
}

static float mountain_car_picture_y(float position) {
    return 3.75f - 2.4f * (0.45f * fugu_sin(3.0f * position) + 0.55f);
}

static void mountain_car_draw(const MountainCar* env, FuguCanvas* canvas) {
    enum { PIECES = 36 };
    canvas->background = 0xF7F3E9;
    fugu_circle(canvas, 0.9f, 0.85f, 0.35f, 0xF2CC8F);
    for (int i = 0; i < PIECES; ++i) {
        const float width = (MOUNTAIN_CAR_RIGHT - MOUNTAIN_CAR_LEFT) / PIECES;
        const float left = MOUNTAIN_CAR_LEFT + width * (float)i, right = left + width;
        const float x0 = mountain_car_picture_x(left), x1 = mountain_car_picture_x(right);
        const float y0 = mountain_car_picture_y(left), y1 = mountain_car_picture_y(right);
        fugu_triangle(canvas, x0, y0, x1, y1, x0, 4.0f, 0x81B29A);
        fugu_triangle(canvas, x1, y1, x1, 4.0f, x0, 4.0f, 0x81B29A);
        fugu_line(canvas, x0, y0, x1, y1, 0.06f, 0x5B8C73);
    }
    const float flag_x = mountain_car_picture_x(MOUNTAIN_CAR_GOAL);
    const float flag_y = mountain_car_picture_y(MOUNTAIN_CAR_GOAL);
    fugu_line(canvas, flag_x, flag_y, flag_x, flag_y - 0.7f, 0.05f, 0x2F4858);
    fugu_triangle(canvas, flag_x, flag_y - 0.7f, flag_x + 0.32f, flag_y - 0.57f, flag_x,
                  flag_y - 0.44f, 0xE07A5F);
    /* The car stands on the slope: (cosine, sine) points along it, (sine, -cosine) upward. */
    const float slope = -1.35f * 2.4f / (10.0f / 3.0f) * fugu_cos(3.0f * env->position);
    const float norm = fugu_sqrt(1.0f + slope * slope), cosine = 1.0f / norm, sine = slope / norm;
    const float x = mountain_car_picture_x(env->position) + 0.11f * sine;
    const float y = mountain_car_picture_y(env->position) - 0.11f * cosine;
    const float ax = 0.26f * cosine, ay = 0.26f * sine, ux = 0.18f * sine, uy = -0.18f * cosine;
    fugu_triangle(canvas, x - ax, y - ay, x + ax, y + ay, x - ax + ux, y - ay + uy, 0xE07A5F);
    fugu_triangle(canvas, x + ax, y + ay, x + ax + ux, y + ay + uy, x - ax + ux, y - ay + uy,
                  0xE07A5F);
    fugu_circle(canvas, x + 1.1f * ux, y + 1.1f * uy, 0.13f, 0x2F4858);
    fugu_circle(canvas, x - 0.6f * ax, y - 0.6f * ay, 0.1f, 0x1B2A33);
    fugu_circle(canvas, x + 0.6f * ax, y + 0.6f * ay, 0.1f, 0x1B2A33);
    fugu_number(canvas, 3.0f, 0.35f, 0.25f, 0x2F4858, "steps ", env->base.step);
}

FUGU_ENVIRONMENT(MountainCar, mountain_car, "Swing a weak car up a hill.")
