// What stands between the matrix products of recurrent cores: one step of an LSTM or a GRU with its
// gradient, and the whole scan of a MinGRU. What they compute is written out, in torch, in
// fugu/policies/cores.py.
//
// Numbers are float32; products may be given and taken as bfloat16. A row whose state is reset
// begins from zeros, chosen and not multiplied, so that nothing of the past comes through. Rows do
// not see each other, and each gets the same bits for any number of threads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/hot.hpp"
#include "kernels/team.hpp"

namespace fugu {

using Bfloat16 = int16_t; // its bits: the upper half of a float32

// Rows of numbers side by side; the stride counts numbers.
template <typename T> struct Rows {
    T* data = nullptr;
    ptrdiff_t stride = 0;

    T* at(size_t row) const { return data + static_cast<ptrdiff_t>(row) * stride; }
    explicit operator bool() const { return data != nullptr; }
};

// Gates stand in torch's order: input, forget, cell, output; a GRU's reset, update, new. The memory
// is the LSTM's cell, or the GRU's output itself.
template <typename P> struct CellForward {
    size_t rows = 0, hidden = 0;
    Rows<const P> inputs, recurrents; // [rows, gates]: what the weights made, biases not added
    const float *input_bias = nullptr, *recurrent_bias = nullptr; // [gates]
    Rows<const float> before;                                     // [rows, hidden]: the memory
    const uint8_t *resets = nullptr, *next_resets = nullptr;      // [rows]; none if missing
    Rows<float> after, output; // [rows, hidden]; a GRU has no output beside its memory
    Rows<float> kept;          // [rows, 4 hidden]: for the gradient; may be missing
    Rows<P> fed; // [rows, hidden]: the output as the next product takes it, or missing
};

template <typename P> struct CellBackward {
    size_t rows = 0, hidden = 0;
    Rows<const float> kept, before, after; // as the forward step left them; after: of an LSTM
    const uint8_t *resets = nullptr, *next_resets = nullptr; // [rows]; none if missing
    Rows<const float> output_grad;                           // [rows, hidden]
    Rows<const P> fed_grad;                                  // of `fed`; zeros at the last step
    Rows<float> memory_grad;              // of `after`, becomes that of `before`; a GRU's without
                                          // what comes by way of the products
    Rows<P> inputs_grad, recurrents_grad; // [rows, gates]; an LSTM's are equal, the second missing
};

// h = (1 - z) h + z g(candidate); z = sigmoid(gate); g(x) = x + 1/2 above 0, sigmoid(x) below.
template <typename P> struct ScanForward {
    size_t rows = 0, times = 0, hidden = 0;
    const P* gates = nullptr;        // [rows, times, 2 hidden]: gates, then candidates
    Rows<const float> start;         // [rows, hidden]
    const uint8_t* resets = nullptr; // [rows, times]; none if missing
    float* outputs = nullptr;        // [rows, times, hidden]
};

template <typename P> struct ScanBackward {
    ScanForward<P> forward; // its outputs stand here:
    const float *outputs = nullptr, *outputs_grad = nullptr;
    P* gates_grad = nullptr;
    float* start_grad = nullptr; // [rows, hidden]
};

namespace recurrent_detail {

constexpr size_t kBlock = 16;      // rows that a thread takes at once
constexpr size_t kAlone = 1 << 15; // numbers below which threads do not pay

FUGU_KERNEL_INLINE uint32_t bits_of(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof(bits));
    return bits;
}

FUGU_KERNEL_INLINE float float_of(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof(x));
    return x;
}

// What is left of numbers of a row that is reset, or not: none of their bits, or all.
FUGU_KERNEL_INLINE uint32_t unless(const uint8_t* resets, size_t place) {
    return resets && resets[place] ? 0u : ~0u;
}
FUGU_KERNEL_INLINE float masked(float x, uint32_t mask) {
    return float_of(bits_of(x) & mask);
}

FUGU_KERNEL_INLINE float load(float x) {
    return x;
}
FUGU_KERNEL_INLINE float load(Bfloat16 x) {
    return float_of(static_cast<uint32_t>(static_cast<uint16_t>(x)) << 16);
}

FUGU_KERNEL_INLINE void store(float x, float* out) {
    *out = x;
}
FUGU_KERNEL_INLINE void store(float x, Bfloat16* out) { // to the nearest, ties to even
    const uint32_t bits = bits_of(x), even = (bits >> 16) & 1;
    const uint32_t rounded = (bits + 0x7fff + even) >> 16;
    *out = static_cast<Bfloat16>(static_cast<uint16_t>(x != x ? 0x7fc0 : rounded));
}

