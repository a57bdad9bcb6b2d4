// Vectors of numbers, as wide as they are on the processor that this is compiled for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__FMA__)
#include <immintrin.h>
#elif defined(__ARM_NEON) && defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "nets/kernels.hpp"

namespace fugu::nets::FUGU_TARGET {

#if defined(__AVX512F__)
constexpr size_t kLanes = 16, kRegisters = 32;
#elif defined(__AVX__)
constexpr size_t kLanes = 8, kRegisters = 16;
#elif defined(__aarch64__)
constexpr size_t kLanes = 4, kRegisters = 32;
#else
constexpr size_t kLanes = 4, kRegisters = 16;
#endif

typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));

FUGU_NET_INLINE Floats splat(float x) {
    return x - Floats{}; // not +: minus zero stays what it is
}

FUGU_NET_INLINE Floats load(const float* from) {
    Floats x;
    std::memcpy(&x, from, sizeof(x));
    return x;
}

FUGU_NET_INLINE void store(Floats x, float* to) {
    std::memcpy(to, &x, sizeof(x));
}

// The first `count` numbers, fewer than a vector has; the others are 0, or not written.
#if defined(__AVX512F__)
FUGU_NET_INLINE Floats load(const float* from, size_t count) {
    return (Floats)_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), from);
}
FUGU_NET_INLINE void store(Floats x, float* to, size_t count) {
    _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1u << count) - 1), (__m512)x);
}
#elif defined(__AVX2__)
FUGU_NET_INLINE __m256i first(size_t count) {
    static const int32_t ones[2 * kLanes] = {-1, -1, -1, -1, -1, -1, -1, -1};
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(ones + kLanes - count));
}
FUGU_NET_INLINE Floats load(const float* from, size_t count) {
    return (Floats)_mm256_maskload_ps(from, first(count));
}
FUGU_NET_INLINE void store(Floats x, float* to, size_t count) {
    _mm256_maskstore_ps(to, first(count), (__m256)x);
}
#else
FUGU_NET_INLINE Floats load(const float* from, size_t count) {
    Floats x{};
    for (size_t i = 0; i < count; ++i)
        x[i] = from[i];
    return x;
}
FUGU_NET_INLINE void store(Floats x, float* to, size_t count) {
    for (size_t i = 0; i < count; ++i)
        to[i] = x[i];
}
#endif

// a * b + c, rounded once where the processor can do that.
FUGU_NET_INLINE Floats fused(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
    return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (Floats)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}
FUGU_NET_INLINE Floats fused(Floats a, float b, Floats c) {
    return fused(a, splat(b), c);
}
FUGU_NET_INLINE Floats fused(Floats a, Floats b, float c) {
    return fused(a, b, splat(c));
}
FUGU_NET_INLINE Floats fused(Floats a, float b, float c) {
    return fused(a, splat(b), splat(c));
}

// 1 / x within a unit in the last place, for x from 1 on: where division is slow, from what the
// processor guesses by one step of Newton's.
FUGU_NET_INLINE Floats inverse(Floats x) {
#if defined(__AVX512F__)
    const Floats guess = (Floats)_mm512_maskz_rcp14_ps(0xffff, (__m512)x);
    const Floats found = fused(guess, fused(-x, guess, splat(1.0f)), guess);
    return guess > 0.0f ? found : guess; // of infinity
#else
    return 1.0f / x;
#endif
}

// Of a row of `width` numbers, those from `begin` on that are in it.
FUGU_NET_INLINE Floats load_within(const float* row, size_t begin, size_t width) {
    if (begin + kLanes <= width)
        return load(row + begin);
    return begin < width ? load(row + begin, width - begin) : Floats{};
}
FUGU_NET_INLINE void store_within(Floats x, float* row, size_t begin, size_t width) {
    if (begin + kLanes <= width)
        store(x, row + begin);
    else if (begin < width)
        store(x, row + begin, width - begin);
}

