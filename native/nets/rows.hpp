// Whole rows: layer norms, sums of rows, attention, numbers of other types.
#pragma once

#include "nets/functions.hpp"

namespace fugu::nets::FUGU_TARGET {

FUGU_NET_INLINE float sum_row(const float* x, size_t width) {
    Floats sum{};
    each_vector(width, [&](size_t i, auto part) { sum = sum + part.take(x + i); });
    return sum_of(sum);
}

FUGU_NET_INLINE float dot(const float* a, const float* b, size_t width) {
    Floats sum{};
    each_vector(width,
                [&](size_t i, auto part) { sum = fused(part.take(a + i), part.take(b + i), sum); });
    return sum_of(sum);
}

inline void normalise(const In& in, const float* weight, const float* bias, float epsilon,
                      const Out& out) {
    const float width = static_cast<float>(in.width);
    for (size_t row = 0; row < in.rows; ++row) {
        const float* const x = in.at(row);
        float* const y = out.at(row);
        const Floats mean = splat(sum_row(x, in.width) / width);
        each_vector(in.width,
                    [&](size_t i, auto part) { part.give(part.take(x + i) - mean, y + i); });
        const float spread = sqrtf(dot(y, y, in.width) / width + epsilon);
        each_vector(in.width, [&](size_t i, auto part) {
            const Floats unit = part.take(y + i) / spread;
            part.give(fused(unit, part.take(weight + i), part.take(bias + i)), y + i);
        });
    }
}

// With u = (x - mean) / spread and g = grads * weight, the gradient of x is
// (g - mean(g) - u mean(g u)) / spread.
inline void normalise_back(const In& in, const In& grads, const float* weight, float epsilon,
                           const Out& out, float* weight_grad, float* bias_grad) {
    const float width = static_cast<float>(in.width);
    for (size_t row = 0; row < in.rows; ++row) {
        const float *const x = in.at(row), *const grad = grads.at(row);
        const float mean = sum_row(x, in.width) / width;
        Floats squares{}, sum{}, along{};
        each_vector(in.width, [&](size_t i, auto part) {
            const Floats far = part.take(x + i) - mean;
            squares = fused(part.only(far), far, squares);
        });
        const float spread = sqrtf(sum_of(squares) / width + epsilon);
        each_vector(in.width, [&](size_t i, auto part) {
            const Floats unit = (part.take(x + i) - mean) / spread;
            const Floats given = part.take(grad + i), g = given * part.take(weight + i);
            sum += g, along = fused(g, unit, along);
            if (weight_grad)
                part.give(fused(given, unit, part.take(weight_grad + i)), weight_grad + i);
            if (bias_grad)
                part.give(part.take(bias_grad + i) + given, bias_grad + i);
        });
        if (!out.data)
            continue;
        const float shift = sum_of(sum) / width, tilt = sum_of(along) / width;
        float* const y = out.at(row);
        each_vector(in.width, [&](size_t i, auto part) {
            const Floats unit = (part.take(x + i) - mean) / spread;
            const Floats g = part.take(grad + i) * part.take(weight + i);
            part.give(part.take(y + i) + (g - shift - unit * tilt) / spread, y + i);
        });
    }
}

inline void reduce(Reduction reduction, const In& in, size_t count, const Out& out) {
    const float divisor = reduction == Reduction::Mean ? static_cast<float>(count) : 1.0f;
    for (size_t row = 0; row < out.rows; ++row) {
        const float* const x = in.at(row * count);
        float* const y = out.at(row);
        each_vector(out.width, [&](size_t i, auto part) {
            Floats found = count ? part.take(x + i) : Floats{};
            for (size_t j = 1; j < count; ++j) {
                const Floats next = part.take(x + j * in.stride + i);
                found = reduction == Reduction::Largest ? larger(found, next) : found + next;
            }
            part.give(found / divisor, y + i);
        });
    }
}

inline void attend(const Attention& task) {
    const size_t places = task.keys.rows, each = task.query.width / task.heads;
    size_t used = 0; // of the last places
    while (used < places && static_cast<float>(used) < task.count)
        ++used;
    const size_t first = places - used;
    const float root = sqrtf(static_cast<float>(each));
    for (size_t head = 0; head < task.heads; ++head) {
        const size_t begin = head * each;
        const float* const bias = task.bias + head * task.ages;
        float most = -__builtin_inff();
        for (size_t i = 0; i < used; ++i) {
            const float product =
                dot(task.query.data + begin, task.keys.at(first + i) + begin, each);
            task.scores[i] = product / root + bias[used - 1 - i];
            most =
                task.scores[i] > most || task.scores[i] != task.scores[i] ? task.scores[i] : most;
        }
        each_vector(used, [&](size_t i, auto part) {
            part.give(exp_of_negative(part.take(task.scores + i) - most), task.scores + i);
        });
        const float whole = sum_row(task.scores, used);
        each_vector(each, [&](size_t i, auto part) {
            Floats sum{};
            for (size_t j = 0; j < used; ++j)
                sum = fused(splat(task.scores[j]), part.take(task.values.at(first + j) + begin + i),
                            sum);
            part.give(sum / whole, task.out + begin + i);
        });
    }
}

// A number of half precision, from its bits.
FUGU_NET_INLINE float half(uint16_t bits) {
    const uint32_t sign = (bits & 0x8000u) << 16, rest = bits & 0x7fffu;
    const uint32_t shifted = rest < 0x7c00u ? (rest << 13) + 0x38000000u // 127 - 15 exponents
                                            : (rest << 13) | 0x7f800000u;
    float found;
    if (rest < 0x400u) // denormal: so many 2^-24
        found = static_cast<float>(rest) * 5.9604644775390625e-8f;
    else
        std::memcpy(&found, &shifted, sizeof(found));
    return sign ? -found : found;
}

template <typename T>
FUGU_NET_INLINE void convert_from(const void* from, size_t count, float* out) {
    const char* const bytes = static_cast<const char*>(from);
    for (size_t i = 0; i < count; ++i) {
        T number;
        std::memcpy(&number, bytes + i * sizeof(T), sizeof(T));
        out[i] = static_cast<float>(number);
    }
}

inline void convert(Type type, const void* from, size_t count, float* out) {
    switch (type) {
    case Type::Bool:
    case Type::U8:
        return convert_from<uint8_t>(from, count, out);
    case Type::I8:
        return convert_from<int8_t>(from, count, out);
    case Type::I16:
        return convert_from<int16_t>(from, count, out);
    case Type::U16:
        return convert_from<uint16_t>(from, count, out);
    case Type::I32:
        return convert_from<int32_t>(from, count, out);
    case Type::U32:
        return convert_from<uint32_t>(from, count, out);
    case Type::I64:
        return convert_from<int64_t>(from, count, out);
    case Type::U64:
        return convert_from<uint64_t>(from, count, out);
    case Type::F32:
        return convert_from<float>(from, count, out);
    case Type::F64:
        return convert_from<double>(from, count, out);
    case Type::F16:
        for (size_t i = 0; i < count; ++i) {
            uint16_t bits;
            std::memcpy(&bits, static_cast<const char*>(from) + 2 * i, sizeof(bits));
            out[i] = half(bits);
        }
    }
}

} // namespace fugu::nets::FUGU_TARGET
