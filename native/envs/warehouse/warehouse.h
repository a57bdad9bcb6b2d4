/* A warehouse after RWARE (Papoudakis and others, 2021): robots carry requested shelves to the goal
   cells in the bottom row, then put them down at a free spot.

   Blocks of shelves, two wide and block_height high, stand between aisles. A robot without a shelf
   drives beneath shelves; one that carries may enter no cell where a shelf stands. A shelf is put
   down on a spot for shelves only, never in an aisle. A carried shelf that is requested and stands
   on a goal after a step is delivered: 1 for its robot, and another shelf is requested instead.

   Robots move at once: 1. of several that ask for one cell, the first in turn gets it, and who is
   first in turn passes on with every step; 2. two that face each other do not swap; 3. nobody
   enters the cell of a robot that stays, whereas rows and rings of robots follow each other. Who
   may not move stays where it is. */
#include "fugu_env.h"

enum {
    WAREHOUSE_ROBOTS = 8,
    WAREHOUSE_WIDTH = 16,  /* 3 * 5 columns of blocks + 1 */
    WAREHOUSE_HEIGHT = 29, /* (8 + 1) * 3 rows of blocks + 2 */
    WAREHOUSE_CELLS = WAREHOUSE_WIDTH * WAREHOUSE_HEIGHT,
    WAREHOUSE_SHELVES = 240, /* 2 * 5 * 8 * 3: a number fits in a byte, and 0 is none */
    WAREHOUSE_CHANNELS = 9,
    WAREHOUSE_SELF = 10
};
enum { WAREHOUSE_AISLE, WAREHOUSE_SPOT, WAREHOUSE_GOAL };
enum { WAREHOUSE_STAY, WAREHOUSE_FORWARD, WAREHOUSE_LEFT, WAREHOUSE_RIGHT, WAREHOUSE_LOAD };

typedef struct WarehouseRobot {
    uint8_t x, y, heading;  /* 0 up, 1 right, 2 down, 3 left */
    uint8_t shelf;          /* that it carries, or 0 */
    uint8_t home_x, home_y; /* where it took that */
} WarehouseRobot;

typedef struct Warehouse {
    FuguEnv base;
    int32_t robots, columns, rows, block_height, requests, sight, compass, shared; /* settings */
    int32_t width, height, shelves, open_requests;
    int32_t deliveries, blocked; /* in this episode */
    WarehouseRobot robot[WAREHOUSE_ROBOTS];
    uint8_t kind[WAREHOUSE_CELLS];
    uint8_t shelf_at[WAREHOUSE_CELLS]; /* that stands there, or 0 */
    uint8_t robot_at[WAREHOUSE_CELLS]; /* its number + 1, or 0 */
    uint8_t shelf_x[WAREHOUSE_SHELVES + 1], shelf_y[WAREHOUSE_SHELVES + 1]; /* while it stands */
    uint8_t carried[WAREHOUSE_SHELVES + 1], requested[WAREHOUSE_SHELVES + 1];
    uint8_t order[WAREHOUSE_SHELVES]; /* all shelves; the first open_requests are requested */
} Warehouse;

static const FuguSetting warehouse_settings[] = {
    FUGU_MAX_STEPS(500),
    FUGU_INT(Warehouse, robots, 2, 1, WAREHOUSE_ROBOTS, "how many"),
    FUGU_INT(Warehouse, columns, 3, 1, 5, "blocks of shelves side by side"),
    FUGU_INT(Warehouse, rows, 1, 1, 3, "blocks of shelves one below the other"),
    FUGU_INT(Warehouse, block_height, 4, 1, 8, "cells of a block from top to bottom"),
    FUGU_INT(Warehouse, requests, 3, 1, 32, "shelves requested at a time, fewer than there are"),
    FUGU_INT(Warehouse, sight, 1, 1, 2, "cells that a robot sees to each side"),
    FUGU_INT(Warehouse, compass, 1, 0, 1, "1: a robot knows on which side its next aim lies"),
    FUGU_INT(Warehouse, shared, 0, 0, 1, "1: every robot is rewarded for every delivery"),
};

