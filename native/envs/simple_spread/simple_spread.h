/* Simple spread of the multi-particle environments (Lowe and others, 2017): agents share out the
   landmarks among them without bumping into each other. Positions, velocities and observations are
   those of simple_spread_v3 in PettingZoo and mpe2.

   Let G = -(sum over landmarks of the distance of the closest agent), and let C[i] = -(number of
   other agents closer to agent i than 0.3, the sum of two radii).
   convention 0, PettingZoo:  reward[i] = (1 - local_ratio) * G + local_ratio * C[i].
   convention 1, on-policy:   reward[i] = sum over all agents j of (G + C[j] - 1), the same for all;
     the 1 is there because that code lets an agent collide with itself too. Its landmarks lie
     within 0.8 instead of 1 of the middle, and its agents move by their new velocity instead of
     their old one. Published returns are one agent's, so they count the sum once: -218 at random.
 */
#include "fugu_env.h"

enum { SIMPLE_SPREAD_MOST = 8 };

typedef struct SimpleSpread {
    FuguEnv base;
    float x[SIMPLE_SPREAD_MOST], y[SIMPLE_SPREAD_MOST];
    float speed_x[SIMPLE_SPREAD_MOST], speed_y[SIMPLE_SPREAD_MOST];
    float landmark_x[SIMPLE_SPREAD_MOST], landmark_y[SIMPLE_SPREAD_MOST];
    float local_ratio, distance;       /* of all landmarks to their closest agents, now */
    int32_t agents, convention;        /* settings */
    int32_t collisions, covered, bump; /* in this episode; now; whose agents touch now, as bits */
} SimpleSpread;

static const FuguSetting simple_spread_settings[] = {
    FUGU_MAX_STEPS(25),
    FUGU_INT(SimpleSpread, agents, 3, 1, SIMPLE_SPREAD_MOST, "and as many landmarks"),
    FUGU_REAL(SimpleSpread, local_ratio, 0.5, 0, 1, "weight of the agent's own collisions"),
    FUGU_INT(SimpleSpread, convention, 0, 0, 1, "of rewards: 0 PettingZoo, 1 on-policy (summed)"),
};

static void simple_spread_describe(const SimpleSpread* env, FuguSpec* spec) {
    FuguGroup* group = fugu_group(spec, "agent", env->agents);
    fugu_floats(&group->observation, "", 0, -FUGU_INFINITY, FUGU_INFINITY, 6 * env->agents,
                "own velocity, own position, landmarks and other agents relative to it (x, y "
                "each), and two zeros for each other agent, who could speak but does not");
    fugu_discrete(&group->action, "", 0, 5, "none; left; right; down; up");
    spec->reward = env->convention
                       ? "sum over agents of: minus the landmarks' distances to their closest "
                         "agents, minus collisions, minus 1"
                       : "minus the landmarks' distances to their closest agents, mixed by "
                         "local_ratio with minus the agent's collisions";
    fugu_log(spec, "collisions");
    fugu_log(spec, "covered");
    fugu_log(spec, "distance");
    fugu_key(spec, "left", 1);
    fugu_key(spec, "right", 2);
    fugu_key(spec, "down", 3);
    fugu_key(spec, "up", 4);
    spec->all_act = true;
    fugu_picture(spec, 6, 6.6f, 10);
}

static inline void simple_spread_init(SimpleSpread* env) {
    (void)env;
}

/* Distances, collisions and what is covered; the same after a reset as after a step. */
static inline void simple_spread_measure(SimpleSpread* env) {
    const int count = env->agents;
    float distance = 0;
    env->covered = 0;
    env->bump = 0;
    for (int l = 0; l < count; ++l) {
        float least = FUGU_INFINITY;
        for (int i = 0; i < count; ++i) {
            const float dx = env->x[i] - env->landmark_x[l], dy = env->y[i] - env->landmark_y[l];
            least = fugu_min(least, dx * dx + dy * dy);
        }
        distance += fugu_sqrt(least);
        env->covered += least < 0.1f * 0.1f;
    }
    env->distance = distance;
}

static inline void simple_spread_reset(SimpleSpread* env) {
    const float reach = env->convention ? 0.8f : 1.0f;
    for (int i = 0; i < env->agents; ++i) {
        env->x[i] = fugu_uniform(&env->base.random, -1, 1);
        env->y[i] = fugu_uniform(&env->base.random, -1, 1);
        env->speed_x[i] = env->speed_y[i] = 0;
        env->landmark_x[i] = reach * fugu_uniform(&env->base.random, -1, 1);
        env->landmark_y[i] = reach * fugu_uniform(&env->base.random, -1, 1);
    }
    env->collisions = 0;
    simple_spread_measure(env);
}

