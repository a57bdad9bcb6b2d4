/* Hazard grid: a slippery grid world whose shortest way to the goal leads over hazards. It is
   small enough that the best policy under a limit of cost can be computed exactly. */
#include "fugu_env.h"

#define HAZARD_GRID_MAX 8

typedef struct HazardGrid {
    FuguEnv base;
    int32_t row, column; /* row 0 is the top one */
    float cost;          /* of this episode */
    int32_t size, layout;
    float slip, step_penalty;
    uint8_t hazard[HAZARD_GRID_MAX * HAZARD_GRID_MAX]; /* cell = row * size + column */
} HazardGrid;

static const FuguSetting hazard_grid_settings[] = {
    FUGU_MAX_STEPS(100),
    FUGU_INT(HazardGrid, size, 5, 3, HAZARD_GRID_MAX, "cells a side"),
    FUGU_INT(HazardGrid, layout, 0, 0, 1e9, "0: hazards all along the bottom; else drawn from it"),
    FUGU_REAL(HazardGrid, slip, 0.1, 0, 1, "chance to move to the left or right of the direction"),
    FUGU_REAL(HazardGrid, step_penalty, 0.01, 0, 1, "taken from the reward of every step"),
};

static void hazard_grid_describe(const HazardGrid* env, FuguSpec* spec) {
    FuguGroup* agent = fugu_group(spec, "agent", 1);
    agent->costs = 1;
    fugu_floats(&agent->observation, "", 0, 0, 1, env->size * env->size,
                "1 at the agent's cell, by rows from the top, else 0");
    fugu_discrete(&agent->action, "", 0, 4, "up; right; down; left");
    spec->reward = "1 at the goal, less a small penalty for every step; cost 1 for every step that "
                   "ends on a hazard";
    fugu_log(spec, "cost");
    fugu_log(spec, "solved");
    fugu_key(spec, "up", 0);
    fugu_key(spec, "right", 1);
    fugu_key(spec, "down", 2);
    fugu_key(spec, "left", 3);
    fugu_picture(spec, 8, 9, 8);
    spec->waits_for_a_key = true;
}

/* The start is the left end of the bottom row and the goal its right end, so the shortest way is
   along that row, whose middle is always a hazard. The rim above it is always safe. */
static void hazard_grid_init(HazardGrid* env) {
    const int32_t size = env->size;
    FuguRandom random = {fugu_derive((uint64_t)env->layout, 0)};
    for (int32_t cell = 0; cell < HAZARD_GRID_MAX * HAZARD_GRID_MAX; ++cell)
        env->hazard[cell] = 0;
    for (int32_t row = 1; row < size; ++row)
        for (int32_t column = 1; column < size - 1; ++column) {
            const bool bottom = row == size - 1;
            const bool drawn = fugu_chance(&random, 0.35f) || (bottom && column == size / 2);
            env->hazard[row * size + column] = env->layout ? drawn : bottom;
        }
}

static inline void hazard_grid_reset(HazardGrid* env) {
    env->row = env->size - 1;
    env->column = 0;
    env->cost = 0.0f;
}

static inline void hazard_grid_step(HazardGrid* env, FuguIO* io) {
    const int32_t last = env->size - 1;
    int32_t direction = (int32_t)(*(const int64_t*)io->groups[0].actions);
    const float luck = fugu_unit(&env->base.random);
    direction += luck < 0.5f * env->slip ? 1 : luck < env->slip ? 3 : 0;
    direction &= 3;
    const int32_t down = (direction == 2) - (direction == 0);
    const int32_t right = (direction == 1) - (direction == 3);
    env->row = fugu_clamp_int(env->row + down, 0, last);
    env->column = fugu_clamp_int(env->column + right, 0, last);
    const float cost = (float)env->hazard[env->row * env->size + env->column];
    const bool solved = env->row == last && env->column == last;
    env->cost += cost;
    io->groups[0].rewards[0] = (solved ? 1.0f : 0.0f) - env->step_penalty;
    io->groups[0].costs[0] += cost;
    io->terminated = solved;
    if (solved || (env->base.max_steps && env->base.step >= env->base.max_steps)) {
        io->log[0] += env->cost;
        io->log[1] += solved ? 1.0f : 0.0f;
    }
}

static inline void hazard_grid_observe(HazardGrid* env, FuguIO* io) {
    float* observation = io->groups[0].observations;
    for (int32_t cell = 0; cell < env->size * env->size; ++cell)
        observation[cell] = 0.0f;
    observation[env->row * env->size + env->column] = 1.0f;
}

static void hazard_grid_draw(const HazardGrid* env, FuguCanvas* canvas) {
    const float side = 7.6f / (float)env->size, gap = 0.04f * side;
    canvas->background = 0xF7F3E9;
    for (int32_t row = 0; row < env->size; ++row)
        for (int32_t column = 0; column < env->size; ++column) {
            const float x = 0.2f + side * (float)column, y = 1.2f + side * (float)row;
            const bool hazard = env->hazard[row * env->size + column];
            const bool goal = row == env->size - 1 && column == env->size - 1;
            fugu_rectangle(canvas, x + gap, y + gap, side - 2 * gap, side - 2 * gap,
                           goal     ? 0x81B29A
                           : hazard ? 0xF4C7BA
                                    : 0xEAE4D3);
            if (hazard) { /* a flame */
                fugu_circle(canvas, x + 0.5f * side, y + 0.6f * side, 0.2f * side, 0xE07A5F);
                fugu_triangle(canvas, x + 0.31f * side, y + 0.55f * side, x + 0.69f * side,
                              y + 0.55f * side, x + 0.5f * side, y + 0.15f * side, 0xE07A5F);
                fugu_circle(canvas, x + 0.5f * side, y + 0.65f * side, 0.1f * side, 0xF2CC8F);
            }
            if (goal) { /* a flag */
                fugu_line(canvas, x + 0.35f * side, y + 0.82f * side, x + 0.35f * side,
                          y + 0.2f * side, 0.06f * side, 0x2F4858);
                fugu_triangle(canvas, x + 0.35f * side, y + 0.2f * side, x + 0.75f * side,
                              y + 0.35f * side, x + 0.35f * side, y + 0.5f * side, 0xF7F3E9);
            }
        }
    const float x = 0.2f + side * ((float)env->column + 0.5f);
    const float y = 1.2f + side * ((float)env->row + 0.5f);
    fugu_circle(canvas, x, y, 0.3f * side, 0x2F4858);
    fugu_circle(canvas, x - 0.1f * side, y - 0.06f * side, 0.06f * side, 0xF7F3E9);
    fugu_circle(canvas, x + 0.1f * side, y - 0.06f * side, 0.06f * side, 0xF7F3E9);
    fugu_number(canvas, 2.2f, 0.6f, 0.5f, 0x2F4858, "steps ", env->base.step);
    fugu_number(canvas, 5.8f, 0.6f, 0.5f, 0xC0392B, "cost ", (int64_t)env->cost);
}

FUGU_ENVIRONMENT(HazardGrid, hazard_grid, "Cross a slippery grid without stepping on hazards.")
