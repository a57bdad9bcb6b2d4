// Gradients of PPO's loss through a network, a tile of segments at a time: gathered, passed forth,
// judged and passed back while they are in the cache. Each share of the rows has gradients of its
// own, which are added up in a fixed order: as many shares, the same bits.
#pragma once

#include <memory>
#include <vector>

#include "kernels/ppo_loss.hpp"
#include "kernels/team.hpp"
#include "nets/tape.hpp"

namespace fugu::learn {

// Rows of experience, in the order in which they were drawn.
struct Experience {
    size_t rows = 0, length = 0;        // a row is so many steps, which follow each other
    const char* observations = nullptr; // a table of all there are, row by row
    const int64_t* places = nullptr;    // [rows]: which of them
    const float* states = nullptr;      // [rows, state size]
    const uint8_t* resets = nullptr;    // [rows, length]; none if missing
    PpoTask loss;                       // of all steps; params, values and gradients are missing
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
        Team::run(shares, threads, [&](size_t share) {
            Desk& desk = *desks_[share];
            desk.prepare(network_, way_, tile * given.length, given);
            desk.weights.resize(size);
            std::fill_n(desk.weights.data(), size, 0.0f);
            for (size_t i = share * tiles / shares; i < (share + 1) * tiles / shares; ++i) {
                const size_t begin = i * tile, end = std::min(begin + tile, given.rows);
                sums[share].add(desk.learn(given, begin, end, pairs));
            }
        });
        std::copy_n(desks_[0]->weights.data(), size, grads);
        for (size_t share = 1; share < shares; ++share) {
            const float* const more = desks_[share]->weights.data();
            for (size_t i = 0; i < size; ++i)
                grads[i] += more[i];
            sums[0].add(sums[share]);
        }
        return sums[0];
    }

private:
    static constexpr size_t kSteps = 128;              // of a tile, at the least
    static constexpr size_t kSegments = 12;            // of a tile, if segments are remembered
    static constexpr size_t kMemory = size_t{1} << 18; // numbers of values, if they are not

    size_t rows_of_tile(const Experience& given) const {
        const size_t length = std::max<size_t>(given.length, 1);
        const size_t steps = std::max(kSteps / 4, std::min(kSteps, kMemory / observation_size_));
        const size_t rows = std::max<size_t>(1, (steps + length - 1) / length);
        return network_.state_size() ? std::max(rows, kSegments) : rows;
    }

    // What one share works with.
    struct Desk {
        std::unique_ptr<nets::Tape> tape;
        size_t state_size = 0;
        nets::Buffer weights;
        std::vector<char> rows;
        std::vector<float> params, values, params_grad, values_grad;

        void prepare(const nets::Network& network, const nets::Way& way, size_t steps,
                     const Experience& given) {
            if (tape && tape->capacity() >= steps)
                return;
            tape = std::make_unique<nets::Tape>(network, &way, steps);
            state_size = network.state_size();
            rows.resize(steps * network.row_bytes());
            const size_t width = given.loss.width + 2 * given.loss.dims;
            params.resize(steps * width), params_grad.resize(steps * width);
            values.resize(steps * given.loss.critics), values_grad.resize(values.size());
        }

        PpoSums learn(const Experience& given, size_t begin, size_t end, bool pairs) {
            const size_t length = given.length, first = begin * length,
                         steps = (end - begin) * length;
            nets::Frame& frame = tape->frame();
            frame.count = steps, frame.length = length, frame.pairs = pairs;
            frame.rows = gather(given, begin, end, frame.row_bytes);
            frame.state = given.states + begin * state_size;
            frame.resets = given.resets ? given.resets + first : nullptr;
            tape->forth();
            PpoTask task = part_of(given.loss, first, steps);
            const size_t width = task.width + 2 * task.dims;
            copy_out(tape->given(0), width, params.data());
            copy_out(tape->given(1), task.critics, values.data());
            task.params = params.data(), task.values = values.data();
            task.params_grad = params_grad.data(), task.values_grad = values_grad.data();
            const PpoSums sums = ppo_detail::block(task, 0, steps);
            tape->back({params_grad.data(), steps, width, width},
                       {values_grad.data(), steps, task.critics, task.critics}, weights.data());
            return sums;
        }

        // The observations of some rows, side by side; what does not count is not looked at.
        const char* gather(const Experience& given, size_t begin, size_t end, size_t bytes) {
            const size_t length = given.length, row_bytes = length * bytes;
            char* out = rows.data();
            for (size_t row = begin; row < end; ++row, out += row_bytes) {
                const char* from =
                    given.observations + static_cast<size_t>(given.places[row]) * row_bytes;
                std::memcpy(out, from, row_bytes);
                const float* const counts = given.loss.weights + row * length;
                for (size_t t = 0; t < length; ++t)
                    if (counts[t] == 0.0f)
                        std::memset(out + t * bytes, 0, bytes);
            }
            return rows.data();
        }

        static PpoTask part_of(PpoTask task, size_t first, size_t steps) {
            task.rows = steps;
            task.samples += first * (task.heads + task.dims);
            task.masks = task.masks ? task.masks + first * task.width : nullptr;
            task.old_values += first * task.critics, task.returns += first * task.critics;
            task.old_log_probs += first, task.advantages += first, task.weights += first;
            task.ratios += first;
            return task;
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
};

} // namespace fugu::learn
