/* Brainf***: write a program token by token, from nothing but a reward for what it prints, as in
   Abolafia et al. 2018 (arXiv 1801.03526). When the program ends it is run on the task's cases.

   The language, the 26 tasks and the reward are those of the paper's published code; the cases'
   numbers are drawn here, never 0 within a word, and are always the same. The tape begins at its
   left end and grows to the right, cells count modulo the task's base, input that ended is read as
   0, brackets without a partner do nothing, and a run that takes 5,000 steps has failed.

   An environment is one file, so the tasks stand here beside what runs them. */
#include "fugu_env.h"

enum {
    BRAINF_LENGTH = 100, /* tokens of a program at most */
    BRAINF_STEPS = 5000,
    BRAINF_NUMBERS = 32, /* of an input or an output */
    BRAINF_CASES = 16,
    BRAINF_SCORE = 4, /* of a case that is right: 1 for the distance, 2 and 1 as bonuses */
    BRAINF_HIDDEN = 1 << 16,
};

enum {
    BRAINF_END,
    BRAINF_RIGHT,
    BRAINF_LEFT,
    BRAINF_MORE,
    BRAINF_LESS,
    BRAINF_OPEN,
    BRAINF_CLOSE,
    BRAINF_WRITE,
    BRAINF_READ,
    BRAINF_TOKENS
};

enum {
    BRAINF_ECHO,
    BRAINF_REVERSE,
    BRAINF_REMOVE_CHAR,
    BRAINF_COUNT_CHAR,
    BRAINF_ADD,
    BRAINF_BOOL_LOGIC,
    BRAINF_PRINT_HELLO,
    BRAINF_ECHO_TWICE,
    BRAINF_ECHO_THRICE,
    BRAINF_COPY_REVERSE,
    BRAINF_ZERO_CASCADE,
    BRAINF_CASCADE,
    BRAINF_SHIFT_LEFT,
    BRAINF_SHIFT_RIGHT,
    BRAINF_RIFFLE,
    BRAINF_UNRIFFLE,
    BRAINF_MIDDLE_CHAR,
    BRAINF_REMOVE_LAST,
    BRAINF_REMOVE_LAST_TWO,
    BRAINF_ECHO_ALTERNATING,
    BRAINF_ECHO_HALF,
    BRAINF_LENGTH_OF,
    BRAINF_ECHO_SECOND,
    BRAINF_ECHO_NTH,
    BRAINF_SUBSTRING,
    BRAINF_DIVIDE_2,
    BRAINF_DEDUP,
    BRAINF_TASKS
};

/* The word that a case's input is, for tasks whose input is one: letters count from 1. */
typedef struct BrainfTask {
    const char* name;
    uint8_t longest, letters; /* 0: the input is no word */
} BrainfTask;

static const BrainfTask brainf_tasks[BRAINF_TASKS] = {
    {"echo", 6, 26},
    {"reverse", 6, 255},
    {"remove-char", 0, 0},
    {"count-char", 0, 0},
    {"add", 0, 0},
    {"bool-logic", 0, 0},
    {"print-hello", 0, 0},
    {"echo-twice", 6, 255},
    {"echo-thrice", 6, 255},
    {"copy-reverse", 6, 255},
    {"zero-cascade", 6, 255},
    {"cascade", 6, 19},
    {"shift-left", 6, 255},
    {"shift-right", 6, 255},
    {"riffle", 8, 19},
    {"unriffle", 8, 19},
    {"middle-char", 10, 255},
    {"remove-last", 6, 19},
    {"remove-last-two", 6, 9},
    {"echo-alternating", 8, 19},
    {"echo-half", 9, 19},
    {"length", 14, 255},
    {"echo-second-seq", 0, 0},
    {"echo-nth-seq", 0, 0},
    {"substring", 0, 0},
    {"divide-2", 0, 0},
    {"dedup", 0, 0},
};

typedef struct Brainf {
    FuguEnv base;
    int32_t task, length, shorter;
    int32_t count;            /* tokens so far */
    int32_t solved, previous; /* programs since the seed; tokens of the last one: to be drawn */
    float reward;             /* of the last program */
    uint8_t program[BRAINF_LENGTH], last[BRAINF_LENGTH];
} Brainf;

