/* Predators hunt faster prey among obstacles, after simple_tag of the multi-particle environments
   (Lowe and others, 2017): its bodies, forces and observations. What differs: a fence at 1.2 holds
   everybody in, and prey that was caught begins anew far from the predators, so that a catch counts
   once. With scripted_prey the prey flees by a rule and only the predators are agents.

   Predators: +10 to all for every prey caught, minus shaping times the own distance to the nearest
   prey. Prey: -10 when caught, minus bound(|x|) + bound(|y|), where bound(v) is 0 below 0.9, then
   10 (v - 0.9) below 1, then e^(2v - 2). */
#include "fugu_env.h"

enum { PREDATOR_PREY_PREDATORS = 8, PREDATOR_PREY_PREY = 4, PREDATOR_PREY_OBSTACLES = 4 };
enum { PREDATOR_PREY_BODIES = PREDATOR_PREY_PREDATORS + PREDATOR_PREY_PREY };

typedef struct PredatorPrey {
    FuguEnv base;
    float x[PREDATOR_PREY_BODIES], y[PREDATOR_PREY_BODIES]; /* predators, then prey */
    float speed_x[PREDATOR_PREY_BODIES], speed_y[PREDATOR_PREY_BODIES];
    float obstacle_x[PREDATOR_PREY_OBSTACLES], obstacle_y[PREDATOR_PREY_OBSTACLES];
    float caught_x, caught_y; /* where the last catch was, for the picture */
    int32_t predators, prey, obstacles, scripted_prey;
    float shaping, prey_speed;
    int32_t catches, caught_at; /* in this episode; the step of the last one, or -9 */
} PredatorPrey;

static const FuguSetting predator_prey_settings[] = {
    FUGU_MAX_STEPS(100),
    FUGU_INT(PredatorPrey, predators, 3, 1, PREDATOR_PREY_PREDATORS, "how many"),
    FUGU_INT(PredatorPrey, prey, 1, 1, PREDATOR_PREY_PREY, "how many"),
    FUGU_INT(PredatorPrey, obstacles, 2, 0, PREDATOR_PREY_OBSTACLES, "how many"),
    FUGU_INT(PredatorPrey, scripted_prey, 1, 0, 1, "1: prey flees by a rule; 0: prey are agents"),
    FUGU_REAL(PredatorPrey, shaping, 0.1, 0, 10, "cost of a predator's distance to its prey"),
    FUGU_REAL(PredatorPrey, prey_speed, 1.3, 0.1, 3, "at most; a predator's is 1"),
};

static const float predator_prey_fence = 1.2f;

static void predator_prey_describe(const PredatorPrey* env, FuguSpec* spec) {
    const int shared = 4 + 2 * env->obstacles + 2 * (env->predators + env->prey - 1);
    static const char* const text =
        "own velocity, own position, then relative to it the obstacles, the other predators and "
        "the (other) prey, then the velocities of the (other) prey: x and y each";
    FuguGroup* predators = fugu_group(spec, "predator", env->predators);
    fugu_floats(&predators->observation, "", 0, -FUGU_INFINITY, FUGU_INFINITY,
                shared + 2 * env->prey, text);
    fugu_discrete(&predators->action, "", 0, 5, "none; left; right; down; up");
    if (!env->scripted_prey) {
        FuguGroup* prey = fugu_group(spec, "prey", env->prey);
        fugu_floats(&prey->observation, "", 0, -FUGU_INFINITY, FUGU_INFINITY,
                    shared + 2 * (env->prey - 1), text);
        fugu_discrete(&prey->action, "", 0, 5, "none; left; right; down; up");
    }
    spec->reward = "predators: 10 for each catch, minus shaping times the distance to the nearest "
                   "prey; prey: -10 when caught, and a cost for keeping to the edge";
    fugu_log(spec, "catches");
    static const char* const keys[2][4] = {{"left", "right", "down", "up"}, {"a", "d", "s", "w"}};
    for (int group = 0; group < (env->scripted_prey ? 1 : 2); ++group)
        for (int i = 0; i < 4; ++i)
            fugu_key_of(spec, keys[group][i], group, 0, 0, 0, i + 1);
    spec->all_act = true;
    fugu_picture(spec, 6, 6.6f, 15);
}

static inline void predator_prey_init(PredatorPrey* env) {
    (void)env;
}

static inline float predator_prey_square(const PredatorPrey* env, int body, float x, float y) {
    const float dx = env->x[body] - x, dy = env->y[body] - y;
    return dx * dx + dy * dy;
}

