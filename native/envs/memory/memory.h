/* Memory: the first observation shows a symbol, -1 or +1, each as likely. Then nothing is shown for
   `delay` steps, and the action that answers the last of these empty observations must name the
   symbol. Actions before it do nothing, so an episode has delay + 1 steps.

   It checks recurrence: a policy without memory is right half of the time and earns 0.5, whatever
   it does, for what it sees when it answers is always the same. Memory earns 1. */
#include "fugu_env.h"

enum { MEMORY_SHOWN = 24 };

typedef struct MemoryView {
    float symbol, answer;
} MemoryView;

typedef struct Memory {
    FuguEnv base;
    int32_t delay;
    int32_t symbol;   /* 0 for -1, 1 for +1 */
    uint32_t results; /* of the last episodes, a bit each, for the picture */
    int32_t finished; /* how many of those there are */
} Memory;

static const FuguSetting memory_settings[] = {
    FUGU_MAX_STEPS(0),
    FUGU_INT(Memory, delay, 4, 1, 64, "steps between the symbol and the answer"),
};

static void memory_describe(const Memory* env, FuguSpec* spec) {
    (void)env;
    FuguGroup* agent = fugu_group(spec, "agent", 1);
    fugu_floats(&agent->observation, "", 0, -1, 1, 2,
                "the symbol, -1 or 1, at first, then 0; 1 if the answer is due, else 0");
    fugu_discrete(&agent->action, "", 0, 2, "answer -1; answer +1");
    spec->reward = "1 for the right answer at the end, 0 for the wrong one and before";
    fugu_log(spec, "score");
    fugu_key(spec, "left", 0);
    fugu_key(spec, "right", 1);
    spec->waits_for_a_key = true;
    fugu_picture(spec, 6, 4, 5);
}

static inline void memory_init(Memory* env) {
    (void)env;
}

static inline void memory_reset(Memory* env) {
    if (env->base.episode == 0)
        env->results = 0, env->finished = 0;
    env->symbol = fugu_below(&env->base.random, 2);
}

static inline void memory_step(Memory* env, FuguIO* io) {
    if (env->base.step > env->delay) {
        const bool right = *(const int64_t*)io->groups[0].actions == env->symbol;
        io->groups[0].rewards[0] = right ? 1.0f : 0.0f;
        io->log[0] += right ? 1.0f : 0.0f;
        io->terminated = true;
        env->results = env->results << 1 | (right ? 1u : 0u);
        env->finished += env->finished < MEMORY_SHOWN;
    }
}

static inline void memory_observe(Memory* env, FuguIO* io) {
    MemoryView* view = io->groups[0].observations;
    view->symbol = env->base.step ? 0.0f : env->symbol ? 1.0f : -1.0f;
    view->answer = env->base.step == env->delay ? 1.0f : 0.0f;
}

static void memory_draw(const Memory* env, FuguCanvas* canvas) {
    const int32_t step = env->base.step, delay = env->delay;
    const float gap = 4.4f / (float)delay, radius = fugu_min(0.14f, 0.4f * gap);
    const bool seen = step == 0, due = step >= delay;
    canvas->background = 0xF7F3E9;
    /* The symbol: bright while the agent sees it, pale when it has to know it. */
    const uint32_t color = !seen ? 0xDAD7CD : env->symbol ? 0x81B29A : 0xE07A5F;
    fugu_circle(canvas, 0.8f, 1.3f, 0.5f, color);
    fugu_text(canvas, 0.8f, 1.3f, 0.4f, seen ? 0xF7F3E9 : 0xB9B4A7, env->symbol ? "+1" : "-1");
    fugu_text(canvas, 3.0f, 1.3f, 0.25f, 0x9AA5A0, seen ? "" : due ? "" : "...");
    fugu_circle(canvas, 5.2f, 1.3f, 0.5f, due ? 0xF2CC8F : 0xEDE6D3);
    fugu_text(canvas, 5.2f, 1.3f, 0.4f, due ? 0x2F4858 : 0xB9B4A7, "?");
    fugu_line(canvas, 0.8f, 2.5f, 5.2f, 2.5f, 0.04f, 0x9AA5A0);
    for (int32_t i = 0; i <= delay; ++i)
        fugu_circle(canvas, 0.8f + gap * (float)i, 2.5f, radius, i <= step ? 0x2F4858 : 0xDAD7CD);
    /* The agent walks from the symbol to the answer. */
    const float x = 0.8f + gap * (float)fugu_min_int(step, delay);
    fugu_circle(canvas, x, 2.3f, 0.24f, 0x2F4858);
    fugu_circle(canvas, x + 0.02f, 2.25f, 0.06f, 0xF7F3E9);
    fugu_circle(canvas, x + 0.15f, 2.25f, 0.06f, 0xF7F3E9);
    int right = 0;
    for (int32_t i = 0; i < env->finished; ++i) {
        const bool good = env->results >> i & 1u;
        right += good;
        fugu_circle(canvas, 5.3f - 0.2f * (float)i, 3.5f, 0.08f, good ? 0x81B29A : 0xE07A5F);
    }
    fugu_number(canvas, 3.0f, 0.35f, 0.25f, 0x2F4858, "right ", right);
}

FUGU_ENVIRONMENT(Memory, memory, "Name a symbol that was shown before; a check of recurrence.")