static const FuguSetting brainf_settings[] = {
    FUGU_MAX_STEPS(0),
    FUGU_INT(Brainf, task, BRAINF_REVERSE, 0, BRAINF_TASKS - 1,
             "0 echo, 1 reverse, 2 remove-char, 3 count-char, 4 add, 5 bool-logic, 6 print-hello, "
             "7 echo-twice, 8 echo-thrice, 9 copy-reverse, 10 zero-cascade, 11 cascade, 12 "
             "shift-left, 13 shift-right, 14 riffle, 15 unriffle, 16 middle-char, 17 remove-last, "
             "18 remove-last-two, 19 echo-alternating, 20 echo-half, 21 length, 22 "
             "echo-second-seq, 23 echo-nth-seq, 24 substring, 25 divide-2, 26 dedup"),
    FUGU_INT(Brainf, length, 32, 1, BRAINF_LENGTH, "tokens of a program at most"),
    FUGU_INT(Brainf, shorter, 0, 0, 1,
             "1: the second bonus of a right case shrinks with the program, from 1 to 0"),
};

static void brainf_describe(const Brainf* env, FuguSpec* spec) {
    static const char* const keys[BRAINF_TOKENS] = {"return", "right", "left", "up", "down",
                                                    "[",      "]",     ".",    ","};
    FuguGroup* agent = fugu_group(spec, "agent", 1);
    fugu_multi_discrete(&agent->observation, "", 0, env->length, BRAINF_TOKENS,
                        "the program so far, a token a place, numbered as the actions, and 0 where "
                        "nothing stands yet");
    fugu_discrete(&agent->action, "", 0, BRAINF_TOKENS,
                  "end; > (right); < (left); + (more); - (less); [ (open); ] (close); . (write); "
                  "the comma (read)");
    spec->reward =
        "at the end of a program, the sum of what the cases score, divided by 4 a case. A "
        "case scores 1 less its distance relative to that of an empty output, at least "
        "-1, and 2 + 1 more if it is right; if one takes too long the sum is -2";
    fugu_log(spec, "solved");
    fugu_log(spec, "general");
    fugu_log(spec, "tokens");
    for (int32_t i = 0; i < BRAINF_TOKENS; ++i)
        fugu_key(spec, keys[i], i);
    spec->waits_for_a_key = true;
    fugu_picture(spec, 20, 12, 4);
}

/* ------------------------------------------------------------------ cases */

typedef struct BrainfCase {
    int32_t given, wanted; /* numbers of the input, of the output */
    uint8_t input[BRAINF_NUMBERS], output[BRAINF_NUMBERS];
} BrainfCase;

static inline int32_t brainf_base(int32_t task) {
    if (task == BRAINF_ECHO || task == BRAINF_COUNT_CHAR || task == BRAINF_PRINT_HELLO)
        return 27;
    return task == BRAINF_BOOL_LOGIC ? 2 : 256;
}

static inline int32_t brainf_cases(int32_t task) {
    return task == BRAINF_PRINT_HELLO ? 1 : task == BRAINF_BOOL_LOGIC ? 8 : BRAINF_CASES;
}

static inline void brainf_give(BrainfCase* c, int32_t number) {
    c->input[c->given++] = (uint8_t)number;
}

static inline void brainf_want(BrainfCase* c, int32_t number) {
    c->output[c->wanted++] = (uint8_t)number;
}

/* `count` numbers of the input are wanted, from one of them on, each `step` further. */
static inline void brainf_want_part(BrainfCase* c, int32_t first, int32_t count, int32_t step) {
    for (int32_t i = 0; i < count; ++i)
        brainf_want(c, c->input[first + i * step]);
}

static inline int32_t brainf_between(FuguRandom* random, int32_t low, int32_t high) {
    return low + fugu_below(random, high - low + 1);
}

static inline int32_t brainf_word(BrainfCase* c, FuguRandom* random, int32_t least, int32_t most,
                                  int32_t letters) {
    const int32_t count = brainf_between(random, least, most);
    for (int32_t i = 0; i < count; ++i)
        brainf_give(c, brainf_between(random, 1, letters));
    return count;
}

