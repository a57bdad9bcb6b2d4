/* fugu_web.c: what a browser calls. All memory is taken once, behind the module's own data. */
#include "fugu_web.h"

#define WEB_CALL(name) __attribute__((export_name(name)))
#define WEB_PAGE 65536u
#define WEB_CHANCE 0x63686E63u /* branches of a copy's seed: agents that act by chance, */
#define WEB_DRAWS 0x64726177u  /* and policies that draw their actions */

/* What a group's policy thinks, for each of its agents. */
typedef struct WebMinds {
    float *states, *params, *values;
    uint32_t num_states, num_params, num_values, choices;
    unsigned char* spread; /* three actions: a deviation below the mean, the mean, one above */
    float* scratch;
} WebMinds;

extern unsigned char __heap_base;

static struct {
    uintptr_t end; /* of the memory in use */
    FuguSpec spec;
    FuguBatch batch;
    WebMinds minds[FUGU_MAX_GROUPS];
    FuguRandom* chances; /* by copy */
    unsigned long long* draws;
    FuguCanvas canvas;
    uint32_t copies;
} web;

/* ------------------------------------------------------------------ memory */

/* What every C compiler may call on its own. All but the last are instructions of the machine. */
void* memcpy(void* to, const void* from, size_t bytes);
void* memmove(void* to, const void* from, size_t bytes);
void* memset(void* to, int value, size_t bytes);
int memcmp(const void* a, const void* b, size_t bytes);

void* memcpy(void* to, const void* from, size_t bytes) {
    return __builtin_memcpy(to, from, bytes);
}

void* memmove(void* to, const void* from, size_t bytes) {
    return __builtin_memmove(to, from, bytes);
}

void* memset(void* to, int value, size_t bytes) {
    return __builtin_memset(to, value, bytes);
}

int memcmp(const void* a, const void* b, size_t bytes) {
    const unsigned char *x = a, *y = b;
    for (size_t i = 0; i < bytes; ++i)
        if (x[i] != y[i])
            return x[i] < y[i] ? -1 : 1;
    return 0;
}

/* Zeros; null if the browser has no more. */
static void* take(size_t bytes) {
    const uintptr_t begin = (web.end + 15u) & ~(uintptr_t)15u, end = begin + bytes;
    const size_t pages = __builtin_wasm_memory_size(0), needed = (end + WEB_PAGE - 1) / WEB_PAGE;
    if (needed > pages && __builtin_wasm_memory_grow(0, needed - pages) == (size_t)-1)
        return NULL;
    web.end = end;
    __builtin_memset((void*)begin, 0, bytes);
    return (void*)begin;
}

static bool take_rows(FuguArrays* all, const FuguGroup* group, FuguRowBytes bytes) {
    const size_t rows = web.copies * (size_t)group->agents;
    all->agents = group->agents;
    all->observation_bytes = bytes.observation;
    all->action_bytes = bytes.action;
    all->mask_width = bytes.mask;
    all->num_costs = (uint32_t)group->costs;
    all->observations = take(rows * bytes.observation);
    all->final = take(rows * bytes.observation);
    all->actions = take(rows * bytes.action);
    all->masks = take(rows * bytes.mask);
    all->rewards = take(rows * sizeof(float));
    all->costs = take(rows * all->num_costs * sizeof(float));
    all->terminations = take(rows);
    all->truncations = take(rows);
    all->live = take(rows);
    all->over = take(rows);
    if (!all->over)
        return false;
    __builtin_memset(all->masks, 1, rows * bytes.mask);
    return true;
}

static bool take_minds(WebMinds* minds, const FuguPolicy* policy, size_t rows) {
    minds->num_states = policy->state;
    minds->num_params = policy->params;
    minds->num_values = policy->critics;
    minds->choices = policy->choices;
    minds->states = take(rows * policy->state * sizeof(float));
    minds->params = take(rows * policy->params * sizeof(float));
    minds->values = take(rows * policy->critics * sizeof(float));
    minds->spread = take(3 * (size_t)policy->action_bytes);
    minds->scratch = take(policy->params * sizeof(float));
    return minds->scratch != NULL;
}

static void write_settings(unsigned char* state) {
    const FuguDefinition* definition = fugu_web_definition;
    for (uint32_t i = 0; i < definition->num_settings; ++i) {
        const FuguSetting* setting = &definition->settings[i];
        if (setting->type == FUGU_INT32)
            *(int32_t*)(void*)(state + setting->offset) = (int32_t)fugu_web_settings[i];
        else
            *(float*)(void*)(state + setting->offset) = (float)fugu_web_settings[i];
    }
    definition->init(state);
}

