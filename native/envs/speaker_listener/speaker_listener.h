/* Speaker and listener of the multi-particle environments (Lowe and others, 2017): one agent sees
   which landmark is the goal and can only speak, the other can only move and hear. Positions,
   velocities and observations are those of simple_speaker_listener_v4 in PettingZoo and mpe2.

   Let D = the squared distance of the listener from the goal landmark.
   convention 0, PettingZoo:  both agents get -D.
   convention 1, on-policy:   both agents get the sum over the two, -2 D; and the listener moves by
     its new velocity instead of its old one. */
#include "fugu_env.h"

enum { SPEAKER_LISTENER_LANDMARKS = 3 };

typedef struct SpeakerListener {
    FuguEnv base;
    float x, y, speed_x, speed_y; /* the listener */
    float speaker_x, speaker_y;   /* for the picture; nobody observes it */
    float landmark_x[SPEAKER_LISTENER_LANDMARKS], landmark_y[SPEAKER_LISTENER_LANDMARKS];
    int32_t goal, message; /* a landmark; a word 0 .. 2, or -1 before the first */
    int32_t convention;    /* a setting */
} SpeakerListener;

static const FuguSetting speaker_listener_settings[] = {
    FUGU_MAX_STEPS(25),
    FUGU_INT(SpeakerListener, convention, 0, 0, 1,
             "of rewards: 0 PettingZoo (to each), 1 on-policy (summed)"),
};

static void speaker_listener_describe(const SpeakerListener* env, FuguSpec* spec) {
    FuguGroup* speaker = fugu_group(spec, "speaker", 1);
    fugu_floats(&speaker->observation, "", 0, 0, 1, 3,
                "red of the goal; green of the goal; blue of the goal");
    fugu_discrete(&speaker->action, "", 0, 3, "say A; say B; say C");
    FuguGroup* listener = fugu_group(spec, "listener", 1);
    fugu_floats(&listener->observation, "", 0, -FUGU_INFINITY, FUGU_INFINITY, 11,
                "velocity x; velocity y; red landmark x, relative; red y; green x; green y; blue "
                "x; blue y; heard A; heard B; heard C");
    fugu_discrete(&listener->action, "", 0, 5, "none; left; right; down; up");
    spec->reward = env->convention
                       ? "minus twice the squared distance of the listener from the goal"
                       : "minus the squared distance of the listener from the goal";
    fugu_log(spec, "distance");
    fugu_log(spec, "reached");
    fugu_key_of(spec, "a", 0, 0, 0, 0, 0);
    fugu_key_of(spec, "b", 0, 0, 0, 0, 1);
    fugu_key_of(spec, "c", 0, 0, 0, 0, 2);
    fugu_key_of(spec, "left", 1, 0, 0, 0, 1);
    fugu_key_of(spec, "right", 1, 0, 0, 0, 2);
    fugu_key_of(spec, "down", 1, 0, 0, 0, 3);
    fugu_key_of(spec, "up", 1, 0, 0, 0, 4);
    fugu_picture(spec, 6, 6.6f, 10);
}

static inline void speaker_listener_init(SpeakerListener* env) {
    (void)env;
}

static inline void speaker_listener_reset(SpeakerListener* env) {
    FuguRandom* random = &env->base.random;
    env->goal = fugu_below(random, SPEAKER_LISTENER_LANDMARKS);
    env->speaker_x = fugu_uniform(random, -1, 1);
    env->speaker_y = fugu_uniform(random, -1, 1);
    env->x = fugu_uniform(random, -1, 1);
    env->y = fugu_uniform(random, -1, 1);
    env->speed_x = env->speed_y = 0;
    for (int l = 0; l < SPEAKER_LISTENER_LANDMARKS; ++l) {
        env->landmark_x[l] = fugu_uniform(random, -1, 1);
        env->landmark_y[l] = fugu_uniform(random, -1, 1);
    }
    env->message = -1;
}

static inline float speaker_listener_square(const SpeakerListener* env) {
    const float dx = env->x - env->landmark_x[env->goal], dy = env->y - env->landmark_y[env->goal];
    return dx * dx + dy * dy;
}

static inline void speaker_listener_step(SpeakerListener* env, FuguIO* io) {
    const int64_t move = *(const int64_t*)io->groups[1].actions;
    const float old_x = env->speed_x, old_y = env->speed_y;
    env->message = (int32_t)*(const int64_t*)io->groups[0].actions;
    env->speed_x = old_x * 0.75f + 0.5f * (float)((move == 2) - (move == 1));
    env->speed_y = old_y * 0.75f + 0.5f * (float)((move == 4) - (move == 3));
    env->x += 0.1f * (env->convention ? env->speed_x : old_x);
    env->y += 0.1f * (env->convention ? env->speed_y : old_y);
    const float square = speaker_listener_square(env);
    const float reward = env->convention ? -2.0f * square : -square;
    io->groups[0].rewards[0] = reward;
    io->groups[1].rewards[0] = reward;
    if (env->base.max_steps && env->base.step >= env->base.max_steps) {
        /* Logs are averaged over the agents whose episodes end, which are two. */
        io->log[0] += 2.0f * fugu_sqrt(square);
        io->log[1] += square < 0.1f * 0.1f ? 2.0f : 0.0f;
    }
}

