// A network that runs: memory for its values, and the observations that go through it.
#pragma once

#include <mutex>

#include "nets/network.hpp"

namespace fugu::nets {

class Runner {
public:
    // The network stays the caller's, who may tell it new numbers between two calls.
    explicit Runner(const Network& network) : network_(network) { lay_out(); }

    // Rows of observations and their states to rows of params, values and states; a state may be
    // written where it was read. One call at a time; others wait.
    void forward(const void* rows, const float* state, size_t batch, float* params, float* values,
                 float* after) {
        std::lock_guard<std::mutex> lock(mutex_);
        require(network_.whole(), "forward: the network is not whole");
        if (std::min(batch, most_) > capacity_)
            grow(std::min(batch, most_));
        fill_constants();
        Frame frame{network_.kernels(), network_.values(), memory_};
        frame.row_bytes = network_.row_bytes();
        float* const to[] = {params, values, after};
        for (size_t done = 0; done < batch; done += frame.count) {
            frame.count = std::min(batch - done, capacity_);
            frame.rows = static_cast<const char*>(rows) + done * frame.row_bytes;
            frame.state = state + done * network_.state_size();
            for (const std::unique_ptr<Step>& step : network_.steps())
                step->run(frame);
            for (size_t i = 0; i < 3; ++i)
                give(frame, network_.given()[i], to[i], done);
        }
    }

private:
    static constexpr size_t kMostRows = 96;            // observations at once
    static constexpr size_t kMemory = size_t{1} << 20; // numbers that may be under way
    static constexpr size_t kLeastRows = 12;           // however many numbers they have
    static constexpr size_t kNone = static_cast<size_t>(-1);

    // Places of all values in one block, which they leave after their last use; constants stay.
    void lay_out() {
        const std::vector<Value>& values = network_.values();
        const size_t end = network_.steps().size();
        std::vector<size_t> last = last_uses();
        Places places;
        places_.assign(values.size(), 0);
        for (const std::unique_ptr<Step>& step : network_.steps())
            if (values[step->output].home == Home::Constant)
                places_[step->output] = places.take(values[step->output].size());
        for (size_t i = 0; i < end; ++i) {
            const Step& step = *network_.steps()[i];
            if (values[step.output].home == Home::Constant)
                continue;
            const size_t heir = step.in_place() ? find_heir(step, last, i) : kNone;
            places_[step.output] =
                heir == kNone ? places.take(values[step.output].size()) : places_[heir];
            for (size_t input : step.inputs) {
                const size_t owner = values[input].owner;
                if (values[input].home == Home::Work && last[owner] == i && owner != heir)
                    places.give_back(places_[owner]), last[owner] = kNone;
            }
        }
        size_ = places.end();
        most_ = std::clamp(kMemory / std::max<size_t>(size_, 1), kLeastRows, kMostRows);
    }
    // The step after which each value's memory is of no use.
    std::vector<size_t> last_uses() const {
        const std::vector<Value>& values = network_.values();
        const size_t end = network_.steps().size();
        std::vector<size_t> last(values.size(), end);
        for (size_t i = 0; i < end; ++i)
            for (size_t input : network_.steps()[i]->inputs)
                last[values[input].owner] = i;
        for (int64_t index : network_.given())
            if (index >= 0)
                last[values[static_cast<size_t>(index)].owner] = end;
        return last;
    }
    // An input whose place a step may take over, since nobody else reads it any more.
    size_t find_heir(const Step& step, const std::vector<size_t>& last, size_t now) const {
        for (size_t input : step.inputs) {
            const Value& x = network_.values()[input];
            if (x.home == Home::Work && x.owner == input && last[input] == now &&
                x.size() == network_.values()[step.output].size())
                return input;
        }
        return kNone;
    }

    void grow(size_t capacity) {
        capacity_ = capacity;
        work_.resize(size_ * capacity);
        memory_.resize(places_.size());
        for (size_t i = 0; i < places_.size(); ++i)
            memory_[i] = work_.data() + places_[i] * capacity;
        filled_ = 0;
    }
    // Anew if the network was told other ones since.
    void fill_constants() {
        if (filled_ == network_.times_told())
            return;
        for (const std::unique_ptr<Step>& step : network_.steps())
            if (const auto* constant = dynamic_cast<const Constant*>(step.get()))
                constant->fill(memory_[constant->output], capacity_);
        filled_ = network_.times_told();
    }
    void give(const Frame& frame, int64_t index, float* to, size_t row) const {
        if (index < 0)
            return;
        const In from = frame.in(static_cast<size_t>(index));
        to += row * from.width;
        for (size_t i = 0; i < from.rows; ++i, to += from.width)
            std::memmove(to, from.at(i), from.width * sizeof(float));
    }

    const Network& network_;
    std::vector<size_t> places_; // of values, for one observation
    size_t size_ = 0, most_ = 0, capacity_ = 0;
    Buffer work_;
    std::vector<float*> memory_; // of values
    size_t filled_ = 0;          // how often the network had been told when constants were written
    std::mutex mutex_;
};

} // namespace fugu::nets
