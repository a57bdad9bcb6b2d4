// Advantages with clipped importance ratios, backwards in time and across rows at once.
//
// Equal to fugu/native/advantage.py bit for bit, on every processor and for any number of
// threads: all sums and products are float32, in the order written here, none contracted.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/hot.hpp"
#include "kernels/team.hpp"

namespace fugu {

// Numbers [time, row] somewhere in memory; the strides count numbers.
template <typename T> struct Grid {
    T* data = nullptr;
    ptrdiff_t time = 0, row = 1;

    T* at(size_t t, size_t r) const {
        return data + static_cast<ptrdiff_t>(t) * time + static_cast<ptrdiff_t>(r) * row;
    }
};

struct AdvantageTask {
    size_t horizon = 0, rows = 0;
    Grid<const float> rewards, values, final_values; // values: horizon + 1 of them
    Grid<const float> ratios;                        // 1 if missing
    Grid<const uint8_t> terminations, truncations;
    Grid<const uint8_t> valid, live; // 1 if missing
    Grid<float> advantages, returns; // returns may be missing
    float gamma = 0, decay = 0, rho_clip = 0, c_clip = 0;
};

namespace advantage_detail {

constexpr size_t kWidth = 1024;    // rows of a block: what is read again stays in the nearest cache
constexpr size_t kNarrow = 64;     // of one that is transposed: all its steps stay in the second
constexpr size_t kGroup = 256;     // of those that are looked at for truncations at once
constexpr size_t kAlone = 1 << 15; // steps below which threads do not pay

FUGU_KERNEL_INLINE bool any(const uint8_t* flags, size_t count) {
    uint8_t found = 0;
    for (size_t i = 0; i < count; ++i)
        found |= flags[i];
    return found != 0;
}

FUGU_KERNEL_INLINE float at_most(float x, float limit) {
    return x > limit ? limit : x; // not-a-number stays
}

// One moment of a block of rows: where its numbers stand.
struct Moment {
    const float *reward, *value, *final_value, *ratio;
    const uint8_t *terminated, *truncated, *valid, *live;
    float *advantage, *returned;
};

// Every transition counts: the next value and the trace stand in the arrays themselves.
template <bool kFinal, bool kReturns>
FUGU_KERNEL_INLINE void plain_step(const AdvantageTask& task, const Moment& m,
                                   const float* next_value, const float* trace, size_t count) {
    const float gamma = task.gamma, decay = task.decay;
    const float rho_clip = task.rho_clip, c_clip = task.c_clip;
    const Moment k = m;
    FUGU_INDEPENDENT
    for (size_t i = 0; i < count; ++i) {
        const int32_t terminated = k.terminated[i] != 0;
        const int32_t truncated = kFinal ? k.truncated[i] != 0 : 0;
        const float value = k.value[i], ratio = k.ratio[i];
        float next = next_value[i];
        if (kFinal) {
            const float final_value = k.final_value[i];
            next = truncated ? final_value : next;
        }
        next = terminated ? 0.0f : next;
        const float d = at_most(ratio, rho_clip) * (k.reward[i] + gamma * next - value);
        const float carried = decay * at_most(ratio, c_clip) * trace[i];
        const float a = d + ((terminated | truncated) ? 0.0f : carried);
        k.advantage[i] = a;
        if (kReturns)
            k.returned[i] = a + value;
    }
}

// What the step before a block's moment will see.
struct State {
    float next_value[kWidth], trace[kWidth];
    int32_t lost[kWidth]; // its next value never came: a break or a cut while it paused
};

template <bool kFinal, bool kReturns>
FUGU_KERNEL_INLINE void masked_step(const AdvantageTask& task, const Moment& m, State& state,
                                    size_t first, size_t count) {
    const float gamma = task.gamma, decay = task.decay;
    const float rho_clip = task.rho_clip, c_clip = task.c_clip;
    const Moment k = m;
    float *next_values = state.next_value + first, *traces = state.trace + first;
    int32_t* losses = state.lost + first;
    FUGU_INDEPENDENT
    for (size_t i = 0; i < count; ++i) {
        // Whole words of 0 and 1 and no branches, else compilers do not vectorise it.
        const int32_t terminated = k.terminated[i] != 0;
        const int32_t truncated = kFinal ? k.truncated[i] != 0 : 0;
        const int32_t ended = terminated | truncated;
        const int32_t live = k.live[i] != 0, valid = k.valid[i] != 0, lost = losses[i];
        const float value = k.value[i], ratio = k.ratio[i];
        const float before = next_values[i], trace = traces[i];
        float next = before;
        if (kFinal) {
            const float final_value = k.final_value[i];
            next = truncated ? final_value : next;
        }
        next = terminated ? 0.0f : next;
        const float d = at_most(ratio, rho_clip) * (k.reward[i] + gamma * next - value);
        const float carried = decay * at_most(ratio, c_clip) * trace;
        const float sum = d + (ended ? 0.0f : carried);
        const int32_t counts = live & valid & (ended | (lost ^ 1));
        const float a = counts ? sum : 0.0f;
        k.advantage[i] = a;
        if (kReturns) {
            const float returned = a + value;
            k.returned[i] = live & valid ? returned : 0.0f;
        }
        // A pause belongs to the step before it: it hands on what it got, or the end it saw.
        const float paused_value = terminated ? 0.0f : before;
        const float paused_trace = (ended | (valid ^ 1)) ? 0.0f : trace;
        const int32_t paused_lost = (valid ^ 1) | ((terminated ^ 1) & (truncated | lost));
        next_values[i] = live ? value : paused_value;
        traces[i] = live ? a : paused_trace;
        losses[i] = (live ^ 1) & paused_lost;
    }
}

template <bool kMasked, bool kReturns>
FUGU_KERNEL_INLINE Moment moment(const AdvantageTask& task, size_t t, size_t row) {
    return {task.rewards.at(t, row),
            task.values.at(t, row),
            task.final_values.at(t, row),
            task.ratios.at(t, row),
            task.terminations.at(t, row),
            task.truncations.at(t, row),
            kMasked ? task.valid.at(t, row) : nullptr,
            kMasked ? task.live.at(t, row) : nullptr,
            task.advantages.at(t, row),
            kReturns ? task.returns.at(t, row) : nullptr};
}

template <bool kMasked, bool kReturns>
FUGU_KERNEL_INLINE void block(const AdvantageTask& task, size_t begin, size_t count) {
    State state;
    std::fill_n(state.trace, count, 0.0f);
    if (kMasked) {
        std::copy_n(task.values.at(task.horizon, begin), count, state.next_value);
        std::fill_n(state.lost, count, 0);
    }
    for (size_t t = task.horizon; t-- > 0;)
        for (size_t i = 0; i < count; i += kGroup) {
            const size_t size = count - i < kGroup ? count - i : kGroup;
            const Moment m = moment<kMasked, kReturns>(task, t, begin + i);
            // Truncations are rare: final values are fetched only where there is one.
            const bool truncated = any(m.truncated, size);
            if (kMasked) {
                truncated ? masked_step<true, kReturns>(task, m, state, i, size)
                          : masked_step<false, kReturns>(task, m, state, i, size);
                continue;
            }
            const float* next = task.values.at(t + 1, begin + i);
            const bool last = t + 1 == task.horizon;
            const float* trace = last ? state.trace : task.advantages.at(t + 1, begin + i);
            truncated ? plain_step<true, kReturns>(task, m, next, trace, size)
                      : plain_step<false, kReturns>(task, m, next, trace, size);
        }
}

// All steps of `count` rows from `begin`; in every array, rows stand side by side.
FUGU_KERNEL static void advantage_block(const AdvantageTask& task, size_t begin, size_t count) {
    const bool returns = task.returns.data != nullptr;
    if (task.valid.data)
        returns ? block<true, true>(task, begin, count) : block<true, false>(task, begin, count);
    else
        returns ? block<false, true>(task, begin, count) : block<false, false>(task, begin, count);
}

// Copies a block of rows between layouts, in tiles that stay in the nearest cache.
template <typename T>
FUGU_KERNEL_INLINE void transpose(const Grid<const T>& from, const Grid<T>& to, size_t times,
                                  size_t rows) {
    constexpr size_t kTile = 16;
    for (size_t r = 0; r < rows; r += kTile)
        for (size_t t = 0; t < times; t += kTile)
            for (size_t i = r; i < std::min(r + kTile, rows); ++i)
                for (size_t j = t; j < std::min(t + kTile, times); ++j)
                    *to.at(j, i) = *from.at(j, i);
}

// Time-major copies of a block, in memory that a thread keeps.
class Scratch {
public:
    explicit Scratch(size_t bytes) {
        if (memory_.size() < bytes)
            memory_.resize(bytes);
    }