/* A place clear of obstacles if one is found soon; for prey the one farthest from predators. */
static void predator_prey_place(PredatorPrey* env, int body) {
    float best = -1;
    for (int attempt = 0; attempt < 6; ++attempt) {
        const float x = fugu_uniform(&env->base.random, -0.9f, 0.9f);
        const float y = fugu_uniform(&env->base.random, -0.9f, 0.9f);
        float room = body < env->predators ? 1.0f : FUGU_INFINITY;
        for (int i = 0; body >= env->predators && i < env->predators; ++i)
            room = fugu_min(room, predator_prey_square(env, i, x, y));
        for (int o = 0; o < env->obstacles; ++o) {
            const float dx = x - env->obstacle_x[o], dy = y - env->obstacle_y[o];
            if (dx * dx + dy * dy < 0.3f * 0.3f)
                room = 0;
        }
        if (room > best) {
            best = room;
            env->x[body] = x;
            env->y[body] = y;
        }
    }
    env->speed_x[body] = env->speed_y[body] = 0;
}

static inline void predator_prey_reset(PredatorPrey* env) {
    for (int o = 0; o < env->obstacles; ++o) {
        for (int attempt = 0; attempt < 8; ++attempt) { /* apart, if that is found soon */
            env->obstacle_x[o] = fugu_uniform(&env->base.random, -0.8f, 0.8f);
            env->obstacle_y[o] = fugu_uniform(&env->base.random, -0.8f, 0.8f);
            bool clear = true;
            for (int p = 0; p < o; ++p) {
                const float dx = env->obstacle_x[o] - env->obstacle_x[p];
                const float dy = env->obstacle_y[o] - env->obstacle_y[p];
                clear = clear && dx * dx + dy * dy > 0.6f * 0.6f;
            }
            if (clear)
                break;
        }
    }
    for (int i = 0; i < env->predators + env->prey; ++i)
        predator_prey_place(env, i);
    env->catches = 0;
    env->caught_at = -9;
}

/* Flight of scripted prey: away from predators, the near ones most, and from the fence; the axis
   that matters more decides. */
static inline int64_t predator_prey_flee(const PredatorPrey* env, int body) {
    const float x = env->x[body], y = env->y[body];
    float away_x = 0, away_y = 0;
    for (int i = 0; i < env->predators; ++i) {
        const float dx = x - env->x[i], dy = y - env->y[i];
        const float weight = 1.0f / (dx * dx + dy * dy + 0.01f);
        away_x += dx * weight * weight;
        away_y += dy * weight * weight;
    }
    away_x -= x * x * x * 4.0f;
    away_y -= y * y * y * 4.0f;
    if (fugu_abs(away_x) > fugu_abs(away_y))
        return away_x < 0 ? 1 : 2;
    return away_y < 0 ? 3 : 4;
}

/* How hard two bodies push that are `apart` and would touch at `reach`, over `apart`. */
static inline float predator_prey_push(float square, float reach) {
    const float apart = fugu_sqrt(square), v = (reach - apart) * 1000.0f;
    return 0.1f * (fugu_max(v, 0) + fugu_log_of(1.0f + fugu_exp(-fugu_abs(v)))) / apart;
}

static inline float predator_prey_bound(float v) {
    v = fugu_abs(v);
    return v < 0.9f ? 0 : v < 1.0f ? (v - 0.9f) * 10.0f : fugu_exp(2.0f * v - 2.0f);
}

static inline void predator_prey_move(PredatorPrey* env, const int64_t* actions) {
    const int predators = env->predators, bodies = predators + env->prey;
    float force_x[PREDATOR_PREY_BODIES], force_y[PREDATOR_PREY_BODIES];
    for (int i = 0; i < bodies; ++i) {
        const float strength = i < predators ? 3.0f : 4.0f;
        force_x[i] = strength * (float)((actions[i] == 2) - (actions[i] == 1));
        force_y[i] = strength * (float)((actions[i] == 4) - (actions[i] == 3));
    }
    for (int i = 0; i < bodies; ++i) {
        const float size = i < predators ? 0.075f : 0.05f;
        for (int j = i + 1; j < bodies; ++j) {
            const float dx = env->x[i] - env->x[j], dy = env->y[i] - env->y[j];
            const float reach = size + (j < predators ? 0.075f : 0.05f);
            const float square = dx * dx + dy * dy;
            if (square < (reach + 0.02f) * (reach + 0.02f) && square > 0) {
                const float push = predator_prey_push(square, reach);
                force_x[i] += push * dx;
                force_y[i] += push * dy;
                force_x[j] -= push * dx;
                force_y[j] -= push * dy;
            }
        }
        for (int o = 0; o < env->obstacles; ++o) {
            const float dx = env->x[i] - env->obstacle_x[o], dy = env->y[i] - env->obstacle_y[o];
            const float reach = size + 0.2f, square = dx * dx + dy * dy;
            if (square < (reach + 0.02f) * (reach + 0.02f) && square > 0) {
                const float push = predator_prey_push(square, reach);
                force_x[i] += push * dx;
                force_y[i] += push * dy;
            }
        }
    }
    for (int i = 0; i < bodies; ++i) {
        const float most = i < predators ? 1.0f : env->prey_speed;
        const float x = env->x[i] + 0.1f * env->speed_x[i], y = env->y[i] + 0.1f * env->speed_y[i];
        float speed_x = env->speed_x[i] * 0.75f + force_x[i] * 0.1f;
        float speed_y = env->speed_y[i] * 0.75f + force_y[i] * 0.1f;
        const float square = speed_x * speed_x + speed_y * speed_y;
        if (square > most * most) {
            const float factor = most / fugu_sqrt(square);
            speed_x *= factor;
            speed_y *= factor;
        }
        env->x[i] = fugu_clamp(x, -predator_prey_fence, predator_prey_fence);
        env->y[i] = fugu_clamp(y, -predator_prey_fence, predator_prey_fence);
        env->speed_x[i] = env->x[i] == x ? speed_x : 0;
        env->speed_y[i] = env->y[i] == y ? speed_y : 0;
    }
}

