// PPO's loss and its gradient in one pass over rows: the definition, in torch, is
// fugu/algos/ppo_loss_reference.py.
//
// Rows stand in lanes of kLanes, so that every step serves many rows at once whatever the number of
// choices. Exponentials of logits are float32; what decides a tie, and every sum, is float64. A row
// gets the same bits whichever rows stand beside it, and the sums are taken in fixed blocks, so
// that neither threads nor microbatches change a bit of the gradient.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/hot.hpp"
#include "kernels/lanes.hpp"
#include "kernels/sampling.hpp"
#include "kernels/team.hpp"

namespace fugu {

enum class ValueLoss : uint8_t { Clipped, Huber, Squared, HuberClipped };
constexpr int kValueLosses = 4;

struct PpoTask {
    size_t rows = 0, heads = 0, width = 0, dims = 0, critics = 0; // width: the sum of all choices
    const int64_t* choices = nullptr;                             // [heads]
    const float* params = nullptr;  // [rows, width + 2 dims]: logits, means, log_stds
    const float* samples = nullptr; // [rows, heads + dims]
    const uint8_t* masks = nullptr; // [rows, width]: what is allowed; may be missing
    const float *values = nullptr, *old_values = nullptr, *returns = nullptr; // [rows, critics]
    const float *old_log_probs = nullptr, *advantages = nullptr, *weights = nullptr; // [rows]
    float *params_grad = nullptr, *values_grad = nullptr; // as params and values
    float* ratios = nullptr;                              // [rows]
    double clip = 0, value_clip = 0, value_coefficient = 0, entropy_coefficient = 0;
    double huber_delta = 0, normaliser = 1;
    ValueLoss value_loss = ValueLoss::Clipped;
};

// Over the rows whose weight is not 0: weighted sums of the losses and the entropy, plain ones of
// the rest.
struct PpoSums {
    double policy = 0, value = 0, entropy = 0, kl = 0, clipped = 0, rows = 0;
    bool good = true; // whether every sample of a head is one of its choices

    void add(const PpoSums& other) {
        policy += other.policy, value += other.value, entropy += other.entropy;
        kl += other.kl, clipped += other.clipped, rows += other.rows;
        good = good && other.good;
    }
};

namespace ppo_detail {

constexpr size_t kGroups = 32;     // groups of lanes that a thread takes at once
constexpr size_t kAlone = 1 << 13; // numbers below which threads do not pay
constexpr float kNever = -100.0f;  // an exponent whose exponential is 0 in float32

struct LaneSums {
    alignas(64) double policy[kLanes] = {}, value[kLanes] = {}, entropy[kLanes] = {};
    alignas(64) double kl[kLanes] = {}, clipped[kLanes] = {}, rows[kLanes] = {};

    PpoSums total(bool good) const {
        PpoSums sums;
        for (size_t l = 0; l < kLanes; ++l)
            sums.add({policy[l], value[l], entropy[l], kl[l], clipped[l], rows[l], good});
        return sums;
    }
};

// What one group of rows needs between its steps.
struct Group {
    size_t begin, count; // rows
    float* logits;       // [width, kLanes]: then their distances from the highest
    float* weights;      // [width, kLanes]: e^distance
    float* head_scalars; // [heads, 3, kLanes]
    double* normals;     // [dims, 2, kLanes]
    alignas(64) double weight[kLanes], log_prob[kLanes], entropy[kLanes];
    alignas(64) float by_log_prob[kLanes], by_entropy[kLanes]; // gradients of the loss

