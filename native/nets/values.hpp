// Values of a network: where their numbers stand while it runs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>
#include <vector>

#include "nets/kernels.hpp"

namespace fugu::nets {

// What does not fit is refused as a ValueError; the Python front says what exactly is wrong.
inline void require(bool fits, const char* message) {
    if (!fits)
        throw std::invalid_argument(message);
}

// Of a value: sums of them never overflow, and rows of no width come to an end.
constexpr size_t kMostNumbers = size_t{1} << 40, kMostItems = size_t{1} << 20;

// A product, or more than anything has.
inline size_t product_of(size_t a, size_t b) {
    return a && b > kMostNumbers / a ? kMostNumbers + 1 : a * b;
}
// Whether so many numbers, from one on, are among all.
inline bool within(size_t begin, size_t count, size_t all) {
    return begin <= all && count <= all - begin;
}

// Numbers that begin where a vector may, all of them 0 at first.
class Buffer {
public:
    void resize(size_t size) {
        if (data_ && size == size_)
            return;
        const size_t bytes = std::max<size_t>(size, 1) * sizeof(float); // so that it is never null
        data_.reset(static_cast<float*>(::operator new(bytes, kPlace)));
        size_ = size;
        std::fill_n(data_.get(), size, 0.0f);
    }
    float* data() const { return data_.get(); }
    size_t size() const { return size_; }

private:
    static constexpr std::align_val_t kPlace{64};
    struct Free {
        void operator()(float* data) const { ::operator delete(data, kPlace); }
    };
    std::unique_ptr<float, Free> data_;
    size_t size_ = 0;
};

enum class Home { Work, Constant, Rows, State };

// A table [rows, width] of each observation; it may be a part of another value's.
struct Value {
    size_t rows = 0, width = 0, stride = 0;
    Home home = Home::Work;
    size_t owner = 0; // whose memory it is: the value itself, or another
    size_t begin = 0; // numbers before it, of each observation

    size_t size() const { return rows * width; }
    bool dense() const { return stride == width; }
};

// Memory of one thread for what is only on its way, a few pieces at a time.
class Scratch {
public:
    float* room(size_t piece, size_t size) {
        if (size > pieces_[piece].size())
            pieces_[piece].resize(size);
        return pieces_[piece].data();
    }

private:
    Buffer pieces_[6];
};

// What a network needs to learn beside what it needs to run.
struct Lesson {
    std::vector<float*> grads;     // of each value that owns memory; null where nobody wants it
    std::vector<float*> kept;      // what steps keep of a pass, by their outputs
    float* weights = nullptr;      // gradients of all learned numbers, in the order of their block
    const uint8_t* adds = nullptr; // of the step's inputs: whether others wrote gradients already
};

// Some observations under way. Those of a segment stand side by side, `length` of them; most steps
// do not look at that.
struct Frame {
    const Kernels& kernels;
    const std::vector<Value>& values;
    const std::vector<float*>& memory; // of each value that owns some
    size_t count = 0;                  // observations
    const char* rows = nullptr;
    size_t row_bytes = 0;
    const float* state = nullptr;    // before each segment
    float* after = nullptr;          // after it, where steps write states of their own
    size_t length = 1;               // of a segment
    const uint8_t* resets = nullptr; // of each observation: whether memory begins anew; or none
    bool pairs = false;              // whether products are of bfloat16
    Scratch* scratch = nullptr;
    Lesson* lesson = nullptr; // none while it only runs

    In in(size_t index) const {
        const Value& value = values[index];
        const float* data = nullptr;
        if (value.home == Home::Rows)
            data = reinterpret_cast<const float*>(rows);
        else if (value.home == Home::State)
            data = state;
        else
            data = memory[value.owner];
        return {data + value.begin, count * value.rows, value.width, value.stride};
    }
    Out out(size_t index) const {
        const Value& value = values[index];
        return {memory[index], count * value.rows, value.width, value.width};
    }
    // Gradients of a value; without data where nobody wants them.
    Out grad(size_t index) const {
        const Value& value = values[index];
        float* const data = lesson->grads[value.owner];
        return {data ? data + value.begin : nullptr, count * value.rows, value.width, value.stride};
    }
    In given_grad(size_t index) const {
        const Out grads = grad(index);
        return {grads.data, grads.rows, grads.width, grads.stride};
    }
};

// Places in one block of memory, given and taken back.
class Places {
public:
    static constexpr size_t kGrain = 16; // numbers of the widest vector

    // The first gap that is wide enough, or the end.
    size_t take(size_t size) {
        size = rounded(size);
        size_t place = 0, i = 0;
        for (; i < taken_.size() && taken_[i].first - place < size; ++i)
            place = taken_[i].first + taken_[i].second;
        taken_.insert(taken_.begin() + static_cast<ptrdiff_t>(i), {place, size});
        end_ = std::max(end_, place + size);
        return place;
    }
    void give_back(size_t place) {
        for (size_t i = 0; i < taken_.size(); ++i)
            if (taken_[i].first == place) {
                taken_.erase(taken_.begin() + static_cast<ptrdiff_t>(i));
                return;
            }
    }
    size_t end() const { return end_; }

    static size_t rounded(size_t size) {
        return std::max(size + kGrain - 1, kGrain) / kGrain * kGrain;
    }

private:
    std::vector<std::pair<size_t, size_t>> taken_; // places and sizes, in order
    size_t end_ = 0;
};

} // namespace fugu::nets
