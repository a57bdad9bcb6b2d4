/* Bandit: one pull of one of several arms is an episode. The arm `best` pays 1 with probability
   0.9, every other one with probability 0.1. The observation never changes.

   It checks that rewards raise the probability of the action that earned them, and that noise in
   the rewards does not drown it: the best arm earns 0.9 on average, chance with 4 arms earns 0.3.
 */
#include "fugu_env.h"

enum { BANDIT_ARMS = 16, BANDIT_HISTORY = 64, BANDIT_PAID = 128 };

typedef struct Bandit {
    FuguEnv base;
    int32_t arms, best;
    int32_t best_arm;                /* `best` modulo `arms` */
    uint8_t history[BANDIT_HISTORY]; /* the last pulls, for the picture: arm + 1, or with PAID */
    uint8_t next, last;              /* places in it */
} Bandit;

static const FuguSetting bandit_settings[] = {
    FUGU_MAX_STEPS(0),
    FUGU_INT(Bandit, arms, 4, 2, BANDIT_ARMS, "arms to choose from"),
    FUGU_INT(Bandit, best, 1, 0, 1000000, "the arm that pays most, modulo arms"),
};

static void bandit_describe(const Bandit* env, FuguSpec* spec) {
    static const char* keys[] = {"1", "2", "3", "4", "5", "6", "7", "8", "9", "0"};
    FuguGroup* agent = fugu_group(spec, "agent", 1);
    fugu_floats(&agent->observation, "", 0, 1, 1, 1, "always 1");
    fugu_discrete(&agent->action, "", 0, env->arms, "the arm to pull");
    spec->reward = "1 with probability 0.9 for the best arm, with probability 0.1 for the others, "
                   "else 0";
    fugu_log(spec, "score");
    for (int i = 0; i < env->arms && i < 10; ++i)
        fugu_key(spec, keys[i], i);
    spec->waits_for_a_key = true;
    fugu_picture(spec, 6, 4, 8);
}

static inline void bandit_init(Bandit* env) {
    env->best_arm = env->best % env->arms;
}

static inline void bandit_reset(Bandit* env) {
    if (env->base.episode == 0) { /* the picture's memory is of one seed */
        for (int i = 0; i < BANDIT_HISTORY; ++i)
            env->history[i] = 0;
        env->next = env->last = 0;
    }
}

static inline void bandit_step(Bandit* env, FuguIO* io) {
    const int32_t arm = (int32_t)*(const int64_t*)io->groups[0].actions;
    const bool best = arm == env->best_arm;
    const bool paid = fugu_chance(&env->base.random, best ? 0.9f : 0.1f);
    io->groups[0].rewards[0] = paid ? 1.0f : 0.0f;
    io->log[0] += best ? 1.0f : 0.0f;
    io->terminated = true;
    env->history[env->next] = (uint8_t)((arm + 1) | (paid ? BANDIT_PAID : 0));
    env->last = env->next;
    env->next = (uint8_t)((env->next + 1) % BANDIT_HISTORY);
}

static inline void bandit_observe(Bandit* env, FuguIO* io) {
    (void)env;
    *(float*)io->groups[0].observations = 1.0f;
}

static void bandit_draw(const Bandit* env, FuguCanvas* canvas) {
    int paid[BANDIT_ARMS] = {0}, pulled[BANDIT_ARMS] = {0}, total = 0;
    for (int i = 0; i < BANDIT_HISTORY; ++i) {
        const int arm = (env->history[i] & 127) - 1, won = env->history[i] >= BANDIT_PAID;
        if (arm >= 0 && arm < env->arms) {
            ++pulled[arm];
            paid[arm] += won;
            total += won;
        }
    }
    const int last = env->history[env->last];
    const float width = 5.4f / (float)env->arms, inside = 0.7f * width;
    const float unit = 2.1f / BANDIT_HISTORY;
    canvas->background = 0xF7F3E9;
    fugu_rectangle(canvas, 0.2f, 3.65f, 5.6f, 0.06f, 0x9AA5A0);
    for (int i = 0; i < env->arms; ++i) {
        const float middle = 0.3f + width * ((float)i + 0.5f), x = middle - inside / 2;
        const bool now = last && (last & 127) == i + 1;
        const float good = unit * (float)paid[i], bad = unit * (float)(pulled[i] - paid[i]);
        /* Its last pulls: those that paid below, the others above. */
        fugu_rectangle(canvas, x, 2.8f - good, inside, good, 0x81B29A);
        fugu_rectangle(canvas, x, 2.8f - good - bad, inside, bad, 0xE6D5B8);
        fugu_rectangle(canvas, x, 2.85f, inside, 0.8f, now ? 0x3D6A80 : 0x2F4858);
        const float radius = fugu_min(0.2f, 0.35f * inside);
        const uint32_t light = !now ? 0x5B7382 : last >= BANDIT_PAID ? 0xF2CC8F : 0xE07A5F;
        fugu_circle(canvas, middle, 3.15f, radius, light);
        fugu_line(canvas, x + inside, 3.4f, x + inside + 0.12f * width, now ? 3.45f : 3.05f,
                  0.05f * width, 0xE07A5F);
        fugu_circle(canvas, x + inside + 0.12f * width, now ? 3.45f : 3.05f, 0.08f * width,
                    0xE07A5F);
        if (i == env->best_arm)
            for (int k = -1; k <= 1; ++k) /* a crown */
                fugu_triangle(canvas, middle + radius * ((float)k - 0.5f), 3.6f,
                              middle + radius * ((float)k + 0.5f), 3.6f, middle + radius * (float)k,
                              3.4f, 0xF2CC8F);
    }
    fugu_number(canvas, 3.0f, 0.35f, 0.25f, 0x2F4858, "paid ", total);
}

FUGU_ENVIRONMENT(Bandit, bandit, "Find the arm that pays most; a check of learning itself.")
