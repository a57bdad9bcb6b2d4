/* CartPole, as Gymnasium's CartPole-v1 has it (Barto, Sutton and Anderson, 1983). */
#include "fugu_env.h"

typedef struct CartPole {
    FuguEnv base;
    float x, speed, angle, spin;
    float gravity, cart_mass, pole_mass, half_length, force, tau, angle_limit, x_limit;
} CartPole;

static const FuguSetting cartpole_settings[] = {
    FUGU_MAX_STEPS(500),
    FUGU_REAL(CartPole, gravity, 9.8, 0, 1000, "m/s^2"),
    FUGU_REAL(CartPole, cart_mass, 1.0, 0.01, 1000, "kg"),
    FUGU_REAL(CartPole, pole_mass, 0.1, 0.001, 1000, "kg"),
    FUGU_REAL(CartPole, half_length, 0.5, 0.01, 100, "half of the pole, m"),
    FUGU_REAL(CartPole, force, 10.0, 0, 10000, "of a push, N"),
    FUGU_REAL(CartPole, tau, 0.02, 0.0001, 1, "seconds of a step"),
    FUGU_REAL(CartPole, angle_limit, 0.20943951, 0.01, 1.5, "beyond which the pole fell, rad"),
    FUGU_REAL(CartPole, x_limit, 2.4, 0.1, 100, "beyond which the cart left the track, m"),
};

static void cartpole_describe(const CartPole* env, FuguSpec* spec) {
    (void)env;
    FuguGroup* agent = fugu_group(spec, "agent", 1);
    fugu_floats(&agent->observation, "", 0, -FUGU_INFINITY, FUGU_INFINITY, 4,
                "cart position; cart velocity; pole angle; pole angular velocity");
    fugu_discrete(&agent->action, "", 0, 2, "push left; push right");
    spec->reward = "1 for every step";
    fugu_key(spec, "left", 0);
    fugu_key(spec, "right", 1);
    fugu_picture(spec, 6, 4, 50);
}

static inline void cartpole_init(CartPole* env) {
    (void)env;
}

static inline void cartpole_reset(CartPole* env) {
    env->x = fugu_uniform(&env->base.random, -0.05f, 0.05f);
    env->speed = fugu_uniform(&env->base.random, -0.05f, 0.05f);
    env->angle = fugu_uniform(&env->base.random, -0.05f, 0.05f);
    env->spin = fugu_uniform(&env->base.random, -0.05f, 0.05f);
}

/* Newton's laws for a block of carts: gathered into lanes, so that they are computed side by side.
 */
FUGU_INLINE void cartpole_advance(CartPole* envs, const unsigned char* actions, int count) {
    float x[FUGU_BLOCK], speed[FUGU_BLOCK], angle[FUGU_BLOCK], spin[FUGU_BLOCK], force[FUGU_BLOCK];
    const CartPole* law = envs; /* all copies have the same settings */
    const float mass = law->cart_mass + law->pole_mass, pole = law->pole_mass * law->half_length;
    const float gravity = law->gravity, half = law->half_length, tau = law->tau;
    const float heavy = 1.0f / mass, light = law->pole_mass / mass, strength = law->force;
    for (int i = 0; i < count; ++i) {
        x[i] = envs[i].x;
        speed[i] = envs[i].speed;
        angle[i] = envs[i].angle;
        spin[i] = envs[i].spin;
        /* no branch, since nobody can predict what an agent does */
        force[i] = (float)(2 * ((const int64_t*)(const void*)actions)[i] - 1) * strength;
    }
    for (int i = 0; i < count; ++i) {
        const float cosine = fugu_cos(angle[i]), sine = fugu_sin(angle[i]);
        const float push = (force[i] + pole * spin[i] * spin[i] * sine) * heavy;
        const float turn =
            (gravity * sine - cosine * push) / (half * (4.0f / 3.0f - light * cosine * cosine));
        const float pull = push - pole * turn * cosine * heavy;
        x[i] += tau * speed[i];
        speed[i] += tau * pull;
        angle[i] += tau * spin[i];
        spin[i] += tau * turn;
    }
    for (int i = 0; i < count; ++i) {
        envs[i].x = x[i];
        envs[i].speed = speed[i];
        envs[i].angle = angle[i];
        envs[i].spin = spin[i];
    }
}

static inline void cartpole_step(CartPole* env, FuguIO* io) {
    io->groups[0].rewards[0] = 1.0f;
    io->terminated = fugu_abs(env->x) > env->x_limit || fugu_abs(env->angle) > env->angle_limit;
}

static inline void cartpole_observe(CartPole* env, FuguIO* io) {
    float* observation = io->groups[0].observations;
    observation[0] = env->x;
    observation[1] = env->speed;
    observation[2] = env->angle;
    observation[3] = env->spin;
}

static void cartpole_draw(const CartPole* env, FuguCanvas* canvas) {
    const float x = 3.0f + env->x, y = 3.0f, length = 2.0f * env->half_length;
    canvas->background = 0xF7F3E9;
    fugu_line(canvas, 0.6f, y + 0.2f, 5.4f, y + 0.2f, 0.03f, 0x9AA5A0);
    fugu_rectangle(canvas, x - 0.3f, y - 0.15f, 0.6f, 0.3f, 0x2F4858);
    fugu_circle(canvas, x - 0.18f, y + 0.17f, 0.08f, 0x1B2A33);
    fugu_circle(canvas, x + 0.18f, y + 0.17f, 0.08f, 0x1B2A33);
    fugu_line(canvas, x, y - 0.12f, x + 2.0f * length * fugu_sin(env->angle),
              y - 0.12f - 2.0f * length * fugu_cos(env->angle), 0.11f, 0xE07A5F);
    fugu_circle(canvas, x, y - 0.12f, 0.08f, 0xF2CC8F);
    fugu_number(canvas, 3.0f, 0.35f, 0.25f, 0x2F4858, "steps ", env->base.step);
}

FUGU_ENVIRONMENT_IN_BLOCKS(CartPole, cartpole, "Balance a pole on a cart by pushing the cart.")
