/* 2048, the sliding game of Gabriele Cirulli (2014): equal tiles that meet become their sum. */
#include "fugu_env.h"

#define GAME2048_MAX 6

enum { GAME2048_UP, GAME2048_RIGHT, GAME2048_DOWN, GAME2048_LEFT };

typedef struct Game2048 {
    FuguEnv base;
    int64_t score, gained; /* classic points: of the episode, of the last move */
    int32_t size;
    int32_t newest;                             /* the cell of the last tile that came */
    uint8_t moves[4];                           /* which directions change the board */
    uint8_t board[GAME2048_MAX * GAME2048_MAX]; /* exponents of 2 by rows; 0 is empty */
} Game2048;

static const FuguSetting game2048_settings[] = {
    FUGU_MAX_STEPS(20000),
    FUGU_INT(Game2048, size, 4, 3, GAME2048_MAX, "rows and columns of the board"),
};

static void game2048_describe(const Game2048* env, FuguSpec* spec) {
    const int size = env->size;
    FuguGroup* agent = fugu_group(spec, "agent", 1);
    /* With 4s among the new tiles, n cells hold 2^(n + 1) at most. */
    fugu_box(&agent->observation, "", 0, FUGU_U8, 0, size * size + 1, size, size, 0,
             "the exponent of 2 of each cell's tile, by rows from the top; 0 is empty");
    fugu_discrete(&agent->action, "", 0, 4, "up; right; down; left");
    spec->reward = "0.1 times the exponent of every tile that a merge makes; a move that changes "
                   "nothing gives 0";
    fugu_log(spec, "score");
    fugu_log(spec, "max_tile");
    fugu_key(spec, "up", GAME2048_UP);
    fugu_key(spec, "right", GAME2048_RIGHT);
    fugu_key(spec, "down", GAME2048_DOWN);
    fugu_key(spec, "left", GAME2048_LEFT);
    fugu_picture(spec, 10, 11.6f, 8);
    spec->waits_for_a_key = true;
}

static inline void game2048_init(Game2048* env) {
    (void)env;
}

/* A new tile in an empty cell; there is one. */
static inline void game2048_spawn(Game2048* env) {
    const int cells = env->size * env->size;
    uint8_t empty[GAME2048_MAX * GAME2048_MAX];
    int count = 0;
    for (int i = 0; i < cells; ++i) {
        empty[count] = (uint8_t)i;
        count += env->board[i] == 0;
    }
    env->newest = empty[fugu_below(&env->base.random, count)];
    env->board[env->newest] = fugu_chance(&env->base.random, 0.1f) ? 2 : 1;
}

/* Whether a tile of `from` can go to the cell beside it: it is empty or holds an equal tile. */
static inline uint8_t game2048_goes(uint8_t from, uint8_t to) {
    return (uint8_t)((from != 0) & ((to == 0) | (to == from)));
}

static inline void game2048_find_moves(Game2048* env) {
    const int size = env->size;
    const uint8_t* board = env->board;
    uint8_t up = 0, right = 0, down = 0, left = 0;
    for (int i = 0; i < size * (size - 1); ++i) {
        down |= game2048_goes(board[i], board[i + size]);
        up |= game2048_goes(board[i + size], board[i]);
    }
    for (int y = 0; y < size; ++y) {
        for (int i = y * size; i < y * size + size - 1; ++i) {
            right |= game2048_goes(board[i], board[i + 1]);
            left |= game2048_goes(board[i + 1], board[i]);
        }
    }
    env->moves[GAME2048_UP] = up;
    env->moves[GAME2048_RIGHT] = right;
    env->moves[GAME2048_DOWN] = down;
    env->moves[GAME2048_LEFT] = left;
}

static inline void game2048_reset(Game2048* env) {
    for (int i = 0; i < GAME2048_MAX * GAME2048_MAX; ++i)
        env->board[i] = 0;
    env->score = env->gained = 0;
    game2048_spawn(env);
    game2048_spawn(env);
    game2048_find_moves(env);
}

/* Slides one line towards its first cell; the sum of the exponents that merges made. Tiles come in
   no order that a processor could guess, so there is no branch. */
static inline int game2048_slide(Game2048* env, int first, int stride) {
    const int size = env->size;
    int64_t points = 0;
    uint8_t line[GAME2048_MAX + 1] = {0};
    int count = 0, made = 0;
    uint8_t waiting = 0; /* the last tile of the line, if it has not merged yet */
    for (int i = 0; i < size; ++i) {
        const uint8_t tile = env->board[first + i * stride];
        const int there = tile != 0, merges = there & (tile == waiting);
        const uint8_t result = (uint8_t)(tile + merges);
        count -= merges;
        line[count] = result; /* an empty cell is overwritten by the next tile */
        count += there;
        made += merges * result;
        points += (int64_t)merges << result;
        waiting = merges ? 0 : there ? tile : waiting;
    }
    for (int i = 0; i < size; ++i)
        env->board[first + i * stride] = line[i];
    env->gained += points;
    return made;
}

