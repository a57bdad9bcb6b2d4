/* List DSL: find the operations that turn lists into other lists, in the manner of DeepCoder (Balog
   et al. 2017). A task is a program of a few operations, told by five examples of what goes in and
   what comes out. A step applies one operation to all examples. When those that are shown are as
   they should be, five hidden ones decide the reward.

   Programs of two or more operations are split by what they do to fixed lists: one function in five
   is held out, so that two programs that do the same are never on different sides. A longer program
   is trained on only if no part of it is held out. */
#include "fugu_env.h"

enum {
    LIST_DSL_PLACES = 6, /* numbers of a list at most */
    LIST_DSL_SHOWN = 5,
    LIST_DSL_LISTS = 10, /* the hidden ones behind those that are shown */
    LIST_DSL_BOUND = 64, /* numbers are cut off there, either way */
    LIST_DSL_INPUT = 8,  /* the same for what goes in */
    LIST_DSL_LONGEST = 3,
    LIST_DSL_SPARE = 8,
    LIST_DSL_PROBES = 8,
    LIST_DSL_SIDES = 5,
    LIST_DSL_FULL = 3, /* shown outputs that are not empty, at least */
    LIST_DSL_TRIES = 1000,
    LIST_DSL_NUMBERS = 6, /* of a place, in an observation */
    LIST_DSL_FACTS = 9,   /* of a list */
    LIST_DSL_EXAMPLE = LIST_DSL_PLACES * LIST_DSL_NUMBERS + 2 * LIST_DSL_FACTS,
};

enum { LIST_DSL_TRAIN, LIST_DSL_HELD_OUT, LIST_DSL_ALL };

enum {
    LIST_DSL_SORT,
    LIST_DSL_REVERSE,
    LIST_DSL_ADD_1,
    LIST_DSL_SUBTRACT_1,
    LIST_DSL_DOUBLE,
    LIST_DSL_HALVE,
    LIST_DSL_NEGATE,
    LIST_DSL_SQUARE,
    LIST_DSL_ABSOLUTE,
    LIST_DSL_EVEN,
    LIST_DSL_ODD,
    LIST_DSL_POSITIVE,
    LIST_DSL_NEGATIVE,
    LIST_DSL_DROP_FIRST,
    LIST_DSL_DROP_LAST,
    LIST_DSL_SUMS,
    LIST_DSL_MAXIMA,
    LIST_DSL_DIFFERENCES,
    LIST_DSL_ROTATE,
    LIST_DSL_UNIQUE,
    LIST_DSL_OPERATIONS
};

/* Places beyond the count are 0, so that equal lists have equal bytes. */
typedef struct ListDslList {
    int8_t count, unused;
    int8_t numbers[LIST_DSL_PLACES];
} ListDslList;

/* What is seen: of each shown example its places, then the facts of the list and of the output. */
typedef struct ListDslView {
    float examples[LIST_DSL_SHOWN][LIST_DSL_EXAMPLE];
    float left;
} ListDslView;

typedef struct ListDsl {
    FuguEnv base;
    int32_t length, mixed, spare, split;
    float shaping;
    int32_t operations, left, matching; /* of the task; steps; shown examples that are right */
    int32_t applied, solved;            /* operations so far; tasks since the seed: to be drawn */
    int8_t program[LIST_DSL_LONGEST];
    int8_t history[LIST_DSL_LONGEST + LIST_DSL_SPARE];
    ListDslList probes[LIST_DSL_PROBES];
    ListDslList current[LIST_DSL_LISTS], target[LIST_DSL_LISTS];
    /* Pairs that were probed, of each first operation the second ones, and those held out. */
    uint32_t probed[LIST_DSL_OPERATIONS], held_out[LIST_DSL_OPERATIONS];
} ListDsl;

