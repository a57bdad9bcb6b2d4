// What a network does, step by step: each takes values and gives one. Those that can be learned
// through know the way back: given the gradients of their value, they write or add those of their
// inputs, and add those of their weights.
#pragma once

#include "nets/weights.hpp"

namespace fugu::nets {

class Step {
public:
    virtual ~Step() = default;
    virtual void run(const Frame& frame) = 0;
    // Whether what it gives may stand where an input of the same shape stood.
    virtual bool in_place() const { return false; }

    // Whether it knows the way back, and takes it; whether it has numbers that are learned.
    virtual bool goes_back() const { return false; }
    virtual void back(const Frame&) {}
    virtual bool learned() const { return false; }
    // Numbers that it keeps of each observation for the way back.
    virtual size_t kept_size() const { return 0; }
    // Whether the way back reads what it gave; what did not may be overwritten by who took it.
    virtual bool looks_back() const { return false; }
    // Whether gradients of its input may stand where the input stands.
    virtual bool overwrites_input() const { return false; }
    // The learned numbers have changed.
    virtual void reload(const Kernels&, Words) {}

    std::vector<size_t> inputs;
    size_t output = 0;
};

// Writes numbers, or adds them to what stands there.
inline void give(const Frame& frame, const In& from, const Out& to, bool adds) {
    if (adds)
        return frame.kernels.combine(Pair::Add, from, {to.data, to.rows, to.width, to.stride}, to);
    for (size_t row = 0; row < from.rows; ++row)
        std::copy_n(from.at(row), from.width, to.at(row));
}

class Linear : public Step {
public:
    // What is learned is read again whenever it has changed; the rest is copied.
    void load(const Kernels& kernels, const Matrix& weight, const float* bias,
              const Learned& learned_weight, const Learned& learned_bias) {
        matrix_ = weight, weight_ = learned_weight, bias_ = learned_bias;
        forth_.load(kernels, Packed::forth(weight), bias, true);
    }
    void run(const Frame& frame) override {
        forth_.multiply(frame, frame.in(inputs[0]), frame.out(output));
    }

    bool goes_back() const override { return true; }
    bool learned() const override { return weight_.is(); }
    void reload(const Kernels& kernels, Words words) override {
        if (!weight_.is())
            return;
        forth_.load(kernels, Packed::forth(matrix_), bias_.is() ? bias_.data : nullptr, true,
                    words);
        back_.load(kernels, Packed::back(matrix_), nullptr, true, words);
    }
    void back(const Frame& frame) override {
        const In x = frame.in(inputs[0]), grads = frame.given_grad(output);
        if (const Out out = frame.grad(inputs[0]); out.data)
            back_.multiply(frame, grads, out, frame.lesson->adds[0]);
        if (weight_.is())
            add_outer(frame, grads, x, weight_.grad(frame));
        if (bias_.is())
            frame.kernels.add_rows(grads, bias_.grad(frame));
    }

private:
    Packed forth_, back_;
    Matrix matrix_;
    Learned weight_, bias_;
};

struct Image {
    size_t channels, height, width;

