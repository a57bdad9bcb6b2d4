/* Acrobot, as Gymnasium's Acrobot-v1 has it (Sutton, 1996; the equations of Sutton and Barto's
   book): two links, a motor between them, and a line for the tip to cross. */
#include "fugu_env.h"

#define ACROBOT_TOP_SPIN_1 (4.0f * FUGU_PI)
#define ACROBOT_TOP_SPIN_2 (9.0f * FUGU_PI)
#define ACROBOT_STEP 0.2f /* seconds */

/* Angles: of the first link from hanging down, of the second from the first. */
typedef struct AcrobotState {
    float angle_1, angle_2, spin_1, spin_2;
} AcrobotState;

typedef struct Acrobot {
    FuguEnv base;
    AcrobotState now;
    float applied; /* the torque of the last step, for the picture */
    float torque, gravity;
} Acrobot;

static const FuguSetting acrobot_settings[] = {
    FUGU_MAX_STEPS(500),
    FUGU_REAL(Acrobot, torque, 1.0, 0, 10, "of the motor, N m"),
    FUGU_REAL(Acrobot, gravity, 9.8, 0, 100, "m/s^2"),
};

static void acrobot_describe(const Acrobot* env, FuguSpec* spec) {
    (void)env;
    FuguGroup* agent = fugu_group(spec, "agent", 1);
    fugu_floats(&agent->observation, "", 0, -ACROBOT_TOP_SPIN_2, ACROBOT_TOP_SPIN_2, 6,
                "cosine of the first angle; its sine; cosine of the second angle; its sine; "
                "angular velocity of the first; of the second");
    fugu_discrete(&agent->action, "", 0, 3, "torque -1; none; torque +1");
    spec->reward = "-1 for every step but the one that reaches the line";
    fugu_log(spec, "solved");
    fugu_key(spec, "left", 0);
    fugu_key(spec, "down", 1);
    fugu_key(spec, "right", 2);
    fugu_picture(spec, 5, 5, 15);
}

static inline void acrobot_init(Acrobot* env) {
    (void)env;
}

static inline void acrobot_reset(Acrobot* env) {
    env->now.angle_1 = fugu_uniform(&env->base.random, -0.1f, 0.1f);
    env->now.angle_2 = fugu_uniform(&env->base.random, -0.1f, 0.1f);
    env->now.spin_1 = fugu_uniform(&env->base.random, -0.1f, 0.1f);
    env->now.spin_2 = fugu_uniform(&env->base.random, -0.1f, 0.1f);
    env->applied = 0.0f;
}

/* How the state changes: links of mass, length and inertia 1, their centres in the middle. */
FUGU_INLINE AcrobotState acrobot_slope(AcrobotState s, float torque, float gravity) {
    const float sine = fugu_sin(s.angle_2), cosine = fugu_cos(s.angle_2);
    const float inertia = 3.5f + cosine;          /* of both about the hinge */
    const float coupling = 1.25f + 0.5f * cosine; /* between the two */
    const float weight_2 = 0.5f * gravity * fugu_sin(s.angle_1 + s.angle_2);
    const float weight_1 = 1.5f * gravity * fugu_sin(s.angle_1) + weight_2 -
                           sine * s.spin_2 * (0.5f * s.spin_2 + s.spin_1);
    const float ratio = coupling / inertia;
    AcrobotState slope;
    slope.angle_1 = s.spin_1;
    slope.angle_2 = s.spin_2;
    slope.spin_2 = (torque + ratio * weight_1 - 0.5f * sine * s.spin_1 * s.spin_1 - weight_2) /
                   (1.25f - coupling * ratio);
    slope.spin_1 = -(coupling * slope.spin_2 + weight_1) / inertia;
    return slope;
}

FUGU_INLINE AcrobotState acrobot_along(AcrobotState s, AcrobotState slope, float time) {
    s.angle_1 += time * slope.angle_1;
    s.angle_2 += time * slope.angle_2;
    s.spin_1 += time * slope.spin_1;
    s.spin_2 += time * slope.spin_2;
    return s;
}

/* One step of Runge and Kutta's fourth order for a block of acrobots: gathered into lanes, so that
   they are computed side by side. */
