// Actions, log-probabilities and entropies of categorical heads and of diagonal normals, from
// random numbers that the caller gives: the same numbers, the same actions, for any number of
// threads.
//
// Exponentials are float32, sums float64; what comes out stands within 1e-5 of the float64
// reference (fugu/native/sampling.py), and an action differs from its action only where
// the random number lies within float32's rounding of a boundary between two choices.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/hot.hpp"
#include "kernels/lanes.hpp"
#include "kernels/team.hpp"

namespace fugu {

// What is wrong with a row; the lowest such row is told.
enum class RowFault : uint8_t { None, NotANumber, NoChoice, BadRandom };

struct FaultyRow {
    RowFault fault = RowFault::None;
    size_t row = 0, head = 0;
};

struct CategoricalTask {
    size_t batch = 0, heads = 0, width = 0; // width: the sum of all choices
    size_t stride = 0;                      // between rows of logits
    const int64_t* choices = nullptr;       // [heads]
    const float* logits = nullptr;          // [batch, width]
    const uint8_t* masks = nullptr;         // [batch, width]: what is allowed; may be missing
    const uint8_t* live = nullptr;          // [batch]: rows that act; may be missing
    const float* uniforms = nullptr;        // [batch, heads] in [0, 1); missing: the best choice
    int64_t* actions = nullptr;             // [batch, heads]
    float *log_probabilities = nullptr, *entropies = nullptr; // [batch]
};

struct NormalTask {
    size_t batch = 0, dims = 0;
    const float *means = nullptr, *log_stds = nullptr;        // [batch, dims]
    ptrdiff_t log_std_stride = 0;                             // 0: one row of them serves all
    const float* noise = nullptr;                             // [batch, dims]; missing: the mean
    const uint8_t* live = nullptr;                            // [batch]; may be missing
    float* actions = nullptr;                                 // [batch, dims]
    float *log_probabilities = nullptr, *entropies = nullptr; // [batch]
};

namespace sampling_detail {

constexpr size_t kBlock = 256;     // rows that a thread takes at once
constexpr size_t kAlone = 1 << 14; // numbers below which threads do not pay
constexpr size_t kChunk = 512;     // choices whose exponentials are kept at once
constexpr size_t kFew = 32;        // choices of a head that rows look at side by side
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr double kHalfLogTau = 0.91893853320467274178; // log(2 pi) / 2

// e^x for x <= 0, within 2 units in the last place; 0 below the smallest normal number. With
// x = n log 2 + r and |r| <= log(2) / 2, a Taylor polynomial serves for e^r, and 2^n is put
// together from its bits. No call and no branch, so that it vectorises.
FUGU_KERNEL_INLINE float exp_of_negative(float x) {
    const float low = x < -87.0f ? -87.0f : x;
    const float clamped = low > 0.0f ? 0.0f : low; // of a masked choice, whose weight is unused
    const float shifted = clamped * 1.44269504f + 12582912.0f; // 1.5 * 2^23 rounds to an integer
    const float n = shifted - 12582912.0f;
    // log 2 in two pieces, the first so short that its product with n is exact.
    const float r = clamped - n * 0.693359375f - n * -2.12194440e-4f;
    float e = 1.0f / 5040.0f;
    e = e * r + 1.0f / 720.0f;
    e = e * r + 1.0f / 120.0f;
    e = e * r + 1.0f / 24.0f;
    e = e * r + 1.0f / 6.0f;
    e = e * r + 0.5f;
    e = e * r + 1.0f;
    e = e * r + 1.0f;
    const uint32_t bits = static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23;
    float power;
    std::memcpy(&power, &bits, sizeof(power));
    return x < -87.0f ? 0.0f : e * power;
}

// One head of one row that has many choices, before and after one is taken.
struct Head {
    const float* logits;
    const uint8_t* masks;
    size_t choices;
    float most = kMinusInfinity;      // of the allowed logits
    double total = 0.0, moment = 0.0; // of the weights; of the weights times their exponents