/* So many copies, each to be reset; false if there is no memory for them. */
WEB_CALL("open") bool web_open(uint32_t copies) {
    const FuguDefinition* definition = fugu_web_definition;
    const size_t bytes = definition->state_bytes;
    web.end = (uintptr_t)&__heap_base;
    web.copies = copies;
    FuguBatch* batch = &web.batch;
    batch->states = take(copies * bytes);
    if (!batch->states)
        return false;
    for (uint32_t copy = 0; copy < copies; ++copy)
        write_settings(batch->states + copy * bytes);
    __builtin_memset(&web.spec, 0, sizeof(web.spec));
    definition->describe(batch->states, &web.spec);
    batch->num_groups = web.spec.num_groups;
    for (int g = 0; g < batch->num_groups; ++g) {
        const FuguGroup* group = &web.spec.groups[g];
        const FuguPolicy* policy = fugu_web_policies[g];
        if (!take_rows(&batch->groups[g], group, fugu_web_rows[g]))
            return false;
        if (policy && !take_minds(&web.minds[g], policy, copies * (size_t)group->agents))
            return false;
    }
    batch->log_stride = web.spec.num_logs;
    batch->logs = take(copies * (size_t)web.spec.num_logs * sizeof(float));
    web.chances = take(copies * sizeof(FuguRandom));
    web.draws = take(copies * sizeof(unsigned long long));
    web.canvas.capacity = 0; /* shapes lie behind all else, so that they can become more */
    web.canvas.shapes = take(0);
    return web.draws != NULL && web.canvas.shapes != NULL;
}

/* ------------------------------------------------------------------ episodes */

static size_t row_of(int group, uint32_t copy, uint32_t agent) {
    return copy * (size_t)web.batch.groups[group].agents + agent;
}

static void forget(int group, size_t row) {
    WebMinds* minds = &web.minds[group];
    const size_t bytes = minds->num_states * sizeof(float);
    __builtin_memset(minds->states + row * minds->num_states, 0, bytes);
}

/* What is 0 before every step. */
static void clear(uint32_t copy) {
    for (int g = 0; g < web.batch.num_groups; ++g) {
        FuguArrays* all = &web.batch.groups[g];
        const size_t row = row_of(g, copy, 0), rows = (size_t)all->agents;
        __builtin_memset(all->rewards + row, 0, rows * sizeof(float));
        __builtin_memset(all->costs + row * all->num_costs, 0,
                         rows * all->num_costs * sizeof(float));
        __builtin_memset(all->terminations + row, 0, rows);
        __builtin_memset(all->truncations + row, 0, rows);
    }
    const size_t logs = (size_t)web.batch.log_stride;
    __builtin_memset(web.batch.logs + copy * logs, 0, logs * sizeof(float));
}

static FuguEnv* base_of(uint32_t copy) {
    return (FuguEnv*)(void*)(web.batch.states + copy * (size_t)fugu_web_definition->state_bytes);
}

/* The first episode of a seed. */
WEB_CALL("reset") void web_reset(uint32_t copy, uint64_t seed) {
    FuguEnv* base = base_of(copy);
    base->seed = seed;
    base->episode = 0;
    web.chances[copy].state = fugu_derive(seed, WEB_CHANCE);
    web.draws[copy] = fugu_derive(seed, WEB_DRAWS);
    clear(copy);
    for (int g = 0; g < web.batch.num_groups; ++g)
        for (uint32_t i = 0; i < (uint32_t)web.batch.groups[g].agents; ++i)
            forget(g, row_of(g, copy, i));
    fugu_web_definition->reset(&web.batch, copy, copy + 1);
}

WEB_CALL("step") void web_step(uint32_t copy) {
    clear(copy);
    fugu_web_definition->step(&web.batch, copy, copy + 1);
    for (int g = 0; g < web.batch.num_groups; ++g) {
        const FuguArrays* all = &web.batch.groups[g];
        for (uint32_t i = 0; i < (uint32_t)all->agents; ++i) {
            const size_t row = row_of(g, copy, i);
            if (all->terminations[row] | all->truncations[row])
                forget(g, row);
        }
    }
}

/* The seed of one of several copies. */
WEB_CALL("derive") uint64_t web_derive(uint64_t seed, uint64_t step) {
    return fugu_derive(seed, step);
}

/* ------------------------------------------------------------------ acting */

static unsigned char* action_of(int group, size_t row) {
    const FuguArrays* all = &web.batch.groups[group];
    return (unsigned char*)(uintptr_t)all->actions + row * all->action_bytes;
}