/* How hard two bodies push that overlap by `depth`: log(1 + e^(depth / k)) k with k = 0.001. */
static inline float simple_spread_push(float depth) {
    const float v = depth * 1000.0f;
    const float soft = fugu_max(v, 0) + fugu_log_of(1.0f + fugu_exp(-fugu_abs(v)));
    return 100.0f * 0.001f * soft;
}

static inline void simple_spread_step(SimpleSpread* env, FuguIO* io) {
    const int64_t* actions = io->groups[0].actions;
    const int count = env->agents;
    float force_x[SIMPLE_SPREAD_MOST], force_y[SIMPLE_SPREAD_MOST];
    for (int i = 0; i < count; ++i) {
        force_x[i] = 5.0f * (float)((actions[i] == 2) - (actions[i] == 1));
        force_y[i] = 5.0f * (float)((actions[i] == 4) - (actions[i] == 3));
    }
    for (int i = 0; i < count; ++i) {
        for (int j = i + 1; j < count; ++j) {
            const float dx = env->x[i] - env->x[j], dy = env->y[i] - env->y[j];
            const float square = dx * dx + dy * dy;
            if (square < 0.32f * 0.32f && square > 0) { /* beyond, the push is below 1e-8 */
                const float apart = fugu_sqrt(square);
                const float push = simple_spread_push(0.3f - apart) / apart;
                force_x[i] += push * dx;
                force_y[i] += push * dy;
                force_x[j] -= push * dx;
                force_y[j] -= push * dy;
            }
        }
    }
    for (int i = 0; i < count; ++i) {
        const float old_x = env->speed_x[i], old_y = env->speed_y[i];
        env->speed_x[i] = old_x * 0.75f + force_x[i] * 0.1f;
        env->speed_y[i] = old_y * 0.75f + force_y[i] * 0.1f;
        env->x[i] += 0.1f * (env->convention ? env->speed_x[i] : old_x);
        env->y[i] += 0.1f * (env->convention ? env->speed_y[i] : old_y);
    }

    simple_spread_measure(env);
    int32_t touches[SIMPLE_SPREAD_MOST] = {0}, pairs = 0;
    for (int i = 0; i < count; ++i) {
        for (int j = i + 1; j < count; ++j) {
            const float dx = env->x[i] - env->x[j], dy = env->y[i] - env->y[j];
            const int touch = dx * dx + dy * dy < 0.3f * 0.3f;
            touches[i] += touch;
            touches[j] += touch;
            pairs += touch;
            env->bump |= touch << i | touch << j;
        }
    }
    env->collisions += pairs;
    const float all = -(float)count * (env->distance + 1.0f) - 2.0f * (float)pairs;
    for (int i = 0; i < count; ++i)
        io->groups[0].rewards[i] = env->convention ? all
                                                   : -(1.0f - env->local_ratio) * env->distance -
                                                         env->local_ratio * (float)touches[i];
    if (env->base.max_steps && env->base.step >= env->base.max_steps) {
        /* Logs are averaged over the agents whose episodes end, which are all. */
        io->log[0] += (float)(env->collisions * count);
        io->log[1] += (float)(env->covered * count);
        io->log[2] += env->distance * (float)count;
    }
}

static inline void simple_spread_observe(SimpleSpread* env, FuguIO* io) {
    float* out = io->groups[0].observations;
    const int count = env->agents;
    for (int i = 0; i < count; ++i) {
        const float x = env->x[i], y = env->y[i];
        *out++ = env->speed_x[i];
        *out++ = env->speed_y[i];
        *out++ = x;
        *out++ = y;
        for (int l = 0; l < count; ++l) {
            *out++ = env->landmark_x[l] - x;
            *out++ = env->landmark_y[l] - y;
        }
        for (int j = 0; j < count; ++j) {
            if (j != i) {
                *out++ = env->x[j] - x;
                *out++ = env->y[j] - y;
            }
        }
        for (int zero = 2 * (count - 1); zero > 0; --zero)
            *out++ = 0;
    }
}

