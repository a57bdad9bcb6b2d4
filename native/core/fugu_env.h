/* fugu_env.h: all that a native environment needs. Plain C99, freestanding.

   An environment is one header: a struct whose first member is FuguEnv, a table of settings, and
   the functions name_describe, name_init, name_reset, name_step, name_observe and name_draw, closed
   by FUGU_ENVIRONMENT(Struct, name, "what it is"). The struct holds no pointers, so that a snapshot
   is a copy of its bytes. docs/native.md writes one from nothing. */
#ifndef FUGU_ENV_H
#define FUGU_ENV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fugu_draw.h"
#include "fugu_math.h"
#include "fugu_random.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "fugu: states, rows and masks are little-endian; big-endian machines are not supported"
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define FUGU_ABI 1
#define FUGU_MAX_GROUPS 4
#define FUGU_MAX_LEAVES 8
#define FUGU_MAX_LOGS 12
#define FUGU_MAX_KEYS 32
#define FUGU_MAX_CELLS 4

#if defined(_WIN32)
#define FUGU_PUBLIC __declspec(dllexport)
#else
#define FUGU_PUBLIC __attribute__((visibility("default")))
#endif

/* ------------------------------------------------------------------ the state */

/* The first member of every environment's struct. */
typedef struct FuguEnv {
    FuguRandom random; /* of this episode; the only source of chance */
    uint64_t seed;     /* of all its episodes */
    uint64_t episode;  /* the number of this one */
    int32_t step;      /* steps of this episode, the current one included */
    int32_t max_steps; /* a setting: after so many the episode is cut off; 0 for never */
} FuguEnv;

/* One group's rows of one environment. Rows stand side by side: with a struct for an observation,
   `View* views = io->groups[0].observations;` and `views[agent].x = ...`. */
typedef struct FuguRows {
    void* observations;
    const void* actions;   /* values of the action space; they were checked */
    uint8_t* masks;        /* 1 for each choice that is allowed; all 1 unless written */
    float* rewards;        /* 0 before every step */
    float* costs;          /* one column a constraint; 0 before every step */
    uint8_t* terminations; /* 0 before every step; see fugu_end */
    uint8_t* truncations;
    uint8_t* live; /* 1 if the agent is to act next; all 1 after a reset */
    int32_t agents;
} FuguRows;

/* What a step reads and writes. */
typedef struct FuguIO {
    FuguRows groups[FUGU_MAX_GROUPS];
    float* log; /* one number a log field, 0 before every step: what the episodes that end now add
                   up to, one for each agent; it is divided by their number */
    bool terminated;       /* set by a step that ends the episode of all agents */
    bool truncated;        /* set by a step that cuts it off */
    bool some_agent_ended; /* set by fugu_end */
} FuguIO;

/* Ends the episode of one agent while the environment goes on. It begins anew at once if there is a
   name_respawn, else it stays out until the others end. */
static inline void fugu_end(FuguIO* io, int group, int agent) {
    io->groups[group].terminations[agent] = 1;
    io->some_agent_ended = true;
}

/* ------------------------------------------------------------------ settings */

enum { FUGU_INT32, FUGU_FLOAT32 };

typedef struct FuguSetting {
    const char* name;
    int32_t type;
    uint32_t offset;
    double initial, low, high;
    const char* text;
} FuguSetting;