static inline void predator_prey_step(PredatorPrey* env, FuguIO* io) {
    const int predators = env->predators, bodies = predators + env->prey;
    int64_t actions[PREDATOR_PREY_BODIES];
    for (int i = 0; i < predators; ++i)
        actions[i] = ((const int64_t*)io->groups[0].actions)[i];
    for (int i = predators; i < bodies; ++i)
        actions[i] = env->scripted_prey ? predator_prey_flee(env, i)
                                        : ((const int64_t*)io->groups[1].actions)[i - predators];
    predator_prey_move(env, actions);

    /* Distances are those before a prey that was caught goes elsewhere. */
    bool caught[PREDATOR_PREY_PREY] = {false};
    float team = 0;
    float* rewards = io->groups[0].rewards;
    for (int i = 0; i < predators; ++i) {
        float least = FUGU_INFINITY;
        for (int p = 0; p < env->prey; ++p) {
            const float square = predator_prey_square(env, predators + p, env->x[i], env->y[i]);
            caught[p] = caught[p] || square < 0.125f * 0.125f;
            least = fugu_min(least, square);
        }
        rewards[i] = -env->shaping * fugu_sqrt(least);
    }
    for (int p = 0; p < env->prey; ++p) {
        const int body = predators + p;
        const float cost = predator_prey_bound(env->x[body]) + predator_prey_bound(env->y[body]);
        if (!env->scripted_prey)
            io->groups[1].rewards[p] = -cost - (caught[p] ? 10.0f : 0.0f);
        if (caught[p]) {
            team += 10.0f;
            ++env->catches;
            env->caught_at = env->base.step;
            env->caught_x = env->x[body];
            env->caught_y = env->y[body];
            predator_prey_place(env, body);
        }
    }
    for (int i = 0; i < predators; ++i)
        rewards[i] += team;
    if (env->base.max_steps && env->base.step >= env->base.max_steps)
        /* Logs are averaged over the agents whose episodes end, which are all. */
        io->log[0] += (float)(env->catches * (env->scripted_prey ? predators : bodies));
}

static inline void predator_prey_observe(PredatorPrey* env, FuguIO* io) {
    const int predators = env->predators, bodies = predators + env->prey;
    const int agents = env->scripted_prey ? predators : bodies;
    float* out = io->groups[0].observations;
    for (int i = 0; i < agents; ++i) {
        if (i == predators)
            out = io->groups[1].observations;
        const float x = env->x[i], y = env->y[i];
        *out++ = env->speed_x[i];
        *out++ = env->speed_y[i];
        *out++ = x;
        *out++ = y;
        for (int o = 0; o < env->obstacles; ++o) {
            *out++ = env->obstacle_x[o] - x;
            *out++ = env->obstacle_y[o] - y;
        }
        for (int j = 0; j < bodies; ++j) {
            if (j != i) {
                *out++ = env->x[j] - x;
                *out++ = env->y[j] - y;
            }
        }
        for (int j = predators; j < bodies; ++j) {
            if (j != i) {
                *out++ = env->speed_x[j];
                *out++ = env->speed_y[j];
            }
        }
    }
}