/* A round fellow that looks where it goes. */
static void simple_spread_draw_agent(FuguCanvas* canvas, float x, float y, float radius,
                                     float speed_x, float speed_y, uint32_t color) {
    const float speed = fugu_sqrt(speed_x * speed_x + speed_y * speed_y);
    const float look = speed > 0.05f ? 0.09f * radius / speed : 0;
    fugu_circle(canvas, x + 0.06f * radius, y + 0.12f * radius, radius, 0xDDD3BE);
    fugu_circle(canvas, x, y, radius, 0x2F4858);
    fugu_circle(canvas, x, y, 0.92f * radius, color);
    fugu_circle(canvas, x - 0.3f * radius, y - 0.38f * radius, 0.2f * radius, 0xFFFFFF);
    fugu_circle(canvas, x + 0.3f * radius, y - 0.38f * radius, 0.2f * radius, 0xFFFFFF);
    for (int side = -1; side <= 1; side += 2)
        fugu_circle(canvas, x + 0.3f * (float)side * radius + look * speed_x,
                    y - 0.38f * radius - look * speed_y, 0.11f * radius, 0x1B2A33);
}

static void simple_spread_draw(const SimpleSpread* env, FuguCanvas* canvas) {
    static const uint32_t colors[SIMPLE_SPREAD_MOST] = {0x3D8BB0, 0xE07A5F, 0x6AA57A, 0xE5A93C,
                                                        0x8C6BB1, 0xD4638A, 0x4F9D9B, 0x9A7B5B};
    float reach = 1.2f; /* the view widens when somebody wanders off */
    for (int i = 0; i < env->agents; ++i)
        reach = fugu_max(reach, fugu_max(fugu_abs(env->x[i]), fugu_abs(env->y[i])) + 0.2f);
    const float scale = 2.9f / reach, mid_x = 3.0f, mid_y = 3.6f;
    canvas->background = 0xF7F3E9;
    fugu_rectangle(canvas, mid_x - scale - 0.05f, mid_y - scale - 0.05f, 2 * scale + 0.1f,
                   2 * scale + 0.1f, 0xE4DBC8);
    fugu_rectangle(canvas, mid_x - scale, mid_y - scale, 2 * scale, 2 * scale, 0xFDFAF2);
    for (int i = 1; i < 8; ++i) {
        const float at = -scale + 0.25f * (float)i * scale;
        fugu_line(canvas, mid_x + at, mid_y - scale, mid_x + at, mid_y + scale, 0.012f, 0xF0EADB);
        fugu_line(canvas, mid_x - scale, mid_y + at, mid_x + scale, mid_y + at, 0.012f, 0xF0EADB);
    }
    for (int l = 0; l < env->agents; ++l) {
        const float x = mid_x + scale * env->landmark_x[l], y = mid_y - scale * env->landmark_y[l];
        int closest = 0;
        float least = FUGU_INFINITY;
        for (int i = 0; i < env->agents; ++i) {
            const float dx = env->x[i] - env->landmark_x[l], dy = env->y[i] - env->landmark_y[l];
            if (dx * dx + dy * dy < least) {
                least = dx * dx + dy * dy;
                closest = i;
            }
        }
        fugu_line(canvas, x, y, mid_x + scale * env->x[closest], mid_y - scale * env->y[closest],
                  0.025f, 0xD8CFBC);
        const uint32_t color = least < 0.01f ? 0x6AA57A : 0x9AA5A0;
        fugu_circle(canvas, x, y, 0.13f * scale, color);
        fugu_circle(canvas, x, y, 0.105f * scale, 0xFDFAF2);
        fugu_circle(canvas, x, y, 0.05f * scale, color);
    }
    for (int i = 0; i < env->agents; ++i) {
        const float x = mid_x + scale * env->x[i], y = mid_y - scale * env->y[i];
        if (env->bump >> i & 1)
            fugu_circle(canvas, x, y, 0.18f * scale, 0xF4C7B8);
        simple_spread_draw_agent(canvas, x, y, 0.15f * scale, env->speed_x[i], env->speed_y[i],
                                 colors[i]);
    }
    fugu_number(canvas, 1.0f, 0.3f, 0.24f, 0x2F4858, "step ", env->base.step);
    fugu_number(canvas, 3.0f, 0.3f, 0.24f, 0x6AA57A, "covered ", env->covered);
    fugu_number(canvas, 5.0f, 0.3f, 0.24f, 0xC75B43, "bumps ", env->collisions);
}

FUGU_ENVIRONMENT(SimpleSpread, simple_spread,
                 "Agents spread over as many landmarks without bumping into each other.")