// e^x = power * (1 + rest): x = n log 2 + r, |r| <= log(2) / 2, power = 2^n from its bits, and a
// minimax polynomial within 1e-7 for e^r. No call and no branch, so that it vectorises; of what is
// no number the rest is none.
struct Exponential {
    float power, rest;
};

FUGU_KERNEL_INLINE Exponential exponential(float x) {
    const float shifted = x * 1.44269504f + 12582912.0f; // 1.5 * 2^23 rounds to an integer
    const float n = shifted - 12582912.0f;
    // log 2 in two pieces, the first so short that its product with n is exact.
    const float r = x - n * 0.693359375f - n * -2.12194440e-4f;
    float p = 0.00831252159f;
    p = p * r + 0.0418901469f;
    p = p * r + 0.166671146f;
    p = p * r + 0.499992316f;
    return {float_of((bits_of(shifted) + 127) << 23), p * (r * r) + r};
}

// Within 1e-6 of itself from -60 on; below, the value there, lest products become denormal.
FUGU_KERNEL_INLINE float sigmoid(float x) {
    const float low = x < -60.0f ? -60.0f : x;
    const Exponential e = exponential(low > 60.0f ? -60.0f : -low);
    return 1.0f / (1.0f + (e.power * e.rest + e.power));
}

// Within 1e-6 of itself, near 0 too: of e^y - 1 with y = -2 |x|, no digit is lost.
FUGU_KERNEL_INLINE float tanh_of(float x) {
    const float y = x < 0.0f ? 2.0f * x : -2.0f * x;
    const Exponential e = exponential(y < -40.0f ? -40.0f : y);
    const float less = e.power * e.rest + (e.power - 1.0f);
    const float size = -less / (2.0f + less);
    return x < 0.0f ? -size : size;
}

template <typename P>
FUGU_KERNEL_INLINE void feed(const CellForward<P>& task, size_t row, const float* output) {
    if (!task.fed)
        return;
    P* const fed = task.fed.at(row);
    const uint32_t mask = unless(task.next_resets, row);
    FUGU_INDEPENDENT
    for (size_t j = 0; j < task.hidden; ++j)
        store(masked(output[j], mask), fed + j);
}

template <bool keep, typename P>
FUGU_KERNEL_INLINE void lstm_row(const CellForward<P>& task, size_t row) {
    const size_t hidden = task.hidden;
    const P *x = task.inputs.at(row), *h = task.recurrents.at(row);
    const float *bx = task.input_bias, *bh = task.recurrent_bias, *before = task.before.at(row);
    float *after = task.after.at(row), *output = task.output.at(row);
    float* const kept = keep ? task.kept.at(row) : nullptr;
    const uint32_t mask = unless(task.resets, row);
    FUGU_INDEPENDENT
    for (size_t j = 0; j < hidden; ++j) {
        const size_t f = j + hidden, g = f + hidden, o = g + hidden;
        const float input = sigmoid(load(x[j]) + load(h[j]) + (bx[j] + bh[j]));
        const float forget = sigmoid(load(x[f]) + load(h[f]) + (bx[f] + bh[f]));
        const float cell = tanh_of(load(x[g]) + load(h[g]) + (bx[g] + bh[g]));
        const float give = sigmoid(load(x[o]) + load(h[o]) + (bx[o] + bh[o]));
        const float memory = forget * masked(before[j], mask) + input * cell;
        after[j] = memory;
        output[j] = give * tanh_of(memory);
        if constexpr (keep)
            kept[j] = input, kept[f] = forget, kept[g] = cell, kept[o] = give;
    }
    feed(task, row, output);
}

template <typename P>
FUGU_KERNEL_INLINE void lstm_row_back(const CellBackward<P>& task, size_t row) {
    const size_t hidden = task.hidden;
    const float *kept = task.kept.at(row), *before = task.before.at(row);
    const float *after = task.after.at(row), *output_grad = task.output_grad.at(row);
    const uint32_t mask = unless(task.resets, row);
    const uint32_t next_mask = unless(task.next_resets, row);
    const P* const fed_grad = task.fed_grad.at(row);
    float* const memory_grad = task.memory_grad.at(row);
    P* const out = task.inputs_grad.at(row);
    FUGU_INDEPENDENT
    for (size_t j = 0; j < hidden; ++j) {
        const size_t f = j + hidden, g = f + hidden, o = g + hidden;
        const float input = kept[j], forget = kept[f], cell = kept[g], give = kept[o];
        const float shown = tanh_of(after[j]);
        const float dh = output_grad[j] + masked(load(fed_grad[j]), next_mask);
        const float dc = memory_grad[j] + dh * give * (1.0f - shown * shown);
        const float memory = masked(before[j], mask);
        store(dc * cell * (input * (1.0f - input)), out + j);
        store(dc * memory * (forget * (1.0f - forget)), out + f);
        store(dc * input * (1.0f - cell * cell), out + g);
        store(dh * shown * (give * (1.0f - give)), out + o);
        memory_grad[j] = masked(dc * forget, mask);
    }
}