static void predator_prey_draw(const PredatorPrey* env, FuguCanvas* canvas) {
    const float scale = 2.9f / 1.3f, mid_x = 3.0f, mid_y = 3.6f, edge = 1.28f * scale;
    canvas->background = 0xF7F3E9;
    fugu_rectangle(canvas, mid_x - edge, mid_y - edge, 2 * edge, 2 * edge, 0x8A6B4F);
    fugu_rectangle(canvas, mid_x - 0.97f * edge, mid_y - 0.97f * edge, 1.94f * edge, 1.94f * edge,
                   0xC9D8A8);
    fugu_rectangle(canvas, mid_x - 0.9f * scale, mid_y - 0.9f * scale, 1.8f * scale, 1.8f * scale,
                   0xD9E5BC);
    for (int i = 0; i < 24; ++i) { /* tufts of grass, where they always are */
        const float x = mid_x + scale * (1.1f - 2.2f * (float)((i * 37) % 97) / 96.0f);
        const float y = mid_y + scale * (1.1f - 2.2f * (float)((i * 59) % 89) / 88.0f);
        fugu_line(canvas, x, y, x - 0.04f, y - 0.09f, 0.02f, 0xB5C98E);
        fugu_line(canvas, x, y, x + 0.04f, y - 0.09f, 0.02f, 0xB5C98E);
    }
    for (int o = 0; o < env->obstacles; ++o) {
        const float x = mid_x + scale * env->obstacle_x[o], y = mid_y - scale * env->obstacle_y[o];
        fugu_circle(canvas, x + 0.03f, y + 0.05f, 0.2f * scale, 0xA9BC85);
        fugu_circle(canvas, x, y, 0.2f * scale, 0x8D9793);
        fugu_circle(canvas, x - 0.04f, y - 0.06f, 0.16f * scale, 0xA4ADA8);
        fugu_circle(canvas, x - 0.1f, y - 0.13f, 0.06f * scale, 0xBCC4BF);
    }
    const int since = env->caught_at < 0 ? 6 : env->base.step - env->caught_at;
    if (since < 6) {
        const float x = mid_x + scale * env->caught_x, y = mid_y - scale * env->caught_y;
        fugu_circle(canvas, x, y, 0.12f + 0.07f * (float)since, 0xF2CC8F);
        fugu_circle(canvas, x, y, 0.08f + 0.07f * (float)since, 0xD9E5BC);
        fugu_text(canvas, x, y - 0.3f, 0.24f, 0xC75B43, "+10");
    }
    for (int i = env->predators + env->prey - 1; i >= 0; --i) {
        const bool hunts = i < env->predators;
        const float x = mid_x + scale * env->x[i], y = mid_y - scale * env->y[i];
        const float r = (hunts ? 0.075f : 0.05f) * scale, up = 0.25f * r;
        const uint32_t color = hunts ? 0xE07A5F : 0xFBF7EC, dark = hunts ? 0xA8432F : 0x9C8B74;
        fugu_circle(canvas, x + 0.02f, y + 0.04f, r, 0xA9BC85);
        if (hunts) { /* pointed ears, or long ones */
            fugu_triangle(canvas, x - 0.9f * r, y - 1.25f * r, x - 0.85f * r, y - 0.2f * r,
                          x - 0.15f * r, y - 0.85f * r, dark);
            fugu_triangle(canvas, x + 0.9f * r, y - 1.25f * r, x + 0.85f * r, y - 0.2f * r,
                          x + 0.15f * r, y - 0.85f * r, dark);
        } else {
            fugu_line(canvas, x - 0.4f * r, y - 0.5f * r, x - 0.6f * r, y - 1.9f * r, 0.4f * r,
                      dark);
            fugu_line(canvas, x + 0.4f * r, y - 0.5f * r, x + 0.6f * r, y - 1.9f * r, 0.4f * r,
                      dark);
        }
        fugu_circle(canvas, x, y, r, dark);
        fugu_circle(canvas, x, y, 0.88f * r, color);
        for (int side = -1; side <= 1; side += 2) {
            const float eye = x + 0.35f * (float)side * r;
            fugu_circle(canvas, eye, y - up, 0.25f * r, 0xFFFFFF);
            fugu_circle(canvas, eye + 0.1f * r * env->speed_x[i],
                        y - up - 0.1f * r * env->speed_y[i], 0.14f * r, 0x1B2A33);
        }
        fugu_circle(canvas, x, y + 0.25f * r, 0.13f * r, dark);
    }
    fugu_number(canvas, 1.2f, 0.3f, 0.24f, 0x2F4858, "step ", env->base.step);
    fugu_number(canvas, 4.6f, 0.3f, 0.24f, 0xC75B43, "catches ", env->catches);
}

FUGU_ENVIRONMENT(PredatorPrey, predator_prey,
                 "Slow predators hunt fast prey together among obstacles.")