    FUGU_KERNEL_INLINE bool allowed(size_t i) const { return !masks || masks[i]; }

    // Finds `most`; false if a logit is not a number or infinitely large.
    FUGU_KERNEL_INLINE bool scan() {
        bool good = true;
        for (size_t i = 0; i < choices; ++i) {
            good &= logits[i] <= std::numeric_limits<float>::max();
            const float x = allowed(i) ? logits[i] : kMinusInfinity;
            most = x > most ? x : most;
        }
        return good;
    }

    // The weights of up to kChunk choices from `begin`: e^(logit - most), 0 if not allowed.
    FUGU_KERNEL_INLINE size_t weigh(size_t begin, float* weights) const {
        const size_t count = std::min(kChunk, choices - begin);
        FUGU_INDEPENDENT
        for (size_t i = 0; i < count; ++i) {
            const float weight = exp_of_negative(logits[begin + i] - most);
            weights[i] = allowed(begin + i) ? weight : 0.0f;
        }
        return count;
    }

    FUGU_KERNEL_INLINE void sum(float* weights) {
        for (size_t begin = 0; begin < choices; begin += kChunk) {
            const size_t count = weigh(begin, weights);
            for (size_t i = 0; i < count; ++i) {
                const double weight = weights[i];
                total += weight;
                // 0 times minus infinity would be no number.
                moment += weight > 0.0 ? weight * (logits[begin + i] - most) : 0.0;
            }
        }
    }

    // The first choice at which the running sum passes uniform * total, else the last possible one.
    FUGU_KERNEL_INLINE size_t draw(float uniform, float* weights) const {
        const double threshold = static_cast<double>(uniform) * total;
        double running = 0.0;
        size_t last = 0;
        for (size_t begin = 0; begin < choices; begin += kChunk) {
            const size_t count = choices > kChunk ? weigh(begin, weights) : choices;
            for (size_t i = 0; i < count; ++i) {
                running += static_cast<double>(weights[i]);
                if (weights[i] > 0.0f) {
                    last = begin + i;
                    if (running > threshold)
                        return last;
                }
            }
        }
        return last;
    }

