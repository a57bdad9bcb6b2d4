/* Snake for many: all move at once, whoever runs into a wall or a body dies and feeds the others.
 */
#include "fugu_env.h"

enum {
    SNAKE_MAX_SNAKES = 16,
    SNAKE_MAX_SIDE = 64,
    SNAKE_MAX_VISION = 7,   /* below the smallest side, so that a margin repeats a cell but once */
    SNAKE_MAX_LENGTH = 256, /* a power of two: bodies are rings; a snake of this length is full */
    SNAKE_START_LENGTH = 3,
    SNAKE_STRIP = 16, /* cells of a row that are seen at once, 2 * vision + 1 or more */
    SNAKE_CELLS = (SNAKE_MAX_SIDE + 2 * SNAKE_MAX_VISION) *
            (SNAKE_MAX_SIDE + 2 * SNAKE_MAX_VISION) +
        SNAKE_STRIP,
};
/* What a cell holds: snake i has SNAKE_BODY + 2 * i for a body and one more for its head. */
enum { SNAKE_EMPTY, SNAKE_WALL, SNAKE_FOOD, SNAKE_BODY, SNAKE_HEAD };
enum { SNAKE_UP, SNAKE_RIGHT, SNAKE_DOWN, SNAKE_LEFT };

typedef struct SnakeOne {
    int16_t x, y;      /* of the head */
    int16_t length;    /* 0 while it waits for a free cell */
    int16_t reached;   /* the length that it had when it was last alive */
    int16_t to_grow;   /* cells that it has yet to gain after its birth */
    uint8_t head;      /* index of the head in the ring; the tail is length - 1 before it */
    uint8_t heading;   /* the way it went last */
    uint8_t ate, dead; /* in this step */
} SnakeOne;

typedef struct Snake {
    FuguEnv base;
    int32_t food_left, stride;
    SnakeOne all[SNAKE_MAX_SNAKES];
    /* Bodies, as indices into the cells. */
    uint16_t rings[SNAKE_MAX_SNAKES][SNAKE_MAX_LENGTH];
    /* The board within a margin as wide as the vision: walls, or the other side of a torus. */
    uint8_t cells[SNAKE_CELLS];
    int32_t snakes, width, height, food, vision, walls, corpses_feed;
} Snake;

static const FuguSetting snake_settings[] = {
    FUGU_MAX_STEPS(2000),
    FUGU_INT(Snake, snakes, 4, 1, SNAKE_MAX_SNAKES, "agents on the board"),
    FUGU_INT(Snake, width, 24, 8, SNAKE_MAX_SIDE, "of the board"),
    FUGU_INT(Snake, height, 24, 8, SNAKE_MAX_SIDE, "of the board"),
    FUGU_INT(Snake, food, 16, 1, 64, "items that are kept on the board"),
    FUGU_INT(Snake, vision, 5, 1, SNAKE_MAX_VISION, "cells that a snake sees to each side"),
    FUGU_INT(Snake, walls, 1, 0, 1, "1 for walls around the board, 0 for a torus"),
    FUGU_INT(Snake, corpses_feed, 1, 0, 1, "whether what a dead snake ate turns into food again"),
};

static void snake_describe(const Snake* env, FuguSpec* spec) {
    const int side = 2 * env->vision + 1;
    FuguGroup* snakes = fugu_group(spec, "snake", env->snakes);
    fugu_box(&snakes->observation, "", 0, FUGU_U8, 0, 6, side, side, 0,
             "cells around the head, rows from the top: 0 empty, 1 wall, 2 food, 3 own body, "
             "4 own head, 5 another's body, 6 another's head");
    fugu_discrete(&snakes->action, "", 0, 4, "up; right; down; left");
    spec->reward = "1 for food, -1 for death";
    fugu_log(spec, "length"); /* that a snake reached */
    fugu_key(spec, "up", SNAKE_UP);
    fugu_key(spec, "right", SNAKE_RIGHT);
    fugu_key(spec, "down", SNAKE_DOWN);
    fugu_key(spec, "left", SNAKE_LEFT);
    if (env->snakes > 1) {
        fugu_key_of(spec, "w", 0, 1, 0, 0, SNAKE_UP);
        fugu_key_of(spec, "d", 0, 1, 0, 0, SNAKE_RIGHT);
        fugu_key_of(spec, "s", 0, 1, 0, 0, SNAKE_DOWN);
        fugu_key_of(spec, "a", 0, 1, 0, 0, SNAKE_LEFT);
    }
    spec->all_act = true;
    fugu_picture(spec, (float)env->width + 1, (float)env->height + 2.5f, 8);
}

static inline void snake_init(Snake* env) {
    env->stride = env->width + 2 * env->vision;
    env->food = fugu_min_int(env->food, env->width * env->height / 4); /* room for snakes */
}