template <bool keep, typename P>
FUGU_KERNEL_INLINE void gru_row(const CellForward<P>& task, size_t row) {
    const size_t hidden = task.hidden;
    const P *x = task.inputs.at(row), *h = task.recurrents.at(row);
    const float *bx = task.input_bias, *bh = task.recurrent_bias, *before = task.before.at(row);
    float* const after = task.after.at(row);
    float* const kept = keep ? task.kept.at(row) : nullptr;
    const uint32_t mask = unless(task.resets, row);
    FUGU_INDEPENDENT
    for (size_t j = 0; j < hidden; ++j) {
        const size_t u = j + hidden, n = u + hidden, last = n + hidden;
        const float forget = sigmoid(load(x[j]) + load(h[j]) + (bx[j] + bh[j]));
        const float update = sigmoid(load(x[u]) + load(h[u]) + (bx[u] + bh[u]));
        const float old = load(h[n]) + bh[n];
        const float fresh = tanh_of(load(x[n]) + bx[n] + forget * old);
        after[j] = fresh + update * (masked(before[j], mask) - fresh);
        if constexpr (keep)
            kept[j] = forget, kept[u] = update, kept[n] = fresh, kept[last] = old;
    }
    feed(task, row, after);
}

template <typename P>
FUGU_KERNEL_INLINE void gru_row_back(const CellBackward<P>& task, size_t row) {
    const size_t hidden = task.hidden;
    const float *kept = task.kept.at(row), *before = task.before.at(row);
    const float* const output_grad = task.output_grad.at(row);
    const uint32_t mask = unless(task.resets, row);
    const uint32_t next_mask = unless(task.next_resets, row);
    const P* const fed_grad = task.fed_grad.at(row);
    float* const memory_grad = task.memory_grad.at(row);
    P *const dx = task.inputs_grad.at(row), *const dh = task.recurrents_grad.at(row);
    FUGU_INDEPENDENT
    for (size_t j = 0; j < hidden; ++j) {
        const size_t u = j + hidden, n = u + hidden, last = n + hidden;
        const float forget = kept[j], update = kept[u], fresh = kept[n], old = kept[last];
        const float direct = output_grad[j] + memory_grad[j];
        const float grad = direct + masked(load(fed_grad[j]), next_mask);
        const float by_fresh = grad * (1.0f - update) * (1.0f - fresh * fresh);
        const float by_forget = by_fresh * old * (forget * (1.0f - forget));
        const float memory = masked(before[j], mask);
        const float by_update = grad * (memory - fresh) * (update * (1.0f - update));
        store(by_forget, dx + j), store(by_forget, dh + j);
        store(by_update, dx + u), store(by_update, dh + u);
        store(by_fresh, dx + n), store(by_fresh * forget, dh + n);
        memory_grad[j] = masked(grad * update, mask);
    }
}

template <typename P> FUGU_KERNEL_INLINE void scan_row(const ScanForward<P>& task, size_t row) {
    const size_t hidden = task.hidden;
    const float* before = task.start.at(row);
    for (size_t t = 0; t < task.times; ++t) {
        const size_t place = row * task.times + t;
        const uint32_t mask = unless(task.resets, place);
        const P *gates = task.gates + 2 * hidden * place, *candidates = gates + hidden;
        float* const output = task.outputs + hidden * place;
        FUGU_INDEPENDENT
        for (size_t j = 0; j < hidden; ++j) {
            const float x = load(candidates[j]), z = sigmoid(load(gates[j])), low = sigmoid(x);
            const float h = masked(before[j], mask);
            output[j] = h + z * ((x >= 0.0f ? x + 0.5f : low) - h);
        }
        before = output;
    }
}

