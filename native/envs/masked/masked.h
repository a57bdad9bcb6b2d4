/* Masked: of all choices two are allowed at each step, drawn anew, and only the mask tells which.
   The observation tells which of the two is right: -1 for the lower one, 1 for the higher one, each
   as likely. The right one earns 1, the other one 0; a forbidden one earns -1 and ends the episode.

   It checks action masks. With them the logits need only fall with the number of the choice, or
   rise with it, and every step earns 1; chance among the allowed ones earns 0.5 a step. Without
   them nothing can be learned: with 16 choices 14 of 16 episodes end at the first step, and an
   episode earns less than 0 on average. */
#include "fugu_env.h"

enum { MASKED_CHOICES = 64, MASKED_COLUMNS = 8 };

typedef struct Masked {
    FuguEnv base;
    int32_t choices;
    int32_t low, high; /* the two that are allowed */
    int32_t higher;    /* 1 if the higher one is right */
    int32_t right;     /* right choices of this episode */
    int32_t last;      /* the choice before, for the picture; -1 for none */
    float reward;      /* of it */
} Masked;

static const FuguSetting masked_settings[] = {
    FUGU_MAX_STEPS(16),
    FUGU_INT(Masked, choices, 16, 4, MASKED_CHOICES, "choices, of which two are allowed"),
};

static void masked_describe(const Masked* env, FuguSpec* spec) {
    static const char* keys[] = {"1", "2", "3", "4", "5", "6", "7", "8", "9", "0", "q",
                                 "w", "e", "r", "t", "y", "u", "i", "o", "p", "a", "s",
                                 "d", "f", "g", "h", "j", "k", "l", "z", "x", "c"};
    FuguGroup* agent = fugu_group(spec, "agent", 1);
    fugu_floats(&agent->observation, "", 0, -1, 1, 1,
                "-1 if the lower of the allowed choices is right, 1 if the higher one is");
    fugu_discrete(&agent->action, "", 0, env->choices, "the choice");
    spec->reward = "1 for the right one of the two allowed choices, 0 for the other one, -1 for a "
                   "forbidden one, which ends the episode";
    fugu_log(spec, "score");
    fugu_log(spec, "forbidden");
    for (int i = 0; i < env->choices && i < FUGU_MAX_KEYS; ++i)
        fugu_key(spec, keys[i], i);
    spec->waits_for_a_key = true;
    fugu_picture(spec, 6, 4.6f, 5);
}

static inline void masked_init(Masked* env) {
    (void)env;
}

static inline void masked_deal(Masked* env) {
    const int32_t a = fugu_below(&env->base.random, env->choices);
    int32_t b = fugu_below(&env->base.random, env->choices - 1);
    b += b >= a;
    env->low = fugu_min_int(a, b);
    env->high = fugu_max_int(a, b);
    env->higher = fugu_below(&env->base.random, 2);
}

static inline void masked_reset(Masked* env) {
    masked_deal(env);
    env->right = 0;
    if (env->base.episode == 0) {
        env->last = -1;
        env->reward = 0;
    }
}

static inline void masked_step(Masked* env, FuguIO* io) {
    const int32_t choice = (int32_t)*(const int64_t*)io->groups[0].actions;
    const bool allowed = choice == env->low || choice == env->high;
    const bool right = choice == (env->higher ? env->high : env->low);
    env->last = choice;
    env->reward = right ? 1.0f : allowed ? 0.0f : -1.0f;
    env->right += right && env->right < env->base.step;
    io->groups[0].rewards[0] = env->reward;
    io->terminated = !allowed;
    if (!allowed || (env->base.max_steps && env->base.step >= env->base.max_steps)) {
        io->log[0] += (float)env->right / (float)env->base.step;
        io->log[1] += allowed ? 0.0f : 1.0f;
    }
    masked_deal(env);
}

static inline void masked_observe(Masked* env, FuguIO* io) {
    uint8_t* masks = io->groups[0].masks;
    for (int32_t i = 0; i < env->choices; ++i)
        masks[i] = 0;
    masks[env->low] = masks[env->high] = 1;
    *(float*)io->groups[0].observations = env->higher ? 1.0f : -1.0f;
}

static void masked_draw(const Masked* env, FuguCanvas* canvas) {
    const int32_t rows = (env->choices + MASKED_COLUMNS - 1) / MASKED_COLUMNS;
    const float high = fugu_min(0.62f, 3.0f / (float)rows), radius = 0.4f * high;
    const float middle = 2.35f - high * (float)(rows - 1) / 2;
    canvas->background = 0xF7F3E9;
    for (int32_t i = 0; i < env->choices; ++i) {
        const float x = 0.6f + 4.8f / (MASKED_COLUMNS - 1) * (float)(i % MASKED_COLUMNS);
        const float y = middle + high * (float)(i / MASKED_COLUMNS);
        const bool allowed = i == env->low || i == env->high;
        if (i == env->last) /* what the choice before was worth */
            fugu_circle(canvas, x, y, 1.25f * radius,
                        env->reward > 0   ? 0x81B29A
                        : env->reward < 0 ? 0xE07A5F
                                          : 0xF2CC8F);
        fugu_circle(canvas, x, y, radius, allowed ? 0x2F4858 : 0xE6DCC6);
        if (i == (env->higher ? env->high : env->low))
            fugu_circle(canvas, x, y, 0.45f * radius, 0xF2CC8F);
    }
    /* The hint that the agent sees. */
    const float way = env->higher ? 1.0f : -1.0f;
    fugu_line(canvas, 3.0f - 0.5f * way, 4.25f, 3.0f + 0.4f * way, 4.25f, 0.1f, 0x2F4858);
    fugu_triangle(canvas, 3.0f + 0.35f * way, 4.07f, 3.0f + 0.35f * way, 4.43f, 3.0f + 0.7f * way,
                  4.25f, 0x2F4858);
    fugu_text(canvas, 1.3f, 4.25f, 0.2f, env->higher ? 0xC9BFA8 : 0x2F4858, "lower");
    fugu_text(canvas, 4.7f, 4.25f, 0.2f, env->higher ? 0x2F4858 : 0xC9BFA8, "higher");
    fugu_number(canvas, 1.6f, 0.35f, 0.25f, 0x2F4858, "right ", env->right);
    fugu_number(canvas, 4.4f, 0.35f, 0.25f, 0x2F4858, "steps ", env->base.step);
}

FUGU_ENVIRONMENT(Masked, masked, "Choose among what a mask allows; a check of action masks.")
