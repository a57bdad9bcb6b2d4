/* Breakout, after the Atari game of 1976 in the well-known form with a vector for an observation:
   6 rows of 18 bricks, two walls. The points of the rows are 7, 7, 4, 4, 1, 1 from the top, so a
   wall is worth 18 * 24 = 432 and the best score is 864. */
#include "fugu_env.h"

enum { BREAKOUT_ROWS = 6, BREAKOUT_COLUMNS = 18, BREAKOUT_BRICKS = 108, BREAKOUT_NUMBERS = 10 };

/* Lengths are in widths of a brick; y grows downward from the upper wall. */
#define BREAKOUT_WIDTH 18.0f
#define BREAKOUT_HEIGHT 11.0f
#define BREAKOUT_TOP 1.5f /* of the bricks */
#define BREAKOUT_BRICK 0.45f
#define BREAKOUT_PADDLE 10.3f /* the upper edge of the paddle */
#define BREAKOUT_RADIUS 0.2f

typedef struct Breakout {
    FuguEnv base;
    float paddle, x, y, speed_x, speed_y, speed;
    int32_t lives_left, bricks_left, wall, score, hits;
    uint8_t bricks[BREAKOUT_BRICKS];
    int32_t lives, frame_skip;
    float paddle_width, paddle_speed, ball_speed, top_speed, acceleration;
} Breakout;

static const FuguSetting breakout_settings[] = {
    FUGU_MAX_STEPS(10000),
    FUGU_INT(Breakout, lives, 5, 1, 100, "balls of an episode"),
    FUGU_INT(Breakout, frame_skip, 4, 1, 32, "moments that pass in a step"),
    FUGU_REAL(Breakout, paddle_width, 2.0, 0.5, 18, "in bricks"),
    FUGU_REAL(Breakout, paddle_speed, 0.2, 0.01, 2, "bricks a moment"),
    FUGU_REAL(Breakout, ball_speed, 0.12, 0.01, 0.3, "of a new ball, bricks a moment"),
    FUGU_REAL(Breakout, top_speed, 0.24, 0.01, 0.3, "the most that a ball reaches"),
    FUGU_REAL(Breakout, acceleration, 1.03, 1, 2, "by which a hit of the paddle speeds it up"),
};

static const float breakout_points[BREAKOUT_ROWS] = {7, 7, 4, 4, 1, 1};

static void breakout_describe(const Breakout* env, FuguSpec* spec) {
    FuguGroup* agent = fugu_group(spec, "agent", 1);
    fugu_floats(&agent->observation, "", 0, -2, 2, BREAKOUT_NUMBERS + BREAKOUT_BRICKS,
                "10 numbers: paddle, ball x, ball y, ball from paddle, velocity x, velocity y, "
                "speed, lives, share of bricks, wall; then 108 bricks from the upper left one");
    fugu_discrete(&agent->action, "", 0, 3, "stay; left; right");
    spec->reward = "the points of each brick: 7, 7, 4, 4, 1, 1 by row from the top";
    fugu_log(spec, "score");
    fugu_key(spec, "left", 1);
    fugu_key(spec, "right", 2);
    fugu_picture(spec, 19, 12.5f, 60.0f / (float)env->frame_skip);
}

static inline void breakout_init(Breakout* env) {
    env->top_speed = fugu_max(env->top_speed, env->ball_speed);
}

static void breakout_build(Breakout* env) {
    ++env->wall;
    env->bricks_left = BREAKOUT_BRICKS;
    for (int i = 0; i < BREAKOUT_BRICKS; ++i)
        env->bricks[i] = 1;
}

/* An angle from the vertical; the ball goes down (1) or up (-1). */
static void breakout_aim(Breakout* env, float angle, float down) {
    env->speed_x = env->speed * fugu_sin(angle);
    env->speed_y = env->speed * fugu_cos(angle) * down;
}

static void breakout_serve(Breakout* env) {
    FuguRandom* random = &env->base.random;
    if (env->bricks_left == 0)
        breakout_build(env);
    env->x = fugu_uniform(random, 5.0f, 13.0f);
    env->y = 5.0f;
    env->speed = env->ball_speed;
    breakout_aim(env, fugu_uniform(random, -0.7f, 0.7f), 1.0f);
}