static inline uint8_t game2048_highest(const Game2048* env) {
    uint8_t highest = 0;
    for (int i = 0; i < env->size * env->size; ++i)
        highest = env->board[i] > highest ? env->board[i] : highest;
    return highest;
}

static inline void game2048_step(Game2048* env, FuguIO* io) {
    const int64_t action = *(const int64_t*)io->groups[0].actions;
    const int size = env->size;
    env->gained = 0;
    if (env->moves[action]) {
        const int across = action == GAME2048_UP || action == GAME2048_DOWN ? 1 : size;
        const int along = size + 1 - across; /* one of them is 1, the other the size */
        const bool forward = action == GAME2048_UP || action == GAME2048_LEFT;
        const int first = forward ? 0 : (size - 1) * along;
        int made = 0;
        for (int i = 0; i < size; ++i)
            made += game2048_slide(env, first + i * across, forward ? along : -along);
        env->score += env->gained;
        io->groups[0].rewards[0] = 0.1f * (float)made;
        game2048_spawn(env);
        game2048_find_moves(env);
    }
    io->terminated = !(env->moves[0] | env->moves[1] | env->moves[2] | env->moves[3]);
    if (io->terminated || (env->base.max_steps && env->base.step >= env->base.max_steps)) {
        io->log[0] += (float)env->score;
        io->log[1] += (float)((int64_t)1 << game2048_highest(env));
    }
}

static inline void game2048_observe(Game2048* env, FuguIO* io) {
    uint8_t* observation = io->groups[0].observations;
    const int cells = env->size * env->size;
    for (int i = 0; i < cells; ++i)
        observation[i] = env->board[i];
    for (int i = 0; i < 4; ++i)
        io->groups[0].masks[i] = env->moves[i];
}

static void game2048_rounded(FuguCanvas* canvas, float x, float y, float side, float r,
                             uint32_t color) {
    fugu_rectangle(canvas, x + r, y, side - 2 * r, side, color);
    fugu_rectangle(canvas, x, y + r, side, side - 2 * r, color);
    for (int corner = 0; corner < 4; ++corner)
        fugu_circle(canvas, corner & 1 ? x + side - r : x + r, corner & 2 ? y + side - r : y + r, r,
                    color);
}

static void game2048_draw(const Game2048* env, FuguCanvas* canvas) {
    static const uint32_t colors[] = {0xE4DCCB, 0xFBF6EA, 0xF8E9C8, 0xF2CC8F, 0xF0B27A,
                                      0xEB9670, 0xE07A5F, 0xC9ADD9, 0xA98BC9, 0x8EC3A7,
                                      0x5FA58B, 0x3D8B7D, 0x3D7EA6, 0x2F5D8A, 0x2F4858};
    const int size = env->size;
    const float cell = 9.2f / (float)size, gap = cell * 0.05f;
    canvas->background = 0xF7F3E9;
    fugu_text(canvas, 1.75f, 0.85f, 1.0f, 0xE07A5F, "2048");
    fugu_number(canvas, 6.9f, 0.62f, 0.5f, 0x2F4858, "score ", env->score);
    if (env->gained)
        fugu_number(canvas, 6.9f, 1.2f, 0.38f, 0x5FA58B, "+", env->gained);
    game2048_rounded(canvas, 0.2f, 1.8f, 9.6f, 0.3f, 0xCFC4B0);
    for (int i = 0; i < size * size; ++i) {
        const int tile = env->board[i];
        /* The newest tile is a little smaller, as if it still grew. */
        const float inset = tile && i == env->newest ? gap * 2.2f : gap;
        const float x = 0.4f + (float)(i % size) * cell, y = 2.0f + (float)(i / size) * cell;
        game2048_rounded(canvas, x + inset, y + inset, cell - 2 * inset, cell * 0.1f,
                         colors[fugu_min_int(tile, 14)]);
        if (tile) {
            const float height = tile < 7 ? 0.42f : tile < 10 ? 0.36f : tile < 14 ? 0.29f : 0.2f;
            fugu_number(canvas, x + cell / 2, y + cell / 2, height * cell,
                        tile < 5 ? 0x5B5346 : 0xFFFFFF, "", (int64_t)1 << tile);
        }
    }
}

FUGU_ENVIRONMENT(Game2048, game2048, "Slide tiles so that equal ones meet and double.")
