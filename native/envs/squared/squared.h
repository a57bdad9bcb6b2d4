/* Squared: a grid of 2 * distance + 1 cells a side. The agent starts in the middle, targets lie on
   the border, on other cells in every episode. After Squared of PufferLib's Ocean.

   A step onto a target earns 1 and takes it away. Every other step earns
   0.1 * (nearest before - nearest after) / distance, the nearest target's distance being counted in
   moves. The episode ends when all targets are taken; it is cut off after
   3 * distance * num_targets steps, which is enough to reach them all. */
#include "fugu_env.h"

enum { SQUARED_SIDE = 17, SQUARED_TARGETS = 8, SQUARED_AGENT = 1, SQUARED_TARGET = 2 };

typedef struct Squared {
    FuguEnv base;
    int32_t distance, num_targets;
    int32_t side, limit;       /* cells of a side, and steps of an episode */
    int32_t row, column, left; /* the agent, and targets that are left */
    int32_t nearest;           /* moves to the nearest of them */
    int8_t target_rows[SQUARED_TARGETS], target_columns[SQUARED_TARGETS]; /* the first are left */
    uint8_t cells[SQUARED_SIDE * SQUARED_SIDE];                           /* `side` a row */
} Squared;

static const FuguSetting squared_settings[] = {
    FUGU_MAX_STEPS(0),
    FUGU_INT(Squared, distance, 3, 1, 8, "cells between the middle and the border"),
    FUGU_INT(Squared, num_targets, 1, 1, SQUARED_TARGETS, "targets on the border"),
};

static void squared_describe(const Squared* env, FuguSpec* spec) {
    FuguGroup* agent = fugu_group(spec, "agent", 1);
    fugu_box(&agent->observation, "", 0, FUGU_U8, 0, 2, env->side, env->side, 0,
             "the cells: 0 empty, 1 the agent, 2 a target");
    fugu_discrete(&agent->action, "", 0, 5, "stay; down; up; left; right");
    spec->reward = "1 for a step onto a target, else 0.1 * (moves to the nearest target before - "
                   "after the step) / distance";
    fugu_log(spec, "score");
    fugu_key(spec, "down", 1);
    fugu_key(spec, "up", 2);
    fugu_key(spec, "left", 3);
    fugu_key(spec, "right", 4);
    spec->waits_for_a_key = true;
    fugu_picture(spec, 4, 4.4f, 6);
}

static inline void squared_init(Squared* env) {
    env->side = 2 * env->distance + 1;
    env->limit = 3 * env->distance * env->num_targets;
}

static inline int32_t squared_nearest(const Squared* env) {
    int32_t nearest = 4 * SQUARED_SIDE;
    for (int32_t i = 0; i < env->left; ++i)
        nearest = fugu_min_int(nearest, fugu_abs_int(env->target_rows[i] - env->row) +
                                            fugu_abs_int(env->target_columns[i] - env->column));
    return nearest;
}

static inline void squared_reset(Squared* env) {
    const int32_t edge = 2 * env->distance, border = 4 * edge;
    for (int32_t i = 0; i < env->side * env->side; ++i)
        env->cells[i] = 0;
    env->row = env->column = env->distance;
    env->cells[env->row * env->side + env->column] = SQUARED_AGENT;
    /* Different cells of the border, every set of them as likely (Floyd). */
    for (env->left = 0; env->left < env->num_targets; ++env->left) {
        const int32_t newest = border - env->num_targets + env->left;
        int32_t place = fugu_below(&env->base.random, newest + 1), row = 0, column = 0;
        for (int again = 0; again < 2; ++again) {
            const int32_t quarter = place / edge, along = place % edge;
            row = quarter == 0 ? 0 : quarter == 1 ? along : quarter == 2 ? edge : edge - along;
            column = quarter == 0 ? along : quarter == 1 ? edge : quarter == 2 ? edge - along : 0;
            if (!env->cells[row * env->side + column])
                break;
            place = newest;
        }
        env->cells[row * env->side + column] = SQUARED_TARGET;
        env->target_rows[env->left] = (int8_t)row;
        env->target_columns[env->left] = (int8_t)column;
    }
    env->nearest = squared_nearest(env);
}