#define FUGU_INT(Struct, field, initial, low, high, text)                                          \
    {#field, FUGU_INT32, (uint32_t)offsetof(Struct, field), initial, low, high, text}
#define FUGU_REAL(Struct, field, initial, low, high, text)                                         \
    {#field, FUGU_FLOAT32, (uint32_t)offsetof(Struct, field), initial, low, high, text}
/* Every environment has this one. */
#define FUGU_MAX_STEPS(initial)                                                                    \
    {"max_steps",                                                                                  \
     FUGU_INT32,                                                                                   \
     (uint32_t)offsetof(FuguEnv, max_steps),                                                       \
     initial,                                                                                      \
     0,                                                                                            \
     1e9,                                                                                          \
     "steps after which an episode is cut off; 0 for never"}

/* ------------------------------------------------------------------ the spec */

enum { FUGU_BOX, FUGU_DISCRETE, FUGU_MULTI_DISCRETE };
enum { FUGU_U8, FUGU_I8, FUGU_I16, FUGU_I32, FUGU_I64, FUGU_F32 };

/* One typed array of an observation or an action. */
typedef struct FuguLeaf {
    const char* name; /* empty if it is the only one: no dict then */
    const char* text; /* what it means; for each entry or choice if they are split by ';' */
    int32_t kind, type, rank;
    int32_t shape[4];
    uint32_t offset;  /* in a row, in bytes */
    double low, high; /* of a box */
    int32_t choices;  /* of a discrete, or of each entry of a multi-discrete */
} FuguLeaf;

typedef struct FuguSpace {
    FuguLeaf leaves[FUGU_MAX_LEAVES];
    int32_t count;
} FuguSpace;

/* Agents with the same spaces. */
typedef struct FuguGroup {
    const char* name;
    int32_t agents;
    int32_t costs; /* constraints */
    FuguSpace observation, action;
} FuguGroup;

/* A key that a person plays with: while it is held, the leaf's number at `index` is `value`. */
typedef struct FuguKey {
    const char* name; /* as pygame calls it: "left", "space", "a" */
    int32_t group, agent, leaf, index;
    double value;
} FuguKey;

/* Cells of the picture that a person points at: the one in (column, row) sets the first number of
   an agent of the first group to row * columns + column. */
typedef struct FuguCells {
    int32_t agent, columns, rows;
    float x, y, width, height; /* where they lie, in the units of the picture */
} FuguCells;

typedef struct FuguSpec {
    FuguGroup groups[FUGU_MAX_GROUPS];
    int32_t num_groups;
    const char* logs[FUGU_MAX_LOGS];
    int32_t num_logs;
    FuguKey keys[FUGU_MAX_KEYS];
    int32_t num_keys;
    FuguCells cells[FUGU_MAX_CELLS];
    int32_t num_cells;
    const char* reward;   /* what is rewarded, for people */
    float width, height;  /* of a picture, in the units that name_draw uses */
    float frames;         /* a second, for people to watch */
    bool waits_for_a_key; /* a person's game stands still until a key is pressed */
    bool all_act;         /* every agent acts in every step: none takes turns, and none stays out
                             while others go on. Many are collected faster then */
} FuguSpec;

static inline FuguGroup* fugu_group(FuguSpec* spec, const char* name, int agents) {
    FuguGroup* group = &spec->groups[spec->num_groups++];
    group->name = name;
    group->agents = agents;
    return group;
}

static inline FuguLeaf* fugu_leaf(FuguSpace* space, const char* name, uint32_t offset, int kind,
                                  int type, const char* text) {
    FuguLeaf* leaf = &space->leaves[space->count++];
    leaf->name = name;
    leaf->text = text;
    leaf->kind = kind;
    leaf->type = type;
    leaf->offset = offset;
    leaf->low = 0;
    leaf->high = 0;
    leaf->choices = 0;
    leaf->rank = 0;
    return leaf;
}

/* An array of numbers within [low, high]; dimensions of 0 are left out. */
static inline void fugu_box(FuguSpace* space, const char* name, uint32_t offset, int type,
                            double low, double high, int d0, int d1, int d2, const char* text) {
    FuguLeaf* leaf = fugu_leaf(space, name, offset, FUGU_BOX, type, text);
    const int dims[3] = {d0, d1, d2};
    leaf->low = low;
    leaf->high = high;
    for (int i = 0; i < 3 && dims[i] > 0; ++i)
        leaf->shape[leaf->rank++] = dims[i];
}

/* A vector of float32, the most common of all. */
static inline void fugu_floats(FuguSpace* space, const char* name, uint32_t offset, double low,
                               double high, int count, const char* text) {
    fugu_box(space, name, offset, FUGU_F32, low, high, count, 0, 0, text);
}

/* One of `choices`, an int64. */
static inline void fugu_discrete(FuguSpace* space, const char* name, uint32_t offset, int choices,
                                 const char* text) {
    fugu_leaf(space, name, offset, FUGU_DISCRETE, FUGU_I64, text)->choices = choices;
}

/* `count` numbers, each one of `choices`, int64. */
static inline void fugu_multi_discrete(FuguSpace* space, const char* name, uint32_t offset,
                                       int count, int choices, const char* text) {
    FuguLeaf* leaf = fugu_leaf(space, name, offset, FUGU_MULTI_DISCRETE, FUGU_I64, text);
    leaf->choices = choices;
    leaf->shape[leaf->rank++] = count;
}

static inline void fugu_log(FuguSpec* spec, const char* name) {
    spec->logs[spec->num_logs++] = name;
}

/* A key of the first agent of the first group that sets its first number. */
static inline void fugu_key(FuguSpec* spec, const char* name, double value) {
    FuguKey key = {name, 0, 0, 0, 0, value};
    spec->keys[spec->num_keys++] = key;
}

static inline void fugu_key_of(FuguSpec* spec, const char* name, int group, int agent, int leaf,
                               int index, double value) {
    FuguKey key = {name, group, agent, leaf, index, value};
    spec->keys[spec->num_keys++] = key;
}

static inline void fugu_cells(FuguSpec* spec, int agent, int columns, int rows, float x, float y,
                              float width, float height) {
    FuguCells cells = {agent, columns, rows, x, y, width, height};
    spec->cells[spec->num_cells++] = cells;
}

static inline void fugu_picture(FuguSpec* spec, float width, float height, float frames) {
    spec->width = width;
    spec->height = height;
    spec->frames = frames;
}

/* ------------------------------------------------------------------ what fugu calls */

/* The rows of all environments of one group. */
typedef struct FuguArrays {
    unsigned char *observations, *final;
    const unsigned char* actions;
    uint8_t* masks;
    float *rewards, *costs;
    uint8_t *terminations, *truncations, *live, *over;
    int32_t agents;
    uint32_t observation_bytes, action_bytes, mask_width, num_costs;
} FuguArrays;

typedef struct FuguBatch {
    FuguArrays groups[FUGU_MAX_GROUPS];
    int32_t num_groups;
    float* logs; /* of the first environment; the next one's begin log_stride further on */
    int32_t log_stride;
    unsigned char* states;
} FuguBatch;

typedef struct FuguDefinition {
    uint32_t abi, spec_bytes, state_bytes;
    const char *name, *summary;
    const FuguSetting* settings;
    uint32_t num_settings;
    void (*describe)(const void* env, FuguSpec* spec);
    void (*init)(void* env);
    /* Each of the environments [begin, end) of a batch: a new episode, a step, only observations.
     */
    void (*reset)(FuguBatch* batch, size_t begin, size_t end);
    void (*step)(FuguBatch* batch, size_t begin, size_t end);
    void (*observe)(FuguBatch* batch, size_t begin, size_t end);
    void (*draw)(const void* env, FuguCanvas* canvas);
} FuguDefinition;

#define FUGU_INLINE static inline __attribute__((always_inline))

FUGU_INLINE void fugu_open(FuguIO* io, const FuguBatch* batch, size_t env, int groups) {
    int g = 0;
    do { /* there is always a first one */
        const FuguArrays* all = &batch->groups[g];
        const size_t row = env * (size_t)all->agents;
        FuguRows* rows = &io->groups[g];
        rows->observations = all->observations + row * all->observation_bytes;
        rows->actions = all->actions + row * all->action_bytes;
        rows->masks = all->masks + row * all->mask_width;
        rows->rewards = all->rewards + row;
        rows->costs = all->costs + row * all->num_costs;
        rows->terminations = all->terminations + row;
        rows->truncations = all->truncations + row;
        rows->live = all->live + row;
        rows->agents = all->agents;
    } while (++g < groups);
    io->log = batch->logs + env * (size_t)batch->log_stride;
    io->terminated = io->truncated = io->some_agent_ended = false;
}

/* Whose turn it is after a reset: everybody's, unless name_observe says otherwise. */
static inline void fugu_all_live(FuguBatch* batch, size_t env) {
    for (int g = 0; g < batch->num_groups; ++g) {
        FuguArrays* all = &batch->groups[g];
        for (int32_t i = 0; i < all->agents; ++i) {
            all->live[env * (size_t)all->agents + (size_t)i] = 1;
            all->over[env * (size_t)all->agents + (size_t)i] = 0;
        }
    }
}

/* Keeps the last observations of agents whose episode ended, and flags those that end with all. */
static inline void fugu_keep_final(FuguBatch* batch, FuguIO* io, size_t env, bool respawns) {
    const bool all_end = io->terminated || io->truncated;
    for (int g = 0; g < batch->num_groups; ++g) {
        FuguArrays* all = &batch->groups[g];
        for (int32_t i = 0; i < all->agents; ++i) {
            const size_t row = env * (size_t)all->agents + (size_t)i;
            if (all->over[row])
                continue;
            if (all_end && !all->terminations[row]) {
                all->terminations[row] = io->terminated;
                all->truncations[row] = !io->terminated;
            }
            if (all->terminations[row] || all->truncations[row]) {
                __builtin_memcpy(all->final + row * all->observation_bytes,
                                 all->observations + row * all->observation_bytes,
                                 all->observation_bytes);
                if (!respawns && !all_end) {
                    all->over[row] = 1;
                    all->live[row] = 0;
                }
            }
        }
    }
}

static inline void fugu_new_episode(FuguEnv* env) {
    env->random.state = fugu_derive(env->seed, env->episode);
    env->step = 0;
}

/* Hot loops are compiled for several kinds of processor, one of which is chosen when they are
   loaded. Contraction of a * b + c is off, so that all of them compute the same bits. */
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__) &&   \
    !defined(FUGU_ONE_TARGET)
#define FUGU_HOT __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define FUGU_HOT
#endif

/* `groups` is a constant where there is one group, so that the rows of a step stay in registers; a
   step that ends something opens them again for the same reason. */
#define FUGU_ENVIRONMENT_(Struct, name, summary, respawns, respawn, advance)                       \
    static void name##_reset_many(FuguBatch* batch, size_t begin, size_t end) {                    \
        for (size_t e = begin; e < end; ++e) {                                                     \
            Struct* env = (Struct*)(void*)batch->states + e;                                       \
            FuguIO io;                                                                             \
            fugu_open(&io, batch, e, batch->num_groups);                                           \
            fugu_new_episode((FuguEnv*)env);                                                       \
            fugu_all_live(batch, e);                                                               \
            name##_reset(env);                                                                     \
            name##_observe(env, &io);                                                              \
        }                                                                                          \
    }                                                                                              \
    static void name##_finish(FuguBatch* batch, Struct* env, FuguIO* io, size_t e) {               \
        fugu_keep_final(batch, io, e, respawns);                                                   \
        if (io->terminated || io->truncated) {                                                     \
            ++((FuguEnv*)env)->episode;                                                            \
            fugu_new_episode((FuguEnv*)env);                                                       \
            fugu_all_live(batch, e);                                                               \
            name##_reset(env);                                                                     \
        } else {                                                                                   \
            for (int g = 0; respawns && g < batch->num_groups; ++g)                                \
                for (int32_t i = 0; i < io->groups[g].agents; ++i)                                 \
                    if (io->groups[g].terminations[i])                                             \
                        respawn(env, g, i);                                                        \
        }                                                                                          \
        name##_observe(env, io);                                                                   \
    }                                                                                              \
    FUGU_INLINE void name##_step_each(FuguBatch* batch, size_t begin, size_t end, int groups) {    \
        for (size_t e = begin; e < end; ++e) {                                                     \
            Struct* env = (Struct*)(void*)batch->states + e;                                       \
            FuguEnv* base = (FuguEnv*)env;                                                         \
            FuguIO io;                                                                             \
            fugu_open(&io, batch, e, groups);                                                      \
            base->step += base->step < INT32_MAX; /* of episodes without an end */                 \
            name##_step(env, &io);                                                                 \
            io.truncated = io.truncated || (base->max_steps && base->step >= base->max_steps);     \
            name##_observe(env, &io);                                                              \
            if (__builtin_expect(io.terminated | io.truncated | io.some_agent_ended, 0)) {         \
                FuguIO again;                                                                      \
                fugu_open(&again, batch, e, batch->num_groups);                                    \
                again.terminated = io.terminated;                                                  \
                again.truncated = io.truncated;                                                    \
                name##_finish(batch, env, &again, e);                                              \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
    FUGU_HOT static void name##_step_many(FuguBatch* batch, size_t begin, size_t end) {            \
        for (size_t e = begin; e < end; e += FUGU_BLOCK) {                                         \
            const size_t last = e + FUGU_BLOCK < end ? e + FUGU_BLOCK : end;                       \
            advance((Struct*)(void*)batch->states + e,                                             \
                    batch->groups[0].actions +                                                     \
                        e * (size_t)batch->groups[0].agents * batch->groups[0].action_bytes,       \
                    (int)(last - e));                                                              \
            if (batch->num_groups == 1)                                                            \
                name##_step_each(batch, e, last, 1);                                               \
            else                                                                                   \
                name##_step_each(batch, e, last, batch->num_groups);                               \
        }                                                                                          \
    }                                                                                              \
    static void name##_observe_many(FuguBatch* batch, size_t begin, size_t end) {                  \
        for (size_t e = begin; e < end; ++e) {                                                     \
            FuguIO io;                                                                             \
            fugu_open(&io, batch, e, batch->num_groups);                                           \
            name##_observe((Struct*)(void*)batch->states + e, &io);                                \
        }                                                                                          \
    }                                                                                              \
    static void name##_describe_any(const void* env, FuguSpec* spec) {                             \
        name##_describe((const Struct*)env, spec);                                                 \
    }                                                                                              \
    static void name##_init_any(void* env) {                                                       \
        name##_init((Struct*)env);                                                                 \
    }                                                                                              \
    static void name##_draw_any(const void* env, FuguCanvas* canvas) {                             \
        name##_draw((const Struct*)env, canvas);                                                   \
    }                                                                                              \
    static const FuguDefinition name##_definition = {FUGU_ABI,                                     \
                                                     sizeof(FuguSpec),                             \
                                                     sizeof(Struct),                               \
                                                     #name,                                        \
                                                     summary,                                      \
                                                     name##_settings,                              \
                                                     sizeof(name##_settings) /                     \
                                                         sizeof(name##_settings[0]),               \
                                                     name##_describe_any,                          \
                                                     name##_init_any,                              \
                                                     name##_reset_many,                            \
                                                     name##_step_many,                             \
                                                     name##_observe_many,                          \
                                                     name##_draw_any};

#define FUGU_BLOCK 64 /* environments that are moved at a time */
#define FUGU_NOBODY(env, group, agent) (void)0
#define FUGU_NOTHING(envs, actions, count) (void)0
#define FUGU_ENVIRONMENT(Struct, name, summary)                                                    \
    FUGU_ENVIRONMENT_(Struct, name, summary, false, FUGU_NOBODY, FUGU_NOTHING)
/* With name_respawn(env, group, agent): an agent that ended begins anew while the others go on. */
#define FUGU_ENVIRONMENT_RESPAWNING(Struct, name, summary)                                         \
    FUGU_ENVIRONMENT_(Struct, name, summary, true, name##_respawn, FUGU_NOTHING)
/* With name_advance(envs, actions, count): moves a block of environments before each one's step, in
   a loop that the compiler can vectorise; it is given the actions of the first group. */
#define FUGU_ENVIRONMENT_IN_BLOCKS(Struct, name, summary)                                          \
    FUGU_ENVIRONMENT_(Struct, name, summary, false, FUGU_NOBODY, name##_advance)

/* Makes a library of an environment; `fugu env build` writes this line. */
#define FUGU_EXPORT(name)                                                                          \
    FUGU_PUBLIC const FuguDefinition* fugu_environment(void);                                      \
    FUGU_PUBLIC const FuguDefinition* fugu_environment(void) {                                     \
        return &name##_definition;                                                                 \
    }

#ifdef __cplusplus
}
#endif

#endif
