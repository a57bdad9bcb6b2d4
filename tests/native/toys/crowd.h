/* As many agents as wanted, that all act; each may choose what is not its number modulo three. */
#include "fugu_env.h"

typedef struct Crowd {
    FuguEnv base;
    int32_t agents;
} Crowd;

static const FuguSetting crowd_settings[] = {
    FUGU_MAX_STEPS(9),
    FUGU_INT(Crowd, agents, 2, 1, 64, "how many"),
};

static void crowd_describe(const Crowd* env, FuguSpec* spec) {
    FuguGroup* agent = fugu_group(spec, "agent", env->agents);
    fugu_floats(&agent->observation, "", 0, 0, 1, 2, "which step; which agent");
    fugu_discrete(&agent->action, "", 0, 3, "nothing; nothing; nothing");
    fugu_picture(spec, 1, 1, 1);
    spec->all_act = true;
}

static inline void crowd_init(Crowd* env) {
    (void)env;
}
static inline void crowd_reset(Crowd* env) {
    (void)env;
}

static inline void crowd_step(Crowd* env, FuguIO* io) {
    for (int i = 0; i < env->agents; ++i) {
        const int64_t action = ((const int64_t*)io->groups[0].actions)[i];
        io->groups[0].rewards[i] = action == (i + 1) % 3 ? 1.0f : -0.5f;
    }
}

static inline void crowd_observe(Crowd* env, FuguIO* io) {
    float* seen = (float*)io->groups[0].observations;
    for (int i = 0; i < env->agents; ++i) {
        seen[2 * i] = (float)env->base.step / 9.0f;
        seen[2 * i + 1] = (float)i / 64.0f;
        for (int choice = 0; choice < 3; ++choice)
            io->groups[0].masks[3 * i + choice] = choice != i % 3;
    }
}

static void crowd_draw(const Crowd* env, FuguCanvas* canvas) {
    (void)env;
    canvas->background = 0;
}

FUGU_ENVIRONMENT(Crowd, crowd, "Many agents at once.")