// The upper half of a number, rounded to the nearest, ties to even.
FUGU_NET_INLINE uint32_t short_of(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof(bits));
    return x != x ? 0x7fc0 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

// Pairs of bfloat16 numbers in words. `pairs_of` takes neighbours of two vectors that follow each
// other, `zip_pairs` a number of each; `add_pairs` adds both products of each word to a sum.
#if defined(__AVX512BF16__)
FUGU_NET_INLINE Ints zip_pairs(Floats low, Floats high) {
    typedef int16_t Shorts __attribute__((vector_size(4 * kLanes)));
    const Shorts both = (Shorts)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
    const Shorts order = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                          8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    return (Ints)_mm512_permutexvar_epi16((__m512i)order, (__m512i)both);
}
FUGU_NET_INLINE Ints pairs_of(Floats first, Floats second) {
    return (Ints)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
}
FUGU_NET_INLINE Floats add_pairs(Ints a, Ints b, Floats sums) {
    return (Floats)_mm512_dpbf16_ps((__m512)sums, (__m512bh)a, (__m512bh)b);
}
#else
FUGU_NET_INLINE Ints shorts_of(Floats x) {
    const Ints bits = (Ints)x, half = 0x7fff + ((bits >> 16) & 1);
    return x != x ? 0x7fc0 - Ints{} : ((bits + half) >> 16) & 0xffff;
}
FUGU_NET_INLINE Ints zip_pairs(Floats low, Floats high) {
    return shorts_of(low) | shorts_of(high) << 16;
}
FUGU_NET_INLINE Ints pairs_of(Floats first, Floats second) {
    Ints found;
    for (size_t i = 0; i < kLanes; ++i) {
        const Floats& from = 2 * i < kLanes ? first : second;
        const size_t place = 2 * i % kLanes;
        found[i] = static_cast<int32_t>(short_of(from[place]) | short_of(from[place + 1]) << 16);
    }
    return found;
}
FUGU_NET_INLINE Floats add_pairs(Ints a, Ints b, Floats sums) {
    const Ints upper = static_cast<int32_t>(0xffff0000u) - Ints{};
    const Floats low = fused((Floats)(a << 16), (Floats)(b << 16), sums);
    return fused((Floats)(a & upper), (Floats)(b & upper), low);
}
#endif

// Always in the same order.
FUGU_NET_INLINE float sum_of(Floats x) {
    float parts[kLanes];
    store(x, parts);
    for (size_t half = kLanes / 2; half; half /= 2)
        for (size_t i = 0; i < half; ++i)
            parts[i] += parts[i + half];
    return parts[0];
}

// What is no number is the largest of all.
FUGU_NET_INLINE Floats larger(Floats a, Floats b) {
    return ((b > a) | (b != b)) ? b : a;
}

// A vector of a row, and what is left at its end.
struct Whole {
    FUGU_NET_INLINE Floats take(const float* from) const { return load(from); }
    FUGU_NET_INLINE void give(Floats x, float* to) const { store(x, to); }
    FUGU_NET_INLINE Floats only(Floats x) const { return x; }
};
struct Rest {
    size_t count;

    FUGU_NET_INLINE Floats take(const float* from) const { return load(from, count); }
    FUGU_NET_INLINE void give(Floats x, float* to) const { store(x, to, count); }
    FUGU_NET_INLINE Floats only(Floats x) const { // the others are 0
        float parts[kLanes];
        store(x, parts);
        return load(parts, count);
    }
};

// Calls work(place, vector) for all numbers of a row.
template <typename Work> FUGU_NET_INLINE void each_vector(size_t width, const Work& work) {
    size_t i = 0;
    for (; i + kLanes <= width; i += kLanes)
        work(i, Whole{});
    if (i < width)
        work(i, Rest{width - i});
}

} // namespace fugu::nets::FUGU_TARGET