static void warehouse_describe(const Warehouse* env, FuguSpec* spec) {
    const int side = 2 * env->sight + 1, window = side * side * WAREHOUSE_CHANNELS;
    FuguGroup* group = fugu_group(spec, "robot", env->robots);
    fugu_box(&group->observation, "window", 0, FUGU_U8, 0, 1, side, side, WAREHOUSE_CHANNELS,
             "cells around it, its heading upward: outside, spot for a shelf, goal, shelf, "
             "requested shelf, other robot that heads as it does, to its right, against it, to its "
             "left");
    fugu_box(&group->observation, "position", (uint32_t)window, FUGU_U8, 0, WAREHOUSE_HEIGHT, 2, 0,
             0, "column; row");
    fugu_box(&group->observation, "self", (uint32_t)window + 2, FUGU_U8, 0, 1, WAREHOUSE_SELF, 0, 0,
             "heads up; right; down; left; carries a shelf; carries a requested shelf; its aim is "
             "ahead; to the right; behind; to the left");
    fugu_discrete(&group->action, "", 0, 5, "stay; forward; turn left; turn right; load or unload");
    spec->reward = env->shared ? "1 for every requested shelf that is brought to a goal"
                               : "1 for a requested shelf that the robot brings to a goal";
    fugu_log(spec, "deliveries");
    fugu_log(spec, "blocked");
    fugu_key(spec, "up", WAREHOUSE_FORWARD);
    fugu_key(spec, "left", WAREHOUSE_LEFT);
    fugu_key(spec, "right", WAREHOUSE_RIGHT);
    fugu_key(spec, "space", WAREHOUSE_LOAD);
    spec->all_act = true;
    fugu_picture(spec, (float)(3 * env->columns + 2),
                 (float)((env->block_height + 1) * env->rows + 2) + 1.7f, 8);
}

static inline int warehouse_cell(int x, int y) {
    return y * WAREHOUSE_WIDTH + x;
}

static inline void warehouse_init(Warehouse* env) {
    env->width = 3 * env->columns + 1;
    env->height = (env->block_height + 1) * env->rows + 2;
    env->shelves = 2 * env->columns * env->rows * env->block_height;
    env->open_requests = fugu_min_int(env->requests, env->shelves - 1);
    for (int y = 0; y < env->height; ++y)
        for (int x = 0; x < env->width; ++x) {
            const bool goal =
                y == env->height - 1 && (x == env->width / 2 - 1 || x == env->width / 2);
            const bool aisle =
                x % 3 == 0 || y % (env->block_height + 1) == 0 || y == env->height - 1;
            env->kind[warehouse_cell(x, y)] = (uint8_t)(goal    ? WAREHOUSE_GOAL
                                                        : aisle ? WAREHOUSE_AISLE
                                                                : WAREHOUSE_SPOT);
        }
}

/* Makes the shelf at `place` of the order, not requested so far, the request number `number`. */
static inline void warehouse_request(Warehouse* env, int number, int place) {
    const uint8_t shelf = env->order[place];
    env->order[place] = env->order[number];
    env->order[number] = shelf;
    env->requested[shelf] = 1;
}

static inline void warehouse_reset(Warehouse* env) {
    int shelf = 0;
    for (int y = 0; y < env->height; ++y)
        for (int x = 0; x < env->width; ++x) {
            const int cell = warehouse_cell(x, y);
            env->shelf_at[cell] = env->robot_at[cell] = 0;
            if (env->kind[cell] == WAREHOUSE_SPOT) {
                env->order[shelf] = (uint8_t)(shelf + 1);
                ++shelf;
                env->shelf_at[cell] = (uint8_t)shelf;
                env->shelf_x[shelf] = (uint8_t)x;
                env->shelf_y[shelf] = (uint8_t)y;
                env->requested[shelf] = env->carried[shelf] = 0;
            }
        }
    for (int i = 0; i < env->open_requests; ++i)
        warehouse_request(env, i, i + fugu_below(&env->base.random, env->shelves - i));
    const int cells = env->width * env->height;
    for (int i = 0; i < env->robots; ++i) {
        int at = fugu_below(&env->base.random, cells);
        while (env->robot_at[warehouse_cell(at % env->width, at / env->width)])
            at = at + 1 < cells ? at + 1 : 0; /* there are more cells than robots */
        WarehouseRobot* robot = &env->robot[i];
        robot->x = (uint8_t)(at % env->width);
        robot->y = (uint8_t)(at / env->width);
        robot->heading = (uint8_t)fugu_below(&env->base.random, 4);
        robot->shelf = robot->home_x = robot->home_y = 0;
        env->robot_at[warehouse_cell(robot->x, robot->y)] = (uint8_t)(i + 1);
    }
    env->deliveries = env->blocked = 0;
}

