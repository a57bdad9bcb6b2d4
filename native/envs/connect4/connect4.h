/* Connect Four (Wexler and Strongin, 1974): four discs in a line win, on 7 columns of 6 cells. */
#include "fugu_env.h"

#define CONNECT4_COLUMNS 7
#define CONNECT4_ROWS 6
#define CONNECT4_CELLS 42

enum { CONNECT4_RANDOM, CONNECT4_SCRIPTED, CONNECT4_SELF };

typedef struct Connect4 {
    FuguEnv base;
    /* A bit a cell, 8 * row + column with row 0 at the top. Column 7 stays empty, so that no line
       runs around the edge. Of the agent and its opponent, or of both agents. */
    uint64_t discs[2];
    int32_t opponent;
    uint8_t height[CONNECT4_COLUMNS];
    uint8_t turn;     /* whose disc falls next */
    uint8_t count;    /* discs on the board */
    uint8_t last;     /* where the last one fell, as a bit's number + 1; 0 for nowhere */
    uint8_t tally[3]; /* games that the first won, that the second won, draws; wraps at 256 */
} Connect4;

static const FuguSetting connect4_settings[] = {
    FUGU_MAX_STEPS(CONNECT4_CELLS),
    FUGU_INT(Connect4, opponent, CONNECT4_SCRIPTED, 0, 2,
             "0 plays at random, 1 wins and blocks where it can, 2 is a second agent"),
};

static void connect4_describe(const Connect4* env, FuguSpec* spec) {
    static const char* const keys[] = {"1", "2", "3", "4", "5", "6", "7"};
    const int agents = env->opponent == CONNECT4_SELF ? 2 : 1;
    FuguGroup* player = fugu_group(spec, agents == 2 ? "player" : "agent", agents);
    fugu_box(&player->observation, "", 0, FUGU_U8, 0, 1, 2, CONNECT4_ROWS, CONNECT4_COLUMNS,
             "where one's own discs are, then where the other's are, by rows from the top");
    fugu_discrete(&player->action, "", 0, CONNECT4_COLUMNS,
                  "the column that a disc falls into, from the left; a full one loses at once");
    spec->reward = "1 for a win, -1 for a loss, 0 for a draw; choosing a full column is a loss";
    fugu_log(spec, "won");
    fugu_log(spec, "drawn");
    for (int agent = 0; agent < agents; ++agent) {
        for (int column = 0; column < CONNECT4_COLUMNS; ++column)
            fugu_key_of(spec, keys[column], 0, agent, 0, 0, column);
        fugu_cells(spec, agent, CONNECT4_COLUMNS, 1, 0.3f, 1.2f, 7.0f, 6.7f);
    }
    fugu_picture(spec, 7.6f, 8, 4);
    spec->waits_for_a_key = true;
}

static inline void connect4_init(Connect4* env) {
    (void)env;
}

/* Whether four of the discs stand in a line. */
static inline bool connect4_wins(uint64_t discs) {
    static const int steps[] = {1, 7, 8, 9};
    uint64_t lines = 0;
    for (int i = 0; i < 4; ++i) {
        const uint64_t pairs = discs & (discs >> steps[i]);
        lines |= pairs & (pairs >> (2 * steps[i]));
    }
    return lines != 0;
}

/* The cell into which a disc falls; the column is not full. */
static inline uint8_t connect4_cell(const Connect4* env, int column) {
    return (uint8_t)(8 * (CONNECT4_ROWS - 1 - env->height[column]) + column);
}

static inline bool connect4_full(const Connect4* env, int column) {
    return env->height[column] >= CONNECT4_ROWS;
}

/* A disc of whose turn it is; whether it won. */
static inline bool connect4_drop(Connect4* env, int column) {
    const uint8_t cell = connect4_cell(env, column), player = env->turn;
    env->discs[player] |= (uint64_t)1 << cell;
    env->last = (uint8_t)(cell + 1);
    ++env->height[column];
    ++env->count;
    env->turn = (uint8_t)(1 - player);
    return connect4_wins(env->discs[player]);
}

/* A column where four in a line would come to be, or -1. */
static inline int connect4_winning(const Connect4* env, uint64_t discs) {
    for (int column = 0; column < CONNECT4_COLUMNS; ++column)
        if (!connect4_full(env, column) &&
            connect4_wins(discs | (uint64_t)1 << connect4_cell(env, column)))
            return column;
    return -1;
}

/* The opponent's choice; the board is not full. */
static inline int connect4_choose(Connect4* env) {
    /* Columns as often as lines of four pass through them, more or less. */
    static const uint8_t centred[16] = {0, 1, 1, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 5, 5, 6};
    if (env->opponent == CONNECT4_RANDOM) {
        int open = 0;
        for (int column = 0; column < CONNECT4_COLUMNS; ++column)
            open += !connect4_full(env, column);
        int left = fugu_below(&env->base.random, open);
        int column = 0;
        while (connect4_full(env, column) || left-- > 0)
            ++column;
        return column;
    }
    int column = connect4_winning(env, env->discs[1]);
    if (column < 0)
        column = connect4_winning(env, env->discs[0]);
    if (column < 0) {
        column = centred[fugu_below(&env->base.random, 16)];
        while (connect4_full(env, column))
            column = column == CONNECT4_COLUMNS - 1 ? 0 : column + 1;
    }
    return column;
}

