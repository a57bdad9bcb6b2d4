/* Truncated: every step earns 1, whatever is done, nothing ever changes, and the task never ends;
   it is only cut off after `max_steps` steps.

   It checks that being cut off is not taken for an end. With discount gamma every state is worth
   1 / (1 - gamma), 100 for 0.99. An implementation that does not bootstrap where it was cut off
   learns the average of what is left until then: with one-step targets 1 / (1 - gamma * (1 - 1 /
   max_steps)), 7.5 for 0.99 and 8 steps. */
#include "fugu_env.h"

enum { TRUNCATED_SHOWN = 16 };

typedef struct Truncated {
    FuguEnv base;
} Truncated;

static const FuguSetting truncated_settings[] = {
    FUGU_MAX_STEPS(8),
};

static void truncated_describe(const Truncated* env, FuguSpec* spec) {
    (void)env;
    FuguGroup* agent = fugu_group(spec, "agent", 1);
    fugu_floats(&agent->observation, "", 0, 1, 1, 1, "always 1");
    fugu_discrete(&agent->action, "", 0, 2, "nothing; nothing either");
    spec->reward = "1 for every step";
    fugu_key(spec, "left", 0);
    fugu_key(spec, "right", 1);
    fugu_picture(spec, 6, 4, 8);
}

static inline void truncated_init(Truncated* env) {
    (void)env;
}

static inline void truncated_reset(Truncated* env) {
    (void)env;
}

static inline void truncated_step(Truncated* env, FuguIO* io) {
    (void)env;
    io->groups[0].rewards[0] = 1.0f;
}

static inline void truncated_observe(Truncated* env, FuguIO* io) {
    (void)env;
    *(float*)io->groups[0].observations = 1.0f;
}

static void truncated_draw(const Truncated* env, FuguCanvas* canvas) {
    const int32_t limit = env->base.max_steps;
    const int32_t shown = limit && limit < TRUNCATED_SHOWN ? limit : TRUNCATED_SHOWN;
    const int32_t first = env->base.step / shown * shown; /* long episodes go by in pages */
    const float gap = 4.2f / (float)shown, radius = fugu_min(0.2f, 0.4f * gap);
    const float cut = 0.6f + gap * (float)shown;
    canvas->background = 0xF7F3E9;
    /* The road goes on behind the cut. */
    fugu_rectangle(canvas, 0.0f, 2.6f, 6.0f, 0.5f, 0xE6DCC6);
    for (int i = 0; i < 12; ++i)
        fugu_rectangle(canvas, 0.1f + 0.5f * (float)i, 2.83f, 0.25f, 0.04f, 0xF7F3E9);
    for (int32_t i = 0; i < shown + (int32_t)(1.2f / gap); ++i) {
        const float x = 0.6f + gap * ((float)i + 0.5f);
        const bool earned = i < env->base.step - first;
        const uint32_t color = earned ? 0xEFE8D8 : i < shown ? 0xF2CC8F : 0xF5E6CC;
        fugu_circle(canvas, x, 2.25f, radius, color);
        fugu_circle(canvas, x, 2.25f, 0.6f * radius, earned ? 0xF7F3E9 : 0xF7EBD3);
    }
    if (limit && limit - first <= shown)
        for (int i = 0; i < 9; ++i)
            fugu_rectangle(canvas, cut - 0.02f, 1.2f + 0.25f * (float)i, 0.05f, 0.15f, 0xE07A5F);
    const float x = 0.6f + gap * (float)(env->base.step - first);
    fugu_line(canvas, x, 2.45f, x - 0.1f, 2.72f, 0.07f, 0x1B2A33);
    fugu_line(canvas, x, 2.45f, x + 0.1f, 2.72f, 0.07f, 0x1B2A33);
    fugu_circle(canvas, x, 2.25f, 0.28f, 0x2F4858);
    fugu_circle(canvas, x + 0.06f, 2.18f, 0.05f, 0xF7F3E9);
    fugu_circle(canvas, x + 0.18f, 2.18f, 0.05f, 0xF7F3E9);
    fugu_text(canvas, 3.0f, 3.55f, 0.22f, 0x9AA5A0, "worth 1 / (1 - gamma)");
    fugu_number(canvas, 1.6f, 0.35f, 0.25f, 0x2F4858, "steps ", env->base.step);
    fugu_number(canvas, 4.4f, 0.35f, 0.25f, 0x2F4858, "cut off ", (int64_t)env->base.episode);
}

FUGU_ENVIRONMENT(Truncated, truncated, "An endless task that is cut off; a check of bootstrapping.")