    FUGU_KERNEL_INLINE bool here(size_t lane) const {
        return lane < count && weight[lane] != 0.0; // nothing else of other rows is looked at
    }
    FUGU_KERNEL_INLINE float* inverse_total(size_t h) const {
        return head_scalars + 3 * h * kLanes;
    }
    FUGU_KERNEL_INLINE float* mean_distance(size_t h) const { return inverse_total(h) + kLanes; }
    FUGU_KERNEL_INLINE float* other_share(size_t h) const { return inverse_total(h) + 2 * kLanes; }
};

// One column of a row-major array, 0 for rows that do not count.
FUGU_KERNEL_INLINE void load(const Group& group, const float* column, size_t stride, double* out) {
    for (size_t l = 0; l < kLanes; ++l)
        out[l] = group.here(l) ? static_cast<double>(column[(group.begin + l) * stride]) : 0.0;
}

FUGU_KERNEL_INLINE void load_logits(const PpoTask& task, const Group& group) {
    const size_t stride = task.width + 2 * task.dims;
    std::fill_n(group.logits, task.width * kLanes, 0.0f);
    for (size_t l = 0; l < kLanes; ++l) {
        if (!group.here(l))
            continue;
        const float* row = task.params + (group.begin + l) * stride;
        const uint8_t* mask = task.masks ? task.masks + (group.begin + l) * task.width : nullptr;
        for (size_t j = 0; j < task.width; ++j)
            group.logits[j * kLanes + l] =
                mask && !mask[j] ? sampling_detail::kMinusInfinity : row[j];
    }
}

// Adds one head's log-probability and entropy; returns whether every sample is one of its choices.
FUGU_KERNEL_INLINE bool categorical(const PpoTask& task, Group& group, size_t h, size_t offset) {
    const size_t choices = static_cast<size_t>(task.choices[h]);
    float* const logits = group.logits + offset * kLanes;
    float* const weights = group.weights + offset * kLanes;
    alignas(64) float most[kLanes], sample[kLanes], chosen[kLanes], found[kLanes];
    alignas(64) double total[kLanes], others[kLanes], moment[kLanes], numbers[kLanes];
    load(group, task.samples + h, task.heads + task.dims, numbers);
    for (size_t l = 0; l < kLanes; ++l) {
        most[l] = sampling_detail::kMinusInfinity;
        sample[l] = static_cast<float>(numbers[l]), chosen[l] = found[l] = 0.0f;
        total[l] = others[l] = moment[l] = 0.0;
    }
    for (size_t j = 0; j < choices; ++j)
        for (size_t l = 0; l < kLanes; ++l) {
            const float logit = logits[j * kLanes + l];
            most[l] = logit > most[l] ? logit : most[l];
        }
    for (size_t j = 0; j < choices; ++j) {
        const float here = static_cast<float>(j);
        for (size_t l = 0; l < kLanes; ++l) {
            const float logit = logits[j * kLanes + l];
            const float far = logit - most[l];
            const float distance = far < kNever ? kNever : far; // keeps what is no number
            const float weight = sampling_detail::exp_of_negative(distance);
            const bool is_sample = sample[l] == here;
            logits[j * kLanes + l] = distance, weights[j * kLanes + l] = weight;
            chosen[l] = is_sample ? logit : chosen[l];
            found[l] = is_sample ? 1.0f : found[l];
            total[l] += static_cast<double>(weight);
            others[l] += static_cast<double>(is_sample ? 0.0f : weight);
            moment[l] += static_cast<double>(weight) * static_cast<double>(distance);
        }
    }
    for (size_t l = 0; l < kLanes; ++l) {
        const double log_total = log_of_positive(total[l]), mean = moment[l] / total[l];
        const double distance = static_cast<double>(chosen[l]) - static_cast<double>(most[l]);
        group.log_prob[l] += distance - log_total;
        group.entropy[l] += log_total - mean;
        group.inverse_total(h)[l] = static_cast<float>(1.0 / total[l]);
        group.mean_distance(h)[l] = static_cast<float>(mean);
        group.other_share(h)[l] = static_cast<float>(others[l] / total[l]);
    }
    float all = 1.0f;
    for (size_t l = 0; l < kLanes; ++l)
        all = found[l] < all ? found[l] : all;
    return all > 0.0f;
}

FUGU_KERNEL_INLINE void normal(const PpoTask& task, Group& group, size_t d) {
    const size_t stride = task.width + 2 * task.dims;
    alignas(64) double mean[kLanes], log_std[kLanes], sample[kLanes];
    load(group, task.params + task.width + d, stride, mean);
    load(group, task.params + task.width + task.dims + d, stride, log_std);
    load(group, task.samples + task.heads + d, task.heads + task.dims, sample);
    double* const noise = group.normals + 2 * d * kLanes;
    double* const inverse_std = noise + kLanes;
    for (size_t l = 0; l < kLanes; ++l) {
        inverse_std[l] = exp_of(-log_std[l]);
        noise[l] = (sample[l] - mean[l]) * inverse_std[l];
        const double constant = sampling_detail::kHalfLogTau;
        group.log_prob[l] += -0.5 * noise[l] * noise[l] - log_std[l] - constant;
        group.entropy[l] += 0.5 + constant + log_std[l];
    }
}

// The clipped surrogate: what the loss gains by a larger log-probability, ratios and sums.
FUGU_KERNEL_INLINE void surrogate(const PpoTask& task, Group& group, LaneSums& sums) {
    alignas(64) double old[kLanes], advantage[kLanes], log_ratio[kLanes], ratio[kLanes];
    alignas(64) float ratios[kLanes];
    load(group, task.old_log_probs, 1, old);
    load(group, task.advantages, 1, advantage);
    for (size_t l = 0; l < kLanes; ++l) {
        const double change = group.log_prob[l] - old[l];
        log_ratio[l] = group.weight[l] != 0.0 ? change : 0.0;
        ratio[l] = exp_of(log_ratio[l]);
        ratios[l] = static_cast<float>(ratio[l]);
    }
    std::copy_n(ratios, group.count, task.ratios + group.begin);
    const double low = 1.0 - task.clip, high = 1.0 + task.clip;
    // Bounds are met or not in float32: two exponentials of one number may differ in float64.
    const double near_low = static_cast<float>(low), near_high = static_cast<float>(high);
    for (size_t l = 0; l < kLanes; ++l) {
        const double near = static_cast<double>(ratios[l]), above = near - near_high;
        const double below = near_low - near, excess = advantage[l] > 0.0 ? above : below;
        const double bound = advantage[l] > 0.0 ? high : low;
        const double gain = advantage[l] * (excess > 0.0 ? bound : ratio[l]);
        const double slope = excess > 0.0 ? 0.0 : gain;
        const double weight = group.weight[l], share = weight / task.normaliser;
        group.by_log_prob[l] = static_cast<float>(-slope * share);
        group.by_entropy[l] = static_cast<float>(-task.entropy_coefficient * share);
        sums.policy[l] -= weight * gain;
        sums.entropy[l] += weight * group.entropy[l];
        sums.kl[l] += ratio[l] - 1.0 - log_ratio[l];
        sums.clipped[l] += (above > below ? above : below) > 0.0 ? 1.0 : 0.0;
        sums.rows[l] += weight != 0.0 ? 1.0 : 0.0;
    }
}

struct Slope {
    double loss, by_value;
};

FUGU_KERNEL_INLINE Slope huber(double error, double delta) {
    const double size = error < 0.0 ? -error : error;
    const double bound = error < 0.0 ? -delta : delta;
    const bool far = size > delta;
    return {far ? delta * (size - 0.5 * delta) : 0.5 * error * error, far ? bound : error};
}

// In float64 throughout and in the reference's order, so that ties are the reference's. Between
// equals, the gradient is half of each.
template <ValueLoss kind>
FUGU_KERNEL_INLINE Slope value_loss(double value, double old, double target, double clip,
                                    double delta) {
    const double error = value - target;
    if constexpr (kind == ValueLoss::Squared)
        return {0.5 * error * error, error};
    if constexpr (kind == ValueLoss::Huber)
        return huber(error, delta);
    const double change = value - old;
    const bool outside = change < -clip || change > clip;
    const double clamped = change < -clip ? -clip : change > clip ? clip : change;
    const double clipped_error = old + clamped - target;
    if constexpr (kind == ValueLoss::HuberClipped) {
        const Slope plain = huber(error, delta), clipped = huber(clipped_error, delta);
        const double tie = plain.loss == clipped.loss ? 0.5 : 1.0;
        const double share = plain.loss < clipped.loss ? 0.0 : tie;
        const double largest = plain.loss < clipped.loss ? clipped.loss : plain.loss;
        return {largest, plain.by_value * (outside ? share : 1.0)};
    }
    const double plain = error * error, clipped = clipped_error * clipped_error;
    const double share = plain == clipped ? 0.5 : plain < clipped ? 0.0 : 1.0;
    const double by_value = error * (outside ? share : 1.0);
    return {0.5 * (plain < clipped ? clipped : plain), by_value};
}

template <ValueLoss kind>
FUGU_KERNEL_INLINE void critics(const PpoTask& task, const Group& group, LaneSums& sums) {
    alignas(64) double value[kLanes], old[kLanes], target[kLanes];
    alignas(64) float slopes[kLanes];
    for (size_t c = 0; c < task.critics; ++c) {
        load(group, task.values + c, task.critics, value);
        load(group, task.old_values + c, task.critics, old);
        load(group, task.returns + c, task.critics, target);
        for (size_t l = 0; l < kLanes; ++l) {
            const Slope slope =
                value_loss<kind>(value[l], old[l], target[l], task.value_clip, task.huber_delta);
            const double weight = group.weight[l];
            sums.value[l] += weight * slope.loss;
            const double share = task.value_coefficient * weight / task.normaliser;
            slopes[l] = static_cast<float>(slope.by_value * share);
        }
        for (size_t l = 0; l < group.count; ++l)
            task.values_grad[(group.begin + l) * task.critics + c] = slopes[l];
    }
}

FUGU_KERNEL_INLINE void gradients(const PpoTask& task, const Group& group) {
    const size_t stride = task.width + 2 * task.dims;
    float* const out = task.params_grad + group.begin * stride;
    size_t place = 0;
    for (size_t h = 0; h < task.heads; ++h) {
        alignas(64) double sample[kLanes];
        load(group, task.samples + h, task.heads + task.dims, sample);
        const float *inverse_total = group.inverse_total(h), *mean = group.mean_distance(h);
        const float* other_share = group.other_share(h);
        for (size_t j = 0; j < static_cast<size_t>(task.choices[h]); ++j, ++place) {
            float* const column = group.logits + place * kLanes; // distances become gradients
            const float* const weights = group.weights + place * kLanes;
            for (size_t l = 0; l < kLanes; ++l) {
                const float p = weights[l] * inverse_total[l];
                // 1 - p would lose its digits where p is near 1.
                const float pull = sample[l] == static_cast<double>(j) ? other_share[l] : -p;
                column[l] =
                    group.by_log_prob[l] * pull - group.by_entropy[l] * (p * (column[l] - mean[l]));
            }
        }
    }
    for (size_t l = 0; l < group.count; ++l)
        for (size_t j = 0; j < task.width; ++j)
            out[l * stride + j] = group.logits[j * kLanes + l];
    for (size_t d = 0; d < task.dims; ++d) {
        const double* const noise = group.normals + 2 * d * kLanes;
        const double* const inverse_std = noise + kLanes;
        for (size_t l = 0; l < group.count; ++l) {
            const double by_log_prob = static_cast<double>(group.by_log_prob[l]);
            const double by_entropy = static_cast<double>(group.by_entropy[l]);
            float* const row = out + l * stride + task.width + d;
            row[0] = static_cast<float>(by_log_prob * (noise[l] * inverse_std[l]));
            row[task.dims] =
                static_cast<float>(by_log_prob * (noise[l] * noise[l] - 1.0) + by_entropy);
        }
    }
}

FUGU_KERNEL static bool group_of_rows(const PpoTask& task, Group& group, LaneSums& sums) {
    for (size_t l = 0; l < kLanes; ++l) {
        const bool there = l < group.count;
        group.weight[l] = there ? static_cast<double>(task.weights[group.begin + l]) : 0.0;
        group.log_prob[l] = group.entropy[l] = 0.0;
    }
    load_logits(task, group);
    bool good = true;
    size_t offset = 0;
    for (size_t h = 0; h < task.heads; offset += static_cast<size_t>(task.choices[h]), ++h)
        good &= categorical(task, group, h, offset);
    for (size_t d = 0; d < task.dims; ++d)
        normal(task, group, d);
    surrogate(task, group, sums);
    switch (task.value_loss) {
    case ValueLoss::Clipped:
        critics<ValueLoss::Clipped>(task, group, sums);
        break;
    case ValueLoss::Huber:
        critics<ValueLoss::Huber>(task, group, sums);
        break;
    case ValueLoss::Squared:
        critics<ValueLoss::Squared>(task, group, sums);
        break;
    case ValueLoss::HuberClipped:
        critics<ValueLoss::HuberClipped>(task, group, sums);
    }
    gradients(task, group);
    return good;
}

// Memory of a thread, which stays: fresh pages cost more than the loss of the rows in them.
inline Group room(const PpoTask& task) {
    thread_local std::vector<double> memory;
    constexpr size_t kLine = 64 / sizeof(double);
    const size_t floats = (2 * task.width + 3 * task.heads) * kLanes;
    memory.resize(std::max(memory.size(), floats / 2 + 2 * task.dims * kLanes + kLine));
    const size_t skip = kLine - reinterpret_cast<uintptr_t>(memory.data()) / sizeof(double) % kLine;
    Group group;
    group.normals = memory.data() + skip;
    group.logits = reinterpret_cast<float*>(group.normals + 2 * task.dims * kLanes);
    group.weights = group.logits + task.width * kLanes;
    group.head_scalars = group.weights + task.width * kLanes;
    return group;
}

inline PpoSums block(const PpoTask& task, size_t begin, size_t end) {
    Group group = room(task);
    LaneSums sums;
    bool good = true;
    for (group.begin = begin; group.begin < end; group.begin += kLanes) {
        group.count = std::min(kLanes, end - group.begin);
        good &= group_of_rows(task, group, sums);
    }
    return sums.total(good);
}

} // namespace ppo_detail

// Writes gradients and ratios, and returns the sums.
inline PpoSums ppo_loss(const PpoTask& task, size_t threads) {
    using namespace ppo_detail;
    constexpr size_t kRows = kGroups * kLanes;
    std::vector<PpoSums> parts((task.rows + kRows - 1) / kRows);
    const size_t size = task.rows * (task.width + 2 * task.dims + task.critics);
    Team::run(parts.size(), size < kAlone ? 1 : threads, [&](size_t part) {
        const size_t begin = part * kRows;
        parts[part] = block(task, begin, std::min(begin + kRows, task.rows));
    });
    PpoSums sums;
    for (const PpoSums& part : parts)
        sums.add(part);
    return sums;
}

} // namespace fugu