static inline int snake_cell(const Snake* env, int x, int y) {
    return (y + env->vision) * env->stride + x + env->vision;
}

/* Writes what a cell holds; on a torus, also where a margin shows the cell again. */
static inline void snake_write(Snake* env, int cell, int code) {
    const int width = env->width, height = env->height, margin = env->vision;
    env->cells[cell] = (uint8_t)code;
    if (env->walls)
        return;
    const int x = cell % env->stride - margin, y = cell / env->stride - margin;
    if (x >= margin && x < width - margin && y >= margin && y < height - margin)
        return;
    for (int j = -1; j <= 1; ++j)
        for (int i = -1; i <= 1; ++i) {
            const int u = x + i * width, v = y + j * height;
            if (u >= -margin && u < width + margin && v >= -margin && v < height + margin)
                env->cells[snake_cell(env, u, v)] = (uint8_t)code;
        }
}

/* A random empty cell, or -1 if `tries` found none. */
static inline int snake_find(Snake* env, int tries) {
    for (int i = 0; i < tries; ++i) {
        const int x = fugu_below(&env->base.random, env->width);
        const int y = fugu_below(&env->base.random, env->height);
        if (env->cells[snake_cell(env, x, y)] == SNAKE_EMPTY)
            return snake_cell(env, x, y);
    }
    return -1;
}

static inline void snake_feed(Snake* env, int tries) {
    while (env->food_left < env->food) {
        const int cell = snake_find(env, tries);
        if (cell < 0)
            return; /* the board is crowded: more at the next step */
        snake_write(env, cell, SNAKE_FOOD);
        ++env->food_left;
    }
}

/* On a crowded board: the first cell without a body, from a random one on; -1 if there is none. */
static int snake_search(Snake* env) {
    const int count = env->width * env->height, first = fugu_below(&env->base.random, count);
    for (int i = 0; i < count; ++i) {
        const int at = (first + i) % count;
        const int cell = snake_cell(env, at % env->width, at / env->width);
        if (env->cells[cell] == SNAKE_EMPTY || env->cells[cell] == SNAKE_FOOD)
            return cell;
    }
    return -1;
}

/* Begins with a head alone, which has yet to grow; on a full board it waits for a free cell. */
static void snake_respawn(Snake* env, int group, int agent) {
    (void)group;
    SnakeOne* one = &env->all[agent];
    int cell = -1;
    /* Not beside a wall or a body, if that can be had. */
    for (int i = 0; i < 16; ++i) {
        const int found = snake_find(env, 8), stride = env->stride;
        if (found < 0)
            break;
        cell = found;
        const uint8_t* at = &env->cells[cell];
        const int beside[4] = {at[-stride], at[1], at[stride], at[-1]};
        bool free = true;
        for (int way = 0; way < 4; ++way)
            free = free && (beside[way] == SNAKE_EMPTY || beside[way] == SNAKE_FOOD);
        if (free)
            break;
    }
    if (cell < 0)
        cell = snake_search(env);
    one->heading = (uint8_t)fugu_below(&env->base.random, 4);
    one->to_grow = SNAKE_START_LENGTH - 1;
    one->head = 0;
    one->length = one->reached = cell >= 0;
    one->ate = one->dead = 0;
    if (cell < 0)
        return;
    one->x = (int16_t)(cell % env->stride - env->vision);
    one->y = (int16_t)(cell / env->stride - env->vision);
    env->food_left -= env->cells[cell] == SNAKE_FOOD;
    env->rings[agent][0] = (uint16_t)cell;
    snake_write(env, cell, SNAKE_HEAD + 2 * agent);
}

static inline void snake_reset(Snake* env) {
    const int rows = env->height + 2 * env->vision;
    for (int i = 0; i < rows * env->stride; ++i)
        env->cells[i] = env->walls ? SNAKE_WALL : SNAKE_EMPTY;
    for (int y = 0; y < env->height; ++y)
        for (int x = 0; x < env->width; ++x)
            env->cells[snake_cell(env, x, y)] = SNAKE_EMPTY;
    env->food_left = 0;
    for (int i = 0; i < env->snakes; ++i)
        snake_respawn(env, 0, i);
    snake_feed(env, 64);
}

/* Where a head goes in this step. */
typedef struct SnakeGoal {
    int x, y, cell;
} SnakeGoal;

