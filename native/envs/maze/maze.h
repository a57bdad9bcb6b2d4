/* A new maze for every episode, in the spirit of Procgen's maze (Cobbe and others, 2020). */
#include "fugu_env.h"

#define MAZE_MAX 31
#define MAZE_VISION 8 /* the largest; as many rows and columns of wall lie around every maze */
#define MAZE_LINES (MAZE_MAX + 2 * MAZE_VISION)

typedef struct Maze {
    FuguEnv base;
    uint64_t walls[MAZE_LINES]; /* a bit a cell; places below count the wall around the maze too */
    uint64_t trail[MAZE_LINES]; /* where the agent was, to be drawn */
    int32_t size, vision, compass, levels;
    float openness, step_cost;
    int32_t shortest, level; /* steps of the best path; the level's number, 0 if unlimited */
    uint8_t side;            /* of the maze: the size, made odd */
    uint8_t x, y, goal_x, goal_y;
} Maze;

static const FuguSetting maze_settings[] = {
    FUGU_MAX_STEPS(400),
    FUGU_INT(Maze, size, 11, 5, MAZE_MAX, "rows and columns, walls included; the next odd number"),
    FUGU_REAL(Maze, openness, 0.1, 0, 1, "share of the inner walls that is taken away"),
    FUGU_INT(Maze, vision, 2, 1, MAZE_VISION, "cells that the agent sees in each direction"),
    FUGU_INT(Maze, compass, 1, 0, 1, "whether it sees where the goal is"),
    FUGU_INT(Maze, levels, 0, 0, 1000000000, "how many different mazes there are; 0 for no end"),
    FUGU_REAL(Maze, step_cost, 0.005, 0, 1, "taken from the reward in every step"),
};

static inline int maze_window(const Maze* env) {
    return 2 * env->vision + 1;
}

/* Where the compass stands in an observation: after the window, where a float may. */
static inline uint32_t maze_compass_offset(const Maze* env) {
    return ((uint32_t)(maze_window(env) * maze_window(env)) + 3u) / 4u * 4u;
}

static void maze_describe(const Maze* env, FuguSpec* spec) {
    const int window = maze_window(env);
    FuguGroup* agent = fugu_group(spec, "agent", 1);
    fugu_box(&agent->observation, env->compass ? "view" : "", 0, FUGU_U8, 0, 2, window, window, 0,
             "the cells around the agent by rows, itself in the middle: 0 free, 1 wall, 2 goal");
    if (env->compass)
        fugu_floats(&agent->observation, "compass", maze_compass_offset(env), -1, 1, 2,
                    "how far right the goal is; how far down, as shares of the maze's side");
    fugu_discrete(&agent->action, "", 0, 4, "up; right; down; left");
    spec->reward = "1 at the goal, less step_cost in every step";
    fugu_log(spec, "solved");
    fugu_log(spec, "optimal_ratio");
    fugu_key(spec, "up", 0);
    fugu_key(spec, "right", 1);
    fugu_key(spec, "down", 2);
    fugu_key(spec, "left", 3);
    fugu_picture(spec, 10, 11, 12);
    spec->waits_for_a_key = true;
}

static inline void maze_init(Maze* env) {
    env->side = (uint8_t)(env->size | 1);
}

static const int8_t maze_dx[4] = {0, 1, 0, -1}, maze_dy[4] = {-1, 0, 1, 0};

static inline bool maze_wall(const uint64_t* lines, int x, int y) {
    return lines[y] >> x & 1;
}

static inline void maze_open(Maze* env, int x, int y) {
    env->walls[y] &= ~((uint64_t)1 << x);
}

/* A perfect maze between rooms, which lie on every other cell: a depth-first search that goes to
   a random new room, and back where there is none. */
static void maze_dig(Maze* env, FuguRandom* random) {
    const int rooms = env->side / 2;
    uint8_t stack_x[MAZE_MAX / 2 * (MAZE_MAX / 2)], stack_y[MAZE_MAX / 2 * (MAZE_MAX / 2)];
    int count = 0, x = fugu_below(random, rooms), y = fugu_below(random, rooms);
    maze_open(env, MAZE_VISION + 1 + 2 * x, MAZE_VISION + 1 + 2 * y);
    for (;;) {
        int ways[4], open = 0;
        for (int way = 0; way < 4; ++way) {
            const int next_x = x + maze_dx[way], next_y = y + maze_dy[way];
            if (next_x >= 0 && next_x < rooms && next_y >= 0 && next_y < rooms &&
                maze_wall(env->walls, MAZE_VISION + 1 + 2 * next_x, MAZE_VISION + 1 + 2 * next_y))
                ways[open++] = way;
        }
        if (open) {
            const int way = ways[open == 1 ? 0 : fugu_below(random, open)];
            const int cell_x = MAZE_VISION + 1 + 2 * x, cell_y = MAZE_VISION + 1 + 2 * y;
            stack_x[count] = (uint8_t)x;
            stack_y[count++] = (uint8_t)y;
            maze_open(env, cell_x + maze_dx[way], cell_y + maze_dy[way]);
            maze_open(env, cell_x + 2 * maze_dx[way], cell_y + 2 * maze_dy[way]);
            x += maze_dx[way];
            y += maze_dy[way];
        } else if (count) {
            x = stack_x[--count];
            y = stack_y[count];
        } else {
            return;
        }
    }
}