static const int8_t warehouse_dx[4] = {0, 1, 0, -1}, warehouse_dy[4] = {-1, 0, 1, 0};

/* Moves all robots that ask to, by the three rules above. */
static inline void warehouse_move(Warehouse* env, const int64_t* actions) {
    int aim[WAREHOUSE_ROBOTS]; /* the cell that it enters, or -1 */
    const int robots = env->robots;
    int asked = 0, moved = 0;
    for (int i = 0; i < robots; ++i) {
        const WarehouseRobot* robot = &env->robot[i];
        aim[i] = -1;
        if (actions[i] != WAREHOUSE_FORWARD)
            continue;
        ++asked;
        const int x = robot->x + warehouse_dx[robot->heading];
        const int y = robot->y + warehouse_dy[robot->heading];
        if (x < 0 || y < 0 || x >= env->width || y >= env->height)
            continue;
        const int cell = warehouse_cell(x, y);
        if (!(robot->shelf && env->shelf_at[cell]))
            aim[i] = cell;
    }
    if (!asked)
        return;
    const int first = env->base.step % robots;
    for (int k = 0; k < robots; ++k) {
        const int i = (first + k) % robots;
        for (int later = k + 1; aim[i] >= 0 && later < robots; ++later) {
            const int j = (first + later) % robots;
            if (aim[j] == aim[i])
                aim[j] = -1;
        }
    }
    for (bool changed = true; changed;) { /* each turn stops a robot, so it ends */
        changed = false;
        for (int i = 0; i < robots; ++i) {
            const int other = aim[i] < 0 ? 0 : env->robot_at[aim[i]];
            if (!other)
                continue;
            const int own = warehouse_cell(env->robot[i].x, env->robot[i].y);
            if (aim[other - 1] < 0 || aim[other - 1] == own) {
                aim[i] = -1;
                changed = true;
            }
        }
    }
    for (int i = 0; i < robots; ++i)
        if (aim[i] >= 0)
            env->robot_at[warehouse_cell(env->robot[i].x, env->robot[i].y)] = 0;
    for (int i = 0; i < robots; ++i) {
        if (aim[i] < 0)
            continue;
        env->robot_at[aim[i]] = (uint8_t)(i + 1);
        env->robot[i].x = (uint8_t)(aim[i] % WAREHOUSE_WIDTH);
        env->robot[i].y = (uint8_t)(aim[i] / WAREHOUSE_WIDTH);
        ++moved;
    }
    env->blocked += asked - moved;
}

static inline void warehouse_load(Warehouse* env, WarehouseRobot* robot) {
    const int cell = warehouse_cell(robot->x, robot->y);
    const uint8_t shelf = env->shelf_at[cell];
    if (!robot->shelf && shelf) {
        robot->shelf = shelf;
        robot->home_x = robot->x;
        robot->home_y = robot->y;
        env->shelf_at[cell] = 0;
        env->carried[shelf] = 1;
    } else if (robot->shelf && !shelf && env->kind[cell] == WAREHOUSE_SPOT) {
        env->shelf_at[cell] = robot->shelf;
        env->shelf_x[robot->shelf] = robot->x;
        env->shelf_y[robot->shelf] = robot->y;
        env->carried[robot->shelf] = 0;
        robot->shelf = 0;
    }
}

/* The request is fulfilled: another shelf that was not requested takes its place. */
static inline void warehouse_deliver(Warehouse* env, uint8_t shelf) {
    int number = 0;
    while (number < env->open_requests - 1 && env->order[number] != shelf)
        ++number;
    const int others = env->shelves - env->open_requests;
    env->requested[shelf] = 0;
    warehouse_request(env, number, env->open_requests + fugu_below(&env->base.random, others));
    ++env->deliveries;
}