static inline void breakout_reset(Breakout* env) {
    env->paddle = BREAKOUT_WIDTH / 2;
    env->lives_left = env->lives;
    env->bricks_left = env->wall = env->score = env->hits = 0;
    breakout_serve(env);
}

/* The brick that a ball at (x, y) touches, the one nearest to its centre first; -1 for none. The
   ball is taken for a square, which reaches at most four bricks. */
static inline int breakout_touched(const Breakout* env, float x, float y) {
    const float above = y - BREAKOUT_RADIUS - BREAKOUT_TOP, r = BREAKOUT_RADIUS;
    if (above >= BREAKOUT_ROWS * BREAKOUT_BRICK || above + 2 * r <= 0)
        return -1;
    const float xs[3] = {x, x - r, x + r}, ys[3] = {y, y - r, y + r};
    for (int j = 0; j < 3; ++j) {
        const float row = fugu_floor((ys[j] - BREAKOUT_TOP) / BREAKOUT_BRICK);
        if (row < 0 || row >= BREAKOUT_ROWS)
            continue;
        for (int i = 0; i < 3; ++i) {
            const int column = fugu_clamp_int((int)xs[i], 0, BREAKOUT_COLUMNS - 1);
            const int brick = (int)row * BREAKOUT_COLUMNS + column;
            if (env->bricks[brick])
                return brick;
        }
    }
    return -1;
}

/* Takes a brick out of the wall. */
static float breakout_break(Breakout* env, int brick) {
    const float points = breakout_points[brick / BREAKOUT_COLUMNS];
    env->bricks[brick] = 0;
    --env->bricks_left;
    env->score += (int32_t)points;
    return points;
}

static inline float breakout_move_ball(Breakout* env) {
    const float r = BREAKOUT_RADIUS;
    float points = 0;
    /* One direction after the other: so it is plain which of the two is turned back. */
    float x = env->x + env->speed_x;
    if (x < r || x > BREAKOUT_WIDTH - r) {
        x = fugu_clamp(x, r, BREAKOUT_WIDTH - r);
        env->speed_x = -env->speed_x;
    }
    int brick = breakout_touched(env, x, env->y);
    if (brick >= 0) {
        points += breakout_break(env, brick);
        env->speed_x = -env->speed_x;
        x = env->x;
    }
    env->x = x;
    float y = env->y + env->speed_y;
    if (y < r) {
        y = r;
        env->speed_y = -env->speed_y;
    }
    brick = breakout_touched(env, x, y);
    if (brick >= 0) {
        points += breakout_break(env, brick);
        env->speed_y = -env->speed_y;
        y = env->y;
    }
    const float reach = env->paddle_width / 2 + r, edge = BREAKOUT_PADDLE - r;
    if (env->y <= edge && y > edge && fugu_abs(x - env->paddle) <= reach) {
        y = edge;
        ++env->hits;
        env->speed = fugu_min(env->speed * env->acceleration, env->top_speed);
        /* The farther from the middle of the paddle, the flatter, up to 60 degrees. */
        breakout_aim(env, (x - env->paddle) / reach * (FUGU_PI / 3), -1.0f);
        /* A new wall waits for this moment, so that no ball is caught inside of it. */
        if (env->bricks_left == 0)
            breakout_build(env);
    }
    env->y = y;
    return points;
}

static inline void breakout_step(Breakout* env, FuguIO* io) {
    const int64_t action = *(const int64_t*)io->groups[0].actions;
    const float push = action == 1 ? -env->paddle_speed : action == 2 ? env->paddle_speed : 0.0f;
    const float half = env->paddle_width / 2;
    float points = 0;
    for (int moment = 0; moment < env->frame_skip && !io->terminated; ++moment) {
        env->paddle = fugu_clamp(env->paddle + push, half, BREAKOUT_WIDTH - half);
        points += breakout_move_ball(env);
        if (env->bricks_left == 0 && env->wall == 2)
            io->terminated = true;
        if (env->y > BREAKOUT_HEIGHT + BREAKOUT_RADIUS) {
            if (--env->lives_left > 0)
                breakout_serve(env);
            else
                io->terminated = true;
        }
    }
    io->groups[0].rewards[0] = points;
    if (io->terminated || env->base.step == env->base.max_steps)
        io->log[0] += (float)env->score;
}

