// Functions of all numbers of a vector, without a call or a branch, within 1e-6 of what they mean.
#pragma once

#include <math.h>

#include "nets/vectors.hpp"

namespace fugu::nets::FUGU_TARGET {

// e^x = power * (1 + rest): x = n log 2 + r, |r| <= log(2) / 2, power = 2^n from its bits, and a
// minimax polynomial within 1e-7 for e^r. From -87 to 87; of what is no number the rest is none.
struct Exponential {
    Floats power, rest;
};

FUGU_NET_INLINE Exponential exponential(Floats x) {
    const Floats shifted = fused(x, 1.44269504f, 12582912.0f); // 1.5 * 2^23 rounds to an integer
    const Floats n = shifted - 12582912.0f;
    // log 2 in two pieces, the first so short that its product with n is exact.
    const Floats r = fused(n, 2.12194440e-4f, fused(n, -0.693359375f, x));
    Floats p = fused(r, 0.00831252159f, 0.0418901469f);
    p = fused(p, r, 0.166671146f);
    p = fused(p, r, 0.499992316f);
    return {(Floats)(((Ints)shifted + 127) << 23), fused(p, r * r, r)};
}

FUGU_NET_INLINE Floats at_least(Floats x, float least) {
    return x < least ? splat(least) : x;
}

// For x <= 0; below -87, the value there.
FUGU_NET_INLINE Floats exp_of_negative(Floats x) {
    const Exponential e = exponential(at_least(x, -87.0f));
    return fused(e.power, e.rest, e.power);
}

FUGU_NET_INLINE Floats relu(Floats x) {
    return x < 0.0f ? Floats{} : x;
}

// From -60 on; below, the value there, lest products become denormal.
FUGU_NET_INLINE Floats sigmoid(Floats x) {
    const Floats low = at_least(x, -60.0f);
    const Exponential e = exponential(low > 60.0f ? splat(-60.0f) : -low);
    return inverse(1.0f + fused(e.power, e.rest, e.power));
}

// Near 0 too: of e^y - 1 with y = -2 |x|, no digit is lost.
FUGU_NET_INLINE Floats tanh_of(Floats x) {
    const Floats y = x < 0.0f ? 2.0f * x : -2.0f * x;
    const Exponential e = exponential(at_least(y, -40.0f));
    const Floats less = fused(e.power, e.rest, e.power - 1.0f);
    const Floats size = -less * inverse(2.0f + less);
    return x < 0.0f ? -size : size;
}

// x times the normal distribution below x: with a = |x| / sqrt(2) and t = 1 / (1 + 0.4 a), what
// lies beyond is erfc(a) / 2, and erfc(a) = e^(-a a) t p(t) with a minimax polynomial within 2e-8.
struct Normal {
    Floats below, density; // the share below x; e^(-x x / 2)
};
FUGU_NET_INLINE Normal normal(Floats x) {
    const Floats a = (x < 0.0f ? -x : x) * 0.707106781f;
    const Floats t = inverse(fused(a, 0.4f, 1.0f));
    Floats p = fused(t, -0.203761861f, 0.723592222f);
    p = fused(p, t, -0.394576371f);
    p = fused(p, t, 0.487529010f);
    p = fused(p, t, 0.154048577f);
    p = fused(p, t, 0.233168378f);
    const Floats density = exp_of_negative(-a * a);
    const Floats beyond = 0.5f * (p * t) * density;
    return {x < 0.0f ? beyond : 1.0f - beyond, density};
}
FUGU_NET_INLINE Floats gelu(Floats x) {
    return x * normal(x).below;
}

FUGU_NET_INLINE Floats silu(Floats x) {
    return x * sigmoid(x);
}

FUGU_NET_INLINE Floats mingru(Floats x) {
    return x < 0.0f ? sigmoid(x) : x + 0.5f;
}

FUGU_NET_INLINE Floats finite(Floats x) {
    return x - x == 0.0f ? x : Floats{};
}

// sign(x) log(1 + |x|), number by number: few features are of this kind.
FUGU_NET_INLINE Floats symlog(Floats x) {
    Floats found;
    for (size_t i = 0; i < kLanes; ++i)
        found[i] = copysignf(log1pf(fabsf(x[i])), x[i]);
    return found;
}

// What a function gives, and its slope there.
struct Sloped {
    Floats y, slope;
};
FUGU_NET_INLINE Sloped sloped_relu(Floats x) { // the slope at 0 is 0, as torch has it
    return {relu(x), x > 0.0f ? splat(1.0f) : Floats{}};
}
FUGU_NET_INLINE Sloped sloped_gelu(Floats x) {
    const Normal n = normal(x);
    return {x * n.below, fused(x * n.density, 0.398942280f, n.below)};
}
FUGU_NET_INLINE Sloped sloped_silu(Floats x) {
    const Floats s = sigmoid(x), y = x * s;
    return {y, s + y * (1.0f - s)};
}
FUGU_NET_INLINE Sloped sloped_tanh(Floats x) {
    const Floats y = tanh_of(x);
    return {y, 1.0f - y * y};
}
FUGU_NET_INLINE Sloped sloped_sigmoid(Floats x) {
    const Floats y = sigmoid(x);
    return {y, y * (1.0f - y)};
}

} // namespace fugu::nets::FUGU_TARGET