static inline void warehouse_step(Warehouse* env, FuguIO* io) {
    const int64_t* actions = io->groups[0].actions;
    float* rewards = io->groups[0].rewards;
    warehouse_move(env, actions);
    for (int i = 0; i < env->robots; ++i) {
        WarehouseRobot* robot = &env->robot[i];
        if (actions[i] == WAREHOUSE_LEFT)
            robot->heading = (uint8_t)((robot->heading + 3) & 3);
        else if (actions[i] == WAREHOUSE_RIGHT)
            robot->heading = (uint8_t)((robot->heading + 1) & 3);
        else if (actions[i] == WAREHOUSE_LOAD)
            warehouse_load(env, robot);
        if (robot->shelf && env->requested[robot->shelf] &&
            env->kind[warehouse_cell(robot->x, robot->y)] == WAREHOUSE_GOAL) {
            warehouse_deliver(env, robot->shelf);
            for (int j = 0; j < env->robots; ++j)
                rewards[j] += env->shared || j == i ? 1.0f : 0.0f;
        }
    }
    if (env->base.max_steps && env->base.step >= env->base.max_steps) {
        /* Logs are averaged over the robots whose episodes end, which are all. */
        io->log[0] += (float)(env->deliveries * env->robots);
        io->log[1] += (float)env->blocked * (float)env->robots;
    }
}

/* Where the robot should go next: to the nearest requested shelf that stands somewhere, with it to
   the nearer goal, and with one that nobody wants to where it took it. False if there is none. */
static inline bool warehouse_aim(const Warehouse* env, const WarehouseRobot* robot, int* x,
                                 int* y) {
    if (robot->shelf) {
        const bool wanted = env->requested[robot->shelf];
        const int middle = env->width / 2;
        *x = !wanted ? robot->home_x : robot->x < middle ? middle - 1 : middle;
        *y = wanted ? env->height - 1 : robot->home_y;
        return true;
    }
    int least = WAREHOUSE_CELLS;
    for (int i = 0; i < env->open_requests; ++i) {
        const uint8_t shelf = env->order[i];
        const int far = fugu_abs_int(env->shelf_x[shelf] - robot->x) +
                        fugu_abs_int(env->shelf_y[shelf] - robot->y);
        if (!env->carried[shelf] && far < least) {
            least = far;
            *x = env->shelf_x[shelf];
            *y = env->shelf_y[shelf];
        }
    }
    return least < WAREHOUSE_CELLS;
}

static inline void warehouse_observe(Warehouse* env, FuguIO* io) {
    uint8_t* out = io->groups[0].observations;
    const int sight = env->sight;
    for (int i = 0; i < env->robots; ++i) {
        const WarehouseRobot* robot = &env->robot[i];
        const int heading = robot->heading, right = (heading + 1) & 3;
        const int ahead_x = warehouse_dx[heading], ahead_y = warehouse_dy[heading];
        const int right_x = warehouse_dx[right], right_y = warehouse_dy[right];
        for (int up = sight; up >= -sight; --up)
            for (int side = -sight; side <= sight; ++side, out += WAREHOUSE_CHANNELS) {
                const int x = robot->x + up * ahead_x + side * right_x;
                const int y = robot->y + up * ahead_y + side * right_y;
                for (int c = 0; c < WAREHOUSE_CHANNELS; ++c)
                    out[c] = 0;
                if (x < 0 || y < 0 || x >= env->width || y >= env->height) {
                    out[0] = 1;
                    continue;
                }
                const int cell = warehouse_cell(x, y), there = env->robot_at[cell];
                const int load = there ? env->robot[there - 1].shelf : 0;
                out[1] = env->kind[cell] == WAREHOUSE_SPOT;
                out[2] = env->kind[cell] == WAREHOUSE_GOAL;
                out[3] = env->shelf_at[cell] != 0;
                out[4] = env->requested[env->shelf_at[cell]] | env->requested[load];
                if (there && there != i + 1)
                    out[5 + ((env->robot[there - 1].heading - heading) & 3)] = 1;
            }
        out[0] = robot->x;
        out[1] = robot->y;
        out += 2;
        for (int c = 0; c < WAREHOUSE_SELF; ++c)
            out[c] = 0;
        out[heading] = 1;
        out[4] = robot->shelf != 0;
        out[5] = env->requested[robot->shelf];
        int x = 0, y = 0;
        if (env->compass && warehouse_aim(env, robot, &x, &y)) {
            const int dx = x - robot->x, dy = y - robot->y;
            const int ahead = dx * ahead_x + dy * ahead_y, aside = dx * right_x + dy * right_y;
            out[6] = ahead > 0;
            out[7] = aside > 0;
            out[8] = ahead < 0;
            out[9] = aside < 0;
        }
        out += WAREHOUSE_SELF;
    }
}

