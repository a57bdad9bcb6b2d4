/* Tetris (Pajitnov, 1984): seven pieces from a shuffled bag, clockwise turns with small kicks. */
#include "fugu_env.h"

enum {
    TETRIS_MAX_WIDTH = 16,
    TETRIS_MAX_HEIGHT = 32,
    TETRIS_PIECES = 7,
    TETRIS_MARGIN = 4, /* bits of a row left of its first cell */
};
enum { TETRIS_NOTHING, TETRIS_LEFT, TETRIS_RIGHT, TETRIS_TURN, TETRIS_DOWN, TETRIS_DROP };
enum { TETRIS_I, TETRIS_O, TETRIS_T, TETRIS_S, TETRIS_Z, TETRIS_J, TETRIS_L };

typedef struct Tetris {
    FuguEnv base;
    uint32_t rows[TETRIS_MAX_HEIGHT + 4]; /* taken cells as bits, with walls and floor */
    int32_t piece, next, turn, x, y;      /* the corner of the piece's square of 4 by 4 */
    int32_t since_fall, lines, pieces, bag_left, score;
    uint8_t bag[TETRIS_PIECES];
    uint8_t cells[TETRIS_MAX_WIDTH * TETRIS_MAX_HEIGHT]; /* 0, or 1 + the piece it came from */
    int32_t width, height, gravity;
    float loss_penalty;
} Tetris;

static const FuguSetting tetris_settings[] = {
    FUGU_MAX_STEPS(10000),
    FUGU_INT(Tetris, width, 10, 4, TETRIS_MAX_WIDTH, "of the board"),
    FUGU_INT(Tetris, height, 20, 4, TETRIS_MAX_HEIGHT, "of the board"),
    FUGU_INT(Tetris, gravity, 4, 1, 1000, "steps after which a piece falls by a row"),
    FUGU_REAL(Tetris, loss_penalty, 1, 0, 100, "taken from the reward when the game is lost"),
};

/* Each piece in its four turns: four rows of four cells from the top, one hexadecimal digit each,
   the lowest one the top row, the lowest bit its left cell. */
static const uint16_t tetris_shapes[TETRIS_PIECES][4] = {
    {0x00F0, 0x4444, 0x0F00, 0x2222}, /* I */
    {0x0066, 0x0066, 0x0066, 0x0066}, /* O */
    {0x0072, 0x0262, 0x0270, 0x0232}, /* T */
    {0x0036, 0x0462, 0x0360, 0x0231}, /* S */
    {0x0063, 0x0264, 0x0630, 0x0132}, /* Z */
    {0x0071, 0x0226, 0x0470, 0x0322}, /* J */
    {0x0074, 0x0622, 0x0170, 0x0223}, /* L */
};
static const float tetris_rewards[5] = {0, 1, 3, 5, 8};

static void tetris_describe(const Tetris* env, FuguSpec* spec) {
    FuguGroup* agent = fugu_group(spec, "agent", 1);
    fugu_box(&agent->observation, "", 0, FUGU_U8, 0, 2,
             env->width * env->height + 2 * TETRIS_PIECES + 1, 0, 0,
             "cells of the board, rows from the top: 0 empty, 1 taken, 2 the falling piece; then "
             "its kind (I O T S Z J L), the kind of the next, and 1 if it falls at the next step");
    fugu_discrete(&agent->action, "", 0, 6, "nothing; left; right; turn; down; drop");
    spec->reward = "1, 3, 5 or 8 for 1, 2, 3 or 4 lines at once; minus loss_penalty for a loss";
    fugu_log(spec, "lines");
    fugu_log(spec, "pieces");
    fugu_key(spec, "left", TETRIS_LEFT);
    fugu_key(spec, "right", TETRIS_RIGHT);
    fugu_key(spec, "up", TETRIS_TURN);
    fugu_key(spec, "down", TETRIS_DOWN);
    fugu_key(spec, "space", TETRIS_DROP);
    fugu_picture(spec, (float)env->width + 7, (float)fugu_max_int(env->height, 14) + 1, 10);
}

static inline void tetris_init(Tetris* env) {
    (void)env;
}

static inline uint32_t tetris_empty_row(const Tetris* env) {
    return ~(((1u << env->width) - 1) << TETRIS_MARGIN);
}

/* Whether a piece at (x, y) overlaps anything; -3 <= x <= width, 0 <= y <= height. */
static inline bool tetris_hits(const Tetris* env, int turn, int x, int y) {
    const uint32_t shape = tetris_shapes[env->piece][turn];
    const uint32_t* rows = &env->rows[y];
    const int shift = x + TETRIS_MARGIN;
    return ((((shape & 15) << shift) & rows[0]) | (((shape >> 4 & 15) << shift) & rows[1]) |
            (((shape >> 8 & 15) << shift) & rows[2]) | (((shape >> 12 & 15) << shift) & rows[3])) !=
           0;
}