static const FuguSetting list_dsl_settings[] = {
    FUGU_MAX_STEPS(0),
    FUGU_INT(ListDsl, length, 2, 1, LIST_DSL_LONGEST, "operations of a task's program"),
    FUGU_INT(ListDsl, mixed, 0, 0, 1, "1: shorter programs are among the tasks"),
    FUGU_INT(ListDsl, spare, 0, 0, LIST_DSL_SPARE, "steps beyond the program's operations"),
    FUGU_INT(ListDsl, split, LIST_DSL_TRAIN, LIST_DSL_TRAIN, LIST_DSL_ALL,
             "tasks: 0 those to train on, 1 those held out, 2 all; single operations are never "
             "held out, so that length 1 has them all"),
    FUGU_REAL(ListDsl, shaping, 0, 0, 1, "paid for the shown examples that become right, in all"),
};

static void list_dsl_describe(const ListDsl* env, FuguSpec* spec) {
    (void)env;
    static const char* const keys[LIST_DSL_OPERATIONS] = {"1", "2", "3", "4", "5", "6", "7",
                                                          "8", "9", "0", "a", "b", "c", "d",
                                                          "e", "f", "g", "h", "i", "j"};
    FuguGroup* agent = fugu_group(spec, "agent", 1);
    fugu_box(&agent->observation, "examples", offsetof(ListDslView, examples), FUGU_F32, -8, 8,
             LIST_DSL_SHOWN, LIST_DSL_EXAMPLE, 0,
             "of each shown example: for each place the number now / 8, whether there is one, both "
             "of the output, the output less the number / 4 and at most 2, and whether they are "
             "equal (0 if one is missing), then for the list and for the output its numbers, the "
             "odd, the positive, the negative, the different ones and those not below the one "
             "before, each / 6, the least / 8, the greatest / 8 and the sum / 64");
    fugu_floats(&agent->observation, "left", offsetof(ListDslView, left), 0, 4, 1,
                "steps left / 3");
    fugu_discrete(&agent->action, "", 0, LIST_DSL_OPERATIONS,
                  "sort; reverse; add 1; subtract 1; double; halve toward 0; negate; square; "
                  "absolute; keep even; keep odd; keep positive; keep negative; drop the first; "
                  "drop the last; running sums; running maxima; differences of neighbours; first "
                  "to the end; keep the first of equals");
    spec->reward = "1 when all shown examples are right and the hidden ones are too; with `shaping`"
                   " its share of the shown examples that became right, less those that no longer "
                   "are";
    fugu_log(spec, "solved");
    fugu_log(spec, "shown");
    for (int32_t i = 0; i < LIST_DSL_OPERATIONS; ++i)
        fugu_key(spec, keys[i], i);
    spec->waits_for_a_key = true;
    fugu_picture(spec, 20, 11, 2);
}

/* ------------------------------------------------------------------ operations */

static inline int32_t list_dsl_map(int32_t number, int32_t operation) {
    switch (operation) {
    case LIST_DSL_ADD_1:
        return number + 1;
    case LIST_DSL_SUBTRACT_1:
        return number - 1;
    case LIST_DSL_DOUBLE:
        return 2 * number;
    case LIST_DSL_HALVE:
        return number / 2;
    case LIST_DSL_NEGATE:
        return -number;
    case LIST_DSL_SQUARE:
        return number * number;
    default:
        return fugu_abs_int(number);
    }
}

static inline bool list_dsl_keeps(int32_t number, int32_t operation) {
    switch (operation) {
    case LIST_DSL_EVEN:
        return (number & 1) == 0;
    case LIST_DSL_ODD:
        return (number & 1) != 0;
    case LIST_DSL_POSITIVE:
        return number > 0;
    default:
        return number < 0;
    }
}

/* Whether a number is among the first ones. */
static inline bool list_dsl_has(const int8_t* numbers, int32_t count, int32_t number) {
    bool found = false;
    for (int32_t i = 0; i < count; ++i)
        found |= numbers[i] == number;
    return found;
}

/* Lists are read place by place and written as one word, in registers: a word that was stored in
   pieces is slow to load. Loops go through all places, for a loop of six needs no guess. */
static inline uint64_t list_dsl_at(int32_t place, int32_t number) {
    const int32_t bound = fugu_clamp_int(number, -LIST_DSL_BOUND, LIST_DSL_BOUND);
    return (uint64_t)(uint8_t)bound << (8 * place);
}