/* What is wanted of a word of `n` letters. */
static inline void brainf_want_of_word(BrainfCase* c, int32_t task, int32_t n) {
    switch (task) {
    case BRAINF_REVERSE:
        brainf_want_part(c, n - 1, n, -1);
        break;
    case BRAINF_ECHO_THRICE:
        brainf_want_part(c, 0, n, 1);
        brainf_want(c, 0);
        /* fallthrough */
    case BRAINF_ECHO_TWICE:
        brainf_want_part(c, 0, n, 1);
        brainf_want(c, 0);
        /* fallthrough */
    case BRAINF_ECHO:
        brainf_want_part(c, 0, n, 1);
        break;
    case BRAINF_COPY_REVERSE:
        brainf_want_part(c, 0, n, 1);
        brainf_want(c, 0);
        brainf_want_part(c, n - 1, n, -1);
        brainf_want(c, 0);
        brainf_want_part(c, 0, n, 1);
        break;
    case BRAINF_ZERO_CASCADE:
    case BRAINF_CASCADE:
        for (int32_t i = 0; i < n; ++i)
            for (int32_t k = 0; k <= i; ++k)
                brainf_want(c, k && task == BRAINF_ZERO_CASCADE ? 0 : c->input[i]);
        break;
    case BRAINF_SHIFT_LEFT:
        brainf_want_part(c, 1, n - 1, 1);
        brainf_want(c, c->input[0]);
        break;
    case BRAINF_SHIFT_RIGHT:
        brainf_want(c, c->input[n - 1]);
        brainf_want_part(c, 0, n - 1, 1);
        break;
    case BRAINF_RIFFLE:
        for (int32_t i = 0; i < n; ++i)
            brainf_want(c, c->input[i % 2 ? i / 2 : n - 1 - i / 2]);
        break;
    case BRAINF_UNRIFFLE:
        brainf_want_part(c, 1, n / 2, 2);
        brainf_want_part(c, (n - 1) / 2 * 2, (n + 1) / 2, -2);
        break;
    case BRAINF_MIDDLE_CHAR:
        brainf_want(c, n % 2 ? c->input[n / 2] : 0);
        break;
    case BRAINF_REMOVE_LAST:
        brainf_want_part(c, 0, n - 1, 1);
        break;
    case BRAINF_REMOVE_LAST_TWO:
        brainf_want_part(c, 0, n - 2, 1);
        break;
    case BRAINF_ECHO_ALTERNATING:
        brainf_want_part(c, 0, (n + 1) / 2, 2);
        brainf_want_part(c, 1, n / 2, 2);
        break;
    case BRAINF_ECHO_HALF:
        brainf_want_part(c, 0, n / 2, 1);
        break;
    default: /* BRAINF_LENGTH_OF */
        brainf_want(c, n);
    }
    /* Most outputs end as words do, with a 0. */
    const bool bare = task == BRAINF_ZERO_CASCADE || task == BRAINF_MIDDLE_CHAR ||
                      task == BRAINF_LENGTH_OF || (task == BRAINF_RIFFLE && n % 2 == 0);
    if (!bare)
        brainf_want(c, 0);
}

static inline void brainf_draw_sequences(BrainfCase* c, FuguRandom* random, int32_t task) {
    const bool second = task == BRAINF_ECHO_SECOND;
    const int32_t words = second ? 2 : brainf_between(random, 1, 6);
    const int32_t chosen = second ? 2 : brainf_between(random, 1, words);
    if (!second)
        brainf_give(c, chosen);
    for (int32_t i = 1; i <= words; ++i) {
        const int32_t first = c->given;
        const int32_t n = brainf_word(c, random, second ? 1 : 0, second ? 5 : 3, 255);
        if (i == chosen)
            brainf_want_part(c, first, n, 1);
        brainf_give(c, 0);
    }
    brainf_want(c, 0);
}

