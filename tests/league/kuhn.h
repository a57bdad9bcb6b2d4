/* Kuhn poker (1950): three cards, an ante of 1, one bet of 1; the same game as in exact_games.py.

   A player sees its card and the node, as one of twelve numbers, and nothing while the other
   decides. Actions: pass, bet. */
#include "fugu_env.h"

enum { KUHN_PASS, KUHN_BET, KUHN_SIGHTS = 12 };

typedef struct Kuhn {
    FuguEnv base;
    int32_t cards[2];
    int32_t moves; /* so far */
    int32_t bets;  /* a bit for each move that was one */
} Kuhn;

static const FuguSetting kuhn_settings[] = {
    FUGU_MAX_STEPS(0),
};

static void kuhn_describe(const Kuhn* env, FuguSpec* spec) {
    (void)env;
    FuguGroup* player = fugu_group(spec, "player", 2);
    fugu_floats(&player->observation, "", 0, 0, 1, KUHN_SIGHTS, "4 * card + node");
    fugu_discrete(&player->action, "", 0, 2, "pass; bet");
    fugu_picture(spec, 1, 1, 1);
}

static inline void kuhn_init(Kuhn* env) {
    (void)env;
}

static inline void kuhn_reset(Kuhn* env) {
    env->cards[0] = fugu_below(&env->base.random, 3);
    env->cards[1] = (env->cards[0] + 1 + fugu_below(&env->base.random, 2)) % 3;
    env->moves = env->bets = 0;
}

static inline void kuhn_end(const Kuhn* env, FuguIO* io, float first) {
    (void)env;
    io->groups[0].rewards[0] = first;
    io->groups[0].rewards[1] = -first;
    io->terminated = true;
}

static inline void kuhn_step(Kuhn* env, FuguIO* io) {
    const int player = env->moves & 1;
    const bool bet = ((const int64_t*)io->groups[0].actions)[player] == KUHN_BET;
    const bool faced = env->moves > 0 && (env->bets >> (env->moves - 1) & 1);
    const float higher = env->cards[0] > env->cards[1] ? 1.0f : -1.0f;
    env->bets |= (bet ? 1 : 0) << env->moves;
    ++env->moves;
    if (faced && !bet)
        kuhn_end(env, io, player == 0 ? -1.0f : 1.0f); /* who passes at a bet loses the ante */
    else if (faced)
        kuhn_end(env, io, 2.0f * higher);
    else if (!bet && env->moves == 2)
        kuhn_end(env, io, higher);
}

static inline void kuhn_observe(Kuhn* env, FuguIO* io) {
    const FuguRows* rows = &io->groups[0];
    const int player = env->moves & 1;
    /* "", "pb" of the first; "p", "b" of the second. */
    const int node = player == 0 ? env->moves / 2 : 2 + (env->bets & 1);
    float* sights = rows->observations;
    for (int i = 0; i < 2 * KUHN_SIGHTS; ++i)
        sights[i] = 0.0f;
    sights[player * KUHN_SIGHTS + 4 * env->cards[player] + node] = 1.0f;
    rows->live[0] = player == 0;
    rows->live[1] = player == 1;
}

static void kuhn_draw(const Kuhn* env, FuguCanvas* canvas) {
    (void)env;
    canvas->background = 0;
}

FUGU_ENVIRONMENT(Kuhn, kuhn, "Kuhn poker.")