static void warehouse_draw_shelf(FuguCanvas* canvas, float x, float y, float size, bool wanted) {
    const float left = x - 0.5f * size, top = y - 0.5f * size;
    fugu_rectangle(canvas, left, top, size, size, wanted ? 0xB5562F : 0x8A6B4F);
    fugu_rectangle(canvas, left + 0.07f * size, top + 0.07f * size, 0.86f * size, 0.86f * size,
                   wanted ? 0xF0A04B : 0xC9A77C);
    const uint32_t lid = wanted ? 0xFBE3B5 : 0xDDC29C;
    for (int i = 0; i < 4; ++i) /* four boxes */
        fugu_rectangle(canvas, left + (0.15f + 0.37f * (float)(i & 1)) * size,
                       top + (0.15f + 0.37f * (float)(i >> 1)) * size, 0.31f * size, 0.31f * size,
                       lid);
}

static void warehouse_draw(const Warehouse* env, FuguCanvas* canvas) {
    static const uint32_t colors[WAREHOUSE_ROBOTS] = {0x3D8BB0, 0x6AA57A, 0x8C6BB1, 0xD4638A,
                                                      0x4F9D9B, 0x9A7B5B, 0x5B6FB5, 0xA3A847};
    const float left = 0.5f, top = 1.2f, width = (float)env->width, height = (float)env->height;
    canvas->background = 0xF7F3E9;
    fugu_rectangle(canvas, left - 0.12f, top - 0.12f, width + 0.24f, height + 0.24f, 0x2F4858);
    fugu_rectangle(canvas, left, top, width, height, 0xE9E4D8);
    for (int y = 0; y < env->height; ++y)
        for (int x = 0; x < env->width; ++x) {
            const int cell = warehouse_cell(x, y);
            const float px = left + (float)x, py = top + (float)y;
            const uint8_t shelf = env->shelf_at[cell];
            fugu_rectangle(canvas, px + 0.03f, py + 0.03f, 0.94f, 0.94f,
                           env->kind[cell] == WAREHOUSE_GOAL   ? 0x8FC79A
                           : env->kind[cell] == WAREHOUSE_SPOT ? 0xDCD3C0
                                                               : 0xF4F0E6);
            if (env->kind[cell] == WAREHOUSE_GOAL)
                fugu_text(canvas, px + 0.5f, py + 0.5f, 0.5f, 0x4E8C5C, "G");
            if (shelf)
                warehouse_draw_shelf(canvas, px + 0.5f, py + 0.5f, 0.86f, env->requested[shelf]);
        }
    for (int i = 0; i < env->robots; ++i) {
        const WarehouseRobot* robot = &env->robot[i];
        const float x = left + (float)robot->x + 0.5f, y = top + (float)robot->y + 0.5f;
        const float ax = (float)warehouse_dx[robot->heading];
        const float ay = (float)warehouse_dy[robot->heading];
        fugu_circle(canvas, x + 0.03f, y + 0.05f, 0.4f, 0xB9AE98);
        fugu_circle(canvas, x, y, 0.4f, 0x1B2A33);
        fugu_circle(canvas, x, y, 0.35f, colors[i]);
        if (robot->shelf)
            warehouse_draw_shelf(canvas, x, y, 0.46f, env->requested[robot->shelf]);
        fugu_triangle(canvas, x + 0.38f * ax, y + 0.38f * ay, x + 0.18f * ax - 0.17f * ay,
                      y + 0.18f * ay + 0.17f * ax, x + 0.18f * ax + 0.17f * ay,
                      y + 0.18f * ay - 0.17f * ax, 0xFFFFFF);
    }
    fugu_number(canvas, 0.5f * width + 0.5f, 0.4f, 0.5f, 0x2F4858, "shelves ", env->deliveries);
    fugu_number(canvas, 0.5f * width + 0.5f, 0.86f, 0.3f, 0x9A8F7C, "step ", env->base.step);
}

FUGU_ENVIRONMENT(Warehouse, warehouse,
                 "Robots carry requested shelves to the goals of a warehouse without colliding.")
