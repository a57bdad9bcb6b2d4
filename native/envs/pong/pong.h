/* Pong, after Atari's game of 1972: against a script, or two agents against each other. */
#include "fugu_env.h"

/* The middle of the field is (0, 0), so that mirroring it is exact; y grows downward. The first
   agent's paddle is the right one. */
#define PONG_X 8.0f /* half of the field's width */
#define PONG_Y 5.0f
#define PONG_PADDLE_X 7.4f /* where a paddle sends the ball back */
#define PONG_RADIUS 0.18f

enum { PONG_RIGHT, PONG_LEFT };

typedef struct Pong {
    FuguEnv base;
    float x, y, speed_x, speed_y, speed;
    float paddles[2];
    int32_t scores[2];
    int32_t opponent, points;
    float paddle_height, paddle_speed, opponent_speed, ball_speed, top_speed, acceleration;
} Pong;

static const FuguSetting pong_settings[] = {
    FUGU_MAX_STEPS(5000),
    FUGU_INT(Pong, opponent, 0, 0, 1, "who plays the left paddle: 0 a script, 1 a second agent"),
    FUGU_INT(Pong, points, 11, 1, 21, "that win a game"),
    FUGU_REAL(Pong, paddle_height, 2, 0.5, 10, "of a field 10 high"),
    FUGU_REAL(Pong, paddle_speed, 0.25, 0.01, 2, "of an agent, a step"),
    FUGU_REAL(Pong, opponent_speed, 0.14, 0, 2, "of the script, a step"),
    FUGU_REAL(Pong, ball_speed, 0.3, 0.05, 1, "of a new ball, a step"),
    FUGU_REAL(Pong, top_speed, 0.6, 0.05, 1, "the most that a ball reaches"),
    FUGU_REAL(Pong, acceleration, 1.04, 1, 2, "by which each hit speeds it up"),
};

static void pong_describe(const Pong* env, FuguSpec* spec) {
    FuguGroup* player = fugu_group(spec, "player", env->opponent ? 2 : 1);
    fugu_floats(&player->observation, "", 0, -2, 2, 8,
                "own paddle; other paddle; ball x, 1 at the own side; ball y; ball velocity x; "
                "ball velocity y; own points; points of the other");
    fugu_discrete(&player->action, "", 0, 3, "stay; up; down");
    spec->reward = "1 for a point, -1 for a point of the other";
    fugu_log(spec, "score"); /* the first agent's points minus the other's */
    fugu_key(spec, "up", 1);
    fugu_key(spec, "down", 2);
    if (env->opponent) {
        fugu_key_of(spec, "w", 0, 1, 0, 0, 1);
        fugu_key_of(spec, "s", 0, 1, 0, 0, 2);
    }
    spec->all_act = true;
    fugu_picture(spec, 17, 12, 30);
}

static inline void pong_init(Pong* env) {
    env->top_speed = fugu_max(env->top_speed, env->ball_speed);
}

static inline void pong_serve(Pong* env) {
    FuguRandom* random = &env->base.random;
    const float angle = fugu_uniform(random, -0.7f, 0.7f);
    env->x = 0;
    env->y = fugu_uniform(random, -3.0f, 3.0f);
    env->speed = env->ball_speed;
    env->speed_x = env->speed * fugu_cos(angle) * (fugu_chance(random, 0.5f) ? 1.0f : -1.0f);
    env->speed_y = env->speed * fugu_sin(angle);
}

static inline void pong_reset(Pong* env) {
    env->paddles[PONG_RIGHT] = env->paddles[PONG_LEFT] = 0;
    env->scores[PONG_RIGHT] = env->scores[PONG_LEFT] = 0;
    pong_serve(env);
}

static inline float pong_push(int64_t action, float speed) {
    return action == 1 ? -speed : action == 2 ? speed : 0.0f;
}

static inline void pong_move_ball(Pong* env) {
    const float low = PONG_Y - PONG_RADIUS, before = fugu_abs(env->x);
    env->x += env->speed_x;
    env->y += env->speed_y;
    if (fugu_abs(env->y) > low) {
        /* As far back as it went too far; a speed of at most 1 needs this but once. */
        env->y = (env->y > 0 ? 2 * low : -2 * low) - env->y;
        env->speed_y = -env->speed_y;
    }
    const float edge = PONG_PADDLE_X - PONG_RADIUS, after = fugu_abs(env->x);
    if (before > edge || after <= edge)
        return; /* it did not come to a paddle's line, or is behind it */
    const bool right = env->x > 0;
    const float reach = env->paddle_height / 2 + PONG_RADIUS;
    const float offset = env->y - env->paddles[right ? PONG_RIGHT : PONG_LEFT];
    if (fugu_abs(offset) > reach)
        return;
    /* The farther from the middle of the paddle, the steeper, up to 60 degrees. */
    const float angle = offset / reach * (FUGU_PI / 3);
    env->speed = fugu_min(env->speed * env->acceleration, env->top_speed);
    env->speed_x = env->speed * fugu_cos(angle) * (right ? -1.0f : 1.0f);
    env->speed_y = env->speed * fugu_sin(angle);
    env->x = right ? edge : -edge;
}

