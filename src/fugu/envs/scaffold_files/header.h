/* @name@: walk along a line to the goal. A beginning, to be changed into what you need;
   fugu_env.h explains the rest. */
#include "fugu_env.h"

typedef struct @Struct@ {
    FuguEnv base; /* always first */
    int32_t place, goal;
    int32_t size; /* a setting */
} @Struct@;

static const FuguSetting @name@_settings[] = {
    FUGU_MAX_STEPS(100),
    FUGU_INT(@Struct@, size, 10, 2, 1000, "places on the line"),
};

/* What agents see and do. */
static void @name@_describe(const @Struct@* env, FuguSpec* spec) {
    (void)env;
    FuguGroup* agent = fugu_group(spec, "agent", 1);
    fugu_floats(&agent->observation, "", 0, 0, 1, 2, "own place; the goal's place");
    fugu_discrete(&agent->action, "", 0, 2, "left; right");
    spec->reward = "1 at the goal, -0.01 for every other step";
    fugu_log(spec, "solved");
    fugu_key(spec, "left", 0);
    fugu_key(spec, "right", 1);
    fugu_picture(spec, 10, 2, 10);
    spec->waits_for_a_key = true;
}

/* What follows from the settings, once. */
static inline void @name@_init(@Struct@* env) { (void)env; }

static inline void @name@_reset(@Struct@* env) {
    env->place = 0;
    env->goal = 1 + fugu_below(&env->base.random, env->size - 1);
}

static inline void @name@_step(@Struct@* env, FuguIO* io) {
    const int64_t action = *(const int64_t*)io->groups[0].actions;
    env->place = fugu_clamp_int(env->place + (action ? 1 : -1), 0, env->size - 1);
    io->terminated = env->place == env->goal;
    io->groups[0].rewards[0] = io->terminated ? 1.0f : -0.01f;
    io->log[0] = io->terminated ? 1.0f : 0.0f;
}

/* What the agent sees now; nothing but a view of the state. */
static inline void @name@_observe(@Struct@* env, FuguIO* io) {
    float* observation = io->groups[0].observations;
    observation[0] = (float)env->place / (float)(env->size - 1);
    observation[1] = (float)env->goal / (float)(env->size - 1);
}

static void @name@_draw(const @Struct@* env, FuguCanvas* canvas) {
    const float cell = 10.0f / (float)env->size;
    canvas->background = 0xF7F3E9;
    fugu_line(canvas, 0, 1.4f, 10, 1.4f, 0.05f, 0x9AA5A0);
    fugu_rectangle(canvas, (float)env->goal * cell, 0.8f, cell, 0.6f, 0x81B29A);
    fugu_circle(canvas, ((float)env->place + 0.5f) * cell, 1.1f, 0.3f, 0xE07A5F);
}

FUGU_ENVIRONMENT(@Struct@, @name@, "Walk along a line to the goal.")
