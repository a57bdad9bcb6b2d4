// Gradients of PPO's loss through a network, a tile of segments at a time: gathered, passed forth,
// judged and passed back while they are in the cache. Each share of the rows has gradients of its
// own, which are added up in a fixed order: as many shares, the same bits.
#pragma once

#include <memory>
#include <vector>

#include "kernels/ppo_loss.hpp"
#include "kernels/team.hpp"
#include "learn/pages.hpp"
#include "nets/tape.hpp"

namespace fugu::learn {

// Rows that were drawn from the tables, none of them twice. Each is `length` steps, which follow
// each other: a whole row, or one step of it.
struct Experience {
    Pages pages;                     // are only read
    size_t rows = 0, length = 0;     // how many were drawn
    const int64_t* places = nullptr; // [rows]: which rows of the tables
    const int64_t* times = nullptr;  // [rows]: from when on; from the beginning if missing
    const float* weights = nullptr;  // [rows]
    const float* merits = nullptr;   // [length, rows]: how good the actions were
    // Of all rows of the update, among which those drawn are others than in the tables.
    size_t count = 0;
    const int64_t* own = nullptr;      // [rows]
    const float* advantages = nullptr; // [critics, horizon, count]
    float* ratios = nullptr;           // [horizon, count]: to be written
    PpoTask loss;                      // its settings and sizes
};

class Gradients {
public:
    explicit Gradients(const nets::Network& network) : network_(network), way_(network) {
        observation_size_ = 1;
        for (const nets::Value& value : network.values())
            observation_size_ += value.size();
    }

    Gradients(const Gradients&) = delete;
    Gradients& operator=(const Gradients&) = delete;

    // Writes the gradients of all learned numbers, and every step's ratio; the sums of the loss.
    PpoSums compute(const Experience& given, float* grads, size_t threads, bool pairs) {
        const size_t tile = rows_of_tile(given), tiles = (given.rows + tile - 1) / tile;
        const size_t shares = std::max<size_t>(1, std::min(threads, tiles));
        const size_t size = network_.num_learned();
        while (desks_.size() < shares)
            desks_.push_back(std::make_unique<Desk>());
        std::vector<PpoSums> sums(shares);
        ratios_.resize(given.rows * given.length);
        Team::run(shares, threads, [&](size_t share) {
            Desk& desk = *desks_[share];
            desk.prepare(network_, way_, tile * given.length, given);
            desk.weights.resize(size);
            std::fill_n(desk.weights.data(), size, 0.0f);
            for (size_t i = share * tiles / shares; i < (share + 1) * tiles / shares; ++i) {
                const size_t begin = i * tile, end = std::min(begin + tile, given.rows);
                sums[share].add(desk.learn(given, begin, end, pairs, ratios_.data()));
            }
        });
        write_ratios(given, threads);
        add_up(shares, size, threads, grads);
        for (size_t share = 1; share < shares; ++share)
            sums[0].add(sums[share]);
        return sums[0];
    }

private:
    static constexpr size_t kTimes = 16;                // whose ratios are written at once
    static constexpr size_t kNumbers = size_t{1} << 13; // of gradients that are worth a thread
    static constexpr size_t kSteps = 128;               // of a tile, at the least
    static constexpr size_t kSegments = 12;             // of a tile, if segments are remembered
    static constexpr size_t kMemory = size_t{1} << 18;  // numbers of values, if they are not

    size_t rows_of_tile(const Experience& given) const {
        const size_t length = std::max<size_t>(given.length, 1);
        const size_t steps = std::max(kSteps / 4, std::min(kSteps, kMemory / observation_size_));
        const size_t rows = std::max<size_t>(1, (steps + length - 1) / length);
        return network_.state_size() ? std::max(rows, kSegments) : rows;
    }

    // The gradients of all shares, each number in the order of the shares.
    void add_up(size_t shares, size_t size, size_t threads, float* grads) const {
        const size_t parts = (size + kNumbers - 1) / kNumbers;
        Team::run(parts, threads, [&](size_t part) {
            const size_t begin = part * kNumbers, end = std::min(begin + kNumbers, size);
            std::copy(desks_[0]->weights.data() + begin, desks_[0]->weights.data() + end,
                      grads + begin);
            for (size_t share = 1; share < shares; ++share) {
                const float* const more = desks_[share]->weights.data();
                for (size_t i = begin; i < end; ++i)
                    grads[i] += more[i];
            }
        });
    }

    // Some times by each thread, so that none writes beside another.
    void write_ratios(const Experience& given, size_t threads) const {
        const size_t length = given.length, parts = (length + kTimes - 1) / kTimes;
        Team::run(parts, threads, [&](size_t part) {
            const size_t first = part * kTimes, last = std::min(first + kTimes, length);
            for (size_t row = 0; row < given.rows; ++row) {
                const float* const from = ratios_.data() + row * length;
                float* const to = given.ratios + Desk::own_of(given, row);
                for (size_t t = first; t < last; ++t)
                    to[(Desk::time_of(given, row) + t) * given.count] = from[t];
            }
        });
    }

    // What one share works with: a tile's numbers side by side.
    struct Desk {
        std::unique_ptr<nets::Tape> tape;
        size_t state_size = 0;
        nets::Buffer weights; // gradients
        std::vector<char> observations;
        std::vector<uint8_t> resets, masks;
        std::vector<float> states, samples, old_log_probs, merits, old_values, returns, counts;
        std::vector<float> params, values, params_grad, values_grad;

