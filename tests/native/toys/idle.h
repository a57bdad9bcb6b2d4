/* Two agents that are said to act in every step, though the second stays out after three. */
#include "fugu_env.h"

typedef struct Idle {
    FuguEnv base;
} Idle;

static const FuguSetting idle_settings[] = {FUGU_MAX_STEPS(9)};

static void idle_describe(const Idle* env, FuguSpec* spec) {
    (void)env;
    FuguGroup* agent = fugu_group(spec, "agent", 2);
    fugu_floats(&agent->observation, "", 0, 0, 1, 1, "nothing");
    fugu_discrete(&agent->action, "", 0, 2, "nothing; nothing");
    fugu_picture(spec, 1, 1, 1);
    spec->all_act = true;
}

static inline void idle_init(Idle* env) {
    (void)env;
}
static inline void idle_reset(Idle* env) {
    (void)env;
}

static inline void idle_step(Idle* env, FuguIO* io) {
    if (env->base.step == 3)
        fugu_end(io, 0, 1);
}

static inline void idle_observe(Idle* env, FuguIO* io) {
    (void)env;
    for (int i = 0; i < 2; ++i)
        ((float*)io->groups[0].observations)[i] = 0.0f;
}

static void idle_draw(const Idle* env, FuguCanvas* canvas) {
    (void)env;
    canvas->background = 0;
}

FUGU_ENVIRONMENT(Idle, idle, "Says that all act.")