    template <typename T> Grid<T> take(size_t times) {
        Grid<T> grid{reinterpret_cast<T*>(memory_.data() + used_), kNarrow, 1};
        used_ += times * kNarrow * sizeof(T);
        return grid;
    }
    // `grid` itself if its rows stand side by side, else a copy of `count` rows from `begin`.
    template <typename T>
    Grid<const T> near(const Grid<const T>& grid, size_t times, size_t begin, size_t count) {
        if (!grid.data || grid.row == 1)
            return {grid.data ? grid.at(0, begin) : nullptr, grid.time, 1};
        const Grid<T> copy = take<T>(times);
        transpose<T>({grid.at(0, begin), grid.time, grid.row}, copy, times, count);
        return {copy.data, copy.time, 1};
    }

private:
    inline static thread_local std::vector<unsigned char> memory_;
    size_t used_ = 0;
};

inline void transposed_block(const AdvantageTask& task, size_t begin, size_t count) {
    const size_t steps = task.horizon;
    Scratch scratch((steps + 1) * kNarrow * (6 * sizeof(float) + 4));
    AdvantageTask near = task;
    near.rewards = scratch.near(task.rewards, steps, begin, count);
    near.values = scratch.near(task.values, steps + 1, begin, count);
    near.final_values = scratch.near(task.final_values, steps, begin, count);
    near.ratios = scratch.near(task.ratios, steps, begin, count);
    near.advantages = scratch.take<float>(steps);
    if (task.returns.data)
        near.returns = scratch.take<float>(steps);
    near.terminations = scratch.near(task.terminations, steps, begin, count);
    near.truncations = scratch.near(task.truncations, steps, begin, count);
    near.valid = scratch.near(task.valid, steps, begin, count);
    near.live = scratch.near(task.live, steps, begin, count);
    advantage_block(near, 0, count);
    const auto back = [&](const Grid<float>& from, const Grid<float>& to) {
        transpose<float>({from.data, from.time, 1}, {to.at(0, begin), to.time, to.row}, steps,
                         count);
    };
    back(near.advantages, task.advantages);
    if (task.returns.data)
        back(near.returns, task.returns);
}

} // namespace advantage_detail

// Advantages of all rows. Arrays whose rows do not stand side by side, such as the view [time, row]
// of a row-major array, are transposed block by block on the way.
inline void advantages(AdvantageTask task, size_t threads) {
    using namespace advantage_detail;
    const std::vector<float> ones(task.ratios.data ? 0 : task.rows, 1.0f);
    const bool masked = task.valid.data || task.live.data;
    const std::vector<uint8_t> yes(masked ? task.rows : 0, 1);
    if (!task.ratios.data)
        task.ratios = {ones.data(), 0, 1}; // one row serves all times
    if (masked)
        for (Grid<const uint8_t>* mask : {&task.valid, &task.live})
            *mask = mask->data ? *mask : Grid<const uint8_t>{yes.data(), 0, 1};
    bool direct = true;
    for (ptrdiff_t row : {task.rewards.row, task.values.row, task.final_values.row, task.ratios.row,
                          task.terminations.row, task.truncations.row, task.valid.row,
                          task.live.row, task.advantages.row, task.returns.row})
        direct = direct && row == 1;
    const size_t width = direct ? kWidth : kNarrow;
    const size_t parts = (task.rows + width - 1) / width;
    Team::run(parts, task.horizon * task.rows < kAlone ? 1 : threads, [&](size_t part) {
        const size_t begin = part * width, count = std::min(width, task.rows - begin);
        direct ? advantage_block(task, begin, count) : transposed_block(task, begin, count);
    });
}

} // namespace fugu
