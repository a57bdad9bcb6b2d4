// Steps that take no value: what observations hold, and constants.
#pragma once

#include <utility>

#include "nets/steps.hpp"

namespace fugu::nets {

// Numbers of observations, from a byte on.
struct Place {
    size_t offset = 0;
    Type type = Type::F32;
};

inline size_t size_of(Type type) {
    switch (type) {
    case Type::Bool:
    case Type::I8:
    case Type::U8:
        return 1;
    case Type::I16:
    case Type::U16:
    case Type::F16:
        return 2;
    case Type::I32:
    case Type::U32:
    case Type::F32:
        return 4;
    default:
        return 8;
    }
}

class Read : public Step {
public:
    explicit Read(const Place& place) : place_(place) {}
    void run(const Frame& frame) override {
        const Out out = frame.out(output);
        const size_t size = out.rows / frame.count * out.width;
        for (size_t i = 0; i < frame.count; ++i)
            frame.kernels.convert(place_.type, frame.rows + i * frame.row_bytes + place_.offset,
                                  size, out.data + i * size);
    }

private:
    Place place_;
};

// Integers of observations, each from a start on and one of so many, the nearest if it is none.
class Choices : public Step {
public:
    Choices(const Place& place, std::vector<int64_t> start, std::vector<int64_t> counts)
        : place_(place), start_(std::move(start)), counts_(std::move(counts)) {}
    size_t columns() const { return counts_.size(); }

protected:
    int64_t choice(const char* numbers, size_t row, size_t column) const {
        const size_t size = size_of(place_.type);
        const char* const at = numbers + (row * columns() + column) * size;
        const int64_t number = integer(at), start = start_[column];
        if (number <= start)
            return 0;
        const uint64_t above = static_cast<uint64_t>(number) - static_cast<uint64_t>(start);
        return static_cast<int64_t>(std::min(above, static_cast<uint64_t>(counts_[column] - 1)));
    }
    Place place_;
    std::vector<int64_t> start_, counts_;

private:
    template <typename T> static int64_t as(const char* from) {
        T number;
        std::memcpy(&number, from, sizeof(number));
        return static_cast<int64_t>(number);
    }
    int64_t integer(const char* from) const {
        switch (place_.type) {
        case Type::I8:
            return as<int8_t>(from);
        case Type::I16:
            return as<int16_t>(from);
        case Type::U16:
            return as<uint16_t>(from);
        case Type::I32:
            return as<int32_t>(from);
        case Type::U32:
            return as<uint32_t>(from);
        case Type::I64:
        case Type::U64:
            return as<int64_t>(from);
        default:
            return as<uint8_t>(from);
        }
    }
};

class OneHot : public Choices {
public:
    using Choices::Choices;
    void run(const Frame& frame) override {
        const Out out = frame.out(output);
        std::fill_n(out.data, out.rows * out.width, 0.0f);
        const size_t rows = out.rows / frame.count;
        for (size_t row = 0; row < out.rows; ++row) {
            const char* const numbers = frame.rows + row / rows * frame.row_bytes + place_.offset;
            float* to = out.at(row);
            for (size_t i = 0; i < columns(); to += counts_[i], ++i)
                to[choice(numbers, row % rows, i)] = 1.0f;
        }
    }
};

class Embed : public Choices {
public:
    using Choices::Choices;
    std::vector<int64_t> offsets;
    void load(const Matrix& table, const Learned& learned) {
        table_.assign(table.data, table.data + table.rows * table.columns);
        width_ = table.columns, learned_ = learned;
    }
    void run(const Frame& frame) override {
        const Out out = frame.out(output);
        const size_t rows = out.rows / frame.count;
        for (size_t row = 0; row < out.rows; ++row) {
            const char* const numbers = frame.rows + row / rows * frame.row_bytes + place_.offset;
            for (size_t i = 0; i < columns(); ++i) {
                const int64_t entry = choice(numbers, row % rows, i) + offsets[i];
                std::copy_n(table_.data() + static_cast<size_t>(entry) * width_, width_,
                            out.at(row) + i * width_);
            }
        }
    }

    bool goes_back() const override { return true; }
    bool learned() const override { return learned_.is(); }
    void reload(const Kernels&, Words) override {
        if (learned_.is())
            std::copy_n(learned_.data, table_.size(), table_.data());
    }
    void back(const Frame& frame) override {
        const In grads = frame.given_grad(output);
        const size_t rows = grads.rows / frame.count;
        for (size_t row = 0; learned_.is() && row < grads.rows; ++row) {
            const char* const numbers = frame.rows + row / rows * frame.row_bytes + place_.offset;
            for (size_t i = 0; i < columns(); ++i) {
                const int64_t entry = choice(numbers, row % rows, i) + offsets[i];
                float* const to = learned_.grad(frame) + static_cast<size_t>(entry) * width_;
                for (size_t j = 0; j < width_; ++j)
                    to[j] += grads.at(row)[i * width_ + j];
            }
        }
    }

private:
    std::vector<float> table_;
    size_t width_ = 0;
    Learned learned_;
};

// Filled in when memory is laid out, and never written again.
class Constant : public Step {
public:
    void load(const Matrix& numbers, const Learned& learned) {
        numbers_.assign(numbers.data, numbers.data + numbers.rows * numbers.columns);
        learned_ = learned;
    }
    void fill(float* to, size_t count) const {
        for (size_t i = 0; i < count; ++i)
            std::copy(numbers_.begin(), numbers_.end(), to + i * numbers_.size());
    }
    void run(const Frame&) override {}

    bool goes_back() const override { return true; }
    bool learned() const override { return learned_.is(); }
    void reload(const Kernels&, Words) override {
        if (learned_.is())
            std::copy_n(learned_.data, numbers_.size(), numbers_.data());
    }
    void back(const Frame& frame) override {
        const In grads = frame.given_grad(output);
        const size_t size = numbers_.size();
        if (learned_.is())
            frame.kernels.add_rows({grads.data, frame.count, size, size}, learned_.grad(frame));
    }

private:
    std::vector<float> numbers_;
    Learned learned_;
};

} // namespace fugu::nets
