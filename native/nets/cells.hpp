// What stands between the products of an LSTM, in vectors: one step forth, and one back. It is
// written out in kernels/recurrent.hpp, which serves torch, and in torch in fugu/policies/cores.py.
#pragma once

#include "nets/functions.hpp"

namespace fugu::nets::FUGU_TARGET {

inline void lstm_forth(const LstmForth& task) {
    const size_t hidden = task.after.width;
    for (size_t row = 0; row < task.after.rows; ++row) {
        float* const gates = task.gates.at(row);
        const float *const made = task.made.at(row), *const before = task.before.at(row);
        float *const after = task.after.at(row), *const shown = task.shown.at(row);
        const bool reset = task.resets && task.resets[row];
        each_vector(hidden, [&](size_t i, auto part) __attribute__((always_inline)) {
            const auto gate = [&](size_t which) __attribute__((always_inline)) {
                const size_t at = which * hidden + i;
                return part.take(gates + at) + part.take(made + at) + part.take(task.bias + at);
            };
            const Floats input = sigmoid(gate(0)), forget = sigmoid(gate(1));
            const Floats fresh = tanh_of(gate(2)), give = sigmoid(gate(3));
            const Floats memory = reset ? Floats{} : part.take(before + i);
            const Floats cell = fused(forget, memory, input * fresh);
            part.give(cell, after + i), part.give(give * tanh_of(cell), shown + i);
            if (task.keeps) {
                part.give(input, gates + i), part.give(forget, gates + hidden + i);
                part.give(fresh, gates + 2 * hidden + i), part.give(give, gates + 3 * hidden + i);
            }
        });
    }
}

// Gates become their gradients.
inline void lstm_back(const LstmBack& task) {
    const size_t hidden = task.after.width;
    for (size_t row = 0; row < task.after.rows; ++row) {
        float *const gates = task.gates.at(row), *const cell_grad = task.cell_grad.at(row);
        const float *const before = task.before.at(row), *const after = task.after.at(row);
        const float *const shown_grad = task.shown_grad.at(row), *const fed = task.fed_grad.at(row);
        const bool reset = task.resets && task.resets[row];
        const bool next_reset = task.next_resets && task.next_resets[row];
        each_vector(hidden, [&](size_t i, auto part) __attribute__((always_inline)) {
            const Floats input = part.take(gates + i), forget = part.take(gates + hidden + i);
            const Floats fresh = part.take(gates + 2 * hidden + i);
            const Floats give = part.take(gates + 3 * hidden + i);
            const Floats shape = tanh_of(part.take(after + i));
            const Floats later = next_reset ? Floats{} : part.take(fed + i);
            const Floats by_shown = part.take(shown_grad + i) + later;
            const Floats by_cell =
                fused(by_shown * give, 1.0f - shape * shape, part.take(cell_grad + i));
            const Floats memory = reset ? Floats{} : part.take(before + i);
            part.give(by_cell * fresh * (input * (1.0f - input)), gates + i);
            part.give(by_cell * memory * (forget * (1.0f - forget)), gates + hidden + i);
            part.give(by_cell * input * (1.0f - fresh * fresh), gates + 2 * hidden + i);
            part.give(by_shown * shape * (give * (1.0f - give)), gates + 3 * hidden + i);
            part.give(reset ? Floats{} : by_cell * forget, cell_grad + i);
        });
    }
}

} // namespace fugu::nets::FUGU_TARGET