static inline ListDslList list_dsl_list(uint64_t numbers, int32_t count) {
    const uint64_t there = ((uint64_t)1 << (8 * count)) - 1;
    const uint64_t word = (numbers & there) << 16 | (uint64_t)count;
    ListDslList list;
    __builtin_memcpy(&list, &word, sizeof(list));
    return list;
}

static inline uint64_t list_dsl_numbers(ListDslList list) {
    uint64_t word;
    __builtin_memcpy(&word, &list, sizeof(word));
    return word >> 16;
}

static inline uint64_t list_dsl_sort(ListDslList list) {
    int32_t numbers[LIST_DSL_PLACES];
    uint64_t sorted = 0;
    for (int32_t i = 0; i < LIST_DSL_PLACES; ++i)
        numbers[i] = i < list.count ? list.numbers[i] : LIST_DSL_BOUND;
    for (int32_t round = 0; round < LIST_DSL_PLACES; ++round) {
        for (int32_t i = round % 2; i + 1 < LIST_DSL_PLACES; i += 2) {
            const int32_t a = numbers[i], b = numbers[i + 1];
            numbers[i] = fugu_min_int(a, b);
            numbers[i + 1] = fugu_max_int(a, b);
        }
    }
    for (int32_t i = 0; i < LIST_DSL_PLACES; ++i)
        sorted |= list_dsl_at(i, numbers[i]);
    return sorted;
}

static inline ListDslList list_dsl_keep(ListDslList list, int32_t operation) {
    uint64_t kept = 0;
    int32_t count = 0;
    for (int32_t i = 0; i < LIST_DSL_PLACES; ++i) {
        const int32_t number = list.numbers[i];
        const bool keeps = operation == LIST_DSL_UNIQUE ? !list_dsl_has(list.numbers, i, number)
                                                        : list_dsl_keeps(number, operation);
        const int32_t one = keeps & (i < list.count);
        kept |= list_dsl_at(count, one * number);
        count += one;
    }
    return list_dsl_list(kept, count);
}

static inline ListDslList list_dsl_apply(ListDslList list, int32_t operation) {
    const int32_t count = list.count, fewer = count - (count > 0);
    const int8_t* in = list.numbers;
    int32_t running = operation == LIST_DSL_MAXIMA ? -LIST_DSL_BOUND : 0;
    const uint64_t word = list_dsl_numbers(list);
    uint64_t out = 0;
    switch (operation) {
    case LIST_DSL_SORT:
        return list_dsl_list(list_dsl_sort(list), count);
    case LIST_DSL_REVERSE:
        return list_dsl_list(__builtin_bswap64(word) >> 16 >> (8 * (LIST_DSL_PLACES - count)),
                             count);
    case LIST_DSL_DROP_FIRST:
        return list_dsl_list(word >> 8, fewer);
    case LIST_DSL_DROP_LAST:
        return list_dsl_list(word, fewer);
    case LIST_DSL_ROTATE:
        return list_dsl_list(word >> 8 | list_dsl_at(fewer, in[0]), count);
    case LIST_DSL_EVEN:
    case LIST_DSL_ODD:
    case LIST_DSL_POSITIVE:
    case LIST_DSL_NEGATIVE:
    case LIST_DSL_UNIQUE:
        return list_dsl_keep(list, operation);
    case LIST_DSL_DIFFERENCES:
        for (int32_t i = 0; i + 1 < LIST_DSL_PLACES; ++i)
            out |= list_dsl_at(i, in[i + 1] - in[i]);
        return list_dsl_list(out, fewer);
    case LIST_DSL_SUMS:
        for (int32_t i = 0; i < LIST_DSL_PLACES; ++i)
            out |= list_dsl_at(i, running += in[i]);
        return list_dsl_list(out, count);
    case LIST_DSL_MAXIMA:
        for (int32_t i = 0; i < LIST_DSL_PLACES; ++i)
            out |= list_dsl_at(i, running = fugu_max_int(running, in[i]));
        return list_dsl_list(out, count);
    default:
        for (int32_t i = 0; i < LIST_DSL_PLACES; ++i)
            out |= list_dsl_at(i, list_dsl_map(in[i], operation));
        return list_dsl_list(out, count);
    }
}