/* One of the choices that a mask allows; the first if it allows none, of an agent that is out. */
static int64_t any_choice(FuguRandom* random, const uint8_t* mask, int32_t choices) {
    int32_t allowed = 0;
    for (int32_t i = 0; i < choices; ++i)
        allowed += mask[i];
    int32_t left = allowed ? fugu_below(random, allowed) : 0;
    for (int32_t i = 0; i < choices; ++i)
        if (mask[i] && left-- == 0)
            return i;
    return 0;
}

static float any_number(FuguRandom* random, const FuguLeaf* leaf) {
    const float low = leaf->low < -1e6 ? -1.0f : (float)leaf->low;
    const float high = leaf->high > 1e6 ? 1.0f : (float)leaf->high;
    return fugu_uniform(random, low, high);
}

/* An action by chance, among those that are allowed. */
WEB_CALL("guess") void web_guess(int group, uint32_t copy, uint32_t agent) {
    const FuguSpace* space = &web.spec.groups[group].action;
    const size_t row = row_of(group, copy, agent);
    const FuguArrays* all = &web.batch.groups[group];
    const uint8_t* mask = all->masks + row * all->mask_width;
    for (int i = 0; i < space->count; ++i) {
        const FuguLeaf* leaf = &space->leaves[i];
        unsigned char* out = action_of(group, row) + leaf->offset;
        int32_t count = 1;
        for (int d = 0; d < leaf->rank; ++d)
            count *= leaf->shape[d];
        for (int32_t k = 0; k < count; ++k) {
            if (leaf->kind == FUGU_BOX) {
                ((float*)(void*)out)[k] = any_number(&web.chances[copy], leaf);
            } else {
                ((int64_t*)(void*)out)[k] = any_choice(&web.chances[copy], mask, leaf->choices);
                mask += leaf->choices;
            }
        }
    }
}

/* The policy looks at an agent's observation. */
WEB_CALL("think") void web_think(int group, uint32_t copy, uint32_t agent) {
    const FuguArrays* all = &web.batch.groups[group];
    WebMinds* minds = &web.minds[group];
    const size_t row = row_of(group, copy, agent);
    fugu_web_policies[group]->forward(
        all->observations + row * all->observation_bytes, minds->states + row * minds->num_states,
        minds->params + row * minds->num_params, minds->values + row * minds->num_values);
}

/* The policy acts as it has thought. */
WEB_CALL("act") void web_act(int group, uint32_t copy, uint32_t agent, bool greedy) {
    const FuguArrays* all = &web.batch.groups[group];
    WebMinds* minds = &web.minds[group];
    const size_t row = row_of(group, copy, agent);
    fugu_web_policies[group]->act(minds->params + row * minds->num_params,
                                  all->mask_width ? all->masks + row * all->mask_width : NULL,
                                  greedy ? NULL : &web.draws[copy], action_of(group, row));
}

/* Where an agent's numbers come from: three actions, of the means and a deviation to each side. */
WEB_CALL("spread") unsigned char* web_spread(int group, uint32_t copy, uint32_t agent) {
    WebMinds* minds = &web.minds[group];
    const FuguPolicy* policy = fugu_web_policies[group];
    const uint32_t choices = minds->choices, numbers = (minds->num_params - choices) / 2;
    const float* params = minds->params + row_of(group, copy, agent) * minds->num_params;
    const float *means = params + choices, *logs = means + numbers;
    __builtin_memcpy(minds->scratch, params, minds->num_params * sizeof(float));
    for (int side = -1; side <= 1; ++side) {
        for (uint32_t i = 0; i < numbers; ++i)
            minds->scratch[choices + i] = means[i] + (float)side * fugu_exp(logs[i]);
        policy->act(minds->scratch, NULL, NULL,
                    minds->spread + (size_t)(side + 1) * policy->action_bytes);
    }
    return minds->spread;
}

/* ------------------------------------------------------------------ looking */

WEB_CALL("rows") const FuguArrays* web_rows(int group) {
    return &web.batch.groups[group];
}

/* Null where the group has no policy. */
WEB_CALL("minds") const WebMinds* web_minds(int group) {
    return fugu_web_policies[group] ? &web.minds[group] : NULL;
}

/* The display list of now; null if there is no memory for it. */
WEB_CALL("draw") const FuguCanvas* web_draw(uint32_t copy) {
    FuguCanvas* canvas = &web.canvas;
    for (;;) {
        canvas->count = 0;
        canvas->background = 0;
        fugu_web_definition->draw(base_of(copy), canvas);
        if (canvas->count <= canvas->capacity)
            return canvas;
        web.end = (uintptr_t)canvas->shapes;
        if (!take((size_t)canvas->count * sizeof(FuguShape)))
            return NULL;
        canvas->capacity = canvas->count;
    }
}
