// Tables of segments, as Python keeps them: a rollout writes them, and gradients are learned from
// them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fugu::learn {

struct Pages {
    size_t horizon = 0, total = 0;                          // steps of a row; rows of all tables
    char* observations = nullptr;                           // [total, horizon, bytes]
    float* samples = nullptr;                               // [total, horizon, numbers]
    uint8_t* masks = nullptr;                               // [total, horizon, choices]
    float* states = nullptr;                                // [total, state size]
    float *log_probabilities = nullptr, *rewards = nullptr; // [horizon, total]
    float *values = nullptr, *final_values = nullptr;       // [critics, times, total]
    uint8_t *terminations = nullptr, *truncations = nullptr, *valid = nullptr; // [horizon, total]
};

} // namespace fugu::learn
