// Memory of a network that learns: an LSTM, a GRU or a MinGRU over whole segments, one step after
// the other, and back again. What stands between the products is kernels/recurrent.hpp's.
#pragma once

#include "kernels/recurrent.hpp"
#include "nets/steps.hpp"

namespace fugu::nets {

enum class Cell { Lstm, Gru, Mingru };

inline size_t gates_of(Cell cell) {
    return cell == Cell::Lstm ? 4 : cell == Cell::Gru ? 3 : 2;
}

// Takes what the weights made of its inputs; gives what it shows. An LSTM's state is what it
// showed, then its cells.
class Recurrent : public Step {
public:
    Recurrent(Cell cell, size_t hidden, size_t begin, size_t state_size)
        : cell_(cell), hidden_(hidden), begin_(begin), state_size_(state_size),
          no_bias_(gates_of(cell) * hidden) {}

    void load(const Kernels& kernels, const Matrix& weight, const float* bias,
              const Learned& learned_weight, const Learned& learned_bias) {
        matrix_ = weight, weight_ = learned_weight, bias_ = learned_bias;
        recurrent_bias_.assign(bias, bias + weight.rows);
        forth_.load(kernels, Packed::forth(weight), nullptr, false);
    }
    bool goes_back() const override { return true; }
    bool learned() const override { return weight_.is(); }
    void reload(const Kernels& kernels, Words words) override {
        if (!weight_.is())
            return;
        forth_.load(kernels, Packed::forth(matrix_), nullptr, false, words);
        back_.load(kernels, Packed::back(matrix_), nullptr, false, words);
        if (bias_.is())
            std::copy_n(bias_.data, recurrent_bias_.size(), recurrent_bias_.begin());
    }
    bool looks_back() const override { return true; }
    bool overwrites_input() const override { return cell_ != Cell::Gru; }
    // What was fed back, an LSTM's cells, and a GRU's gates with the gradients of its recurrent
    // ones; an LSTM's gates stand where its input stood.
    size_t kept_size() const override {
        return cell_ == Cell::Mingru ? 0 : cell_ == Cell::Lstm ? 2 : 8;
    }

    void run(const Frame& frame) override {
        cell_ == Cell::Mingru ? scan(frame) : run_cells(frame);
        if (frame.after)
            for (size_t row = 0; row < frame.count / frame.length; ++row) {
                const float* const shown = frame.out(output).at((row + 1) * frame.length - 1);
                std::copy_n(shown, hidden_, frame.after + row * state_size_ + begin_);
            }
    }
    void back(const Frame& frame) override {
        cell_ == Cell::Mingru ? scan_back(frame) : run_back(frame);
    }

private:
    template <typename T> using Table = fugu::Rows<T>;

    // What is kept of each observation; where nothing is learned, in scratch memory.
    struct Kept {
        float *fed, *cells, *gates, *recurrents_grad;
    };
    Kept kept(const Frame& frame) const {
        const size_t each = frame.count * hidden_;
        const bool learns = frame.lesson && frame.lesson->kept[output];
        float* const data =
            learns ? frame.lesson->kept[output] : frame.scratch->room(2, kept_size() * each);
        if (cell_ == Cell::Lstm)
            return {data, data + each, const_cast<float*>(frame.in(inputs[0]).data), nullptr};
        return {data, nullptr, data + each, data + 5 * each};
    }
    // Time t of a table that has a row for each observation.
    template <typename T> Table<T> at(T* data, size_t width, size_t t, const Frame& frame) const {
        return {data + t * width, static_cast<ptrdiff_t>(frame.length * width)};
    }
    In in(const Table<const float>& rows, size_t count) const {
        return {rows.data, count, hidden_, static_cast<size_t>(rows.stride)};
    }
    static Out out(const Table<float>& rows, size_t count, size_t width) {
        return {rows.data, count, width, static_cast<size_t>(rows.stride)};
    }
    Table<const float> start(const Frame& frame, size_t part) const {
        return {frame.state + begin_ + part * hidden_, static_cast<ptrdiff_t>(state_size_)};
    }
    // Flags of all times, [length, segments]; none if there are none.
    const uint8_t* flags(const Frame& frame) const {
        if (!frame.resets)
            return nullptr;
        const size_t segments = frame.count / frame.length;
        uint8_t* const out =
            reinterpret_cast<uint8_t*>(frame.scratch->room(3, (frame.count + 3) / 4));
        for (size_t row = 0; row < segments; ++row)
            for (size_t t = 0; t < frame.length; ++t)
                out[t * segments + row] = frame.resets[row * frame.length + t];
        return out;
    }