static inline void brainf_draw_dedup(BrainfCase* c, FuguRandom* random) {
    const int32_t runs = brainf_between(random, 1, 4);
    int32_t letter = fugu_below(random, 6);
    for (int32_t i = 0; i < runs; ++i) {
        for (int32_t left = brainf_between(random, 1, 4); left; --left)
            brainf_give(c, 1 + letter);
        brainf_want(c, 1 + letter);
        letter = (letter + brainf_between(random, 1, 5)) % 6;
    }
    brainf_give(c, 0);
    brainf_want(c, 0);
}

static inline void brainf_draw_other(BrainfCase* c, FuguRandom* random, int32_t task,
                                     int32_t number) {
    int32_t a, b;
    switch (task) {
    case BRAINF_REMOVE_CHAR:
        a = brainf_between(random, 1, 6);
        b = fugu_below(random, a); /* where the 1 stands */
        for (int32_t i = 0; i < a; ++i) {
            brainf_give(c, i == b ? 1 : brainf_between(random, 2, 255));
            if (i != b)
                brainf_want(c, c->input[i]);
        }
        brainf_want(c, 0);
        break;
    case BRAINF_COUNT_CHAR:
        b = 0;
        for (a = brainf_between(random, 1, 6); a; --a) {
            const int32_t one = fugu_below(random, 2);
            brainf_give(c, one ? 1 : brainf_between(random, 2, 26));
            b += one;
        }
        brainf_want(c, b);
        break;
    case BRAINF_ADD:
        a = number == 0 ? 0 : fugu_below(random, 256);
        b = number == 1 ? 0 : fugu_below(random, 256);
        brainf_give(c, a);
        brainf_give(c, b);
        brainf_want(c, (a + b) & 255);
        brainf_want(c, 0);
        break;
    case BRAINF_BOOL_LOGIC: {
        const int32_t x = number >> 2 & 1, y = number >> 1 & 1, z = number & 1;
        brainf_give(c, x);
        brainf_give(c, y);
        brainf_give(c, z);
        brainf_want(c, (x && !z) || (!y && !z) || (!x && y && z));
        break;
    }
    case BRAINF_PRINT_HELLO:
        for (const char* letter = "hello"; *letter; ++letter)
            brainf_want(c, *letter - 'a' + 1);
        break;
    case BRAINF_SUBSTRING: {
        const int32_t n = brainf_between(random, 2, 15);
        a = fugu_below(random, n);
        b = fugu_below(random, n);
        brainf_give(c, fugu_min_int(a, b));
        brainf_give(c, fugu_abs_int(a - b));
        brainf_word(c, random, n, n, 255);
        brainf_give(c, 0);
        brainf_want_part(c, 2 + c->input[0], c->input[1], 1);
        break;
    }
    case BRAINF_DIVIDE_2:
        a = fugu_below(random, 256);
        brainf_give(c, a);
        brainf_want(c, a / 2);
        break;
    case BRAINF_DEDUP:
        brainf_draw_dedup(c, random);
        break;
    default:
        brainf_draw_sequences(c, random, task);
    }
}

/* A case of a task; hidden ones count from BRAINF_HIDDEN on. */
static inline void brainf_case(BrainfCase* c, int32_t task, int32_t number) {
    const BrainfTask* facts = &brainf_tasks[task];
    FuguRandom random = {fugu_derive((uint64_t)task, (uint64_t)number)};
    c->given = c->wanted = 0;
    if (facts->longest) {
        const int32_t n = brainf_word(c, &random, 1, facts->longest, facts->letters);
        brainf_want_of_word(c, task, n);
    } else {
        brainf_draw_other(c, &random, task, number & (BRAINF_HIDDEN - 1));
    }
}

/* ------------------------------------------------------------------ runs */

typedef struct BrainfRun {
    int32_t written, cell, reach, steps; /* reach: the cell furthest right */
    uint8_t output[BRAINF_NUMBERS];      /* its beginning */
    uint8_t tape[BRAINF_STEPS + 1];
} BrainfRun;

/* Partners of brackets; anything else is its own. */
static inline void brainf_match(const uint8_t* program, int32_t count, uint8_t* partners) {
    uint8_t open[BRAINF_LENGTH];
    int32_t depth = 0;
    for (int32_t i = 0; i < count; ++i) {
        partners[i] = (uint8_t)i;
        if (program[i] == BRAINF_OPEN) {
            open[depth++] = (uint8_t)i;
        } else if (program[i] == BRAINF_CLOSE && depth) {
            partners[i] = open[--depth];
            partners[open[depth]] = (uint8_t)i;
        }
    }
}

