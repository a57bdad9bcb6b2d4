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

static inline void cartpole_step(CartPole* env, FuguIO* io) {
    const int64_t action = *(const int64_t*)io->groups[0].actions;
    const float force = action ? env->force : -env->force;
    const float cosine = fugu_cos(env->angle), sine = fugu_sin(env->angle);
    const float mass = env->cart_mass + env->pole_mass;
    const float pole = env->pole_mass * env->half_length;
    const float push = (force + pole * env->spin * env->spin * sine) / mass;
    const float turn = (env->gravity * sine - cosine * push) /
                       (env->half_length * (4.0f / 3.0f - env->pole_mass * cosine * cosine / mass));
    const float pull = push - pole * turn * cosine / mass;
    env->x += env->tau * env->speed;
    env->speed += env->tau * pull;
    env->angle += env->tau * env->spin;
    env->spin += env->tau * turn;
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

FUGU_ENVIRONMENT(CartPole, cartpole, "Balance a pole on a cart by pushing the cart.")
