/* Multiagent: two agents of one group act at once, and each must do another thing: agent i sees its
   role, i, and earns 1 for playing action i, else 0. One step is an episode.

   It checks that observations, actions and rewards of several agents stay apart: one action for
   both earns 0.5 on average, and swapped rows earn 0. */
#include "fugu_env.h"

enum { MULTIAGENT_AGENTS = 2, MULTIAGENT_SHOWN = 24 };

typedef struct Multiagent {
    FuguEnv base;
    int32_t finished;                    /* episodes, as many as are shown, for the picture */
    uint32_t results[MULTIAGENT_AGENTS]; /* of these, a bit each */
    int32_t actions[MULTIAGENT_AGENTS];  /* the last */
} Multiagent;

static const FuguSetting multiagent_settings[] = {
    FUGU_MAX_STEPS(0),
};

static void multiagent_describe(const Multiagent* env, FuguSpec* spec) {
    (void)env;
    FuguGroup* agent = fugu_group(spec, "agent", MULTIAGENT_AGENTS);
    fugu_floats(&agent->observation, "", 0, 0, 1, 1, "the agent's role, 0 or 1");
    fugu_discrete(&agent->action, "", 0, 2, "what role 0 does; what role 1 does");
    spec->reward = "1 to an agent that plays the action of its own role, else 0";
    fugu_log(spec, "score");
    fugu_key_of(spec, "a", 0, 0, 0, 0, 0);
    fugu_key_of(spec, "d", 0, 0, 0, 0, 1);
    fugu_key_of(spec, "left", 0, 1, 0, 0, 0);
    fugu_key_of(spec, "right", 0, 1, 0, 0, 1);
    spec->waits_for_a_key = true;
    spec->all_act = true;
    fugu_picture(spec, 6, 4, 6);
}

static inline void multiagent_init(Multiagent* env) {
    (void)env;
}

static inline void multiagent_reset(Multiagent* env) {
    if (env->base.episode == 0) {
        env->finished = 0;
        for (int i = 0; i < MULTIAGENT_AGENTS; ++i)
            env->results[i] = 0, env->actions[i] = 0;
    }
}

static inline void multiagent_step(Multiagent* env, FuguIO* io) {
    const int64_t* actions = io->groups[0].actions;
    for (int i = 0; i < MULTIAGENT_AGENTS; ++i) {
        const bool right = actions[i] == i;
        io->groups[0].rewards[i] = right ? 1.0f : 0.0f;
        io->log[0] += right ? 1.0f : 0.0f; /* of each agent's episode */
        env->results[i] = env->results[i] << 1 | (right ? 1u : 0u);
        env->actions[i] = (int32_t)actions[i];
    }
    env->finished += env->finished < MULTIAGENT_SHOWN;
    io->terminated = true;
}

static inline void multiagent_observe(Multiagent* env, FuguIO* io) {
    (void)env;
    float* roles = io->groups[0].observations;
    for (int i = 0; i < MULTIAGENT_AGENTS; ++i)
        roles[i] = (float)i;
}

static void multiagent_draw(const Multiagent* env, FuguCanvas* canvas) {
    static const uint32_t colors[MULTIAGENT_AGENTS] = {0x3D6A80, 0xE07A5F};
    int right = 0;
    canvas->background = 0xF7F3E9;
    for (int i = 0; i < MULTIAGENT_AGENTS; ++i) {
        const float middle = 1.6f + 2.8f * (float)i;
        const bool good = env->finished && (env->results[i] & 1u);
        fugu_rectangle(canvas, middle - 1.2f, 0.75f, 2.4f, 2.3f, 0xEFE8D8);
        /* Two buttons in the colours of the roles, the one that was pressed lit up. */
        for (int k = 0; k < 2; ++k) {
            const float x = middle + (k ? 0.6f : -0.6f);
            const bool pressed = env->finished && env->actions[i] == k;
            if (pressed)
                fugu_circle(canvas, x, 2.65f, 0.3f, good ? 0x81B29A : 0x1B2A33);
            fugu_circle(canvas, x, 2.65f, 0.22f, colors[k]);
            fugu_text(canvas, x, 2.65f, 0.22f, 0xF7F3E9, k ? "1" : "0");
        }
        const float lean = !env->finished ? 0.0f : env->actions[i] ? 0.15f : -0.15f;
        fugu_line(canvas, middle, 1.6f, middle + 3.0f * lean, 2.3f, 0.1f, colors[i]);
        fugu_circle(canvas, middle + lean, 1.4f, 0.45f, colors[i]);
        fugu_circle(canvas, middle + lean - 0.15f, 1.3f, 0.08f, 0xF7F3E9);
        fugu_circle(canvas, middle + lean + 0.15f, 1.3f, 0.08f, 0xF7F3E9);
        fugu_text(canvas, middle + lean, 1.6f, 0.25f, 0xF7F3E9, i ? "1" : "0");
        for (int k = 0; k < env->finished; ++k) {
            const bool won = env->results[i] >> k & 1u;
            right += won;
            fugu_circle(canvas, middle + 1.1f - 0.095f * (float)k, 3.4f, 0.04f,
                        won ? 0x81B29A : 0xE07A5F);
        }
    }
    fugu_number(canvas, 3.0f, 0.35f, 0.25f, 0x2F4858, "right ", right);
}

FUGU_ENVIRONMENT(Multiagent, multiagent,
                 "Two agents with a role each; a check that agents are kept apart.")
