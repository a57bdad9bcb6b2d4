/* fugu_random.h: chance, one small generator an environment. SplitMix64: 8 bytes of state. */
#ifndef FUGU_RANDOM_H
#define FUGU_RANDOM_H

#include <stdbool.h>
#include <stdint.h>

#include "fugu_math.h"

typedef struct FuguRandom {
    uint64_t state;
} FuguRandom;

static inline uint64_t fugu_mix(uint64_t word) {
    word += 0x9E3779B97F4A7C15ull;
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9ull;
    word = (word ^ (word >> 27)) * 0x94D049BB133111EBull;
    return word ^ (word >> 31);
}

/* The seed of an episode below an environment's seed: fugu.core.seeding.derive(seed, step). */
static inline uint64_t fugu_derive(uint64_t seed, uint64_t step) {
    return fugu_mix(fugu_mix(seed) * 0xD1342543DE82EF95ull + step);
}

static inline uint64_t fugu_bits(FuguRandom* random) {
    const uint64_t state = random->state;
    random->state = state + 0x9E3779B97F4A7C15ull;
    return fugu_mix(state);
}

/* A number in [0, 1). */
static inline float fugu_unit(FuguRandom* random) {
    return (float)(fugu_bits(random) >> 40) * (1.0f / 16777216.0f);
}

static inline float fugu_uniform(FuguRandom* random, float low, float high) {
    return low + (high - low) * fugu_unit(random);
}

/* One of 0 .. count - 1; count > 0. */
static inline int32_t fugu_below(FuguRandom* random, int32_t count) {
    return (int32_t)(((fugu_bits(random) >> 32) * (uint64_t)count) >> 32);
}

static inline bool fugu_chance(FuguRandom* random, float probability) {
    return fugu_unit(random) < probability;
}

/* Of mean 0 and deviation 1 (Box and Muller). */
static inline float fugu_normal(FuguRandom* random) {
    const float u = 1.0f - fugu_unit(random), v = fugu_unit(random);
    return fugu_sqrt(-2.0f * fugu_log_of(u)) * fugu_cos(6.2831853f * v);
}

#endif
