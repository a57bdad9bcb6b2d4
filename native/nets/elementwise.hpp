// Number by number: activations, sums and products, scales, blends.
#pragma once

#include "nets/functions.hpp"

namespace fugu::nets::FUGU_TARGET {

template <typename Of> FUGU_NET_INLINE void map(const In& in, const Out& out, const Of& of) {
    const bool dense = in.dense() && out.dense();
    const In from = dense ? in.flat() : in;
    const Out to = dense ? out.flat() : out;
    for (size_t row = 0; row < from.rows; ++row) {
        const float* const x = from.at(row);
        float* const y = to.at(row);
        each_vector(from.width, [&](size_t i, auto part) __attribute__((always_inline)) {
            part.give(of(part.take(x + i)), y + i);
        });
    }
}

inline void apply(Function function, const In& in, const Out& out) {
    switch (function) {
    case Function::Relu:
        return map(in, out, [](Floats x) { return relu(x); });
    case Function::Gelu:
        return map(in, out, [](Floats x) { return gelu(x); });
    case Function::Silu:
        return map(in, out, [](Floats x) { return silu(x); });
    case Function::Tanh:
        return map(in, out, [](Floats x) { return tanh_of(x); });
    case Function::Sigmoid:
        return map(in, out, [](Floats x) { return sigmoid(x); });
    case Function::Symlog:
        return map(in, out, [](Floats x) { return symlog(x); });
    case Function::Mingru:
        return map(in, out, [](Floats x) { return mingru(x); });
    case Function::Finite:
        return map(in, out, [](Floats x) { return finite(x); });
    }
}

template <typename Of>
FUGU_NET_INLINE void map_keeping(const In& in, const Out& out, const Out& slopes, const Of& of) {
    for (size_t row = 0; row < in.rows; ++row) {
        const float* const x = in.at(row);
        float *const y = out.at(row), *const slope = slopes.at(row);
        each_vector(in.width, [&](size_t i, auto part) __attribute__((always_inline)) {
            const Sloped found = of(part.take(x + i));
            part.give(found.y, y + i), part.give(found.slope, slope + i);
        });
    }
}

inline void apply_keeping(Function function, const In& in, const Out& out, const Out& slopes) {
    switch (function) {
    case Function::Relu:
        return map_keeping(in, out, slopes, [](Floats x) { return sloped_relu(x); });
    case Function::Gelu:
        return map_keeping(in, out, slopes, [](Floats x) { return sloped_gelu(x); });
    case Function::Silu:
        return map_keeping(in, out, slopes, [](Floats x) { return sloped_silu(x); });
    case Function::Tanh:
        return map_keeping(in, out, slopes, [](Floats x) { return sloped_tanh(x); });
    case Function::Sigmoid:
        return map_keeping(in, out, slopes, [](Floats x) { return sloped_sigmoid(x); });
    default: // of what no weight comes before
        return apply(function, in, out);
    }
}

inline void add_product(const In& one, const In& other, const Out& out) {
    for (size_t row = 0; row < out.rows; ++row) {
        const float *const a = one.at(row), *const b = other.at(row);
        float* const y = out.at(row);
        each_vector(out.width, [&](size_t i, auto part) __attribute__((always_inline)) {
            part.give(fused(part.take(a + i), part.take(b + i), part.take(y + i)), y + i);
        });
    }
}

// Four rows at a time, so that sums are not read and written for each.
inline void add_rows(const In& in, float* sums) {
    size_t row = 0;
    for (; row + 4 <= in.rows; row += 4) {
        const float *const a = in.at(row), *const b = in.at(row + 1);
        const float *const c = in.at(row + 2), *const d = in.at(row + 3);
        each_vector(in.width, [&](size_t i, auto part) __attribute__((always_inline)) {
            const Floats first = part.take(a + i) + part.take(b + i);
            const Floats second = part.take(c + i) + part.take(d + i);
            part.give(part.take(sums + i) + (first + second), sums + i);
        });
    }
    for (; row < in.rows; ++row)
        each_vector(in.width, [&](size_t i, auto part) __attribute__((always_inline)) {
            part.give(part.take(sums + i) + part.take(in.at(row) + i), sums + i);
        });
}

inline void combine(Pair pair, const In& one, const In& other, const Out& out) {
    for (size_t row = 0; row < out.rows; ++row) {
        const float *const a = one.at(row), *const b = other.at(row);
        float* const y = out.at(row);
        each_vector(out.width, [&](size_t i, auto part) __attribute__((always_inline)) {
            const Floats p = part.take(a + i), q = part.take(b + i);
            part.give(pair == Pair::Add ? p + q : p * q, y + i);
        });
    }
}

inline void blend(const In& start, const In& end, const In& weight, const Out& out) {
    for (size_t row = 0; row < out.rows; ++row) {
        const float *const a = start.at(row), *const b = end.at(row), *const w = weight.at(row);
        float* const y = out.at(row);
        each_vector(out.width, [&](size_t i, auto part) __attribute__((always_inline)) {
            const Floats from = part.take(a + i);
            part.give(fused(part.take(w + i), part.take(b + i) - from, from), y + i);
        });
    }
}

inline void scale(const In& in, const float* shift, const float* divisor, float most,
                  const Out& out) {
    const Floats high = splat(most), low = -high;
    for (size_t row = 0; row < in.rows; ++row) {
        const float* const x = in.at(row);
        float* const y = out.at(row);
        each_vector(in.width, [&](size_t i, auto part) __attribute__((always_inline)) {
            const Floats found = (part.take(x + i) - part.take(shift + i)) / part.take(divisor + i);
            const Floats cut = found < low ? low : found;
            part.give(cut > high ? high : cut, y + i);
        });
    }
}

} // namespace fugu::nets::FUGU_TARGET