/* Reversing is ignored, unless there is no body to run into. */
static inline SnakeGoal snake_ahead(Snake* env, SnakeOne* one, int64_t action) {
    static const int8_t steps_x[4] = {0, 1, 0, -1}, steps_y[4] = {-1, 0, 1, 0};
    if (one->length == 1 || action != ((one->heading + 2) & 3))
        one->heading = (uint8_t)(action & 3);
    int x = one->x + steps_x[one->heading], y = one->y + steps_y[one->heading];
    if (!env->walls) {
        x = x < 0 ? env->width - 1 : x >= env->width ? 0 : x;
        y = y < 0 ? env->height - 1 : y >= env->height ? 0 : y;
    }
    const SnakeGoal goal = {x, y, snake_cell(env, x, y)};
    one->ate = env->cells[goal.cell] == SNAKE_FOOD;
    return goal;
}

static inline int snake_ring(int head, int back) {
    return (head - back) & (SNAKE_MAX_LENGTH - 1);
}

/* The head becomes neck; the tail goes, unless the snake grows. */
static inline void snake_pull(Snake* env, int agent) {
    SnakeOne* one = &env->all[agent];
    const uint16_t* ring = env->rings[agent];
    snake_write(env, ring[one->head], SNAKE_BODY + 2 * agent);
    if (one->length < SNAKE_MAX_LENGTH && (one->ate || one->to_grow)) {
        one->to_grow = (int16_t)(one->to_grow - !one->ate);
        return;
    }
    --one->length;
    snake_write(env, ring[snake_ring(one->head, one->length)], SNAKE_EMPTY);
}

/* What it had eaten becomes food again, from the head on; the cells that it was born with do not,
   or the board would fill up with each death. A cell that its head had claimed is what it was. */
static void snake_bury(Snake* env, int agent, int claimed) {
    SnakeOne* one = &env->all[agent];
    if (env->cells[claimed] == SNAKE_HEAD + 2 * agent)
        snake_write(env, claimed, one->ate ? SNAKE_FOOD : SNAKE_EMPTY);
    const int eaten = env->corpses_feed ? fugu_max_int(one->reached - SNAKE_START_LENGTH, 0) : 0;
    for (int back = 0; back < one->length; ++back)
        snake_write(env, env->rings[agent][snake_ring(one->head, back)],
                    back < eaten ? SNAKE_FOOD : SNAKE_EMPTY);
    env->food_left += eaten;
}

/* What becomes of each snake does not depend on their order: first all bodies move, then heads
   claim their cells, then the dead are taken away. */
static inline void snake_step(Snake* env, FuguIO* io) {
    const int64_t* actions = io->groups[0].actions;
    float* rewards = io->groups[0].rewards;
    SnakeGoal goals[SNAKE_MAX_SNAKES];
    for (int i = 0; i < env->snakes; ++i) {
        if (!env->all[i].length)
            continue;
        goals[i] = snake_ahead(env, &env->all[i], actions[i]);
        snake_pull(env, i);
    }
    for (int i = 0; i < env->snakes; ++i) {
        if (!env->all[i].length)
            continue;
        const int found = env->cells[goals[i].cell];
        if (found == SNAKE_EMPTY || found == SNAKE_FOOD) {
            snake_write(env, goals[i].cell, SNAKE_HEAD + 2 * i);
            continue;
        }
        env->all[i].dead = 1;
        if (found >= SNAKE_HEAD && found % 2 == 0) /* heads that meet; old ones are necks now */
            env->all[(found - SNAKE_HEAD) / 2].dead = 1;
    }
    const bool last = env->base.step == env->base.max_steps;
    for (int i = 0; i < env->snakes; ++i) {
        SnakeOne* one = &env->all[i];
        if (!one->length) {
            snake_respawn(env, 0, i);
        } else if (one->dead) {
            rewards[i] = -1.0f;
            fugu_end(io, 0, i);
            snake_bury(env, i, goals[i].cell);
        } else {
            one->head = (uint8_t)snake_ring(one->head, -1);
            env->rings[i][one->head] = (uint16_t)goals[i].cell;
            one->reached = ++one->length;
            one->x = (int16_t)goals[i].x;
            one->y = (int16_t)goals[i].y;
            rewards[i] = one->ate;
            env->food_left -= one->ate;
        }
        if (one->dead || last)
            io->log[0] += one->reached;
    }
    snake_feed(env, 4);
}

/* A strip of cells as one snake sees them, wider than needed so that it is a few instructions. */
static inline void snake_see(const uint8_t* cells, uint8_t own, uint8_t* out) {
    for (int i = 0; i < SNAKE_STRIP; ++i) {
        const uint8_t code = cells[i], from_own = (uint8_t)(code - own);
        const uint8_t other = (uint8_t)(SNAKE_BODY + 2 + (~code & 1));
        const uint8_t snake = from_own <= 1 ? (uint8_t)(SNAKE_BODY + from_own) : other;
        out[i] = code <= SNAKE_FOOD ? code : snake;
    }
}

