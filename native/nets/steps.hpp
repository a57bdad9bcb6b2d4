// What a network does, step by step: each takes values and gives one.
#pragma once

#include <cstdint>

#include "nets/values.hpp"

namespace fugu::nets {

class Step {
public:
    virtual ~Step() = default;
    virtual void run(const Frame& frame) = 0;
    // Whether what it gives may stand where an input of the same shape stood.
    virtual bool in_place() const { return false; }

    std::vector<size_t> inputs;
    size_t output = 0;
};

// Learned numbers, row by row, as Python has them.
struct Matrix {
    const float* data = nullptr;
    size_t rows = 0, columns = 0;
};

// A matrix as products take it: its rows, which become columns of what comes out, in panels that
// are filled up with zeros; see product.hpp.
class Packed {
public:
    void load(const Kernels& kernels, const Matrix& matrix, const float* bias, bool may_be_narrow) {
        const size_t depth = matrix.columns, width = matrix.rows;
        narrow_ = may_be_narrow && width <= kernels.lanes;
        const size_t panel = narrow_ ? kernels.lanes : 2 * kernels.lanes;
        const size_t panels = (width + panel - 1) / panel;
        weight_.resize(panels * depth * panel), bias_.resize(panels * panel);
        std::copy_n(bias, width, bias_.data());
        for (size_t column = 0; column < width; ++column) {
            float* out = weight_.data() + column / panel * panel * depth + column % panel;
            const float* row = matrix.data + column * depth;
            for (size_t i = 0; i < depth; ++i)
                out[i * panel] = row[i];
        }
    }
    // The task, of which rows and results are missing.
    Product product() const {
        Product task;
        task.weight = weight_.data(), task.bias = bias_.data(), task.narrow = narrow_;
        return task;
    }

private:
    Buffer weight_, bias_;
    bool narrow_ = false;
};

class Linear : public Step {
public:
    void load(const Kernels& kernels, const Matrix& weight, const float* bias) {
        depth_ = weight.columns;
        packed_.load(kernels, weight, bias, true);
    }
    void run(const Frame& frame) override {
        static const int32_t whole = 0;
        Product task = packed_.product();
        const In x = frame.in(inputs[0]);
        task.x = x.data, task.stride = x.stride, task.out = frame.out(output);
        task.pieces = &whole, task.num_pieces = 1, task.length = depth_;
        frame.kernels.product(task);
    }

private:
    Packed packed_;
    size_t depth_ = 0;
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
        packed_.load(kernels, weight, bias, false);
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
        frame.kernels.apply(function_, frame.in(inputs[0]), frame.out(output));
    }

private:
    Function function_;
};

class Combine : public Step {
public:
    explicit Combine(Pair pair) : pair_(pair) {}
    bool in_place() const override { return true; }
    void run(const Frame& frame) override {
        frame.kernels.combine(pair_, frame.in(inputs[0]), frame.in(inputs[1]), frame.out(output));
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
};

class Normalise : public Columns {
public:
    float epsilon = 0;
    void run(const Frame& frame) override {
        const In x = frame.in(inputs[0]);
        frame.kernels.normalise(x, one_.data(), other_.data(), epsilon, frame.out(output));
    }
};

class Reduce : public Step {
public:
    Reduce(Reduction reduction, size_t count) : reduction_(reduction), count_(count) {}
    void run(const Frame& frame) override {
        frame.kernels.reduce(reduction_, frame.in(inputs[0]), count_, frame.out(output));
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