/* Takes away some of the walls between two rooms. */
static void maze_knock(Maze* env, FuguRandom* random) {
    for (int y = MAZE_VISION + 1; y < MAZE_VISION + env->side - 1; ++y)
        for (int x = MAZE_VISION + 1 + (y - MAZE_VISION) % 2; x < MAZE_VISION + env->side - 1;
             x += 2)
            if (maze_wall(env->walls, x, y) && fugu_chance(random, env->openness))
                maze_open(env, x, y);
}

/* Steps from the agent to the goal: a breadth-first search. */
static int maze_measure(const Maze* env) {
    uint64_t seen[MAZE_LINES]; /* or a wall */
    uint8_t queue_x[MAZE_MAX * MAZE_MAX], queue_y[MAZE_MAX * MAZE_MAX];
    for (int y = 0; y < MAZE_LINES; ++y)
        seen[y] = env->walls[y];
    int head = 0, tail = 1, steps = 0;
    queue_x[0] = env->x;
    queue_y[0] = env->y;
    seen[env->y] |= (uint64_t)1 << env->x;
    for (; head < tail; ++steps) {
        for (const int end = tail; head < end; ++head) {
            if (queue_x[head] == env->goal_x && queue_y[head] == env->goal_y)
                return steps;
            for (int way = 0; way < 4; ++way) {
                const int x = queue_x[head] + maze_dx[way], y = queue_y[head] + maze_dy[way];
                if (maze_wall(seen, x, y))
                    continue;
                seen[y] |= (uint64_t)1 << x;
                queue_x[tail] = (uint8_t)x;
                queue_y[tail++] = (uint8_t)y;
            }
        }
    }
    return steps;
}

static void maze_reset(Maze* env) {
    FuguRandom random = env->base.random;
    env->level = 0;
    if (env->levels) { /* levels are the same ones for every seed */
        env->level = fugu_below(&random, env->levels);
        random.state = fugu_derive(0x6D617A65u, (uint64_t)env->level);
    }
    for (int y = 0; y < MAZE_LINES; ++y) {
        env->walls[y] = ~(uint64_t)0;
        env->trail[y] = 0;
    }
    maze_dig(env, &random);
    if (env->openness > 0)
        maze_knock(env, &random);
    const int rooms = env->side / 2;
    const int start = fugu_below(&random, rooms * rooms);
    const int other = fugu_below(&random, rooms * rooms - 1), goal = other + (other >= start);
    env->x = (uint8_t)(MAZE_VISION + 1 + 2 * (start % rooms));
    env->y = (uint8_t)(MAZE_VISION + 1 + 2 * (start / rooms));
    env->goal_x = (uint8_t)(MAZE_VISION + 1 + 2 * (goal % rooms));
    env->goal_y = (uint8_t)(MAZE_VISION + 1 + 2 * (goal / rooms));
    env->trail[env->y] |= (uint64_t)1 << env->x;
    env->shortest = maze_measure(env);
}

static inline void maze_step(Maze* env, FuguIO* io) {
    const int64_t action = *(const int64_t*)io->groups[0].actions;
    const int x = env->x + maze_dx[action], y = env->y + maze_dy[action];
    if (!maze_wall(env->walls, x, y)) {
        env->x = (uint8_t)x;
        env->y = (uint8_t)y;
        env->trail[y] |= (uint64_t)1 << x;
    }
    io->terminated = env->x == env->goal_x && env->y == env->goal_y;
    io->groups[0].rewards[0] = (io->terminated ? 1.0f : 0.0f) - env->step_cost;
    if (io->terminated) {
        io->log[0] += 1.0f;
        io->log[1] += (float)env->shortest / (float)env->base.step;
    }
}

