/* Minesweeper, as Windows had it (Donner and Johnson, 1990): open every cell without a mine. */
#include "fugu_env.h"

#define MINESWEEPER_MAX 16
#define MINESWEEPER_CELLS (MINESWEEPER_MAX * MINESWEEPER_MAX)
#define MINESWEEPER_CLOSED 9
#define MINESWEEPER_MINE 9 /* in the truth, where nothing is closed */

typedef struct Minesweeper {
    FuguEnv base;
    int32_t width, height, mines;
    int32_t cells, safe, opened;      /* safe ones are cells without a mine */
    int32_t inverse;                  /* cell * inverse >> 16 is cell / width, without a division */
    int32_t last;                     /* the cell opened last, -1 before the first */
    float share;                      /* 1 / safe */
    uint16_t won, lost;               /* games before this one, to be drawn; they wrap */
    uint8_t view[MINESWEEPER_CELLS];  /* what a player sees, by rows */
    uint8_t truth[MINESWEEPER_CELLS]; /* what is there once a first cell was opened */
} Minesweeper;

static const FuguSetting minesweeper_settings[] = {
    FUGU_MAX_STEPS(300),
    FUGU_INT(Minesweeper, width, 9, 4, MINESWEEPER_MAX, "cells"),
    FUGU_INT(Minesweeper, height, 9, 4, MINESWEEPER_MAX, "cells"),
    FUGU_INT(Minesweeper, mines, 10, 1, MINESWEEPER_CELLS - 1, "one cell at least stays free"),
};

/* How large a cell is drawn. */
static inline float minesweeper_side(const Minesweeper* env) {
    return 9.6f / (float)fugu_max_int(env->width, env->height);
}

/* There are more cells than keys, so a person points at them. */
static void minesweeper_describe(const Minesweeper* env, FuguSpec* spec) {
    FuguGroup* agent = fugu_group(spec, "agent", 1);
    fugu_box(&agent->observation, "", 0, FUGU_U8, 0, 9, env->height, env->width, 0,
             "of each open cell, how many of its 8 neighbours hold a mine; 9 for a closed one");
    fugu_discrete(&agent->action, "", 0, env->cells, "the cell to open, by rows from the top");
    spec->reward = "1 for all safe cells together, in equal shares as they open; 1 for the last of "
                   "them; -1 for a mine; -0.1 for a cell that is open";
    fugu_log(spec, "won");
    fugu_log(spec, "opened");
    const float across = minesweeper_side(env) * (float)env->width;
    const float down = minesweeper_side(env) * (float)env->height;
    fugu_cells(spec, 0, env->width, env->height, 5.0f - across / 2, 6.2f - down / 2, across, down);
    fugu_picture(spec, 10, 11.2f, 4);
    spec->waits_for_a_key = true;
}

static inline void minesweeper_init(Minesweeper* env) {
    env->cells = env->width * env->height;
    env->inverse = 65536 / env->width + 1;
    env->mines = fugu_min_int(env->mines, env->cells - 1);
    env->safe = env->cells - env->mines;
    env->share = 1.0f / (float)env->safe;
}

static inline void minesweeper_reset(Minesweeper* env) {
    for (int i = 0; i < MINESWEEPER_CELLS; ++i) {
        env->view[i] = MINESWEEPER_CLOSED;
        env->truth[i] = 0;
    }
    env->opened = 0;
    env->last = -1;
    if (env->base.episode == 0)
        env->won = env->lost = 0;
}

/* The cells around one and itself: columns [x0, x1] of rows [y0, y1]. */
typedef struct MinesweeperBlock {
    int x0, x1, y0, y1;
} MinesweeperBlock;

static inline MinesweeperBlock minesweeper_around(const Minesweeper* env, int cell) {
    const int y = cell * env->inverse >> 16, x = cell - y * env->width;
    const MinesweeperBlock block = {x - (x > 0), x + (x + 1 < env->width), y - (y > 0),
                                    y + (y + 1 < env->height)};
    return block;
}

static inline void minesweeper_lay(Minesweeper* env, int cell) {
    const MinesweeperBlock block = minesweeper_around(env, cell);
    const int width = env->width;
    for (int y = block.y0; y <= block.y1; ++y)
        for (int x = block.x0; x <= block.x1; ++x) {
            uint8_t* truth = &env->truth[y * width + x];
            *truth = (uint8_t)(*truth + (*truth != MINESWEEPER_MINE));
        }
    env->truth[cell] = MINESWEEPER_MINE;
}

/* Mines anywhere but in the first cell, all layouts alike: Floyd's way to draw without repeats. */
static inline void minesweeper_lay_all(Minesweeper* env, int first) {
    const int places = env->cells - 1;
    for (int j = places - env->mines; j < places; ++j) {
        const int drawn = fugu_below(&env->base.random, j + 1);
        const int cell = drawn + (drawn >= first);
        minesweeper_lay(env, env->truth[cell] == MINESWEEPER_MINE ? j + (j >= first) : cell);
    }
}