    FUGU_KERNEL_INLINE size_t best() const {
        size_t i = 0;
        while (!(allowed(i) && logits[i] == most))
            ++i;
        return i;
    }
};

// Rows side by side, one of whose heads is looked at; what it adds to each row.
struct Lanes {
    size_t count; // rows
    bool here[kLanes];
    alignas(64) double log_probability[kLanes], entropy[kLanes];
};

FUGU_KERNEL_INLINE RowFault fault_of(float most, bool good, float uniform) {
    if (!good)
        return RowFault::NotANumber;
    if (most == kMinusInfinity)
        return RowFault::NoChoice;
    return uniform >= 0.0f && uniform < 1.0f ? RowFault::None : RowFault::BadRandom;
}

// A head of many choices, row by row; the first faulty one ends it.
FUGU_KERNEL_INLINE FaultyRow wide_head(const CategoricalTask& task, size_t begin, size_t h,
                                       size_t offset, Lanes& lanes) {
    float weights[kChunk];
    for (size_t l = 0; l < lanes.count; ++l) {
        const size_t row = begin + l, place = row * task.heads + h;
        task.actions[place] = 0;
        if (!lanes.here[l])
            continue;
        Head head{task.logits + row * task.stride + offset,
                  task.masks ? task.masks + row * task.width + offset : nullptr,
                  static_cast<size_t>(task.choices[h])};
        const bool good = head.scan();
        const float uniform = task.uniforms ? task.uniforms[place] : 0.0f;
        if (const RowFault fault = fault_of(head.most, good, uniform); fault != RowFault::None)
            return {fault, row, h};
        head.sum(weights);
        const size_t action = task.uniforms ? head.draw(uniform, weights) : head.best();
        task.actions[place] = static_cast<int64_t>(action);
        const double log_total = log_of_positive(head.total);
        lanes.log_probability[l] +=
            static_cast<double>(head.logits[action]) - static_cast<double>(head.most) - log_total;
        lanes.entropy[l] += log_total - head.moment / head.total;
    }
    return {};
}

// A head of few choices, all rows at once: the same steps, and the same bits.
FUGU_KERNEL_INLINE FaultyRow narrow_head(const CategoricalTask& task, size_t begin, size_t h,
                                         size_t offset, Lanes& lanes) {
    const size_t choices = static_cast<size_t>(task.choices[h]);
    alignas(64) float logits[kFew][kLanes], weights[kFew][kLanes];
    alignas(64) float most[kLanes], uniform[kLanes], chosen[kLanes];
    alignas(64) int32_t good[kLanes], action[kLanes], found[kLanes];
    alignas(64) double total[kLanes], moment[kLanes], running[kLanes], log_total[kLanes];
    for (size_t l = 0; l < kLanes; ++l) {
        const size_t row = begin + l;
        const bool here = l < lanes.count && lanes.here[l];
        good[l] = 1, most[l] = kMinusInfinity;
        uniform[l] = here && task.uniforms ? task.uniforms[row * task.heads + h] : 0.0f;
        for (size_t i = 0; i < choices; ++i) {
            const float x = here ? task.logits[row * task.stride + offset + i] : 0.0f;
            const bool allowed = !here || !task.masks || task.masks[row * task.width + offset + i];
            good[l] &= x <= std::numeric_limits<float>::max();
            logits[i][l] = allowed ? x : kMinusInfinity;
        }
    }
    for (size_t i = 0; i < choices; ++i)
        for (size_t l = 0; l < kLanes; ++l)
            most[l] = logits[i][l] > most[l] ? logits[i][l] : most[l];
    for (size_t l = 0; l < lanes.count; ++l)
        if (lanes.here[l])
            if (const RowFault fault = fault_of(most[l], good[l] != 0, uniform[l]);
                fault != RowFault::None)
                return {fault, begin + l, h};
    for (size_t l = 0; l < kLanes; ++l)
        total[l] = moment[l] = running[l] = 0.0, action[l] = found[l] = 0;
    for (size_t i = 0; i < choices; ++i)
        for (size_t l = 0; l < kLanes; ++l) {
            const float far = logits[i][l] - most[l], weight = exp_of_negative(far);
            weights[i][l] = weight; // of what is not allowed 0
            total[l] += static_cast<double>(weight);
            moment[l] +=
                static_cast<double>(weight) * static_cast<double>(weight > 0.0f ? far : 0.0f);
        }
    for (size_t i = 0; i < choices; ++i)
        for (size_t l = 0; l < kLanes; ++l) {
            running[l] += static_cast<double>(weights[i][l]);
            const double threshold = static_cast<double>(uniform[l]) * total[l];
            const bool passed = task.uniforms ? running[l] > threshold : logits[i][l] == most[l];
            const bool taken = !found[l] && weights[i][l] > 0.0f; // the last possible one so far
            action[l] = taken ? static_cast<int32_t>(i) : action[l];
            chosen[l] = taken ? logits[i][l] : chosen[l];
            found[l] |= taken && passed;
        }
    for (size_t l = 0; l < kLanes; ++l)
        log_total[l] = log_of_positive(total[l]);
    for (size_t l = 0; l < lanes.count; ++l) {
        const bool here = lanes.here[l];
        task.actions[(begin + l) * task.heads + h] = here ? action[l] : 0;
        const double distance = static_cast<double>(chosen[l]) - static_cast<double>(most[l]);
        lanes.log_probability[l] += here ? distance - log_total[l] : 0.0;
        lanes.entropy[l] += here ? log_total[l] - moment[l] / total[l] : 0.0;
    }
    return {};
}

// Faults are told head by head among rows that stand side by side: of one row, the first head's.
FUGU_KERNEL static FaultyRow categorical_rows(const CategoricalTask& task, size_t begin,
                                              size_t end) {
    for (size_t first = begin; first < end; first += kLanes) {
        Lanes lanes;
        lanes.count = std::min(kLanes, end - first);
        for (size_t l = 0; l < kLanes; ++l) {
            lanes.here[l] = l < lanes.count && (!task.live || task.live[first + l]);
            lanes.log_probability[l] = lanes.entropy[l] = 0.0;
        }
        FaultyRow lowest{RowFault::None, end, 0};
        size_t offset = 0;
        for (size_t h = 0; h < task.heads; ++h) {
            const size_t choices = static_cast<size_t>(task.choices[h]);
            const FaultyRow faulty = choices <= kFew ? narrow_head(task, first, h, offset, lanes)
                                                     : wide_head(task, first, h, offset, lanes);
            if (faulty.fault != RowFault::None && faulty.row < lowest.row)
                lowest = faulty;
            offset += choices;
        }
        if (lowest.fault != RowFault::None)
            return lowest;
        for (size_t l = 0; l < lanes.count; ++l) {
            task.log_probabilities[first + l] = static_cast<float>(lanes.log_probability[l]);
            task.entropies[first + l] = static_cast<float>(lanes.entropy[l]);
        }
    }
    return {};
}

FUGU_KERNEL static FaultyRow normal_rows(const NormalTask& task, size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) {
        const bool live = !task.live || task.live[row];
        const size_t offset = row * task.dims;
        const float* log_stds = task.log_stds + static_cast<ptrdiff_t>(row) * task.log_std_stride;
        double squares = 0.0, logs = 0.0;
        for (size_t d = 0; d < task.dims && live; ++d) {
            const float noise = task.noise ? task.noise[offset + d] : 0.0f;
            const float action = task.means[offset + d] + std::exp(log_stds[d]) * noise;
            if (!std::isfinite(action) || !std::isfinite(log_stds[d]))
                return {std::isfinite(noise) ? RowFault::NotANumber : RowFault::BadRandom, row, d};
            task.actions[offset + d] = action;
            squares += static_cast<double>(noise) * static_cast<double>(noise);
            logs += static_cast<double>(log_stds[d]);
        }
        if (!live)
            std::fill_n(task.actions + offset, task.dims, 0.0f);
        const double constant = static_cast<double>(task.dims) * kHalfLogTau;
        const double log_probability = -0.5 * squares - logs - constant;
        const double entropy = 0.5 * static_cast<double>(task.dims) + constant + logs;
        task.log_probabilities[row] = live ? static_cast<float>(log_probability) : 0.0f;
        task.entropies[row] = live ? static_cast<float>(entropy) : 0.0f;
    }
    return {};
}

// Runs blocks of rows and returns the lowest faulty row.
template <typename Rows>
inline FaultyRow over_blocks(size_t batch, size_t size, size_t threads, const Rows& rows) {
    std::atomic<size_t> first{batch};
    FaultyRow found;
    std::mutex mutex;
    Team::run((batch + kBlock - 1) / kBlock, size < kAlone ? 1 : threads, [&](size_t part) {
        const size_t begin = part * kBlock;
        if (begin > first.load(std::memory_order_relaxed))
            return; // a lower row is faulty already
        const FaultyRow faulty = rows(begin, std::min(begin + kBlock, batch));
        if (faulty.fault == RowFault::None)
            return;
        std::lock_guard<std::mutex> lock(mutex);
        if (faulty.row < first.load()) {
            first.store(faulty.row);
            found = faulty;
        }
    });
    return found;
}

} // namespace sampling_detail

inline FaultyRow sample_categorical(const CategoricalTask& task, size_t threads) {
    using namespace sampling_detail;
    return over_blocks(task.batch, task.batch * task.width, threads, [&](size_t begin, size_t end) {
        return categorical_rows(task, begin, end);
    });
}

inline FaultyRow sample_normal(const NormalTask& task, size_t threads) {
    using namespace sampling_detail;
    return over_blocks(task.batch, task.batch * task.dims, threads,
                       [&](size_t begin, size_t end) { return normal_rows(task, begin, end); });
}

} // namespace fugu