static inline void pong_step(Pong* env, FuguIO* io) {
    const int64_t* actions = io->groups[0].actions;
    const float limit = fugu_max(PONG_Y - env->paddle_height / 2, 0.0f);
    const float push = pong_push(actions[0], env->paddle_speed);
    float other;
    if (env->opponent)
        other = pong_push(actions[1], env->paddle_speed);
    else
        other =
            fugu_clamp(env->y - env->paddles[PONG_LEFT], -env->opponent_speed, env->opponent_speed);
    env->paddles[PONG_RIGHT] = fugu_clamp(env->paddles[PONG_RIGHT] + push, -limit, limit);
    env->paddles[PONG_LEFT] = fugu_clamp(env->paddles[PONG_LEFT] + other, -limit, limit);
    pong_move_ball(env);
    if (fugu_abs(env->x) > PONG_X + PONG_RADIUS) {
        const int winner = env->x < 0 ? PONG_RIGHT : PONG_LEFT;
        const float reward = winner == PONG_RIGHT ? 1.0f : -1.0f;
        io->groups[0].rewards[0] = reward;
        if (env->opponent)
            io->groups[0].rewards[1] = -reward;
        io->terminated = ++env->scores[winner] >= env->points;
        if (!io->terminated)
            pong_serve(env);
    }
    /* Logs are averaged over the agents whose episode ended: here, all of them. */
    if (io->terminated || env->base.step == env->base.max_steps)
        io->log[0] +=
            (float)((env->scores[PONG_RIGHT] - env->scores[PONG_LEFT]) * (env->opponent ? 2 : 1));
}

static inline void pong_observe(Pong* env, FuguIO* io) {
    float* observation = io->groups[0].observations;
    for (int agent = 0; agent < 1 + env->opponent; ++agent, observation += 8) {
        const float side = agent == PONG_RIGHT ? 1.0f : -1.0f;
        observation[0] = env->paddles[agent] * (1 / PONG_Y);
        observation[1] = env->paddles[1 - agent] * (1 / PONG_Y);
        observation[2] = side * env->x * (1 / PONG_X);
        observation[3] = env->y * (1 / PONG_Y);
        observation[4] = side * env->speed_x / env->top_speed;
        observation[5] = env->speed_y / env->top_speed;
        observation[6] = (float)env->scores[agent] / (float)env->points;
        observation[7] = (float)env->scores[1 - agent] / (float)env->points;
    }
}

static void pong_paddle(FuguCanvas* canvas, float x, float y, float height, uint32_t color) {
    const float half = fugu_max(height / 2 - 0.17f, 0.0f);
    fugu_line(canvas, x, y - half, x, y + half, 0.34f, color);
    fugu_circle(canvas, x, y - half, 0.17f, color);
    fugu_circle(canvas, x, y + half, 0.17f, color);
}

static void pong_draw(const Pong* env, FuguCanvas* canvas) {
    const float x = 8.5f, y = 6.5f; /* of the middle of the field */
    canvas->background = 0x2F4858;
    fugu_rectangle(canvas, x - PONG_X, y - PONG_Y, 2 * PONG_X, 2 * PONG_Y, 0x1B2A33);
    for (int i = 0; i < 13; ++i)
        fugu_circle(canvas, x, y - 4.6f + 0.766f * (float)i, 0.07f, 0x4A6670);
    fugu_line(canvas, x - PONG_X, y - PONG_Y, x + PONG_X, y - PONG_Y, 0.08f, 0x81B29A);
    fugu_line(canvas, x - PONG_X, y + PONG_Y, x + PONG_X, y + PONG_Y, 0.08f, 0x81B29A);
    static const uint32_t trail[4] = {0x2A3B45, 0x3C4B52, 0x5B635F, 0x86826F};
    for (int i = 0; i < 4; ++i) {
        const float back = 0.6f * (float)(4 - i);
        fugu_circle(canvas, x + env->x - back * env->speed_x,
                    y + fugu_clamp(env->y - back * env->speed_y, -PONG_Y + 0.1f, PONG_Y - 0.1f),
                    0.07f + 0.025f * (float)i, trail[i]);
    }
    fugu_circle(canvas, x + env->x, y + env->y, PONG_RADIUS, 0xF7F3E9);
    const float wide = PONG_PADDLE_X + 0.17f;
    pong_paddle(canvas, x + wide, y + env->paddles[PONG_RIGHT], env->paddle_height, 0xE07A5F);
    pong_paddle(canvas, x - wide, y + env->paddles[PONG_LEFT], env->paddle_height, 0xF2CC8F);
    fugu_number(canvas, x - 1.4f, 0.75f, 1.0f, 0xF2CC8F, "", env->scores[PONG_LEFT]);
    fugu_text(canvas, x, 0.7f, 0.7f, 0x9AB0B5, ":");
    fugu_number(canvas, x + 1.4f, 0.75f, 1.0f, 0xE07A5F, "", env->scores[PONG_RIGHT]);
    fugu_text(canvas, x - 5.5f, 0.75f, 0.5f, 0x9AB0B5, env->opponent ? "second" : "script");
    fugu_text(canvas, x + 5.5f, 0.75f, 0.5f, 0x9AB0B5, env->opponent ? "first" : "agent");
}

FUGU_ENVIRONMENT(Pong, pong, "Play the ball past the other's paddle, alone or in self-play.")