        void prepare(const nets::Network& network, const nets::Way& way, size_t steps,
                     const Experience& given) {
            if (tape && tape->capacity() >= steps)
                return;
            tape = std::make_unique<nets::Tape>(network, &way, steps);
            state_size = network.state_size();
            const PpoTask& loss = given.loss;
            observations.resize(steps * network.row_bytes());
            resets.resize(steps), masks.resize(steps * loss.width);
            states.resize(steps * state_size), samples.resize(steps * (loss.heads + loss.dims));
            for (std::vector<float>* each : {&old_log_probs, &merits, &counts})
                each->resize(steps);
            for (std::vector<float>* each : {&old_values, &returns, &values, &values_grad})
                each->resize(steps * loss.critics);
            for (std::vector<float>* each : {&params, &params_grad})
                each->resize(steps * (loss.width + 2 * loss.dims));
        }

        // Writes the ratios of all rows, one after the other.
        PpoSums learn(const Experience& given, size_t begin, size_t end, bool pairs,
                      float* ratios) {
            const size_t length = given.length, steps = (end - begin) * length;
            nets::Frame& frame = tape->frame();
            frame.count = steps, frame.length = length, frame.pairs = pairs;
            PpoTask task = given.loss;
            for (size_t row = begin; row < end; ++row) {
                gather_numbers(given, row, (row - begin) * length);
                gather_rows(given, row, row - begin, frame.row_bytes);
            }
            frame.rows = observations.data(), frame.state = states.data();
            frame.resets = state_size ? resets.data() : nullptr;
            tape->forth();
            const size_t width = task.width + 2 * task.dims;
            copy_out(tape->given(0), width, params.data());
            copy_out(tape->given(1), task.critics, values.data());
            task.rows = steps, task.samples = samples.data(), task.params = params.data();
            task.masks = std::memchr(masks.data(), 0, steps * task.width) ? masks.data() : nullptr;
            task.old_log_probs = old_log_probs.data(), task.advantages = merits.data();
            task.values = values.data(), task.old_values = old_values.data();
            task.returns = returns.data(), task.weights = counts.data();
            task.params_grad = params_grad.data(), task.values_grad = values_grad.data();
            task.ratios = ratios + begin * length;
            const PpoSums sums = ppo_detail::block(task, 0, steps);
            tape->back({params_grad.data(), steps, width, width},
                       {values_grad.data(), steps, task.critics, task.critics}, weights.data());
            return sums;
        }

        // What stands in the tables time by time; the first step of the row becomes the i-th.
        void gather_numbers(const Experience& given, size_t row, size_t i) {
            const Pages& pages = given.pages;
            const size_t critics = given.loss.critics, own = own_of(given, row);
            size_t time = time_of(given, row);
            for (size_t t = 0; t < given.length; ++t, ++time, ++i) {
                const size_t at = time * pages.total + place_of(given, row);
                counts[i] = pages.valid[at] ? given.weights[row] : 0.0f;
                old_log_probs[i] = pages.log_probabilities[at];
                merits[i] = given.merits[t * given.rows + row];
                resets[i] =
                    t && (pages.terminations[at - pages.total] |
                          pages.truncations[at - pages.total] | !pages.valid[at - pages.total]);
                for (size_t c = 0; c < critics; ++c) {
                    const float value = pages.values[c * (pages.horizon + 1) * pages.total + at];
                    const size_t there = (c * pages.horizon + time) * given.count + own;
                    old_values[i * critics + c] = value;
                    returns[i * critics + c] = given.advantages[there] + value;
                }
            }
        }

        // What stands there row by row; of what does not count, nothing is looked at.
        void gather_rows(const Experience& given, size_t row, size_t k, size_t bytes) {
            const Pages& pages = given.pages;
            const size_t length = given.length, width = given.loss.width;
            const size_t place = place_of(given, row);
            const size_t from = place * pages.horizon + time_of(given, row), to = k * length;
            const size_t numbers = given.loss.heads + given.loss.dims;
            char* const seen = observations.data() + to * bytes;
            std::memcpy(seen, pages.observations + from * bytes, length * bytes);
            for (size_t t = 0; t < length; ++t)
                if (counts[to + t] == 0.0f)
                    std::memset(seen + t * bytes, 0, bytes);
            std::copy_n(pages.samples + from * numbers, length * numbers,
                        samples.data() + to * numbers);
            std::copy_n(pages.masks + from * width, length * width, masks.data() + to * width);
            std::copy_n(pages.states + place * state_size, state_size,
                        states.data() + k * state_size);
        }

        static size_t place_of(const Experience& given, size_t row) {
            return static_cast<size_t>(given.places[row]);
        }
        static size_t own_of(const Experience& given, size_t row) {
            return static_cast<size_t>(given.own[row]);
        }
        static size_t time_of(const Experience& given, size_t row) {
            return given.times ? static_cast<size_t>(given.times[row]) : 0;
        }
        static void copy_out(const nets::In& from, size_t width, float* out) {
            for (size_t row = 0; row < from.rows; ++row, out += width)
                std::copy_n(from.at(row), width, out);
        }
    };

    const nets::Network& network_;
    const nets::Way way_;
    size_t observation_size_ = 1;
    std::vector<std::unique_ptr<Desk>> desks_;
    std::vector<float> ratios_; // [rows, length]
};

} // namespace fugu::learn
