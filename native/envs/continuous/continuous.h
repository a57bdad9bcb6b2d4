/* Continuous: steer a point in the square [-1, 1]^2 to a target that stays where it is. An action
   is a velocity; a step adds `speed` times it, and the borders stop the point. A step earns 1 - the
   distance to the target after it. The episode never ends by itself.

   It checks continuous actions: their scale, their sign, the pairing of each with its own axis.
   Steps of (target - position) / speed, clipped to [-1, 1], are best; they earn more than 0.9 a
   step on average over 64 of them. Standing still earns -0.04 on average. */
#include "fugu_env.h"

enum { CONTINUOUS_TRAIL = 16 };

typedef struct ContinuousView {
    float x, y, target_x, target_y;
} ContinuousView;

typedef struct Continuous {
    FuguEnv base;
    float speed;
    ContinuousView view;
    int32_t near;                     /* steps that ended near the target */
    float trail[CONTINUOUS_TRAIL][2]; /* where it was, for the picture */
} Continuous;

static const FuguSetting continuous_settings[] = {
    FUGU_MAX_STEPS(64),
    FUGU_REAL(Continuous, speed, 0.1, 0.01, 1, "the longest move of a step along each axis"),
};

static void continuous_describe(const Continuous* env, FuguSpec* spec) {
    (void)env;
    FuguGroup* agent = fugu_group(spec, "agent", 1);
    fugu_floats(&agent->observation, "", 0, -1, 1, 4, "x; y; x of the target; y of the target");
    fugu_floats(&agent->action, "", 0, -1, 1, 2, "velocity along x; velocity along y");
    spec->reward = "1 - the distance to the target after the step";
    fugu_log(spec, "score");
    fugu_log(spec, "distance");
    fugu_key_of(spec, "left", 0, 0, 0, 0, -1);
    fugu_key_of(spec, "right", 0, 0, 0, 0, 1);
    fugu_key_of(spec, "up", 0, 0, 0, 1, -1);
    fugu_key_of(spec, "down", 0, 0, 0, 1, 1);
    fugu_picture(spec, 4, 4.4f, 15);
}

static inline void continuous_init(Continuous* env) {
    (void)env;
}

static inline void continuous_reset(Continuous* env) {
    env->view.x = fugu_uniform(&env->base.random, -1.0f, 1.0f);
    env->view.y = fugu_uniform(&env->base.random, -1.0f, 1.0f);
    env->view.target_x = fugu_uniform(&env->base.random, -1.0f, 1.0f);
    env->view.target_y = fugu_uniform(&env->base.random, -1.0f, 1.0f);
    env->near = 0;
    for (int i = 0; i < CONTINUOUS_TRAIL; ++i)
        env->trail[i][0] = env->trail[i][1] = 0;
}

static inline void continuous_step(Continuous* env, FuguIO* io) {
    const float* action = io->groups[0].actions;
    float* trail = env->trail[env->base.step % CONTINUOUS_TRAIL];
    trail[0] = env->view.x;
    trail[1] = env->view.y;
    env->view.x = fugu_clamp(env->view.x + env->speed * action[0], -1.0f, 1.0f);
    env->view.y = fugu_clamp(env->view.y + env->speed * action[1], -1.0f, 1.0f);
    const float x = env->view.target_x - env->view.x, y = env->view.target_y - env->view.y;
    const float distance = fugu_sqrt(x * x + y * y);
    io->groups[0].rewards[0] = 1.0f - distance;
    env->near += distance < 0.1f && env->near < env->base.step;
    if (env->base.max_steps && env->base.step >= env->base.max_steps) {
        io->log[0] += (float)env->near / (float)env->base.step; /* the share of steps near it */
        io->log[1] += distance;
    }
}

static inline void continuous_observe(Continuous* env, FuguIO* io) {
    *(ContinuousView*)io->groups[0].observations = env->view;
}

static void continuous_draw(const Continuous* env, FuguCanvas* canvas) {
    const float x = 2.0f + 1.6f * env->view.x, y = 2.5f + 1.6f * env->view.y;
    const float goal_x = 2.0f + 1.6f * env->view.target_x,
                goal_y = 2.5f + 1.6f * env->view.target_y;
    canvas->background = 0xF7F3E9;
    fugu_rectangle(canvas, 0.2f, 0.7f, 3.6f, 3.6f, 0xE6DCC6);
    fugu_rectangle(canvas, 0.25f, 0.75f, 3.5f, 3.5f, 0xEFE8D8);
    fugu_circle(canvas, goal_x, goal_y, 0.26f, 0xE07A5F);
    fugu_circle(canvas, goal_x, goal_y, 0.19f, 0xF7F3E9);
    fugu_circle(canvas, goal_x, goal_y, 0.12f, 0xE07A5F);
    fugu_line(canvas, x, y, goal_x, goal_y, 0.02f, 0xF2CC8F);
    const int32_t count = fugu_min_int(env->base.step, CONTINUOUS_TRAIL - 1);
    for (int32_t i = count; i > 0; --i) {
        const float* at = env->trail[(env->base.step - i + 1) % CONTINUOUS_TRAIL];
        fugu_circle(canvas, 2.0f + 1.6f * at[0], 2.5f + 1.6f * at[1], 0.1f - 0.005f * (float)i,
                    0xA9B8BC);
    }
    fugu_circle(canvas, x, y, 0.16f, 0x2F4858);
    fugu_circle(canvas, x - 0.05f, y - 0.04f, 0.035f, 0xF7F3E9);
    fugu_circle(canvas, x + 0.05f, y - 0.04f, 0.035f, 0xF7F3E9);
    fugu_number(canvas, 1.1f, 0.35f, 0.22f, 0x2F4858, "steps ", env->base.step);
    fugu_number(canvas, 2.9f, 0.35f, 0.22f, 0x2F4858, "near ", env->near);
}

FUGU_ENVIRONMENT(Continuous, continuous,
                 "Steer a point to a target; a check of continuous actions.")