    size_t size() const { return channels * height * width; }
};

// Gives images [height, width, channels]; takes those, or [channels, height, width].
class Convolve : public Step {
public:
    Convolve(const Image& image, const Image& out, size_t kernel, size_t stride, size_t padding,
             bool channels_last)
        : image_(image), padding_(padding), planes_(channels_last ? 1 : image.channels),
          depth_(channels_last ? image.channels : 1) {
        const size_t width = image.width + 2 * padding, height = image.height + 2 * padding;
        task_.step = stride * width * depth_;
        task_.rows = out.height, task_.columns = out.width, task_.channels = out.channels;
        for (size_t plane = 0; plane < planes_; ++plane)
            for (size_t row = 0; row < kernel; ++row)
                pieces_.push_back(static_cast<int32_t>((plane * height + row) * width * depth_));
        stride_ = stride * depth_, length_ = kernel * depth_;
        if (padding)
            padded_.resize(planes_ * height * width * depth_);
    }
    void load(const Kernels& kernels, const Matrix& weight, const float* bias) {
        packed_.load(kernels, Packed::forth(weight), bias, false);
        task_.product = packed_.product();
        task_.product.stride = stride_, task_.product.length = length_;
        task_.product.pieces = pieces_.data(), task_.product.num_pieces = pieces_.size();
    }
    void run(const Frame& frame) override {
        const In images = frame.in(inputs[0]);
        const Out out = frame.out(output);
        for (size_t i = 0; i < images.rows; ++i) {
            const float* const image = padding_ ? pad(images.at(i)) : images.at(i);
            frame.kernels.convolve(task_, image, out.at(i));
        }
    }

private:
    // The image in the midst of zeros, which stay there from one image to the next.
    const float* pad(const float* image) const {
        const size_t row = image_.width * depth_, edge = padding_ * depth_;
        float* out = padded_.data();
        for (size_t plane = 0; plane < planes_; ++plane) {
            out += padding_ * (row + 2 * edge);
            for (size_t y = 0; y < image_.height; ++y, out += row + 2 * edge, image += row)
                std::copy_n(image, row, out + edge);
            out += padding_ * (row + 2 * edge);
        }
        return padded_.data();
    }

    Image image_;
    size_t padding_, planes_, depth_, stride_ = 0, length_ = 0;
    std::vector<int32_t> pieces_;
    Buffer padded_;
    Packed packed_;
    Convolution task_;
};

class Pool : public Step {
public:
    explicit Pool(const Pooling& task) : task_(task) {}
    void run(const Frame& frame) override {
        const In images = frame.in(inputs[0]);
        for (size_t i = 0; i < images.rows; ++i)
            frame.kernels.pool(task_, images.at(i), frame.out(output).at(i));
    }

private:
    Pooling task_;
};

class Apply : public Step {
public:
    explicit Apply(Function function) : function_(function) {}
    bool in_place() const override { return true; }
    void run(const Frame& frame) override {
        const In x = frame.in(inputs[0]);
        const Out out = frame.out(output);
        if (frame.lesson && frame.lesson->grads[output])
            frame.kernels.apply_keeping(function_, x, out, slopes(frame));
        else
            frame.kernels.apply(function_, x, out);
    }

    bool goes_back() const override {
        return function_ != Function::Symlog && function_ != Function::Mingru &&
               function_ != Function::Finite;
    }
    bool overwrites_input() const override { return goes_back(); }
    size_t kept_size() const override { return 1; } // for each number of the value
    void back(const Frame& frame) override {
        const Out kept = slopes(frame), out = frame.grad(inputs[0]);
        const In slope{kept.data, kept.rows, kept.width, kept.stride};
        const In grads = frame.given_grad(output);
        if (frame.lesson->adds[0])
            frame.kernels.add_product(grads, slope, out);
        else
            frame.kernels.combine(Pair::Multiply, grads, slope, out);
    }

private:
    Out slopes(const Frame& frame) const {
        const Out out = frame.out(output);
        return {frame.lesson->kept[output], out.rows, out.width, out.stride};
    }
    Function function_;
};

class Combine : public Step {
public:
    explicit Combine(Pair pair) : pair_(pair) {}
    bool in_place() const override { return true; }
    void run(const Frame& frame) override {
        frame.kernels.combine(pair_, frame.in(inputs[0]), frame.in(inputs[1]), frame.out(output));
    }