static inline void squared_step(Squared* env, FuguIO* io) {
    static const int8_t downs[5] = {0, 1, -1, 0, 0}, rights[5] = {0, 0, 0, -1, 1};
    const int64_t action = *(const int64_t*)io->groups[0].actions;
    const int32_t last = env->side - 1;
    env->cells[env->row * env->side + env->column] = 0;
    env->row = fugu_clamp_int(env->row + downs[action], 0, last);
    env->column = fugu_clamp_int(env->column + rights[action], 0, last);
    uint8_t* cell = &env->cells[env->row * env->side + env->column];
    const bool hit = *cell == SQUARED_TARGET;
    *cell = SQUARED_AGENT;
    for (int32_t i = 0; hit && i < env->left; ++i)
        if (env->target_rows[i] == env->row && env->target_columns[i] == env->column) {
            --env->left;
            env->target_rows[i] = env->target_rows[env->left];
            env->target_columns[i] = env->target_columns[env->left];
        }
    const int32_t before = env->nearest;
    env->nearest = squared_nearest(env);
    io->groups[0].rewards[0] =
        hit ? 1.0f : 0.1f * (float)(before - env->nearest) / (float)env->distance;
    io->terminated = env->left == 0;
    io->truncated = env->base.step >= env->limit ||
                    (env->base.max_steps && env->base.step >= env->base.max_steps);
    if (io->terminated || io->truncated)
        io->log[0] += (float)(env->num_targets - env->left) / (float)env->num_targets;
}

static inline void squared_observe(Squared* env, FuguIO* io) {
    uint8_t* observation = io->groups[0].observations;
    const int32_t count = env->side * env->side;
    for (int32_t i = 0; i < count; ++i)
        observation[i] = env->cells[i];
}

static void squared_draw(const Squared* env, FuguCanvas* canvas) {
    const float cell = 3.6f / (float)env->side, left = 0.2f, top = 0.6f;
    const float here_x = left + cell * ((float)env->column + 0.5f);
    const float here_y = top + cell * ((float)env->row + 0.5f);
    canvas->background = 0xF7F3E9;
    for (int32_t row = 0; row < env->side; ++row)
        for (int32_t column = 0; column < env->side; ++column) {
            const bool border =
                row == 0 || column == 0 || row == env->side - 1 || column == env->side - 1;
            fugu_rectangle(canvas, left + cell * ((float)column + 0.04f),
                           top + cell * ((float)row + 0.04f), 0.92f * cell, 0.92f * cell,
                           border ? 0xE6DCC6 : 0xEFE8D8);
        }
    fugu_circle(canvas, 2.0f, top + 1.8f, 0.12f * cell, 0xC9BFA8); /* where it began */
    for (int32_t i = 0; i < env->left; ++i) {
        const float x = left + cell * ((float)env->target_columns[i] + 0.5f);
        const float y = top + cell * ((float)env->target_rows[i] + 0.5f);
        fugu_circle(canvas, x, y, 0.4f * cell, 0xE07A5F);
        fugu_circle(canvas, x, y, 0.27f * cell, 0xF7F3E9);
        fugu_circle(canvas, x, y, 0.14f * cell, 0xE07A5F);
    }
    fugu_circle(canvas, here_x, here_y, 0.42f * cell, 0x2F4858);
    fugu_circle(canvas, here_x - 0.13f * cell, here_y - 0.08f * cell, 0.09f * cell, 0xF7F3E9);
    fugu_circle(canvas, here_x + 0.13f * cell, here_y - 0.08f * cell, 0.09f * cell, 0xF7F3E9);
    fugu_number(canvas, 1.1f, 0.32f, 0.22f, 0x2F4858, "left ", env->left);
    fugu_number(canvas, 2.9f, 0.32f, 0.22f, 0x2F4858, "steps ", env->base.step);
}

FUGU_ENVIRONMENT(Squared, squared, "Walk from the middle of a grid to targets on its border.")