static inline ListDslList list_dsl_run(ListDslList list, const int8_t* program, int32_t count) {
    for (int32_t i = 0; i < count; ++i)
        list = list_dsl_apply(list, program[i]);
    return list;
}

static inline bool list_dsl_equal(const ListDslList* a, const ListDslList* b) {
    return __builtin_memcmp(a, b, sizeof(ListDslList)) == 0;
}

/* ------------------------------------------------------------------ tasks */

static inline ListDslList list_dsl_draw_list(FuguRandom* random, int32_t shortest) {
    uint64_t numbers = 0;
    const int32_t count = shortest + fugu_below(random, LIST_DSL_PLACES - shortest + 1);
    for (int32_t i = 0; i < count; ++i)
        numbers |= list_dsl_at(i, fugu_below(random, 2 * LIST_DSL_INPUT + 1) - LIST_DSL_INPUT);
    return list_dsl_list(numbers, count);
}

static inline void list_dsl_init(ListDsl* env) {
    FuguRandom random = {0x6C697374};
    for (int32_t i = 0; i < LIST_DSL_PROBES; ++i)
        env->probes[i] = list_dsl_draw_list(&random, LIST_DSL_PLACES);
}

/* Whether what some operations do is on the side that is held out. */
static inline bool list_dsl_probe(const ListDsl* env, const int8_t* program, int32_t count) {
    uint64_t hash = 0;
    for (int32_t i = 0; i < LIST_DSL_PROBES; ++i) {
        const ListDslList out = list_dsl_run(env->probes[i], program, count);
        hash = fugu_mix(hash ^ (list_dsl_numbers(out) << 8 | (uint64_t)out.count));
    }
    return hash % LIST_DSL_SIDES == 0;
}

/* The same; single operations never are, and pairs are probed once. */
static inline bool list_dsl_held_out(ListDsl* env, const int8_t* program, int32_t count) {
    if (count != 2)
        return count > 2 && list_dsl_probe(env, program, count);
    const uint32_t second = (uint32_t)1 << program[1];
    if (!(env->probed[program[0]] & second)) {
        env->probed[program[0]] |= second;
        env->held_out[program[0]] |= list_dsl_probe(env, program, 2) ? second : 0;
    }
    return env->held_out[program[0]] & second;
}

static inline bool list_dsl_on_its_side(ListDsl* env) {
    if (env->split == LIST_DSL_ALL || env->length == 1)
        return true;
    if (env->split == LIST_DSL_HELD_OUT)
        return list_dsl_held_out(env, env->program, env->operations);
    for (int32_t first = 0; first < env->operations; ++first)
        for (int32_t count = 2; first + count <= env->operations; ++count)
            if (list_dsl_held_out(env, env->program + first, count))
                return false;
    return true;
}

static inline void list_dsl_draw_program(ListDsl* env) {
    FuguRandom* random = &env->base.random;
    const int32_t shortest = !env->mixed                                          ? env->length
                             : env->split == LIST_DSL_HELD_OUT && env->length > 1 ? 2
                                                                                  : 1;
    for (int32_t i = 0; i < LIST_DSL_TRIES; ++i) {
        env->operations = shortest + fugu_below(random, env->length - shortest + 1);
        for (int32_t k = 0; k < env->operations; ++k)
            env->program[k] = (int8_t)fugu_below(random, LIST_DSL_OPERATIONS);
        if (list_dsl_on_its_side(env))
            return;
    }
}

/* Whether a program turns what is shown into its outputs. */
static inline bool list_dsl_agrees(const ListDsl* env, const int8_t* program, int32_t count) {
    for (int32_t i = 0; i < LIST_DSL_SHOWN; ++i) {
        const ListDslList out = list_dsl_run(env->current[i], program, count);
        if (!list_dsl_equal(&out, &env->target[i]))
            return false;
    }
    return true;
}