template <typename P>
FUGU_KERNEL_INLINE void scan_row_back(const ScanBackward<P>& task, size_t row) {
    const ScanForward<P>& forward = task.forward;
    const size_t hidden = forward.hidden;
    float* const carried = task.start_grad + row * hidden;
    for (size_t j = 0; j < hidden; ++j)
        carried[j] = 0.0f;
    const float* const start = forward.start.at(row);
    for (size_t t = forward.times; t > 0; --t) {
        const size_t place = row * forward.times + t - 1;
        const uint32_t mask = unless(forward.resets, place);
        const P *gates = forward.gates + 2 * hidden * place, *candidates = gates + hidden;
        const float* const before = t > 1 ? task.outputs + hidden * (place - 1) : start;
        const float* const output_grad = task.outputs_grad + hidden * place;
        P *by_gate = task.gates_grad + 2 * hidden * place, *by_candidate = by_gate + hidden;
        FUGU_INDEPENDENT
        for (size_t j = 0; j < hidden; ++j) {
            const float x = load(candidates[j]), z = sigmoid(load(gates[j])), low = sigmoid(x);
            const float h = masked(before[j], mask), grad = output_grad[j] + carried[j];
            const float high = x + 0.5f, candidate = x < 0.0f ? low : high;
            const float slope = x < 0.0f ? low * (1.0f - low) : 1.0f;
            store(grad * (candidate - h) * (z * (1.0f - z)), by_gate + j);
            store(grad * z * slope, by_candidate + j);
            carried[j] = masked(grad * (1.0f - z), mask);
        }
    }
}

// Compiled for several processors, as templates cannot be: one function for each type of product.
#define FUGU_RECURRENT_ROWS(P)                                                                     \
    [[maybe_unused]] FUGU_KERNEL static void lstm_rows(const CellForward<P>& task, size_t begin,   \
                                                       size_t end) {                               \
        for (size_t row = begin; row < end; ++row)                                                 \
            task.kept ? lstm_row<true>(task, row) : lstm_row<false>(task, row);                    \
    }                                                                                              \
    [[maybe_unused]] FUGU_KERNEL static void lstm_rows(const CellBackward<P>& task, size_t begin,  \
                                                       size_t end) {                               \
        for (size_t row = begin; row < end; ++row)                                                 \
            lstm_row_back(task, row);                                                              \
    }                                                                                              \
    [[maybe_unused]] FUGU_KERNEL static void gru_rows(const CellForward<P>& task, size_t begin,    \
                                                      size_t end) {                                \
        for (size_t row = begin; row < end; ++row)                                                 \
            task.kept ? gru_row<true>(task, row) : gru_row<false>(task, row);                      \
    }                                                                                              \
    [[maybe_unused]] FUGU_KERNEL static void gru_rows(const CellBackward<P>& task, size_t begin,   \
                                                      size_t end) {                                \
        for (size_t row = begin; row < end; ++row)                                                 \
            gru_row_back(task, row);                                                               \
    }                                                                                              \
    [[maybe_unused]] FUGU_KERNEL static void scan_rows(const ScanForward<P>& task, size_t begin,   \
                                                       size_t end) {                               \
        for (size_t row = begin; row < end; ++row)                                                 \
            scan_row(task, row);                                                                   \
    }                                                                                              \
    [[maybe_unused]] FUGU_KERNEL static void scan_rows(const ScanBackward<P>& task, size_t begin,  \
                                                       size_t end) {                               \
        for (size_t row = begin; row < end; ++row)                                                 \
            scan_row_back(task, row);                                                              \
    }
FUGU_RECURRENT_ROWS(float)
FUGU_RECURRENT_ROWS(Bfloat16)
#undef FUGU_RECURRENT_ROWS

template <typename Work>
inline void over_blocks(size_t rows, size_t row_size, size_t threads, const Work& work) {
    const size_t count = rows * row_size < kAlone ? 1 : threads;
    Team::run((rows + kBlock - 1) / kBlock, count,
              [&](size_t part) { work(part * kBlock, std::min((part + 1) * kBlock, rows)); });
}

} // namespace recurrent_detail

// One step, forward or backward, of every row.
template <typename Task> inline void lstm_step(const Task& task, size_t threads) {
    recurrent_detail::over_blocks(task.rows, task.hidden, threads, [&](size_t begin, size_t end) {
        recurrent_detail::lstm_rows(task, begin, end);
    });
}

template <typename Task> inline void gru_step(const Task& task, size_t threads) {
    recurrent_detail::over_blocks(task.rows, task.hidden, threads, [&](size_t begin, size_t end) {
        recurrent_detail::gru_rows(task, begin, end);
    });
}

// All steps of every row.
template <typename P> inline void mingru_scan(const ScanForward<P>& task, size_t threads) {
    recurrent_detail::over_blocks(
        task.rows, task.times * task.hidden, threads,
        [&](size_t begin, size_t end) { recurrent_detail::scan_rows(task, begin, end); });
}

template <typename P> inline void mingru_scan(const ScanBackward<P>& task, size_t threads) {
    recurrent_detail::over_blocks(
        task.forward.rows, task.forward.times * task.forward.hidden, threads,
        [&](size_t begin, size_t end) { recurrent_detail::scan_rows(task, begin, end); });
}

} // namespace fugu
