/* One agent, that is out of turn every third step. */
#include "fugu_env.h"

typedef struct Waiting {
    FuguEnv base;
} Waiting;

static const FuguSetting waiting_settings[] = {FUGU_MAX_STEPS(10)};

static void waiting_describe(const Waiting* env, FuguSpec* spec) {
    (void)env;
    FuguGroup* agent = fugu_group(spec, "agent", 1);
    fugu_floats(&agent->observation, "", 0, 0, 1, 1, "nothing");
    fugu_discrete(&agent->action, "", 0, 2, "nothing; nothing");
    fugu_picture(spec, 1, 1, 1);
}

static inline void waiting_init(Waiting* env) {
    (void)env;
}
static inline void waiting_reset(Waiting* env) {
    (void)env;
}
static inline void waiting_step(Waiting* env, FuguIO* io) {
    (void)env, (void)io;
}

static inline void waiting_observe(Waiting* env, FuguIO* io) {
    *(float*)io->groups[0].observations = 0.0f;
    io->groups[0].live[0] = env->base.step % 3 != 2;
}

static void waiting_draw(const Waiting* env, FuguCanvas* canvas) {
    (void)env;
    canvas->background = 0;
}

FUGU_ENVIRONMENT(Waiting, waiting, "An agent that waits.")
