/* An action of whole numbers with bounds, three in a row; the observation is their sum. */
#include "fugu_env.h"

typedef struct Levels {
    FuguEnv base;
    int32_t sum;
} Levels;

static const FuguSetting levels_settings[] = {FUGU_MAX_STEPS(0)};

static void levels_describe(const Levels* env, FuguSpec* spec) {
    (void)env;
    FuguGroup* agent = fugu_group(spec, "agent", 1);
    fugu_floats(&agent->observation, "", 0, 0, 15, 1, "their sum");
    fugu_box(&agent->action, "", 0, FUGU_U8, 0, 5, 3, 0, 0, "levels");
}

static inline void levels_init(Levels* env) {
    (void)env;
}
static inline void levels_reset(Levels* env) {
    env->sum = 0;
}

static inline void levels_step(Levels* env, FuguIO* io) {
    const uint8_t* levels = io->groups[0].actions;
    env->sum = levels[0] + levels[1] + levels[2];
}

static inline void levels_observe(Levels* env, FuguIO* io) {
    *(float*)io->groups[0].observations = (float)env->sum;
}

static void levels_draw(const Levels* env, FuguCanvas* canvas) {
    (void)env;
    canvas->background = 0;
}

FUGU_ENVIRONMENT(Levels, levels, "Adds up three levels.")