static inline void maze_observe(Maze* env, FuguIO* io) {
    uint8_t* view = io->groups[0].observations;
    const int window = maze_window(env), left = env->x - env->vision, top = env->y - env->vision;
    for (int y = 0; y < window; ++y) {
        const uint64_t line = env->walls[top + y] >> left;
        for (int x = 0; x < window; ++x)
            view[y * window + x] = line >> x & 1;
    }
    const int goal_x = env->goal_x - left, goal_y = env->goal_y - top;
    if (goal_x >= 0 && goal_x < window && goal_y >= 0 && goal_y < window)
        view[goal_y * window + goal_x] = 2;
    if (env->compass) {
        float* compass = (float*)(void*)(view + maze_compass_offset(env));
        compass[0] = (float)(env->goal_x - env->x) / (float)env->side;
        compass[1] = (float)(env->goal_y - env->y) / (float)env->side;
    }
}

static void maze_draw(const Maze* env, FuguCanvas* canvas) {
    const int side = env->side;
    const float cell = 9.6f / (float)side, left = 0.2f, top = 1.2f;
    canvas->background = 0xF7F3E9;
    fugu_number(canvas, 1.6f, 0.6f, 0.5f, 0x2F4858, "steps ", env->base.step);
    fugu_number(canvas, 5.0f, 0.6f, 0.5f, 0x5FA58B, "best ", env->shortest);
    if (env->levels)
        fugu_number(canvas, 8.2f, 0.6f, 0.5f, 0x7D8B8A, "level ", env->level);
    fugu_rectangle(canvas, left, top, 9.6f, 9.6f, 0xEDE6D6);
    for (int y = 0; y < side; ++y) {
        const uint64_t line = env->walls[MAZE_VISION + y], trail = env->trail[MAZE_VISION + y];
        for (int x = 0; x < side; ++x) {
            const int far_x = fugu_abs_int(MAZE_VISION + x - env->x);
            const int far_y = fugu_abs_int(MAZE_VISION + y - env->y);
            const bool seen = fugu_max_int(far_x, far_y) <= env->vision;
            const bool wall = line >> (MAZE_VISION + x) & 1;
            const float corner_x = left + (float)x * cell, corner_y = top + (float)y * cell;
            if (wall)
                fugu_rectangle(canvas, corner_x, corner_y, cell * 1.01f, cell * 1.01f,
                               seen ? 0x3D6B7D : 0x2F4858);
            else if (seen)
                fugu_rectangle(canvas, corner_x, corner_y, cell * 1.01f, cell * 1.01f, 0xFBF8F0);
            if (trail >> (MAZE_VISION + x) & 1)
                fugu_circle(canvas, corner_x + cell / 2, corner_y + cell / 2, cell * 0.14f,
                            0xF2CC8F);
        }
    }
    const float goal_x = left + ((float)(env->goal_x - MAZE_VISION) + 0.5f) * cell;
    const float goal_y = top + ((float)(env->goal_y - MAZE_VISION) + 0.5f) * cell;
    fugu_circle(canvas, goal_x, goal_y, cell * 0.42f, 0xB7DCC6);
    fugu_line(canvas, goal_x - cell * 0.12f, goal_y - cell * 0.28f, goal_x - cell * 0.12f,
              goal_y + cell * 0.28f, cell * 0.08f, 0x2F4858);
    fugu_triangle(canvas, goal_x - cell * 0.08f, goal_y - cell * 0.28f, goal_x + cell * 0.26f,
                  goal_y - cell * 0.12f, goal_x - cell * 0.08f, goal_y + cell * 0.04f, 0x3D8B7D);
    const float x = left + ((float)(env->x - MAZE_VISION) + 0.5f) * cell;
    const float y = top + ((float)(env->y - MAZE_VISION) + 0.5f) * cell;
    fugu_circle(canvas, x, y, cell * 0.38f, 0xC4583D);
    fugu_circle(canvas, x, y - cell * 0.02f, cell * 0.34f, 0xE07A5F);
    for (int eye = -1; eye <= 1; eye += 2) { /* it looks towards the goal */
        const float look_x = fugu_clamp(goal_x - x, -cell, cell) * 0.05f;
        const float look_y = fugu_clamp(goal_y - y, -cell, cell) * 0.05f;
        const float eye_x = x + (float)eye * cell * 0.13f, eye_y = y - cell * 0.06f;
        fugu_circle(canvas, eye_x, eye_y, cell * 0.1f, 0xFFFFFF);
        fugu_circle(canvas, eye_x + look_x, eye_y + look_y, cell * 0.05f, 0x1B2A33);
    }
}

FUGU_ENVIRONMENT(Maze, maze, "Find the way through a new maze to the goal.")