FUGU_INLINE void acrobot_advance(Acrobot* envs, const unsigned char* actions, int count) {
    float angle_1[FUGU_BLOCK], angle_2[FUGU_BLOCK], spin_1[FUGU_BLOCK], spin_2[FUGU_BLOCK];
    float torque[FUGU_BLOCK];
    const float gravity = envs->gravity; /* all copies have the same settings */
    for (int i = 0; i < count; ++i) {
        angle_1[i] = envs[i].now.angle_1;
        angle_2[i] = envs[i].now.angle_2;
        spin_1[i] = envs[i].now.spin_1;
        spin_2[i] = envs[i].now.spin_2;
        torque[i] = (float)(int32_t)(((const int64_t*)(const void*)actions)[i] - 1) * envs->torque;
    }
    for (int i = 0; i < count; ++i) {
        const AcrobotState s = {angle_1[i], angle_2[i], spin_1[i], spin_2[i]};
        const float half = 0.5f * ACROBOT_STEP;
        const AcrobotState a = acrobot_slope(s, torque[i], gravity);
        const AcrobotState b = acrobot_slope(acrobot_along(s, a, half), torque[i], gravity);
        const AcrobotState c = acrobot_slope(acrobot_along(s, b, half), torque[i], gravity);
        const AcrobotState d = acrobot_slope(acrobot_along(s, c, ACROBOT_STEP), torque[i], gravity);
        const AcrobotState sum =
            acrobot_along(acrobot_along(acrobot_along(a, b, 2.0f), c, 2.0f), d, 1.0f);
        const AcrobotState next = acrobot_along(s, sum, ACROBOT_STEP / 6.0f);
        angle_1[i] = fugu_wrap_angle(next.angle_1);
        angle_2[i] = fugu_wrap_angle(next.angle_2);
        spin_1[i] = fugu_clamp(next.spin_1, -ACROBOT_TOP_SPIN_1, ACROBOT_TOP_SPIN_1);
        spin_2[i] = fugu_clamp(next.spin_2, -ACROBOT_TOP_SPIN_2, ACROBOT_TOP_SPIN_2);
    }
    for (int i = 0; i < count; ++i) {
        const AcrobotState now = {angle_1[i], angle_2[i], spin_1[i], spin_2[i]};
        envs[i].now = now;
        envs[i].applied = torque[i];
    }
}

static inline void acrobot_step(Acrobot* env, FuguIO* io) {
    io->terminated =
        -fugu_cos(env->now.angle_1) - fugu_cos(env->now.angle_1 + env->now.angle_2) > 1.0f;
    io->groups[0].rewards[0] = io->terminated ? 0.0f : -1.0f;
    io->log[0] += io->terminated ? 1.0f : 0.0f;
}

static inline void acrobot_observe(Acrobot* env, FuguIO* io) {
    float* observation = io->groups[0].observations;
    observation[0] = fugu_cos(env->now.angle_1);
    observation[1] = fugu_sin(env->now.angle_1);
    observation[2] = fugu_cos(env->now.angle_2);
    observation[3] = fugu_sin(env->now.angle_2);
    observation[4] = env->now.spin_1;
    observation[5] = env->now.spin_2;
}

static void acrobot_draw(const Acrobot* env, FuguCanvas* canvas) {
    const float x = 2.5f, y = 2.6f;
    const float both = env->now.angle_1 + env->now.angle_2;
    const float x1 = x + fugu_sin(env->now.angle_1), y1 = y + fugu_cos(env->now.angle_1);
    const float x2 = x1 + fugu_sin(both), y2 = y1 + fugu_cos(both);
    canvas->background = 0xF7F3E9;
    for (int i = 0; i < 12; ++i) /* the line to cross, one metre above the hinge */
        fugu_line(canvas, 0.3f + 0.37f * (float)i, y - 1.0f, 0.55f + 0.37f * (float)i, y - 1.0f,
                  0.04f, 0x81B29A);
    fugu_line(canvas, x, y, x1, y1, 0.2f, 0x2F4858);
    fugu_line(canvas, x1, y1, x2, y2, 0.2f, 0xE07A5F);
    fugu_circle(canvas, x2, y2, 0.1f, 0xE07A5F);
    fugu_circle(canvas, x, y, 0.14f, 0x1B2A33);
    fugu_circle(canvas, x1, y1, 0.14f, env->applied != 0 ? 0xF2CC8F : 0x9AA5A0);
    fugu_number(canvas, 2.5f, 0.3f, 0.25f, 0x2F4858, "steps ", env->base.step);
}

FUGU_ENVIRONMENT_IN_BLOCKS(Acrobot, acrobot, "Swing the tip of two links above a line.")
