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

FUGU_INLINE Floats splat(float x) {
    return x - Floats{}; // not +: minus zero stays what it is
}

FUGU_INLINE Floats load(const float* from) {
    Floats x;
    std::memcpy(&x, from, sizeof(x));
    return x;
}

FUGU_INLINE void store(Floats x, float* to) {
    std::memcpy(to, &x, sizeof(x));
}

// The first `count` numbers, fewer than a vector has; the others are 0, or not written.
#if defined(__AVX512F__)
FUGU_INLINE Floats load(const float* from, size_t count) {
    return (Floats)_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), from);
}
FUGU_INLINE void store(Floats x, float* to, size_t count) {
    _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1u << count) - 1), (__m512)x);
}
#elif defined(__AVX2__)
FUGU_INLINE __m256i first(size_t count) {
    static const int32_t ones[2 * kLanes] = {-1, -1, -1, -1, -1, -1, -1, -1};
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(ones + kLanes - count));
}
FUGU_INLINE Floats load(const float* from, size_t count) {
    return (Floats)_mm256_maskload_ps(from, first(count));
}
FUGU_INLINE void store(Floats x, float* to, size_t count) {
    _mm256_maskstore_ps(to, first(count), (__m256)x);
}
#else
FUGU_INLINE Floats load(const float* from, size_t count) {
    Floats x{};
    for (size_t i = 0; i < count; ++i)
        x[i] = from[i];
    return x;
}
FUGU_INLINE void store(Floats x, float* to, size_t count) {
    for (size_t i = 0; i < count; ++i)
        to[i] = x[i];
}
#endif

// a * b + c, rounded once where the processor can do that.
FUGU_INLINE Floats fused(Floats a, Floats b, Floats c) {
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
FUGU_INLINE Floats fused(Floats a, float b, Floats c) {
    return fused(a, splat(b), c);
}
FUGU_INLINE Floats fused(Floats a, Floats b, float c) {
    return fused(a, b, splat(c));
}
FUGU_INLINE Floats fused(Floats a, float b, float c) {
    return fused(a, splat(b), splat(c));
}

// Always in the same order.
FUGU_INLINE float sum_of(Floats x) {
    float parts[kLanes];
    store(x, parts);
    for (size_t half = kLanes / 2; half; half /= 2)
        for (size_t i = 0; i < half; ++i)
            parts[i] += parts[i + half];
    return parts[0];
}

// What is no number is the largest of all.
FUGU_INLINE Floats larger(Floats a, Floats b) {
    return ((b > a) | (b != b)) ? b : a;
}

// A vector of a row, and what is left at its end.
struct Whole {
    FUGU_INLINE Floats take(const float* from) const { return load(from); }
    FUGU_INLINE void give(Floats x, float* to) const { store(x, to); }
};
struct Rest {
    size_t count;

    FUGU_INLINE Floats take(const float* from) const { return load(from, count); }
    FUGU_INLINE void give(Floats x, float* to) const { store(x, to, count); }
};

// Calls work(place, vector) for all numbers of a row.
template <typename Work> FUGU_INLINE void each_vector(size_t width, const Work& work) {
    size_t i = 0;
    for (; i + kLanes <= width; i += kLanes)
        work(i, Whole{});
    if (i < width)
        work(i, Rest{width - i});
}

} // namespace fugu::nets::FUGU_TARGET