/* The pieces come in rounds of all seven, each round in an order of its own. */
static inline int tetris_draw_piece(Tetris* env) {
    if (env->bag_left == 0) {
        for (int i = 0; i < TETRIS_PIECES; ++i)
            env->bag[i] = (uint8_t)i;
        env->bag_left = TETRIS_PIECES;
    }
    const int taken = fugu_below(&env->base.random, env->bag_left);
    const int piece = env->bag[taken];
    env->bag[taken] = env->bag[--env->bag_left];
    return piece;
}

/* Whether there was room for the new piece. */
static inline bool tetris_spawn(Tetris* env) {
    env->piece = env->next;
    env->next = tetris_draw_piece(env);
    env->turn = env->y = env->since_fall = 0;
    env->x = (env->width - 4) / 2;
    return !tetris_hits(env, 0, env->x, env->y);
}

static inline void tetris_reset(Tetris* env) {
    for (int y = 0; y < env->height; ++y)
        env->rows[y] = tetris_empty_row(env);
    for (int y = env->height; y < env->height + 4; ++y)
        env->rows[y] = ~0u;
    for (int i = 0; i < env->width * env->height; ++i)
        env->cells[i] = 0;
    env->lines = env->pieces = env->score = env->bag_left = 0;
    env->next = tetris_draw_piece(env);
    tetris_spawn(env);
}

/* Takes full rows out, from the row `top` on; how many there were. */
static int tetris_clear_lines(Tetris* env, int top) {
    const int width = env->width;
    int cleared = 0;
    for (int y = top; y < fugu_min_int(top + 4, env->height); ++y) {
        if (env->rows[y] != ~0u)
            continue;
        ++cleared;
        for (int above = y; above > 0; --above)
            env->rows[above] = env->rows[above - 1];
        env->rows[0] = tetris_empty_row(env);
        for (int i = (y + 1) * width - 1; i >= width; --i)
            env->cells[i] = env->cells[i - width];
        for (int i = 0; i < width; ++i)
            env->cells[i] = 0;
    }
    return cleared;
}

/* The piece becomes part of the board and the next one comes. */
static inline void tetris_lock(Tetris* env, FuguIO* io) {
    const uint32_t shape = tetris_shapes[env->piece][env->turn];
    for (int i = 0; i < 16; ++i) {
        if (!(shape >> i & 1))
            continue;
        const int x = env->x + i % 4, y = env->y + i / 4;
        env->rows[y] |= 1u << (x + TETRIS_MARGIN);
        env->cells[y * env->width + x] = (uint8_t)(1 + env->piece);
    }
    const int cleared = tetris_clear_lines(env, env->y);
    float reward = tetris_rewards[cleared];
    env->lines += cleared;
    env->score += (int32_t)reward;
    ++env->pieces;
    if (!tetris_spawn(env)) {
        io->terminated = true;
        reward -= env->loss_penalty;
    }
    io->groups[0].rewards[0] = reward;
}

static inline void tetris_turn(Tetris* env) {
    static const int8_t kicks[5] = {0, -1, 1, -2, 2}; /* the last two for the long piece alone */
    const int turn = (env->turn + 1) & 3;
    for (int i = 0; i < (env->piece == TETRIS_I ? 5 : 3); ++i) {
        const int x = env->x + kicks[i];
        if (x >= -3 && x <= env->width && !tetris_hits(env, turn, x, env->y)) {
            env->turn = turn;
            env->x = x;
            return;
        }
    }
}

static inline void tetris_step(Tetris* env, FuguIO* io) {
    const int64_t action = *(const int64_t*)io->groups[0].actions;
    if (action == TETRIS_LEFT || action == TETRIS_RIGHT) {
        const int x = env->x + (action == TETRIS_LEFT ? -1 : 1);
        if (!tetris_hits(env, env->turn, x, env->y))
            env->x = x;
    } else if (action == TETRIS_TURN) {
        tetris_turn(env);
    } else if (action == TETRIS_DROP) {
        while (!tetris_hits(env, env->turn, env->x, env->y + 1))
            ++env->y;
    }
    if (++env->since_fall >= env->gravity || action == TETRIS_DOWN || action == TETRIS_DROP) {
        env->since_fall = 0;
        if (tetris_hits(env, env->turn, env->x, env->y + 1))
            tetris_lock(env, io);
        else
            ++env->y;
    }
    if (io->terminated || env->base.step == env->base.max_steps) {
        io->log[0] += (float)env->lines;
        io->log[1] += (float)env->pieces;
    }
}