static inline void snake_observe(Snake* env, FuguIO* io) {
    const int side = 2 * env->vision + 1, size = side * side;
    uint8_t* out = io->groups[0].observations;
    for (int i = 0; i < env->snakes; ++i, out += size) {
        const SnakeOne* one = &env->all[i];
        const uint8_t own = (uint8_t)(SNAKE_BODY + 2 * i);
        const uint8_t* corner = &env->cells[one->y * env->stride + one->x];
        uint8_t strip[SNAKE_STRIP];
        /* What a strip writes beyond its row, the next one writes over. */
        for (int row = 0; row < side; ++row, corner += env->stride) {
            const int left = size - row * side;
            if (left >= SNAKE_STRIP) {
                snake_see(corner, own, out + row * side);
            } else {
                snake_see(corner, own, strip);
                for (int x = 0; x < side; ++x)
                    out[row * side + x] = strip[x];
            }
        }
    }
}

static void snake_draw_one(const Snake* env, FuguCanvas* canvas, int agent, uint32_t color) {
    const SnakeOne* one = &env->all[agent];
    const float dx[4] = {0, 1, 0, -1}, dy[4] = {-1, 0, 1, 0};
    float before_x = 0, before_y = 0;
    for (int back = one->length - 1; back >= 0; --back) {
        const int cell = env->rings[agent][snake_ring(one->head, back)];
        const float x = 1.0f + (float)(cell % env->stride - env->vision);
        const float y = 2.5f + (float)(cell / env->stride - env->vision);
        const float thick = back == 0 ? 0.46f : back == one->length - 1 ? 0.28f : 0.36f;
        const bool joined = fugu_abs(x - before_x) + fugu_abs(y - before_y) < 1.5f;
        if (back < one->length - 1 && joined) /* not across the edge of a torus */
            fugu_line(canvas, before_x, before_y, x, y, back == one->length - 2 ? 0.56f : 0.72f,
                      color);
        fugu_circle(canvas, x, y, thick, color);
        before_x = x;
        before_y = y;
    }
    if (!one->length)
        return;
    const float ahead_x = dx[one->heading], ahead_y = dy[one->heading];
    for (int eye = -1; eye <= 1; eye += 2) {
        const float x = before_x + 0.14f * ahead_x + 0.2f * (float)eye * ahead_y;
        const float y = before_y + 0.14f * ahead_y + 0.2f * (float)eye * ahead_x;
        fugu_circle(canvas, x, y, 0.14f, 0xF7F3E9);
        fugu_circle(canvas, x + 0.05f * ahead_x, y + 0.05f * ahead_y, 0.07f, 0x1B2A33);
    }
}

static void snake_draw(const Snake* env, FuguCanvas* canvas) {
    static const uint32_t colors[8] = {0xE07A5F, 0x81B29A, 0xF2CC8F, 0x4F9DA6,
                                       0xB08BBB, 0xEDAE49, 0x7D9D5C, 0xC97B84};
    const float width = (float)env->width, height = (float)env->height;
    canvas->background = env->walls ? 0x4A6670 : 0x2F4858;
    fugu_rectangle(canvas, 0, 0, width + 1, 2, 0x2F4858);
    fugu_rectangle(canvas, 0.5f, 2, width, height, 0x1B2A33);
    for (int x = 1; x < env->width; x += 2)
        fugu_rectangle(canvas, 0.5f + (float)x, 2, 1, height, 0x1F303A);
    for (int y = 0; y < env->height; ++y)
        for (int x = 0; x < env->width; ++x) {
            if (env->cells[snake_cell(env, x, y)] != SNAKE_FOOD)
                continue;
            fugu_circle(canvas, 1.0f + (float)x, 2.55f + (float)y, 0.3f, 0xD1495B);
            fugu_circle(canvas, 0.9f + (float)x, 2.44f + (float)y, 0.08f, 0xF0A6AE);
            fugu_line(canvas, 1.0f + (float)x, 2.28f + (float)y, 1.1f + (float)x, 2.13f + (float)y,
                      0.08f, 0x81B29A);
        }
    for (int i = 0; i < env->snakes; ++i)
        snake_draw_one(env, canvas, i, colors[i % 8]);
    /* Lengths of as many snakes as there is room for. */
    const int shown = fugu_min_int(env->snakes, env->width / 3);
    for (int i = 0; i < shown; ++i) {
        const float x = (width + 1) * ((float)i + 0.5f) / (float)shown;
        fugu_circle(canvas, x - 0.7f, 1.0f, 0.35f, colors[i % 8]);
        fugu_number(canvas, x + 0.5f, 1.0f, 0.9f, 0xF7F3E9, "", env->all[i].length);
    }
}

FUGU_ENVIRONMENT_RESPAWNING(Snake, snake, "Snakes on one board eat, grow and avoid each other.")