    void run_cells(const Frame& frame) const {
        const size_t segments = frame.count / frame.length, gates = gates_of(cell_) * hidden_;
        const Kept keep = kept(frame);
        const uint8_t* const resets = flags(frame);
        float* const made = frame.scratch->room(4, segments * gates);
        float* const shown = frame.out(output).data;
        for (size_t t = 0; t < frame.length; ++t) {
            const uint8_t* const now = resets ? resets + t * segments : nullptr;
            const Table<const float> before =
                t ? at<const float>(shown, hidden_, t - 1, frame) : start(frame, 0);
            const Table<float> fed = at(keep.fed, hidden_, t, frame);
            for (size_t row = 0; row < segments; ++row)
                if (now && now[row])
                    std::fill_n(fed.at(row), hidden_, 0.0f);
                else
                    std::copy_n(before.at(row), hidden_, fed.at(row));
            forth_.multiply(frame, {fed.data, segments, hidden_, frame.length * hidden_},
                            {made, segments, gates, gates});
            if (cell_ == Cell::Lstm) {
                LstmForth task;
                task.gates = out(at(keep.gates, gates, t, frame), segments, gates);
                task.made = {made, segments, gates, gates}, task.bias = recurrent_bias_.data();
                task.before =
                    in(t ? at<const float>(keep.cells, hidden_, t - 1, frame) : start(frame, 1),
                       segments);
                task.after = out(at(keep.cells, hidden_, t, frame), segments, hidden_);
                task.shown = out(at(shown, hidden_, t, frame), segments, hidden_);
                task.resets = now, task.keeps = frame.lesson != nullptr;
                frame.kernels.lstm_forth(task);
            } else {
                CellForward<float> task;
                task.rows = segments, task.hidden = hidden_, task.resets = now;
                task.inputs = at(frame.in(inputs[0]).data, gates, t, frame);
                task.recurrents = {made, static_cast<ptrdiff_t>(gates)};
                task.input_bias = no_bias_.data(), task.recurrent_bias = recurrent_bias_.data();
                if (frame.lesson)
                    task.kept = at(keep.gates, 4 * hidden_, t, frame);
                task.before = before, task.after = at(shown, hidden_, t, frame);
                recurrent_detail::gru_rows(task, 0, segments);
            }
        }
        if (frame.after && cell_ == Cell::Lstm)
            for (size_t row = 0; row < segments; ++row)
                std::copy_n(keep.cells + ((row + 1) * frame.length - 1) * hidden_, hidden_,
                            frame.after + row * state_size_ + begin_ + hidden_);
    }

    void run_back(const Frame& frame) const {
        const size_t segments = frame.count / frame.length, gates = gates_of(cell_) * hidden_;
        const Kept keep = kept(frame);
        const uint8_t* const resets = flags(frame);
        float* const fed_grad = frame.scratch->room(4, segments * hidden_);
        float* const memory_grad = frame.scratch->room(5, segments * hidden_);
        std::fill_n(fed_grad, segments * hidden_, 0.0f);
        std::fill_n(memory_grad, segments * hidden_, 0.0f);
        float* const shown = frame.out(output).data;
        float* const inputs_grad = frame.grad(inputs[0]).data;
        float* const recurrents_grad = cell_ == Cell::Lstm ? inputs_grad : keep.recurrents_grad;
        if (cell_ == Cell::Lstm && inputs_grad != keep.gates) // gradients overwrite gates
            std::copy_n(keep.gates, frame.count * gates, inputs_grad);
        for (size_t t = frame.length; t-- > 0;) {
            const uint8_t* const now = resets ? resets + t * segments : nullptr;
            const uint8_t* const next = now && t + 1 < frame.length ? now + segments : nullptr;
            const Table<const float> shown_grad =
                at<const float>(frame.given_grad(output).data, hidden_, t, frame);
            if (cell_ == Cell::Lstm) {
                LstmBack task;
                task.gates = out(at(inputs_grad, gates, t, frame), segments, gates);
                task.before =
                    in(t ? at<const float>(keep.cells, hidden_, t - 1, frame) : start(frame, 1),
                       segments);
                task.after = in(at<const float>(keep.cells, hidden_, t, frame), segments);
                task.shown_grad = in(shown_grad, segments);
                task.fed_grad = {fed_grad, segments, hidden_, hidden_};
                task.cell_grad = {memory_grad, segments, hidden_, hidden_};
                task.resets = now, task.next_resets = next;
                frame.kernels.lstm_back(task);
            } else {
                CellBackward<float> task;
                task.rows = segments, task.hidden = hidden_;
                task.resets = now, task.next_resets = next, task.output_grad = shown_grad;
                task.kept = at<const float>(keep.gates, 4 * hidden_, t, frame);
                task.fed_grad = {fed_grad, static_cast<ptrdiff_t>(hidden_)};
                task.memory_grad = {memory_grad, static_cast<ptrdiff_t>(hidden_)};
                task.before = t ? at<const float>(shown, hidden_, t - 1, frame) : start(frame, 0);
                task.inputs_grad = at(inputs_grad, gates, t, frame);
                task.recurrents_grad = at(recurrents_grad, gates, t, frame);
                recurrent_detail::gru_rows(task, 0, segments);
            }
            if (t)
                back_.multiply(frame,
                               {recurrents_grad + t * gates, segments, gates, frame.length * gates},
                               {fed_grad, segments, hidden_, hidden_});
        }
        const In grads{recurrents_grad, frame.count, gates, gates};
        if (weight_.is())
            add_outer(frame, grads, {keep.fed, frame.count, hidden_, hidden_}, weight_.grad(frame));
        if (bias_.is())
            frame.kernels.add_rows(grads, bias_.grad(frame));
    }

    ScanForward<float> scan_task(const Frame& frame) const {
        ScanForward<float> task;
        task.rows = frame.count / frame.length, task.times = frame.length, task.hidden = hidden_;
        task.gates = frame.in(inputs[0]).data, task.start = start(frame, 0);
        task.resets = frame.resets, task.outputs = frame.out(output).data;
        return task;
    }
    void scan(const Frame& frame) const {
        const ScanForward<float> task = scan_task(frame);
        recurrent_detail::scan_rows(task, 0, task.rows);
    }
    void scan_back(const Frame& frame) const {
        ScanBackward<float> task;
        task.forward = scan_task(frame);
        task.outputs = task.forward.outputs, task.outputs_grad = frame.given_grad(output).data;
        task.gates_grad = frame.grad(inputs[0]).data;
        task.start_grad = frame.scratch->room(4, task.forward.rows * hidden_);
        recurrent_detail::scan_rows(task, 0, task.forward.rows);
    }

    Cell cell_;
    size_t hidden_, begin_, state_size_;
    std::vector<float> no_bias_, recurrent_bias_;
    Packed forth_, back_;
    Matrix matrix_;
    Learned weight_, bias_;
};

} // namespace fugu::nets
