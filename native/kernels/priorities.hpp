// Which segments to learn from: weights of rows from their advantages, and rows drawn by them.
//
// All float64, in the order of fugu/native/priorities.py and with the same system
// functions (pow, log1p, expm1): equal to it bit for bit.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/advantage.hpp"
#include "kernels/hot.hpp"

namespace fugu {

struct PriorityTask {
    size_t horizon = 0, rows = 0;
    Grid<const float> advantages;    // rows side by side
    Grid<const uint8_t> valid, live; // either may be missing
    double alpha = 0, epsilon = 0;
    double* probabilities = nullptr; // [rows]
};

namespace priorities_detail {

// Adds |advantage| of the steps that count to `sums`, over all times.
FUGU_KERNEL static void sum_magnitudes(const PriorityTask& task, double* sums) {
    for (size_t r = 0; r < task.rows; ++r)
        sums[r] = 0.0;
    for (size_t t = 0; t < task.horizon; ++t) {
        const float* advantages = task.advantages.at(t, 0);
        const uint8_t* valid = task.valid.data ? task.valid.at(t, 0) : nullptr;
        const uint8_t* live = task.live.data ? task.live.at(t, 0) : nullptr;
        FUGU_INDEPENDENT
        for (size_t r = 0; r < task.rows; ++r) {
            const bool counts = (!valid || valid[r]) && (!live || live[r]);
            const float magnitude = std::fabs(advantages[r]);
            sums[r] += counts ? static_cast<double>(magnitude) : 0.0;
        }
    }
}

} // namespace priorities_detail

// P = (w + epsilon) / sum of the same, with w = (sum_t |A|)^alpha. Returns the first row whose sum
// is not finite, or the number of rows.
inline size_t segment_probabilities(const PriorityTask& task) {
    double* p = task.probabilities;
    priorities_detail::sum_magnitudes(task, p);
    double total = 0.0;
    for (size_t r = 0; r < task.rows; ++r) {
        if (!std::isfinite(p[r]))
            return r;
        p[r] = std::pow(p[r], task.alpha) + task.epsilon;
        total += p[r];
    }
    for (size_t r = 0; r < task.rows; ++r)
        p[r] /= total;
    return task.rows;
}

// Draws `count` distinct rows (Efraimidis and Spirakis, in exponential form). Row r gets the key
// -log(1 - u) / P, an exponential random time of rate P; the rows of the lowest keys are taken, in
// the order of their keys, the lower row first among equals. So each next row is drawn with
// probability P among those that are left.
//
// With `inclusion`, weights[i] = (N / k * pi)^-beta, where pi = 1 - exp(-P * threshold) is the
// probability that the row's key is below the lowest key that was not drawn (Cohen and Kaplan
// 2007): with beta 1, a weighted mean over the drawn rows is an unbiased estimate of the mean over
// all of them. Otherwise weights[i] = (N P)^-beta, as in PufferLib.
inline void sample_segments(const double* probabilities, const double* uniforms, size_t rows,
                            size_t count, double beta, bool inclusion, int64_t* out,
                            float* weights) {
    std::vector<std::pair<double, int64_t>> keys(rows);
    for (size_t r = 0; r < rows; ++r)
        keys[r] = {-std::log1p(-uniforms[r]) / probabilities[r], static_cast<int64_t>(r)};
    const auto end = keys.begin() + static_cast<ptrdiff_t>(count);
    double threshold = std::numeric_limits<double>::infinity();
    if (count < rows) {
        std::nth_element(keys.begin(), end, keys.end());
        threshold = std::max(end->first, 1e-12); // 0 if all random numbers were 0
    }
    std::sort(keys.begin(), end);
    const double all = static_cast<double>(rows), drawn = static_cast<double>(count);
    for (size_t i = 0; i < count; ++i) {
        out[i] = keys[i].second;
        const double p = probabilities[out[i]];
        const double share = inclusion ? all / drawn * -std::expm1(-p * threshold) : all * p;
        weights[i] = static_cast<float>(std::pow(share, -beta));
    }
}

} // namespace fugu