/* Whether fewer operations than the task's own solve what is shown. */
static inline bool list_dsl_has_shortcut(const ListDsl* env) {
    int32_t programs = 1;
    for (int32_t count = 0; count < env->operations; ++count, programs *= LIST_DSL_OPERATIONS) {
        for (int32_t code = 0; code < programs; ++code) {
            const int8_t program[2] = {(int8_t)(code % LIST_DSL_OPERATIONS),
                                       (int8_t)(code / LIST_DSL_OPERATIONS)};
            if (list_dsl_agrees(env, program, count))
                return true;
        }
    }
    return false;
}

static inline bool list_dsl_is_fair(const ListDsl* env) {
    int32_t full = 0;
    for (int32_t i = 0; i < LIST_DSL_SHOWN; ++i)
        full += env->target[i].count > 0;
    return full >= LIST_DSL_FULL && !list_dsl_has_shortcut(env);
}

static inline int32_t list_dsl_count(const ListDsl* env, int32_t begin, int32_t end) {
    int32_t right = 0;
    for (int32_t i = begin; i < end; ++i)
        right += list_dsl_equal(&env->current[i], &env->target[i]);
    return right;
}

/* ------------------------------------------------------------------ episodes */

static inline void list_dsl_reset(ListDsl* env) {
    for (int32_t i = 0; i < LIST_DSL_TRIES; ++i) {
        list_dsl_draw_program(env);
        for (int32_t k = 0; k < LIST_DSL_LISTS; ++k) {
            env->current[k] = list_dsl_draw_list(&env->base.random, 3);
            env->target[k] = list_dsl_run(env->current[k], env->program, env->operations);
        }
        if (list_dsl_is_fair(env))
            break;
    }
    env->left = env->operations + env->spare;
    env->matching = list_dsl_count(env, 0, LIST_DSL_SHOWN);
    env->applied = 0;
    if (env->base.episode == 0)
        env->solved = 0;
}

static inline void list_dsl_step(ListDsl* env, FuguIO* io) {
    const int32_t operation = (int32_t)*(const int64_t*)io->groups[0].actions;
    for (int32_t i = 0; i < LIST_DSL_LISTS; ++i)
        env->current[i] = list_dsl_apply(env->current[i], operation);
    env->history[env->applied++] = (int8_t)operation;
    --env->left;
    const int32_t matching = list_dsl_count(env, 0, LIST_DSL_SHOWN);
    float reward = env->shaping * (float)(matching - env->matching) / LIST_DSL_SHOWN;
    env->matching = matching;
    const bool shown = matching == LIST_DSL_SHOWN;
    if (shown || env->left == 0) {
        const int32_t hidden = list_dsl_count(env, LIST_DSL_SHOWN, LIST_DSL_LISTS);
        const bool solved = shown && hidden == LIST_DSL_LISTS - LIST_DSL_SHOWN;
        reward += solved ? 1.0f : 0.0f;
        io->log[0] += solved ? 1.0f : 0.0f;
        io->log[1] += shown ? 1.0f : 0.0f;
        io->terminated = true;
        env->solved += solved && env->solved < 999999;
    }
    io->groups[0].rewards[0] = reward;
}

static inline float* list_dsl_facts(const ListDslList* list, float* out) {
    int32_t odd = 0, positive = 0, negative = 0, different = 0, rising = 0, sum = 0;
    int32_t least = list->numbers[0], greatest = list->numbers[0];
    for (int32_t i = 0; i < LIST_DSL_PLACES; ++i) { /* 0 beyond the count */
        const int32_t number = list->numbers[i];
        const bool there = i < list->count;
        odd += number & 1;
        positive += number > 0;
        negative += number < 0;
        different += there && !list_dsl_has(list->numbers, i, number);
        rising += there && i && number >= list->numbers[i - 1];
        least = there ? fugu_min_int(least, number) : least;
        greatest = there ? fugu_max_int(greatest, number) : greatest;
        sum += number;
    }
    const int32_t counts[6] = {list->count, odd, positive, negative, different, rising};
    for (int32_t i = 0; i < 6; ++i)
        out[i] = (float)counts[i] / LIST_DSL_PLACES;
    out[6] = (float)least / 8;
    out[7] = (float)greatest / 8;
    out[8] = (float)sum / 64;
    return out + LIST_DSL_FACTS;
}