/* Opens a closed cell that holds no mine, and around every 0 all that is closed. */
static inline int minesweeper_open(Minesweeper* env, int first) {
    uint8_t stack[MINESWEEPER_CELLS]; /* every cell is put here once, when it opens */
    const int width = env->width;
    int count = 1, opened = 0;
    stack[0] = (uint8_t)first;
    env->view[first] = env->truth[first];
    while (count) {
        const int cell = stack[--count];
        ++opened;
        if (env->truth[cell])
            continue;
        const MinesweeperBlock block = minesweeper_around(env, cell);
        for (int y = block.y0; y <= block.y1; ++y) {
            for (int x = block.x0; x <= block.x1; ++x) {
                const int next = y * width + x;
                if (env->view[next] == MINESWEEPER_CLOSED) {
                    env->view[next] = env->truth[next];
                    stack[count++] = (uint8_t)next;
                }
            }
        }
    }
    return opened;
}

static inline void minesweeper_step(Minesweeper* env, FuguIO* io) {
    const int cell = (int)*(const int64_t*)io->groups[0].actions;
    float* reward = io->groups[0].rewards;
    bool won = false;
    if (env->opened == 0)
        minesweeper_lay_all(env, cell);
    if (env->view[cell] != MINESWEEPER_CLOSED) {
        *reward = -0.1f;
    } else if (env->truth[cell] == MINESWEEPER_MINE) {
        *reward = -1.0f;
        io->terminated = true;
        ++env->lost;
    } else {
        const int opened = minesweeper_open(env, cell);
        env->opened += opened;
        won = env->opened == env->safe;
        *reward = (float)opened * env->share + (won ? 1.0f : 0.0f);
        io->terminated = won;
        env->won += won;
    }
    env->last = cell;
    if (io->terminated || (env->base.max_steps && env->base.step >= env->base.max_steps)) {
        io->log[0] += won;
        io->log[1] += (float)env->opened * env->share;
    }
}

static inline void minesweeper_observe(Minesweeper* env, FuguIO* io) {
    uint8_t *observation = io->groups[0].observations, *masks = io->groups[0].masks;
    const int cells = env->cells;
    for (int i = 0; i < cells; ++i)
        observation[i] = env->view[i];
    for (int i = 0; i < cells; ++i)
        masks[i] = env->view[i] == MINESWEEPER_CLOSED;
}

static void minesweeper_draw(const Minesweeper* env, FuguCanvas* canvas) {
    static const uint32_t colors[] = {0,        0x3D7EA6, 0x3D8B7D, 0xE07A5F, 0x5B4B8A,
                                      0xA23B3B, 0x2F8F9D, 0x2F4858, 0x7D8B8A};
    const float cell = minesweeper_side(env);
    const float left = 5.0f - cell * (float)env->width / 2;
    const float top = 6.2f - cell * (float)env->height / 2, gap = cell * 0.04f;
    canvas->background = 0xF7F3E9;
    fugu_circle(canvas, 0.75f, 0.7f, 0.26f, 0x2F4858);
    fugu_line(canvas, 0.36f, 0.7f, 1.14f, 0.7f, 0.09f, 0x2F4858);
    fugu_line(canvas, 0.75f, 0.31f, 0.75f, 1.09f, 0.09f, 0x2F4858);
    fugu_circle(canvas, 0.67f, 0.62f, 0.07f, 0xF7F3E9);
    fugu_number(canvas, 1.7f, 0.7f, 0.5f, 0x2F4858, "", env->mines);
    fugu_number(canvas, 4.4f, 0.7f, 0.45f, 0x7D8B8A, "left ", env->safe - env->opened);
    fugu_number(canvas, 6.7f, 0.7f, 0.45f, 0x3D8B7D, "won ", env->won);
    fugu_number(canvas, 8.7f, 0.7f, 0.45f, 0xE07A5F, "lost ", env->lost);
    fugu_rectangle(canvas, left - 0.1f, top - 0.1f, cell * (float)env->width + 0.2f,
                   cell * (float)env->height + 0.2f, 0xCFC4B0);
    for (int i = 0; i < env->cells; ++i) {
        const float x = left + (float)(i % env->width) * cell + gap;
        const float y = top + (float)(i / env->width) * cell + gap, side = cell - 2 * gap;
        const int view = env->view[i];
        if (view == MINESWEEPER_CLOSED) { /* a raised button */
            fugu_rectangle(canvas, x, y, side, side, 0x5F8A8B);
            fugu_rectangle(canvas, x, y, side, side - gap * 2, 0x8FB8AF);
            fugu_rectangle(canvas, x, y, side, gap * 1.5f, 0xB5D3CA);
            continue;
        }
        fugu_rectangle(canvas, x, y, side, side, i == env->last ? 0xFBE9C4 : 0xF3EDE0);
        if (view)
            fugu_number(canvas, x + side / 2, y + side / 2, cell * 0.55f, colors[view], "", view);
    }
}

FUGU_ENVIRONMENT(Minesweeper, minesweeper, "Open every cell of a field that holds no mine.")