static inline void speaker_listener_observe(SpeakerListener* env, FuguIO* io) {
    float* seen = io->groups[0].observations;
    float* heard = io->groups[1].observations;
    heard[0] = env->speed_x;
    heard[1] = env->speed_y;
    for (int l = 0; l < SPEAKER_LISTENER_LANDMARKS; ++l) {
        seen[l] = l == env->goal ? 0.65f : 0.15f;
        heard[2 + 2 * l] = env->landmark_x[l] - env->x;
        heard[3 + 2 * l] = env->landmark_y[l] - env->y;
        heard[8 + l] = l == env->message ? 1.0f : 0.0f;
    }
}

static void speaker_listener_draw(const SpeakerListener* env, FuguCanvas* canvas) {
    static const uint32_t colors[3] = {0xD8604C, 0x5E9F6E, 0x4682B4};
    static const uint32_t pale[3] = {0xF3CFC6, 0xCFE3D2, 0xC8DCEA};
    static const char* const words[4] = {"...", "A", "B", "C"};
    const float reach = fugu_max(1.2f, fugu_max(fugu_abs(env->x), fugu_abs(env->y)) + 0.15f);
    const float scale = 2.9f / reach, mid_x = 3.0f, mid_y = 3.6f;
    canvas->background = 0xF7F3E9;
    fugu_rectangle(canvas, mid_x - scale - 0.05f, mid_y - scale - 0.05f, 2 * scale + 0.1f,
                   2 * scale + 0.1f, 0xE4DBC8);
    fugu_rectangle(canvas, mid_x - scale, mid_y - scale, 2 * scale, 2 * scale, 0xFDFAF2);
    for (int l = 0; l < SPEAKER_LISTENER_LANDMARKS; ++l) {
        const float x = mid_x + scale * env->landmark_x[l], y = mid_y - scale * env->landmark_y[l];
        fugu_circle(canvas, x, y, 0.13f * scale, l == env->goal ? colors[l] : pale[l]);
        fugu_circle(canvas, x, y, 0.105f * scale, 0xFDFAF2);
        fugu_circle(canvas, x, y, 0.075f * scale, colors[l]);
    }
    /* The listener looks where it goes; a thread shows where it should. */
    const float x = mid_x + scale * env->x, y = mid_y - scale * env->y, r = 0.1f * scale;
    fugu_line(canvas, x, y, mid_x + scale * env->landmark_x[env->goal],
              mid_y - scale * env->landmark_y[env->goal], 0.025f, 0xD8CFBC);
    fugu_circle(canvas, x + 0.02f, y + 0.04f, r, 0xDDD3BE);
    fugu_circle(canvas, x, y, r, 0x2F4858);
    fugu_circle(canvas, x, y, 0.9f * r, 0xF2CC8F);
    for (int side = -1; side <= 1; side += 2) {
        fugu_circle(canvas, x + 0.32f * (float)side * r, y - 0.25f * r, 0.24f * r, 0xFFFFFF);
        fugu_circle(canvas, x + 0.32f * (float)side * r + 0.05f * r * env->speed_x,
                    y - 0.25f * r - 0.05f * r * env->speed_y, 0.12f * r, 0x1B2A33);
    }
    /* The speaker, the goal's colour in its mind, and a bubble with its word. */
    const float sx = mid_x + scale * env->speaker_x, sy = mid_y - scale * env->speaker_y;
    const float lean = sx > 3.0f ? -1.0f : 1.0f, rise = sy < 1.9f ? 1.0f : -1.0f;
    const float bx = sx + 0.62f * lean, by = sy + 0.5f * rise;
    fugu_circle(canvas, sx + 0.02f, sy + 0.04f, r, 0xDDD3BE);
    fugu_circle(canvas, sx, sy, r, 0x2F4858);
    fugu_circle(canvas, sx, sy, 0.5f * r, colors[env->goal]);
    fugu_triangle(canvas, sx + 0.2f * lean, sy + 0.18f * rise, bx - 0.12f, by, bx + 0.16f, by,
                  0x2F4858);
    fugu_circle(canvas, bx, by, 0.31f, 0x2F4858);
    fugu_circle(canvas, bx, by, 0.28f, 0xFFFFFF);
    fugu_text(canvas, bx, by, 0.32f, 0x2F4858, words[env->message + 1]);
    fugu_number(canvas, 1.2f, 0.3f, 0.24f, 0x2F4858, "step ", env->base.step);
    fugu_number(canvas, 4.4f, 0.3f, 0.24f, 0x2F4858, "gap ",
                (int64_t)(100.0f * fugu_sqrt(speaker_listener_square(env))));
}

FUGU_ENVIRONMENT(SpeakerListener, speaker_listener,
                 "One agent sees the goal and speaks, the other hears it and goes there.")
