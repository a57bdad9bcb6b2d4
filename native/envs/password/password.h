/* Password: guess the bits of a fixed password, one a step, and hear only at the end whether all of
   them were right. Bit i, the lowest first, is bit i of `secret`.

   It checks exploration: chance opens the lock once in 2^length episodes, and nothing but the whole
   password is rewarded. The observation is the position, so that what was found can be kept. */
#include "fugu_env.h"

enum { PASSWORD_BITS = 16 };

typedef struct Password {
    FuguEnv base;
    int32_t length, secret;
    uint32_t guess;   /* the bits so far */
    int32_t previous; /* the guess before, for the picture; -1 for none */
    int32_t opened;   /* how often the lock opened since the seed, for the picture */
} Password;

static const FuguSetting password_settings[] = {
    FUGU_MAX_STEPS(0),
    FUGU_INT(Password, length, 5, 1, PASSWORD_BITS, "bits to guess"),
    FUGU_INT(Password, secret, 21, 0, 65535, "the password is its lowest bits, the lowest first"),
};

static void password_describe(const Password* env, FuguSpec* spec) {
    (void)env;
    FuguGroup* agent = fugu_group(spec, "agent", 1);
    fugu_floats(&agent->observation, "", 0, 0, 1, PASSWORD_BITS,
                "1 at the place of the bit to guess, 0 elsewhere");
    fugu_discrete(&agent->action, "", 0, 2, "guess 0; guess 1");
    spec->reward = "1 after the last bit if all of them were right, else 0";
    fugu_log(spec, "score");
    fugu_log(spec, "right_bits");
    fugu_key(spec, "0", 0);
    fugu_key(spec, "1", 1);
    fugu_key(spec, "left", 0);
    fugu_key(spec, "right", 1);
    spec->waits_for_a_key = true;
    fugu_picture(spec, 6, 4, 5);
}

static inline void password_init(Password* env) {
    (void)env;
}

static inline void password_reset(Password* env) {
    const bool first = env->base.episode == 0;
    env->previous = first ? -1 : (int32_t)env->guess;
    env->opened = first ? 0 : env->opened;
    env->guess = 0;
}

static inline void password_step(Password* env, FuguIO* io) {
    const uint32_t bit = (uint32_t)*(const int64_t*)io->groups[0].actions & 1u;
    env->guess |= bit << (env->base.step - 1);
    if (env->base.step >= env->length) {
        const uint32_t all = (1u << env->length) - 1u;
        uint32_t wrong = (env->guess ^ (uint32_t)env->secret) & all;
        int32_t right = env->length;
        for (; wrong; wrong &= wrong - 1)
            --right;
        const bool opens = right == env->length;
        io->groups[0].rewards[0] = opens ? 1.0f : 0.0f;
        io->log[0] += opens ? 1.0f : 0.0f;
        io->log[1] += (float)right;
        io->terminated = true;
        env->opened += opens && env->opened < 999999;
    }
}

static inline void password_observe(Password* env, FuguIO* io) {
    float* observation = io->groups[0].observations;
    /* Past the end there is no bit to guess. */
    const int32_t place = env->base.step < env->length ? env->base.step : -1;
    for (int32_t i = 0; i < PASSWORD_BITS; ++i)
        observation[i] = i == place ? 1.0f : 0.0f;
}

static void password_draw(const Password* env, FuguCanvas* canvas) {
    const float width = fugu_min(0.7f, 5.4f / (float)env->length), radius = 0.4f * width;
    const float left = 3.0f - width * ((float)env->length - 1) / 2;
    const uint32_t all = (1u << env->length) - 1u, secret = (uint32_t)env->secret & all;
    const bool open = env->previous >= 0 && ((uint32_t)env->previous & all) == secret;
    canvas->background = 0xF7F3E9;
    /* The lock: what the previous guess made of it. */
    const uint32_t color = open ? 0x81B29A : 0x2F4858;
    const float lift = open ? 0.25f : 0.0f;
    fugu_circle(canvas, 3.0f, 1.25f - lift, 0.42f, color);
    fugu_circle(canvas, 3.0f, 1.25f - lift, 0.28f, 0xF7F3E9);
    fugu_rectangle(canvas, 2.58f, 1.25f - lift, 0.14f, 0.3f, color);
    fugu_rectangle(canvas, 3.28f, 1.25f - lift, 0.14f, open ? 0.15f : 0.3f, color);
    fugu_rectangle(canvas, 2.4f, 1.45f, 1.2f, 0.85f, color);
    fugu_circle(canvas, 3.0f, 1.8f, 0.12f, 0xF2CC8F);
    fugu_rectangle(canvas, 2.96f, 1.8f, 0.08f, 0.28f, 0xF2CC8F);
    for (int32_t i = 0; i < env->length; ++i) {
        const float x = left + width * (float)i;
        const uint32_t hidden = secret >> i & 1u, said = env->guess >> i & 1u;
        if (env->previous >= 0)
            fugu_circle(canvas, x, 3.65f, 0.4f * radius,
                        ((uint32_t)env->previous >> i & 1u) == hidden ? 0x81B29A : 0xE07A5F);
        if (i == env->base.step)
            fugu_circle(canvas, x, 3.0f, 1.2f * radius, 0xF2CC8F);
        const bool known = i < env->base.step;
        fugu_circle(canvas, x, 3.0f, radius,
                    !known           ? 0xDAD7CD
                    : said == hidden ? 0x81B29A
                                     : 0xE07A5F);
        fugu_text(canvas, x, 3.0f, radius, 0x2F4858, !known ? "?" : said ? "1" : "0");
    }
    fugu_number(canvas, 1.5f, 0.35f, 0.25f, 0x2F4858, "try ", (int64_t)env->base.episode + 1);
    fugu_number(canvas, 4.5f, 0.35f, 0.25f, 0x2F4858, "opened ", env->opened);
}

FUGU_ENVIRONMENT(Password, password, "Guess a password bit by bit; a check of exploration.")