    bool goes_back() const override { return pair_ == Pair::Add; }
    void back(const Frame& frame) override {
        for (size_t i = 0; i < 2; ++i)
            if (const Out out = frame.grad(inputs[i]); out.data)
                give(frame, frame.given_grad(output), out, frame.lesson->adds[i]);
    }

private:
    Pair pair_;
};

class Blend : public Step {
public:
    bool in_place() const override { return true; }
    void run(const Frame& frame) override {
        const In start = frame.in(inputs[0]), end = frame.in(inputs[1]);
        frame.kernels.blend(start, end, frame.in(inputs[2]), frame.out(output));
    }
};

// A scale or a layer norm: two numbers for each column.
class Columns : public Step {
public:
    void load(const float* one, const float* other, size_t width) {
        one_.assign(one, one + width), other_.assign(other, other + width);
    }
    bool in_place() const override { return true; }

protected:
    std::vector<float> one_, other_;
};

class Scale : public Columns {
public:
    float most = 0;
    void run(const Frame& frame) override {
        const In x = frame.in(inputs[0]);
        frame.kernels.scale(x, one_.data(), other_.data(), most, frame.out(output));
    }

    bool goes_back() const override { return true; }
    bool looks_back() const override { return true; }
    void back(const Frame& frame) override {
        const In grads = frame.given_grad(output);
        const Out out = frame.grad(inputs[0]), y = frame.out(output);
        for (size_t row = 0; row < grads.rows; ++row)
            for (size_t i = 0; i < grads.width; ++i) {
                const bool inside = y.at(row)[i] > -most && y.at(row)[i] < most;
                const float grad = inside ? grads.at(row)[i] / other_[i] : 0.0f;
                out.at(row)[i] = grad + (frame.lesson->adds[0] ? out.at(row)[i] : 0.0f);
            }
    }
};

class Normalise : public Columns {
public:
    float epsilon = 0;
    Learned weight, bias;
    void run(const Frame& frame) override {
        const In x = frame.in(inputs[0]);
        frame.kernels.normalise(x, one_.data(), other_.data(), epsilon, frame.out(output));
    }

    bool goes_back() const override { return true; }
    bool learned() const override { return weight.is(); }
    void reload(const Kernels&, Words) override {
        if (weight.is())
            load(weight.data, bias.data, one_.size());
    }
    void back(const Frame& frame) override {
        const Out out = frame.grad(inputs[0]);
        if (out.data && !frame.lesson->adds[0])
            for (size_t row = 0; row < out.rows; ++row)
                std::fill_n(out.at(row), out.width, 0.0f);
        frame.kernels.normalise_back(frame.in(inputs[0]), frame.given_grad(output), one_.data(),
                                     epsilon, out, weight.is() ? weight.grad(frame) : nullptr,
                                     bias.is() ? bias.grad(frame) : nullptr);
    }
};

class Reduce : public Step {
public:
    Reduce(Reduction reduction, size_t count) : reduction_(reduction), count_(count) {}
    void run(const Frame& frame) override {
        frame.kernels.reduce(reduction_, frame.in(inputs[0]), count_, frame.out(output));
    }

    bool goes_back() const override { return true; }
    bool looks_back() const override { return true; }
    void back(const Frame& frame) override {
        const In x = frame.in(inputs[0]), grads = frame.given_grad(output);
        const Out y = frame.out(output), out = frame.grad(inputs[0]);
        const bool adds = frame.lesson->adds[0];
        for (size_t row = 0; row < grads.rows; ++row)
            for (size_t i = 0; i < grads.width; ++i) {
                const float most = y.at(row)[i];
                size_t sharers = reduction_ == Reduction::Mean ? count_ : 1;
                if (reduction_ == Reduction::Largest) { // equals share, as torch has it
                    sharers = 0;
                    for (size_t j = 0; j < count_; ++j)
                        sharers += x.at(row * count_ + j)[i] == most;
                }
                const float share = grads.at(row)[i] / static_cast<float>(sharers);
                for (size_t j = 0; j < count_; ++j) {
                    const size_t from = row * count_ + j;
                    const bool counts = reduction_ != Reduction::Largest || x.at(from)[i] == most;
                    out.at(from)[i] = (counts ? share : 0.0f) + (adds ? out.at(from)[i] : 0.0f);
                }
            }
    }

private:
    Reduction reduction_;
    size_t count_;
};

// Values side by side; one alone is copied, so that it stands without gaps.
class Join : public Step {
public:
    void run(const Frame& frame) override {
        const Out out = frame.out(output);
        size_t begin = 0;
        for (size_t input : inputs) {
            const In part = frame.in(input);
            for (size_t row = 0; row < part.rows; ++row)
                std::copy_n(part.at(row), part.width, out.at(row) + begin);
            begin += part.width;
        }
    }

