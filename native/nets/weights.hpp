// What a network learned: where the numbers stand, and how products take them.
#pragma once

#include <cstdint>

#include "nets/values.hpp"

namespace fugu::nets {

// Numbers that a network learns: where they stand, and where among all of them.
struct Learned {
    const float* data = nullptr;
    int64_t place = -1; // none: they are not learned

    bool is() const { return place >= 0; }
    float* grad(const Frame& frame) const { return frame.lesson->weights + place; }
};

// Learned numbers, row by row, as Python has them.
struct Matrix {
    const float* data = nullptr;
    size_t rows = 0, columns = 0;
};

// A matrix as products take it: depth by width, its columns in panels that are filled up with
// zeros; see product.hpp.
class Packed {
public:
    // The number at a depth and a column stands at depth * `by_depth` + column * `by_column`.
    struct Source {
        const float* data;
        size_t depth, width, by_depth, by_column;
    };
    // A matrix whose rows become columns of what comes out, and the same on the way back.
    static Source forth(const Matrix& m) { return {m.data, m.columns, m.rows, 1, m.columns}; }
    static Source back(const Matrix& m) { return {m.data, m.rows, m.columns, m.columns, 1}; }

    void load(const Kernels& kernels, const Source& from, const float* bias, bool may_be_narrow,
              Words words = Words::Floats) {
        words_ = words, narrow_ = may_be_narrow && from.width <= kernels.lanes;
        depth_ = words == Words::Floats ? from.depth : (from.depth + 1) / 2;
        const size_t panel = narrow_ ? kernels.lanes : 2 * kernels.lanes;
        const size_t panels = (from.width + panel - 1) / panel;
        weight_.resize(panels * depth_ * panel), bias_.resize(panels * panel);
        if (bias)
            std::copy_n(bias, from.width, bias_.data());
        for (size_t begin = 0; begin < from.width; begin += panel) {
            const size_t columns = std::min(panel, from.width - begin);
            const Source part{from.data + begin * from.by_column, from.depth, columns,
                              from.by_depth, from.by_column};
            float* const out = weight_.data() + begin * depth_;
            words == Words::Floats ? load_floats(part, panel, out) : load_pairs(part, panel, out);
        }
    }
    // The task, of which rows and results are missing.
    Product product() const {
        static const int32_t whole = 0;
        Product task;
        task.weight = weight_.data(), task.bias = bias_.data(), task.narrow = narrow_;
        task.words = words_, task.pieces = &whole, task.num_pieces = 1, task.length = depth_;
        return task;
    }
    // out = x @ itself + bias, or added to what stands there.
    void multiply(const Frame& frame, const In& x, const Out& out, bool adds = false) const {
        Product task = product();
        task.x = x.data, task.stride = x.stride, task.out = out, task.adds = adds;
        if (words_ == Words::Pairs) {
            float* const words = frame.scratch->room(0, x.rows * depth_);
            frame.kernels.pair_rows(x, words);
            task.x = words, task.stride = depth_;
        }
        frame.kernels.product(task);
    }

private:
    // A panel, written from its beginning to its end: the source waits in the cache meanwhile.
    static void load_floats(const Source& from, size_t panel, float* out) {
        for (size_t i = 0; i < from.depth; ++i, out += panel) {
            const float* const numbers = from.data + i * from.by_depth;
            if (from.by_column == 1)
                std::copy_n(numbers, from.width, out);
            else
                for (size_t column = 0; column < from.width; ++column)
                    out[column] = numbers[column * from.by_column];
        }
    }
    static void load_pairs(const Source& from, size_t panel, float* out) {
        for (size_t i = 0; i < from.depth; i += 2, out += panel) {
            const float* const low = from.data + i * from.by_depth;
            const float* const high = i + 1 < from.depth ? low + from.by_depth : nullptr;
            for (size_t column = 0; column < from.width; ++column) {
                const size_t at = column * from.by_column;
                out[column] = pair(low[at], high ? high[at] : 0.0f);
            }
        }
    }
    static float pair(float low, float high) {
        const uint32_t word = half(low) | half(high) << 16;
        float found;
        std::memcpy(&found, &word, sizeof(found));
        return found;
    }
    static uint32_t half(float x) { // to the nearest, ties to even
        uint32_t bits;
        std::memcpy(&bits, &x, sizeof(bits));
        return x != x ? 0x7fc0 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    }

    Buffer weight_, bias_;
    size_t depth_ = 0; // in words
    bool narrow_ = false;
    Words words_ = Words::Floats;
};

// Adds one^T @ other to the gradients of a matrix, in the words that products are of.
inline void add_outer(const Frame& frame, const In& one, const In& other, float* grad) {
    Outer task{one, other, Words::Floats, {grad, one.width, other.width, other.width}};
    if (frame.pairs) {
        const size_t depth = (one.rows + 1) / 2;
        const size_t stride = Places::rounded(other.width); // where vectors begin best
        float* const first = frame.scratch->room(0, depth * one.width);
        float* const second = frame.scratch->room(1, depth * stride);
        frame.kernels.pair_columns(one, one.width, first);
        frame.kernels.pair_columns(other, stride, second);
        task.one = {first, depth, one.width, one.width};
        task.other = {second, depth, other.width, stride};
        task.words = Words::Pairs;
    }
    frame.kernels.outer(task);
}

} // namespace fugu::nets