static inline void tetris_observe(Tetris* env, FuguIO* io) {
    uint8_t* out = io->groups[0].observations;
    const int width = env->width, cells = width * env->height;
    for (int i = 0; i < cells; ++i)
        out[i] = env->cells[i] != 0;
    const uint32_t shape = tetris_shapes[env->piece][env->turn];
    for (int i = 0; i < 16; ++i)
        if (shape >> i & 1)
            out[(env->y + i / 4) * width + env->x + i % 4] = 2;
    out += cells;
    for (int i = 0; i < TETRIS_PIECES; ++i) {
        out[i] = i == env->piece;
        out[TETRIS_PIECES + i] = i == env->next;
    }
    out[2 * TETRIS_PIECES] = env->since_fall + 1 >= env->gravity;
}

static void tetris_block(FuguCanvas* canvas, float x, float y, int piece) {
    static const uint32_t colors[TETRIS_PIECES] = {0x4F9DA6, 0xF2CC8F, 0xB08BBB, 0x81B29A,
                                                   0xD1495B, 0x5B7DB1, 0xE07A5F};
    static const uint32_t lights[TETRIS_PIECES] = {0x7FBAC1, 0xF8E0BA, 0xC9AED2, 0xA7CBB8,
                                                   0xE07683, 0x8AA3CB, 0xEBA08B};
    fugu_rectangle(canvas, x + 0.04f, y + 0.04f, 0.92f, 0.92f, colors[piece]);
    fugu_rectangle(canvas, x + 0.04f, y + 0.04f, 0.92f, 0.14f, lights[piece]);
    fugu_circle(canvas, x + 0.5f, y + 0.55f, 0.2f, lights[piece]);
}

static void tetris_draw_shape(FuguCanvas* canvas, float x, float y, int piece, int turn,
                              bool ghost) {
    for (int i = 0; i < 16; ++i) {
        if (!(tetris_shapes[piece][turn] >> i & 1))
            continue;
        const float left = x + (float)(i % 4), top = y + (float)(i / 4);
        if (ghost)
            fugu_rectangle(canvas, left + 0.08f, top + 0.08f, 0.84f, 0.84f, 0x3A525E);
        else
            tetris_block(canvas, left, top, piece);
    }
}

static void tetris_draw(const Tetris* env, FuguCanvas* canvas) {
    const float width = (float)env->width, height = (float)env->height, side = width + 4.0f;
    canvas->background = 0x2F4858;
    fugu_rectangle(canvas, 0.5f, 0.5f, width, height, 0x1B2A33);
    for (int x = 1; x < env->width; x += 2)
        fugu_rectangle(canvas, 0.5f + (float)x, 0.5f, 1, height, 0x1F303A);
    int landing = env->y;
    while (landing < env->height && !tetris_hits(env, env->turn, env->x, landing + 1))
        ++landing;
    tetris_draw_shape(canvas, 0.5f + (float)env->x, 0.5f + (float)landing, env->piece, env->turn,
                      true);
    for (int i = 0; i < env->width * env->height; ++i)
        if (env->cells[i])
            tetris_block(canvas, 0.5f + (float)(i % env->width), 0.5f + (float)(i / env->width),
                         env->cells[i] - 1);
    tetris_draw_shape(canvas, 0.5f + (float)env->x, 0.5f + (float)env->y, env->piece, env->turn,
                      false);
    fugu_text(canvas, side, 1.2f, 0.8f, 0x9AB0B5, "next");
    fugu_rectangle(canvas, width + 1.5f, 2.0f, 5, 4, 0x1B2A33);
    const float wide = env->next == TETRIS_I || env->next == TETRIS_O ? 2.0f : 1.5f;
    const float tall = env->next == TETRIS_I ? 1.5f : 1.0f;
    tetris_draw_shape(canvas, side - wide, 4.0f - tall, env->next, 0, false);
    fugu_text(canvas, side, 7.2f, 0.8f, 0x9AB0B5, "lines");
    fugu_number(canvas, side, 8.3f, 1.2f, 0xF7F3E9, "", env->lines);
    fugu_text(canvas, side, 9.8f, 0.8f, 0x9AB0B5, "score");
    fugu_number(canvas, side, 10.9f, 1.2f, 0xF2CC8F, "", env->score);
    fugu_text(canvas, side, 12.4f, 0.8f, 0x9AB0B5, "pieces");
    fugu_number(canvas, side, 13.5f, 1.2f, 0x81B29A, "", env->pieces);
}

FUGU_ENVIRONMENT(Tetris, tetris, "Turn and drop falling pieces to fill whole lines.")