static inline void list_dsl_observe(ListDsl* env, FuguIO* io) {
    ListDslView* view = io->groups[0].observations;
    for (int32_t e = 0; e < LIST_DSL_SHOWN; ++e) {
        float* out = view->examples[e];
        const ListDslList *now = &env->current[e], *target = &env->target[e];
        for (int32_t i = 0; i < LIST_DSL_PLACES; ++i, out += LIST_DSL_NUMBERS) {
            const int32_t a = now->numbers[i], b = target->numbers[i];
            const bool has = i < now->count, wants = i < target->count, both = has && wants;
            out[0] = (float)a / 8;
            out[1] = has ? 1.0f : 0.0f;
            out[2] = (float)b / 8;
            out[3] = wants ? 1.0f : 0.0f;
            out[4] = both ? (float)fugu_clamp_int(b - a, -8, 8) / 4 : 0.0f;
            out[5] = both && a == b ? 1.0f : 0.0f;
        }
        list_dsl_facts(target, list_dsl_facts(now, out));
    }
    view->left = (float)env->left / LIST_DSL_LONGEST;
}

/* ------------------------------------------------------------------ pictures */

static void list_dsl_draw_numbers(FuguCanvas* canvas, const ListDslList* list,
                                  const ListDslList* other, float x, float y) {
    for (int32_t i = 0; i < LIST_DSL_PLACES; ++i) {
        const float left = x + 1.45f * (float)i;
        if (i >= list->count) {
            fugu_rectangle(canvas, left + 0.55f, y - 0.06f, 0.25f, 0.12f, 0xDAD7CD);
            continue;
        }
        const bool equal = i < other->count && list->numbers[i] == other->numbers[i];
        fugu_rectangle(canvas, left, y - 0.55f, 1.35f, 1.1f, equal ? 0x81B29A : 0xE9DFC7);
        fugu_number(canvas, left + 0.67f, y, 0.7f, equal ? 0xFFFFFF : 0x2F4858, "",
                    list->numbers[i]);
    }
}

static void list_dsl_draw(const ListDsl* env, FuguCanvas* canvas) {
    static const char* const names[LIST_DSL_OPERATIONS] = {
        "sort",      "reverse",  "+ 1",    "- 1",    "double", "halve", "negate",
        "square",    "absolute", "even",   "odd",    "> 0",    "< 0",   "drop first",
        "drop last", "sums",     "maxima", "differ", "rotate", "unique"};
    canvas->background = 0xF7F3E9;
    fugu_text(canvas, 5.0f, 0.75f, 0.8f, 0x2F4858, "lists");
    fugu_text(canvas, 15.3f, 0.75f, 0.8f, 0x2F4858, "outputs");
    for (int32_t e = 0; e < LIST_DSL_SHOWN; ++e) {
        const float y = 2.0f + 1.35f * (float)e;
        list_dsl_draw_numbers(canvas, &env->current[e], &env->target[e], 0.5f, y);
        fugu_triangle(canvas, 9.7f, y - 0.3f, 9.7f, y + 0.3f, 10.2f, y, 0xE07A5F);
        list_dsl_draw_numbers(canvas, &env->target[e], &env->current[e], 10.8f, y);
    }
    for (int32_t i = 0; i < fugu_min_int(env->applied, 5); ++i)
        fugu_text(canvas, 2.2f + 3.9f * (float)i, 9.1f, 0.65f, 0xE07A5F,
                  names[env->history[env->applied - fugu_min_int(env->applied, 5) + i]]);
    fugu_number(canvas, 3.5f, 10.3f, 0.6f, 0x2F4858, "steps left ", env->left);
    fugu_number(canvas, 10.0f, 10.3f, 0.6f, 0x2F4858, "task ", (int64_t)env->base.episode + 1);
    fugu_number(canvas, 16.0f, 10.3f, 0.6f, 0x2F4858, "solved ", env->solved);
}

FUGU_ENVIRONMENT(ListDsl, list_dsl, "Find the operations that turn lists into their outputs.")