    bool goes_back() const override { return true; }
    void back(const Frame& frame) override {
        In grads = frame.given_grad(output);
        for (size_t i = 0; i < inputs.size(); ++i) {
            const Out out = frame.grad(inputs[i]);
            grads.width = frame.values[inputs[i]].width;
            if (out.data)
                give(frame, grads, out, frame.lesson->adds[i]);
            grads.data += grads.width;
        }
    }
};

class Permute : public Step {
public:
    // Of arrays of this shape, whose axes are put in this order.
    Permute(const std::vector<size_t>& shape, const std::vector<size_t>& order) : from_{0} {
        for (size_t axis : order) {
            size_t step = 1;
            for (size_t i = axis + 1; i < shape.size(); ++i)
                step *= shape[i];
            std::vector<size_t> more;
            for (size_t place : from_)
                for (size_t i = 0; i < shape[axis]; ++i)
                    more.push_back(place + i * step);
            from_.swap(more);
        }
    }
    void run(const Frame& frame) override {
        const In x = frame.in(inputs[0]);
        for (size_t row = 0; row < x.rows; ++row) {
            const float* const in = x.at(row);
            float* const out = frame.out(output).at(row);
            for (size_t i = 0; i < from_.size(); ++i)
                out[i] = in[from_[i]];
        }
    }

private:
    std::vector<size_t> from_;
};

// Rows of the first value where the second one is above 0.
class Keep : public Step {
public:
    bool in_place() const override { return true; }
    void run(const Frame& frame) override {
        const In x = frame.in(inputs[0]), mask = frame.in(inputs[1]);
        const Out out = frame.out(output);
        for (size_t row = 0; row < x.rows; ++row)
            if (*mask.at(row) > 0.0f)
                std::memmove(out.at(row), x.at(row), x.width * sizeof(float));
            else
                std::fill_n(out.at(row), x.width, 0.0f);
    }

    bool goes_back() const override { return true; }
    void back(const Frame& frame) override {
        const In grads = frame.given_grad(output), mask = frame.in(inputs[1]);
        const Out out = frame.grad(inputs[0]);
        for (size_t row = 0; row < grads.rows; ++row)
            for (size_t i = 0; i < grads.width; ++i) {
                const float grad = *mask.at(row) > 0.0f ? grads.at(row)[i] : 0.0f;
                out.at(row)[i] = grad + (frame.lesson->adds[0] ? out.at(row)[i] : 0.0f);
            }
    }
};

class Attend : public Step {
public:
    Attend(size_t heads, size_t places) : heads_(heads) { scores_.resize(places); }
    void load(const Matrix& bias) {
        bias_.assign(bias.data, bias.data + bias.rows * bias.columns), ages_ = bias.columns;
    }
    void run(const Frame& frame) override {
        const In queries = frame.in(inputs[0]), keys = frame.in(inputs[1]);
        const In values = frame.in(inputs[2]), counts = frame.in(inputs[3]);
        const size_t places = scores_.size();
        Attention task;
        task.heads = heads_, task.bias = bias_.data(), task.ages = ages_;
        task.scores = scores_.data();
        for (size_t i = 0; i < queries.rows; ++i) {
            task.query = {queries.at(i), 1, queries.width, queries.width};
            task.keys = {keys.at(i * places), places, keys.width, keys.stride};
            task.values = {values.at(i * places), places, values.width, values.stride};
            task.count = *counts.at(i), task.out = frame.out(output).at(i);
            frame.kernels.attend(task);
        }
    }

private:
    size_t heads_, ages_ = 0;
    std::vector<float> bias_;
    Buffer scores_;
};

} // namespace fugu::nets
