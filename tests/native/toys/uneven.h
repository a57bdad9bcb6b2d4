/* Steps that take very different times: action 1 works for `work` rounds, action 2 never ends. */
#include "fugu_env.h"

typedef struct Uneven {
    FuguEnv base;
    uint64_t sum;
    int32_t work;
} Uneven;

static const FuguSetting uneven_settings[] = {
    FUGU_MAX_STEPS(0),
    FUGU_INT(Uneven, work, 1000000, 1, 1e9, "rounds"),
};

static void uneven_describe(const Uneven* env, FuguSpec* spec) {
    (void)env;
    FuguGroup* agent = fugu_group(spec, "agent", 1);
    fugu_floats(&agent->observation, "", 0, 0, 1, 1, "how much was done");
    fugu_discrete(&agent->action, "", 0, 3, "nothing; work; hang");
    fugu_picture(spec, 1, 1, 1);
}

static inline void uneven_init(Uneven* env) {
    (void)env;
}
static inline void uneven_reset(Uneven* env) {
    env->sum = 0;
}

static inline void uneven_step(Uneven* env, FuguIO* io) {
    const int64_t action = *(const int64_t*)io->groups[0].actions;
    volatile int go = 1;
    for (int32_t i = 0; action == 1 && i < env->work; ++i)
        env->sum += fugu_bits(&env->base.random);
    while (action == 2 && go) {
    }
}

static inline void uneven_observe(Uneven* env, FuguIO* io) {
    *(float*)io->groups[0].observations = (float)(env->sum & 0xFF) / 256.0f;
}

static void uneven_draw(const Uneven* env, FuguCanvas* canvas) {
    (void)env;
    canvas->background = 0;
}

FUGU_ENVIRONMENT(Uneven, uneven, "Works, or does not, or hangs.")
