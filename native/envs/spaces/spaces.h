/* Spaces: an observation of two parts and an action of two heads. The image has 25 pixels, each
   dark (0) or light (255), the vector has 5 numbers, each -1 or 1; all are drawn independently.
   Head `image` is to say whether more pixels are light than dark, head `flat` whether the sum of
   the vector is positive. Their counts are odd, so there is always one right answer, and both are
   as likely. One step is an episode.

   It checks that structured observations and actions are taken apart as they were put together: the
   types differ in size, so a part that is read from the wrong place is noise. Each head earns 0.5
   if it is right: chance earns 0.5 altogether, one part alone 0.75, both 1. */
#include "fugu_env.h"

enum { SPACES_SIDE = 5, SPACES_PIXELS = 25, SPACES_FLAT = 5, SPACES_SHOWN = 24 };

typedef struct SpacesView {
    uint8_t image[SPACES_PIXELS];
    float flat[SPACES_FLAT];
} SpacesView;

typedef struct SpacesAction {
    int64_t image, flat;
} SpacesAction;

typedef struct Spaces {
    FuguEnv base;
    uint32_t pixels, numbers; /* a bit each */
    uint32_t results[2];      /* of each head in the last episodes, a bit each, for the picture */
    int32_t finished;         /* how many of those there are */
} Spaces;

static const FuguSetting spaces_settings[] = {
    FUGU_MAX_STEPS(0),
};

static void spaces_describe(const Spaces* env, FuguSpec* spec) {
    (void)env;
    FuguGroup* agent = fugu_group(spec, "agent", 1);
    fugu_box(&agent->observation, "image", offsetof(SpacesView, image), FUGU_U8, 0, 255,
             SPACES_SIDE, SPACES_SIDE, 0, "pixels, each 0 or 255");
    fugu_floats(&agent->observation, "flat", offsetof(SpacesView, flat), -1, 1, SPACES_FLAT,
                "numbers, each -1 or 1");
    fugu_discrete(&agent->action, "image", offsetof(SpacesAction, image), 2,
                  "more pixels are dark; more pixels are light");
    fugu_discrete(&agent->action, "flat", offsetof(SpacesAction, flat), 2,
                  "the sum is negative; the sum is positive");
    spec->reward = "0.5 for each head that says the truth of its own part";
    fugu_log(spec, "image");
    fugu_log(spec, "flat");
    fugu_key_of(spec, "a", 0, 0, 0, 0, 0);
    fugu_key_of(spec, "d", 0, 0, 0, 0, 1);
    fugu_key_of(spec, "left", 0, 0, 1, 0, 0);
    fugu_key_of(spec, "right", 0, 0, 1, 0, 1);
    spec->waits_for_a_key = true;
    fugu_picture(spec, 6, 4, 6);
}

static inline void spaces_init(Spaces* env) {
    (void)env;
}

static inline void spaces_reset(Spaces* env) {
    const uint64_t bits = fugu_bits(&env->base.random);
    env->pixels = (uint32_t)(bits >> 39);          /* 25 of the highest */
    env->numbers = (uint32_t)(bits >> 34) & 0x1Fu; /* the next 5 */
    if (env->base.episode == 0)
        env->results[0] = env->results[1] = 0, env->finished = 0;
}

static inline int32_t spaces_count(uint32_t bits) {
    bits = bits - (bits >> 1 & 0x55555555u);
    bits = (bits & 0x33333333u) + (bits >> 2 & 0x33333333u);
    bits = (bits + (bits >> 4)) & 0x0F0F0F0Fu;
    return (int32_t)((bits * 0x01010101u) >> 24);
}

static inline void spaces_step(Spaces* env, FuguIO* io) {
    const SpacesAction* action = io->groups[0].actions;
    const bool light = spaces_count(env->pixels) > SPACES_PIXELS / 2;
    const bool positive = spaces_count(env->numbers) > SPACES_FLAT / 2;
    const uint32_t image = action->image == light, flat = action->flat == positive;
    io->groups[0].rewards[0] = 0.5f * (float)(image + flat);
    io->log[0] += (float)image;
    io->log[1] += (float)flat;
    io->terminated = true;
    env->results[0] = env->results[0] << 1 | image;
    env->results[1] = env->results[1] << 1 | flat;
    env->finished += env->finished < SPACES_SHOWN;
}

static inline void spaces_observe(Spaces* env, FuguIO* io) {
    SpacesView* view = io->groups[0].observations;
    const uint32_t pixels = env->pixels, numbers = env->numbers;
    for (int i = 0; i < SPACES_PIXELS; ++i)
        view->image[i] = (uint8_t)((pixels >> i & 1u) * 255u);
    for (int i = 0; i < SPACES_FLAT; ++i)
        view->flat[i] = numbers >> i & 1u ? 1.0f : -1.0f;
}

static void spaces_draw(const Spaces* env, FuguCanvas* canvas) {
    int right = 0;
    canvas->background = 0xF7F3E9;
    fugu_rectangle(canvas, 0.55f, 0.8f, 2.1f, 2.1f, 0x9AA5A0);
    for (int i = 0; i < SPACES_PIXELS; ++i)
        fugu_rectangle(canvas, 0.62f + 0.4f * (float)(i % SPACES_SIDE),
                       0.87f + 0.4f * (float)(i / SPACES_SIDE), 0.36f, 0.36f,
                       env->pixels >> i & 1u ? 0xF2CC8F : 0x2F4858);
    fugu_line(canvas, 3.3f, 1.85f, 5.5f, 1.85f, 0.03f, 0x9AA5A0);
    for (int i = 0; i < SPACES_FLAT; ++i) {
        const bool up = env->numbers >> i & 1u;
        const float x = 3.6f + 0.4f * (float)i, y = up ? 1.15f : 2.55f;
        fugu_line(canvas, x, 1.85f, x, y, 0.12f, up ? 0x81B29A : 0xE07A5F);
        fugu_circle(canvas, x, y, 0.15f, up ? 0x81B29A : 0xE07A5F);
    }
    for (int part = 0; part < 2; ++part)
        for (int i = 0; i < env->finished; ++i) {
            const bool good = env->results[part] >> i & 1u;
            right += good;
            fugu_circle(canvas, (part ? 5.5f : 2.6f) - 0.09f * (float)i, 3.35f, 0.04f,
                        good ? 0x81B29A : 0xE07A5F);
        }
    fugu_number(canvas, 3.0f, 0.35f, 0.25f, 0x2F4858, "right ", right);
}

FUGU_ENVIRONMENT(Spaces, spaces,
                 "Judge an image and a vector at once; a check of structured spaces.")
