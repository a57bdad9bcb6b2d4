/* fugu_math.h: the few functions that environments need, without a library, the same bits on every
   machine. Errors are a few units in the last place within the ranges that are named. */
#ifndef FUGU_MATH_H
#define FUGU_MATH_H

#include <stdint.h>

#define FUGU_PI 3.14159265358979f
#define FUGU_INFINITY __builtin_inff()

static inline float fugu_min(float a, float b) {
    return a < b ? a : b;
}
static inline float fugu_max(float a, float b) {
    return a > b ? a : b;
}
static inline float fugu_clamp(float v, float low, float high) {
    return fugu_min(fugu_max(v, low), high);
}
static inline float fugu_abs(float v) {
    return __builtin_fabsf(v);
}
static inline int32_t fugu_abs_int(int32_t v) {
    return v < 0 ? -v : v;
}
static inline int32_t fugu_min_int(int32_t a, int32_t b) {
    return a < b ? a : b;
}
static inline int32_t fugu_max_int(int32_t a, int32_t b) {
    return a > b ? a : b;
}
static inline int32_t fugu_clamp_int(int32_t v, int32_t low, int32_t high) {
    return fugu_min_int(fugu_max_int(v, low), high);
}

/* v >= 0. */
static inline float fugu_sqrt(float v) {
    return __builtin_sqrtf(v);
}

/* |v| < 2^31. */
static inline float fugu_floor(float v) {
    const float whole = (float)(int32_t)v;
    return whole > v ? whole - 1.0f : whole;
}

/* a - b * floor(a / b), within [0, b). */
static inline float fugu_wrap(float a, float b) {
    const float rest = a - b * fugu_floor(a / b);
    return rest < 0 ? rest + b : rest >= b ? rest - b : rest;
}

/* An angle within [-pi, pi). */
static inline float fugu_wrap_angle(float v) {
    return fugu_wrap(v + FUGU_PI, 2 * FUGU_PI) - FUGU_PI;
}

/* sin(v + quarter * pi / 2) for |v| < 1e4: reduced to [-pi/4, pi/4], then a polynomial. */
static inline float fugu_sin_quarter(float v, int32_t quarter) {
    const float turns = v * 0.636619772f; /* quarters of a circle */
    const int32_t n = (int32_t)(turns + (turns < 0 ? -0.5f : 0.5f));
    const float k = (float)n;
    const float r = ((v - k * 1.5703125f) - k * 4.837512969970703e-4f) - k * 7.549789954891882e-8f;
    const float s = r * r;
    const int32_t q = n + quarter;
    const float sine =
        r + r * s * (-1.6666654611e-1f + s * (8.3321608736e-3f + s * -1.9515295891e-4f));
    const float cosine =
        1.0f - 0.5f * s +
        s * s * (4.166664568298827e-2f + s * (-1.388731625493765e-3f + s * 2.443315711809948e-5f));
    const float value = q & 1 ? cosine : sine;
    return q & 2 ? -value : value;
}
static inline float fugu_sin(float v) {
    return fugu_sin_quarter(v, 0);
}
static inline float fugu_cos(float v) {
    return fugu_sin_quarter(v, 1);
}

typedef union FuguFloatBits {
    float value;
    uint32_t bits;
} FuguFloatBits;

/* e^v; 0 below -87, at most e^88. */
static inline float fugu_exp(float v) {
    if (v < -87.0f)
        return 0.0f;
    v = fugu_min(v, 88.0f);
    const float k = fugu_floor(v * 1.44269504f + 0.5f);
    const float r = v - k * 0.693359375f - k * -2.12194440e-4f;
    const float p =
        1.0f + r +
        r * r *
            (0.5f +
             r * (1.6666665459e-1f +
                  r * (4.1665795894e-2f +
                       r * (8.3334519073e-3f + r * (1.3981999507e-3f + r * 1.9875691500e-4f)))));
    FuguFloatBits scale;
    scale.bits = (uint32_t)((int32_t)k + 127) << 23;
    return p * scale.value;
}

/* The natural logarithm of v > 0. */
static inline float fugu_log_of(float v) {
    FuguFloatBits parts;
    parts.value = v;
    int32_t exponent = (int32_t)(parts.bits >> 23) - 126;
    parts.bits = (parts.bits & 0x007FFFFFu) | 0x3F000000u; /* [0.5, 1) */
    float m = parts.value;
    if (m < 0.707106781f) {
        m = m + m;
        --exponent;
    }
    const float r = m - 1.0f, s = r * r, k = (float)exponent;
    float p = 7.0376836292e-2f;
    p = p * r - 1.1514610310e-1f;
    p = p * r + 1.1676998740e-1f;
    p = p * r - 1.2420140846e-1f;
    p = p * r + 1.4249322787e-1f;
    p = p * r - 1.6668057665e-1f;
    p = p * r + 2.0000714765e-1f;
    p = p * r - 2.4999993993e-1f;
    p = p * r + 3.3333331174e-1f;
    return (r + (p * r * s + k * -2.12194440e-4f - 0.5f * s)) + k * 0.693359375f;
}

static inline float fugu_tanh(float v) {
    if (fugu_abs(v) < 0.1f) {
        const float s = v * v;
        return v * (1.0f + s * (-0.333333333f + s * (0.133333333f - s * 0.0539682540f)));
    }
    const float e = fugu_exp(-2.0f * fugu_abs(v));
    const float value = (1.0f - e) / (1.0f + e);
    return v < 0 ? -value : value;
}

/* The angle of (x, y), within [-pi, pi]. */
static inline float fugu_atan2(float y, float x) {
    const float ax = fugu_abs(x), ay = fugu_abs(y);
    const float big = fugu_max(ax, ay), small = fugu_min(ax, ay);
    if (big == 0)
        return 0;
    float t = small / big; /* [0, 1] */
    const float add = t > 0.41421356f ? FUGU_PI / 4 : 0.0f;
    t = t > 0.41421356f ? (t - 1.0f) / (t + 1.0f) : t;
    const float s = t * t;
    float angle = add + t +
                  t * s *
                      (-3.33329491539e-1f +
                       s * (1.99777106478e-1f + s * (-1.38776856032e-1f + s * 8.05374449538e-2f)));
    angle = ay > ax ? FUGU_PI / 2 - angle : angle;
    angle = x < 0 ? FUGU_PI - angle : angle;
    return y < 0 ? -angle : angle;
}

#endif
