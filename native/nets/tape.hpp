// A network that learns: memory of one thread for its values, their gradients, and what its steps
// keep; a pass forth and one back.
#pragma once

#include "nets/network.hpp"

namespace fugu::nets {

// What the way back through a network is made of; the same for all threads.
class Way {
public:
    explicit Way(const Network& network) : network_(network) {
        const std::vector<Value>& values = network.values();
        wanted_.assign(values.size(), 0), cleared_.assign(values.size(), 0);
        for (const std::unique_ptr<Step>& step : network.steps()) {
            bool wanted = step->learned();
            for (size_t input : step->inputs)
                wanted |= wanted_[values[input].owner] != 0;
            wanted_[step->output] = wanted;
            require(!wanted || step->goes_back(), "learn: an operation without a gradient");
        }
        for (int64_t given : network.given())
            if (given >= 0)
                cleared_[values[static_cast<size_t>(given)].owner] = 1;
        for (const std::unique_ptr<Step>& step : network.steps())
            for (size_t input : step->inputs)
                if (values[input].owner != input) // a part of a value leaves the rest unwritten
                    cleared_[values[input].owner] = 1;
        find_first_writers();
        find_heirs();
    }

    const Network& network() const { return network_; }
    bool wanted(size_t value) const { return wanted_[value] != 0; }
    // Whether its gradients are added to zeros.
    bool cleared(size_t value) const { return cleared_[value] != 0; }
    const uint8_t* adds(size_t step) const { return adds_[step].data(); }
    // Whether nobody needs a step's input any more once it has run.
    bool inherits(size_t step) const { return heir_[step] != 0; }

private:
    void find_heirs() {
        const auto& steps = network_.steps();
        std::vector<size_t> takers(network_.values().size(), 0);
        std::vector<const Step*> giver(network_.values().size(), nullptr);
        for (const std::unique_ptr<Step>& step : steps) {
            giver[step->output] = step.get();
            for (size_t input : step->inputs)
                ++takers[network_.values()[input].owner];
        }
        for (const std::unique_ptr<Step>& step : steps) {
            const size_t input = step->inputs.empty() ? 0 : step->inputs[0];
            const Step* const before = step->inputs.size() == 1 ? giver[input] : nullptr;
            heir_.push_back(before && step->overwrites_input() && wanted_[input] &&
                            !cleared_[input] && takers[input] == 1 && !before->looks_back());
        }
    }

    void find_first_writers() {
        const auto& steps = network_.steps();
        std::vector<uint8_t> written = cleared_;
        adds_.resize(steps.size());
        for (size_t i = steps.size(); i-- > 0;) {
            for (size_t input : steps[i]->inputs) {
                uint8_t& before = written[network_.values()[input].owner];
                adds_[i].push_back(before);
                if (wanted_[steps[i]->output])
                    before = 1;
            }
        }
    }

    const Network& network_;
    std::vector<uint8_t> wanted_, cleared_;  // by values
    std::vector<std::vector<uint8_t>> adds_; // by steps and their inputs
    std::vector<uint8_t> heir_;              // by steps
};

class Tape {
public:
    // For so many observations at once. Without a way it only runs forth.
    Tape(const Network& network, const Way* way, size_t capacity)
        : network_(network), way_(way), capacity_(capacity),
          frame_{network.kernels(), network.values(), memory_} {
        lay_out();
        frame_.row_bytes = network.row_bytes(), frame_.scratch = &scratch_;
        frame_.lesson = way ? &lesson_ : nullptr;
    }
    Tape(const Tape&) = delete;
    Tape& operator=(const Tape&) = delete;

    size_t capacity() const { return capacity_; }
    const Network& network() const { return network_; }
    // What goes through next; its count, rows, states and segments are the caller's to set.
    Frame& frame() { return frame_; }

    void forth() {
        if (filled_ != network_.times_told()) {
            for (const std::unique_ptr<Step>& step : network_.steps())
                if (const auto* constant = dynamic_cast<const Constant*>(step.get()))
                    constant->fill(memory_[constant->output], capacity_);
            filled_ = network_.times_told();
        }
        for (const std::unique_ptr<Step>& step : network_.steps())
            step->run(frame_);
    }
    // A value that the network gives: 0 params, 1 values.
    In given(size_t part) const {
        const int64_t index = network_.given()[part];
        return index < 0 ? In{} : frame_.in(static_cast<size_t>(index));
    }

    // Gradients of what was given, then all those before; weights' are added to this block.
    void back(const In& params, const In& values, float* weights) {
        lesson_.weights = weights;
        const std::vector<Value>& all = network_.values();
        for (size_t i = 0; i < all.size(); ++i)
            if (lesson_.grads[i] && way_->cleared(i))
                std::fill_n(lesson_.grads[i], all[i].size() * frame_.count, 0.0f);
        const In given[] = {params, values};
        for (size_t part = 0; part < 2; ++part)
            if (const int64_t index = network_.given()[part]; index >= 0)
                if (const Out out = frame_.grad(static_cast<size_t>(index)); out.data)
                    give(frame_, given[part], out, true);
        for (size_t i = network_.steps().size(); i-- > 0;) {
            Step& step = *network_.steps()[i];
            if (!way_->wanted(step.output))
                continue;
            lesson_.adds = way_->adds(i);
            step.back(frame_);
        }
    }

private:
    void lay_out() {
        const std::vector<Value>& values = network_.values();
        memory_.assign(values.size(), nullptr);
        lesson_.grads.assign(values.size(), nullptr), lesson_.kept.assign(values.size(), nullptr);
        size_t size = 0;
        const auto place = [&](size_t numbers) {
            const size_t begin = size;
            size += Places::rounded(numbers * capacity_);
            return begin;
        };
        // First where everything stands, by places; then as pointers.
        std::vector<size_t> home(values.size(), kNone), grad(home), kept(home);
        for (size_t i = 0; i < network_.steps().size(); ++i) {
            const Step& step = *network_.steps()[i];
            const size_t numbers = values[step.output].size();
            const bool wanted = way_ && way_->wanted(step.output);
            const bool heir = wanted && way_->inherits(i), in_place = heir && step.in_place();
            home[step.output] = in_place ? home[step.inputs[0]] : place(numbers);
            if (!wanted)
                continue;
            if (in_place) // gradients stand where those of the input will
                grad[step.output] = grad[step.inputs[0]];
            else
                grad[step.output] = place(numbers);
            if (heir && !in_place)
                grad[step.inputs[0]] = home[step.inputs[0]];
            if (step.kept_size())
                kept[step.output] = place(numbers * step.kept_size());
        }
        work_.resize(size);
        for (size_t i = 0; i < values.size(); ++i) {
            memory_[i] = at(home[i]);
            lesson_.grads[i] = at(grad[i]), lesson_.kept[i] = at(kept[i]);
        }
    }
    float* at(size_t place) const { return place == kNone ? nullptr : work_.data() + place; }

    static constexpr size_t kNone = static_cast<size_t>(-1);

    const Network& network_;
    const Way* way_;
    size_t capacity_, filled_ = 0;
    std::vector<float*> memory_;
    Lesson lesson_;
    Scratch scratch_;
    Buffer work_;
    Frame frame_;
};

} // namespace fugu::nets