/* Whether the program came to its end. */
static inline bool brainf_run(BrainfRun* run, const uint8_t* program, const uint8_t* partners,
                              int32_t count, const BrainfCase* c, int32_t base) {
    int32_t cell = 0, read = 0;
    uint8_t* tape = run->tape;
    run->written = run->reach = run->steps = run->cell = 0;
    tape[0] = 0;
    for (int32_t at = 0; at < count; ++at) {
        switch (program[at]) {
        case BRAINF_RIGHT:
            if (++cell > run->reach)
                tape[run->reach = cell] = 0;
            break;
        case BRAINF_LEFT:
            cell -= cell > 0;
            break;
        case BRAINF_MORE:
            tape[cell] = (uint8_t)(tape[cell] + 1 == base ? 0 : tape[cell] + 1);
            break;
        case BRAINF_LESS:
            tape[cell] = (uint8_t)(tape[cell] ? tape[cell] - 1 : base - 1);
            break;
        case BRAINF_OPEN:
            at = tape[cell] ? at : partners[at];
            break;
        case BRAINF_CLOSE:
            at = tape[cell] ? partners[at] : at;
            break;
        case BRAINF_WRITE:
            if (run->written < BRAINF_NUMBERS)
                run->output[run->written] = tape[cell];
            ++run->written;
            break;
        default:
            tape[cell] = read < c->given ? c->input[read++] : 0;
        }
        run->cell = cell;
        if (++run->steps >= BRAINF_STEPS)
            return false;
    }
    return true;
}

static inline int32_t brainf_distance(const BrainfRun* run, const BrainfCase* c, int32_t base) {
    int32_t distance = fugu_abs_int(run->written - c->wanted) * base;
    for (int32_t i = 0; i < fugu_min_int(run->written, c->wanted); ++i)
        distance += fugu_abs_int((int32_t)run->output[i] - c->output[i]);
    return distance;
}

/* Scores of cases from one on, added up; `right` counts those that are. */
static inline float brainf_judge(const Brainf* env, int32_t first, int32_t* right) {
    const int32_t base = brainf_base(env->task), cases = brainf_cases(env->task);
    const float bonus = env->shorter ? 1.0f - (float)env->count / (float)env->length : 1.0f;
    uint8_t partners[BRAINF_LENGTH];
    float score = 0;
    BrainfRun run;
    BrainfCase c;
    *right = 0;
    brainf_match(env->program, env->count, partners);
    for (int32_t i = 0; i < cases; ++i) {
        brainf_case(&c, env->task, first + i);
        if (!brainf_run(&run, env->program, partners, env->count, &c, base)) {
            *right = 0;
            return -2;
        }
        const int32_t distance = brainf_distance(&run, &c, base);
        const float unit = (float)(base * fugu_max_int(c.wanted, 1));
        score += fugu_max(1.0f - (float)distance / unit, -1.0f);
        score += distance ? 0.0f : 2.0f + bonus;
        *right += distance == 0;
    }
    return score;
}

/* ------------------------------------------------------------------ episodes */

static inline void brainf_init(Brainf* env) {
    (void)env;
}

static inline void brainf_reset(Brainf* env) {
    if (env->base.episode == 0) {
        env->solved = env->previous = 0;
        env->reward = 0;
    }
    env->count = 0;
    for (int32_t i = 0; i < BRAINF_LENGTH; ++i)
        env->program[i] = 0;
}

static inline void brainf_hand_in(Brainf* env, FuguIO* io) {
    const int32_t cases = brainf_cases(env->task);
    int32_t right, hidden = 0;
    env->reward = brainf_judge(env, 0, &right) / (float)(BRAINF_SCORE * cases);
    const bool solved = right == cases;
    if (solved)
        brainf_judge(env, BRAINF_HIDDEN, &hidden);
    io->groups[0].rewards[0] = env->reward;
    io->log[0] += solved ? 1.0f : 0.0f;
    io->log[1] += hidden == cases ? 1.0f : 0.0f;
    io->log[2] += (float)env->count;
    io->terminated = true;
    env->solved += solved && env->solved < 999999;
    env->previous = env->count;
    for (int32_t i = 0; i < BRAINF_LENGTH; ++i)
        env->last[i] = env->program[i];
}

