// What a network that learns says of observations: by several threads, each of which takes a share.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/team.hpp"
#include "nets/tape.hpp"

namespace fugu::learn {

// Rows of numbers that a forward pass reads and writes.
struct Passing {
    const char* rows = nullptr;   // observations
    const float* state = nullptr; // [batch, state size]
    float* params = nullptr;      // [batch, params]
    float* values = nullptr;      // [batch, critics]
    float* after = nullptr;       // [batch, state size]; may be `state`
};

class Forward {
public:
    explicit Forward(const nets::Network& network) : network_(network) {}
    Forward(const Forward&) = delete;
    Forward& operator=(const Forward&) = delete;

    void compute(const Passing& given, size_t batch, size_t threads, bool pairs) {
        const size_t tiles = (batch + kRows - 1) / kRows;
        const size_t shares = std::max<size_t>(1, std::min(threads, tiles));
        while (tapes_.size() < shares)
            tapes_.push_back(std::make_unique<nets::Tape>(network_, nullptr, kRows));
        Team::run(shares, threads, [&](size_t share) {
            for (size_t i = share * tiles / shares; i < (share + 1) * tiles / shares; ++i)
                pass(*tapes_[share], given, i * kRows, std::min(kRows, batch - i * kRows), pairs);
        });
    }

    static constexpr size_t kRows = 96; // observations at once

    static void pass(nets::Tape& tape, const Passing& given, size_t begin, size_t count,
                     bool pairs) {
        nets::Frame& frame = tape.frame();
        const size_t state = tape.network().state_size();
        frame.count = count, frame.pairs = pairs;
        frame.rows = given.rows + begin * frame.row_bytes;
        frame.state = given.state + begin * state;
        frame.after = state ? given.after + begin * state : nullptr;
        tape.forth();
        copy_out(tape.given(0), given.params, begin);
        copy_out(tape.given(1), given.values, begin);
    }

private:
    static void copy_out(const nets::In& from, float* out, size_t begin) {
        out += begin * from.width;
        for (size_t row = 0; row < from.rows; ++row, out += from.width)
            std::copy_n(from.at(row), from.width, out);
    }

    const nets::Network& network_;
    std::vector<std::unique_ptr<nets::Tape>> tapes_;
};

} // namespace fugu::learn