static inline void breakout_observe(Breakout* env, FuguIO* io) {
    float* observation = io->groups[0].observations;
    observation[0] = env->paddle * (2 / BREAKOUT_WIDTH) - 1;
    observation[1] = env->x * (2 / BREAKOUT_WIDTH) - 1;
    observation[2] = env->y * (2 / BREAKOUT_HEIGHT) - 1;
    observation[3] = (env->x - env->paddle) * (2 / BREAKOUT_WIDTH);
    observation[4] = env->speed_x / env->top_speed;
    observation[5] = env->speed_y / env->top_speed;
    observation[6] = env->speed / env->top_speed;
    observation[7] = (float)env->lives_left / (float)env->lives;
    observation[8] = (float)env->bricks_left / (float)BREAKOUT_BRICKS;
    observation[9] = (float)(env->wall - 1);
    for (int i = 0; i < BREAKOUT_BRICKS; ++i)
        observation[BREAKOUT_NUMBERS + i] = (float)env->bricks[i];
}

static void breakout_draw(const Breakout* env, FuguCanvas* canvas) {
    static const uint32_t colors[BREAKOUT_ROWS] = {0xD1495B, 0xE07A5F, 0xEDAE49,
                                                   0xF2CC8F, 0x81B29A, 0x4F9DA6};
    static const uint32_t lights[BREAKOUT_ROWS] = {0xE07683, 0xEBA08B, 0xF4C97F,
                                                   0xF8E0BA, 0xA7CBB8, 0x7FBAC1};
    const float left = 0.5f, top = 1.2f; /* of the field */
    canvas->background = 0x2F4858;
    fugu_rectangle(canvas, left, top, BREAKOUT_WIDTH, 12.5f - top, 0x1B2A33);
    for (int i = 0; i < BREAKOUT_BRICKS; ++i) {
        if (!env->bricks[i])
            continue;
        const int row = i / BREAKOUT_COLUMNS;
        const float x = left + (float)(i % BREAKOUT_COLUMNS);
        const float y = top + BREAKOUT_TOP + BREAKOUT_BRICK * (float)row;
        fugu_rectangle(canvas, x + 0.04f, y + 0.04f, 0.92f, BREAKOUT_BRICK - 0.08f, colors[row]);
        fugu_rectangle(canvas, x + 0.04f, y + 0.04f, 0.92f, 0.09f, lights[row]);
    }
    static const uint32_t trail[4] = {0x2A3B45, 0x3C4B52, 0x5B635F, 0x86826F};
    for (int i = 0; i < 4; ++i) {
        const float back = 1.6f * (float)(4 - i);
        const float y = fugu_max(env->y - back * env->speed_y, 0.1f);
        const float x = fugu_clamp(env->x - back * env->speed_x, 0.1f, BREAKOUT_WIDTH - 0.1f);
        fugu_circle(canvas, left + x, top + y, 0.07f + 0.025f * (float)i, trail[i]);
    }
    fugu_circle(canvas, left + env->x, top + env->y, BREAKOUT_RADIUS, 0xF7F3E9);
    const float half = env->paddle_width / 2, y = top + BREAKOUT_PADDLE, x = left + env->paddle;
    fugu_line(canvas, x - half + 0.16f, y + 0.16f, x + half - 0.16f, y + 0.16f, 0.32f, 0xE07A5F);
    fugu_circle(canvas, x - half + 0.16f, y + 0.16f, 0.16f, 0xF2CC8F);
    fugu_circle(canvas, x + half - 0.16f, y + 0.16f, 0.16f, 0xF2CC8F);
    fugu_number(canvas, 9.5f, 0.6f, 0.7f, 0xF7F3E9, "score ", env->score);
    fugu_number(canvas, 2.2f, 0.6f, 0.5f, 0x9AB0B5, "wall ", env->wall);
    for (int i = 0; i < env->lives_left && i < 8; ++i)
        fugu_circle(canvas, 18.0f - 0.55f * (float)i, 0.6f, 0.18f, 0xF2CC8F);
}

FUGU_ENVIRONMENT(Breakout, breakout, "Break two walls of bricks with a ball and a paddle.")
