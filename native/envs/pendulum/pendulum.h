/* Pendulum, as Gymnasium's Pendulum-v1 has it: swing a rod up with a motor that is too weak to lift
   it, and hold it there. */
#include "fugu_env.h"

#define PENDULUM_TOP_SPIN 8.0f
#define PENDULUM_TORQUE 2.0f
#define PENDULUM_STEP 0.05f /* seconds */

typedef struct Pendulum {
    FuguEnv base;
    float angle, spin; /* from upright; within [-pi, pi] */
    float applied;     /* the torque of the last step, for the picture */
    float gravity, mass, length;
} Pendulum;

static const FuguSetting pendulum_settings[] = {
    FUGU_MAX_STEPS(200),
    FUGU_REAL(Pendulum, gravity, 10.0, 0, 1000, "m/s^2"),
    FUGU_REAL(Pendulum, mass, 1.0, 0.01, 1000, "of the rod, kg"),
    FUGU_REAL(Pendulum, length, 1.0, 0.05, 100, "of the rod, m"),
};

static void pendulum_describe(const Pendulum* env, FuguSpec* spec) {
    (void)env;
    FuguGroup* agent = fugu_group(spec, "agent", 1);
    fugu_floats(&agent->observation, "", 0, -PENDULUM_TOP_SPIN, PENDULUM_TOP_SPIN, 3,
                "cosine of the angle, 1 if upright; sine; angular velocity");
    fugu_floats(&agent->action, "", 0, -PENDULUM_TORQUE, PENDULUM_TORQUE, 1, "torque, N m");
    spec->reward = "-(angle^2 + 0.1 velocity^2 + 0.001 torque^2)";
    fugu_key(spec, "left", 2);
    fugu_key(spec, "right", -2);
    fugu_picture(spec, 5, 5, 20);
}

static inline void pendulum_init(Pendulum* env) {
    (void)env;
}

static inline void pendulum_reset(Pendulum* env) {
    env->angle = fugu_uniform(&env->base.random, -FUGU_PI, FUGU_PI);
    env->spin = fugu_uniform(&env->base.random, -1.0f, 1.0f);
    env->applied = 0.0f;
}

static inline void pendulum_step(Pendulum* env, FuguIO* io) {
    const float torque =
        fugu_clamp(*(const float*)io->groups[0].actions, -PENDULUM_TORQUE, PENDULUM_TORQUE);
    io->groups[0].rewards[0] =
        -(env->angle * env->angle + 0.1f * env->spin * env->spin + 0.001f * torque * torque);
    const float turn = 1.5f * env->gravity / env->length * fugu_sin(env->angle) +
                       3.0f * torque / (env->mass * env->length * env->length);
    env->spin = fugu_clamp(env->spin + turn * PENDULUM_STEP, -PENDULUM_TOP_SPIN, PENDULUM_TOP_SPIN);
    float angle = env->angle + env->spin * PENDULUM_STEP; /* less than a turn further */
    angle = angle > FUGU_PI ? angle - 2.0f * FUGU_PI : angle;
    env->angle = angle < -FUGU_PI ? angle + 2.0f * FUGU_PI : angle;
    env->applied = torque;
}

static inline void pendulum_observe(Pendulum* env, FuguIO* io) {
    float* observation = io->groups[0].observations;
    observation[0] = fugu_cos(env->angle);
    observation[1] = fugu_sin(env->angle);
    observation[2] = env->spin;
}

static void pendulum_draw(const Pendulum* env, FuguCanvas* canvas) {
    const float x = 2.5f, y = 2.7f, sine = fugu_sin(env->angle), cosine = fugu_cos(env->angle);
    canvas->background = 0xF7F3E9;
    fugu_circle(canvas, x, y, 1.95f, 0xEAE4D3);
    fugu_circle(canvas, x, y - 1.7f, 0.12f, 0x81B29A); /* where it is to stand */
    fugu_line(canvas, x, y, x - 1.7f * sine, y - 1.7f * cosine, 0.3f, 0xE07A5F);
    fugu_circle(canvas, x, y, 0.15f, 0xE07A5F);
    fugu_circle(canvas, x - 1.7f * sine, y - 1.7f * cosine, 0.15f, 0xE07A5F);
    fugu_circle(canvas, x, y, 0.08f, 0x1B2A33);
    /* The torque, as an arc that grows from the top: to the left if it turns left. */
    for (int i = 0; i < 12; ++i) {
        const float from = env->applied * 0.06f * (float)i, to = from + env->applied * 0.06f;
        fugu_line(canvas, x - 0.6f * fugu_sin(from), y - 0.6f * fugu_cos(from),
                  x - 0.6f * fugu_sin(to), y - 0.6f * fugu_cos(to), 0.07f, 0x2F4858);
    }
    fugu_number(canvas, 2.5f, 0.3f, 0.25f, 0x2F4858, "steps ", env->base.step);
}

FUGU_ENVIRONMENT(Pendulum, pendulum, "Swing a rod up and hold it upright.")
