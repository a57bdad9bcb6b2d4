/* Stochastic: play action 0 in the share `probability` of an episode's `length` steps. With

       miss = (share of action 0 - probability) / min(probability, 1 - probability)

   the last step earns 1 - miss^2, but at least -1; the others earn 0. The observation never
   changes, and the episode ends by itself, so that a bootstrapped value plays no part.

   It checks that a policy can stay stochastic. With probability 0.75 and 32 steps a policy without
   memory that draws action 0 with probability 0.75 earns 0.906 on average (1 - 3 / length). The
   best deterministic one, always 0, earns 0; always 1 earns -1; a fair coin earns -0.059. So an
   implementation whose policy collapses, or that acts by the mode, is found out. */
#include "fugu_env.h"

typedef struct Stochastic {
    FuguEnv base;
    int32_t length;
    float probability;
    float scale;      /* of a miss */
    int32_t zeros;    /* how often action 0 was played */
    uint32_t actions; /* the last of them, a bit each, for the picture */
} Stochastic;

static const FuguSetting stochastic_settings[] = {
    FUGU_MAX_STEPS(0),
    FUGU_INT(Stochastic, length, 32, 2, 4096, "steps of an episode"),
    FUGU_REAL(Stochastic, probability, 0.75, 0.05, 0.95, "the share of action 0 that is best"),
};

static void stochastic_describe(const Stochastic* env, FuguSpec* spec) {
    (void)env;
    FuguGroup* agent = fugu_group(spec, "agent", 1);
    fugu_floats(&agent->observation, "", 0, 1, 1, 1, "always 1");
    fugu_discrete(&agent->action, "", 0, 2, "play 0; play 1");
    spec->reward = "at the last step 1 - ((share of action 0 - probability) / min(probability, 1 - "
                   "probability))^2, at least -1; before it 0";
    fugu_log(spec, "share");
    fugu_key(spec, "left", 0);
    fugu_key(spec, "right", 1);
    spec->waits_for_a_key = true;
    fugu_picture(spec, 6, 4, 15);
}

static inline void stochastic_init(Stochastic* env) {
    env->scale = 1.0f / fugu_min(env->probability, 1.0f - env->probability);
}

static inline void stochastic_reset(Stochastic* env) {
    env->zeros = 0;
    env->actions = 0;
}

static inline float stochastic_score(const Stochastic* env, float share) {
    const float miss = (share - env->probability) * env->scale;
    return fugu_max(1.0f - miss * miss, -1.0f);
}

static inline void stochastic_step(Stochastic* env, FuguIO* io) {
    const bool zero = *(const int64_t*)io->groups[0].actions == 0;
    env->zeros += zero;
    env->actions = env->actions << 1 | (zero ? 0u : 1u);
    if (env->base.step >= env->length) {
        const float share = (float)env->zeros / (float)env->length;
        io->groups[0].rewards[0] = stochastic_score(env, share);
        io->log[0] += share;
        io->terminated = true;
    }
}

static inline void stochastic_observe(Stochastic* env, FuguIO* io) {
    (void)env;
    *(float*)io->groups[0].observations = 1.0f;
}

static void stochastic_draw(const Stochastic* env, FuguCanvas* canvas) {
    const int32_t steps = env->base.step;
    const float share = steps ? (float)env->zeros / (float)steps : env->probability;
    const float goal = 0.6f + 4.8f * env->probability, here = 0.6f + 4.8f * share;
    const float score = stochastic_score(env, share);
    canvas->background = 0xF7F3E9;
    /* A scale from never to always: where the share of action 0 should be, and where it is. */
    for (int i = 0; i < 48; ++i) {
        const float at = ((float)i + 0.5f) / 48.0f, worth = stochastic_score(env, at);
        fugu_rectangle(canvas, 0.6f + 0.1f * (float)i, 1.9f, 0.11f, 0.4f,
                       worth > 0.8f   ? 0x81B29A
                       : worth > 0.4f ? 0xB5CDB4
                       : worth > 0.0f ? 0xE9DFC6
                                      : 0xE8B7A5);
    }
    fugu_triangle(canvas, goal - 0.14f, 1.55f, goal + 0.14f, 1.55f, goal, 1.85f, 0x2F4858);
    fugu_circle(canvas, here, 2.1f, 0.26f, 0x2F4858);
    fugu_circle(canvas, here, 2.1f, 0.17f, score > 0 ? 0xF2CC8F : 0xE07A5F);
    fugu_text(canvas, 0.6f, 2.65f, 0.2f, 0x9AA5A0, "never 0");
    fugu_text(canvas, 5.4f, 2.65f, 0.2f, 0x9AA5A0, "always 0");
    for (int32_t i = 0; i < fugu_min_int(steps, 32); ++i)
        fugu_circle(canvas, 5.4f - 0.155f * (float)i, env->actions >> i & 1u ? 3.5f : 3.25f, 0.065f,
                    env->actions >> i & 1u ? 0xE07A5F : 0x2F4858);
    fugu_number(canvas, 1.6f, 0.35f, 0.25f, 0x2F4858, "steps ", steps);
    fugu_number(canvas, 4.4f, 0.35f, 0.25f, 0x2F4858, "share % ", (int64_t)(100.0f * share + 0.5f));
}

FUGU_ENVIRONMENT(Stochastic, stochastic,
                 "Play one of two actions at a given rate; a check of stochastic policies.")
