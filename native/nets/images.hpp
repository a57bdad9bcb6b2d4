// Convolutions and poolings of one image.
#pragma once

#include "nets/product.hpp"

namespace fugu::nets::FUGU_TARGET {

// Each row of windows is a product whose rows overlap in the image.
inline void convolve(const Convolution& task, const float* image, float* out) {
    Product product_of_row = task.product;
    const size_t size = task.columns * task.channels;
    for (size_t row = 0; row < task.rows; ++row) {
        product_of_row.x = image + row * task.step;
        product_of_row.out = {out + row * size, task.columns, task.channels, task.channels};
        product(product_of_row);
    }
}

inline void pool(const Pooling& task, const float* image, float* out) {
    const auto begin = [&](size_t place) {
        const size_t from = place * task.stride;
        return from < task.padding ? 0 : from - task.padding;
    };
    const auto end = [&](size_t place, size_t side) {
        const size_t to = place * task.stride + task.kernel - task.padding;
        return to < side ? to : side;
    };
    const size_t channels = task.channels;
    for (size_t row = 0; row < task.rows; ++row)
        for (size_t column = 0; column < task.columns; ++column, out += channels) {
            const size_t top = begin(row), bottom = end(row, task.height);
            const size_t left = begin(column), right = end(column, task.width);
            each_vector(channels, [&](size_t i, auto part) __attribute__((always_inline)) {
                Floats most = splat(-__builtin_inff());
                for (size_t y = top; y < bottom; ++y)
                    for (size_t x = left; x < right; ++x)
                        most = larger(most, part.take(image + (y * task.width + x) * channels + i));
                part.give(most, out + i);
            });
        }
}

} // namespace fugu::nets::FUGU_TARGET
