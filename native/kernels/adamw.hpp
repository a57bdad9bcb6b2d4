// One step of AdamW; the definition is torch.optim.AdamW. Every number is computed for itself, so
// that threads and kinds of processor do not change a bit.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "kernels/hot.hpp"
#include "kernels/team.hpp"

namespace fugu {

struct AdamW {
    double rate, beta1, beta2, eps, decay;
};

struct AdamWBlock {
    float* weights;
    const float* grads;
    float *means, *squares; // of the gradients so far
    size_t size;
};

namespace detail {

struct AdamWFactors {
    float keep, rate, root, eps; // of a weight; of its change; of the root; and added to that
    float mean, square;          // how much of a new gradient is taken in
};

FUGU_KERNEL inline void adamw(const AdamWBlock& block, size_t begin, size_t end,
                              const AdamWFactors& by) {
    float* const weights = block.weights;
    const float* const grads = block.grads;
    float *const means = block.means, *const squares = block.squares;
    FUGU_INDEPENDENT
    for (size_t i = begin; i < end; ++i) {
        const float grad = grads[i];
        const float mean = means[i] + by.mean * (grad - means[i]);
        const float square = squares[i] + by.square * (grad * grad - squares[i]);
        means[i] = mean, squares[i] = square;
        weights[i] = by.keep * weights[i] - by.rate * mean / (std::sqrt(square) * by.root + by.eps);
    }
}

} // namespace detail

// The step of this number, from 1 on.
inline void adamw(const AdamWBlock& block, const AdamW& by, double step, size_t threads) {
    const double first = 1.0 - std::pow(by.beta1, step), second = 1.0 - std::pow(by.beta2, step);
    detail::AdamWFactors factors;
    factors.keep = static_cast<float>(1.0 - by.rate * by.decay);
    factors.rate = static_cast<float>(by.rate / first);
    factors.root = static_cast<float>(1.0 / std::sqrt(second));
    factors.eps = static_cast<float>(by.eps);
    factors.mean = static_cast<float>(1.0 - by.beta1);
    factors.square = static_cast<float>(1.0 - by.beta2);
    constexpr size_t kPart = size_t{1} << 15; // numbers that are worth a thread
    const size_t parts = (block.size + kPart - 1) / kPart;
    Team::run(parts, threads, [&](size_t part) {
        const size_t begin = part * kPart;
        detail::adamw(block, begin, std::min(block.size, begin + kPart), factors);
    });
}

} // namespace fugu