static inline void connect4_reset(Connect4* env) {
    env->discs[0] = env->discs[1] = 0;
    for (int column = 0; column < CONNECT4_COLUMNS; ++column)
        env->height[column] = 0;
    env->count = env->last = 0;
    for (int i = 0; i < 3 && env->base.episode == 0; ++i)
        env->tally[i] = 0;
    env->turn = env->opponent != CONNECT4_SELF && fugu_chance(&env->base.random, 0.5f);
    if (env->turn)
        connect4_drop(env, connect4_choose(env));
}

/* Ends the game: who won, 0 or 1, or 2 for a draw. */
static inline void connect4_end(Connect4* env, FuguIO* io, int winner) {
    io->terminated = true;
    ++env->tally[winner];
    for (int agent = 0; agent < io->groups[0].agents; ++agent) {
        io->groups[0].rewards[agent] = winner == 2 ? 0.0f : winner == agent ? 1.0f : -1.0f;
        io->log[0] += winner == agent;
        io->log[1] += winner == 2;
    }
}

static inline void connect4_step(Connect4* env, FuguIO* io) {
    const int player = env->turn;
    const int column = (int)((const int64_t*)io->groups[0].actions)[player];
    if (connect4_full(env, column))
        connect4_end(env, io, 1 - player);
    else if (connect4_drop(env, column))
        connect4_end(env, io, player);
    else if (env->count == CONNECT4_CELLS)
        connect4_end(env, io, 2);
    else if (env->opponent != CONNECT4_SELF) {
        if (connect4_drop(env, connect4_choose(env)))
            connect4_end(env, io, 1);
        else if (env->count == CONNECT4_CELLS)
            connect4_end(env, io, 2);
    }
}

static inline void connect4_observe(Connect4* env, FuguIO* io) {
    const FuguRows* rows = &io->groups[0];
    for (int agent = 0; agent < rows->agents; ++agent) {
        uint8_t* planes = (uint8_t*)rows->observations + agent * 2 * CONNECT4_CELLS;
        const uint64_t own = env->discs[agent], other = env->discs[1 - agent];
        for (int row = 0; row < CONNECT4_ROWS; ++row) {
            const uint8_t mine = (uint8_t)(own >> (8 * row)),
                          others = (uint8_t)(other >> (8 * row));
            for (int column = 0; column < CONNECT4_COLUMNS; ++column) {
                planes[row * CONNECT4_COLUMNS + column] = mine >> column & 1;
                planes[CONNECT4_CELLS + row * CONNECT4_COLUMNS + column] = others >> column & 1;
            }
        }
        for (int column = 0; column < CONNECT4_COLUMNS; ++column)
            rows->masks[agent * CONNECT4_COLUMNS + column] = !connect4_full(env, column);
        rows->live[agent] = agent == env->turn;
    }
}

static void connect4_draw(const Connect4* env, FuguCanvas* canvas) {
    static const uint32_t colors[] = {0xE07A5F, 0xF2CC8F}, shades[] = {0xC4583D, 0xD9A95A};
    const float left = 0.3f, top = 1.3f;
    canvas->background = 0xF7F3E9;
    for (int player = 0; player < 2; ++player) {
        const float x = player ? 6.9f : 0.7f;
        if (player == env->turn)
            fugu_circle(canvas, x, 0.65f, 0.4f, 0x2F4858);
        fugu_circle(canvas, x, 0.65f, 0.33f, shades[player]);
        fugu_circle(canvas, x, 0.65f, 0.26f, colors[player]);
        fugu_number(canvas, player ? 6.1f : 1.5f, 0.65f, 0.5f, 0x2F4858, "", env->tally[player]);
    }
    fugu_number(canvas, 3.8f, 0.65f, 0.34f, 0x7D8B8A, "drawn ", env->tally[2]);
    fugu_rectangle(canvas, left - 0.1f, top, 7.2f, 6.0f, 0x3D5A80);
    fugu_rectangle(canvas, left, top - 0.1f, 7.0f, 6.2f, 0x3D5A80);
    for (int corner = 0; corner < 4; ++corner)
        fugu_circle(canvas, corner & 1 ? 7.3f : left, corner & 2 ? top + 6 : top, 0.1f, 0x3D5A80);
    for (int row = 0; row < CONNECT4_ROWS; ++row) {
        for (int column = 0; column < CONNECT4_COLUMNS; ++column) {
            const int cell = 8 * row + column;
            const float x = left + 0.5f + (float)column, y = top + 0.5f + (float)row;
            const int owner = env->discs[0] >> cell & 1 ? 0 : env->discs[1] >> cell & 1 ? 1 : 2;
            fugu_circle(canvas, x, y, 0.44f, 0x2C4460);
            fugu_circle(canvas, x, y + 0.03f, 0.4f, owner == 2 ? 0xF7F3E9 : shades[owner]);
            if (owner == 2)
                continue;
            fugu_circle(canvas, x, y, 0.36f, colors[owner]);
            fugu_circle(canvas, x, y, 0.27f, shades[owner]);
            fugu_circle(canvas, x, y, 0.24f, colors[owner]);
            if (env->last == cell + 1)
                fugu_circle(canvas, x, y, 0.1f, 0xFFFFFF);
        }
    }
    for (int column = 0; column < CONNECT4_COLUMNS; ++column)
        fugu_number(canvas, left + 0.5f + (float)column, 7.65f, 0.3f,
                    connect4_full(env, column) ? 0xD5CFC0 : 0x7D8B8A, "", column + 1);
}

FUGU_ENVIRONMENT(Connect4, connect4, "Drop discs until four of yours stand in a line.")