static inline void brainf_step(Brainf* env, FuguIO* io) {
    const int64_t token = *(const int64_t*)io->groups[0].actions;
    if (token != BRAINF_END)
        env->program[env->count++] = (uint8_t)token;
    if (token == BRAINF_END || env->count == env->length)
        brainf_hand_in(env, io);
}

static inline void brainf_observe(Brainf* env, FuguIO* io) {
    int64_t* seen = io->groups[0].observations;
    for (int32_t i = 0; i < env->length; ++i)
        seen[i] = env->program[i];
}

/* ------------------------------------------------------------------ pictures */

static void brainf_draw_program(FuguCanvas* canvas, const uint8_t* program, int32_t count, float y,
                                uint32_t color) {
    enum { WIDTH = 40 };
    for (int32_t first = 0; first < count; first += WIDTH, y += 0.65f) {
        char text[WIDTH + 1];
        int32_t i = 0;
        for (; i < WIDTH && first + i < count; ++i)
            text[i] = " ><+-[].,"[program[first + i]];
        text[i] = 0;
        fugu_text(canvas, 10, y, 0.75f, color, text);
    }
}

static void brainf_draw_numbers(FuguCanvas* canvas, const char* name, const uint8_t* numbers,
                                int32_t count, float y, int32_t marked) {
    fugu_text(canvas, 1.5f, y, 0.55f, 0x2F4858, name);
    for (int32_t i = 0; i < fugu_min_int(count, 16); ++i) {
        const float x = 3.1f + 1.03f * (float)i;
        fugu_rectangle(canvas, x, y - 0.4f, 0.98f, 0.8f, i == marked ? 0xF2CC8F : 0xE9DFC7);
        fugu_number(canvas, x + 0.49f, y, 0.42f, 0x2F4858, "", numbers[i]);
    }
}

/* The program so far, and what it makes of the first case. */
static void brainf_draw(const Brainf* env, FuguCanvas* canvas) {
    uint8_t partners[BRAINF_LENGTH];
    BrainfRun run;
    BrainfCase c;
    brainf_case(&c, env->task, 0);
    brainf_match(env->program, env->count, partners);
    const bool ended =
        brainf_run(&run, env->program, partners, env->count, &c, brainf_base(env->task));
    canvas->background = 0xF7F3E9;
    fugu_text(canvas, 5.0f, 0.75f, 0.8f, 0xE07A5F, brainf_tasks[env->task].name);
    fugu_number(canvas, 13.0f, 0.75f, 0.55f, 0x2F4858, "program ", (int64_t)env->base.episode + 1);
    fugu_number(canvas, 17.8f, 0.75f, 0.55f, 0x2F4858, "solved ", env->solved);
    brainf_draw_program(canvas, env->program, env->count, 1.8f, 0x2F4858);
    brainf_draw_numbers(canvas, "input", c.input, c.given, 4.6f, -1);
    brainf_draw_numbers(canvas, "wanted", c.output, c.wanted, 5.7f, -1);
    brainf_draw_numbers(canvas, "output", run.output, fugu_min_int(run.written, BRAINF_NUMBERS),
                        6.8f, -1);
    brainf_draw_numbers(canvas, "tape", run.tape, run.reach + 1, 7.9f, run.cell);
    if (!ended)
        fugu_text(canvas, 17.5f, 7.9f, 0.55f, 0xE07A5F, "too long");
    if (env->previous) {
        fugu_number(canvas, 5.0f, 9.2f, 0.5f, 0x81B29A,
                    "before, reward in %: ", (int64_t)(env->reward * 100));
        brainf_draw_program(canvas, env->last, env->previous, 9.9f, 0x81B29A);
    }
}

FUGU_ENVIRONMENT(Brainf, brainf, "Write a Brainf*** program that does a task, token by token.")
