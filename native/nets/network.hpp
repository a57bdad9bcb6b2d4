// A network as it is told: values, and the steps that make them.
#pragma once

#include <array>

#include "nets/inputs.hpp"
#include "nets/recurrent.hpp"

namespace fugu::nets {

// It is told its operations one by one, each of which gives the number of its value. Told the same
// ones again, it takes over their numbers and keeps everything else.
class Network {
public:
    // Rows of observations have so many bytes; `floats`: they are float32 and nothing else.
    Network(const Kernels& kernels, size_t row_bytes, bool floats, size_t state_size)
        : kernels_(kernels), row_bytes_(row_bytes), state_size_(state_size), floats_(floats) {}
    Network(const Network&) = delete;
    Network& operator=(const Network&) = delete;

    const Kernels& kernels() const { return kernels_; }
    size_t row_bytes() const { return row_bytes_; }
    size_t state_size() const { return state_size_; }
    const std::vector<Value>& values() const { return values_; }
    const std::vector<std::unique_ptr<Step>>& steps() const { return steps_; }
    // What it gives: params, values of critics, states; -1 where there is no such value.
    const std::array<int64_t, 3>& given() const { return given_; }
    // Whether all of it was told, and how often.
    bool whole() const { return whole_; }
    size_t times_told() const { return times_; }

    void begin() { next_ = 0, whole_ = false; }

    // Numbers that are told and stand in this block are learned; told before the first operation.
    void learn(const float* block, size_t size) { block_ = block, block_size_ = size; }
    size_t num_learned() const { return block_size_; }
    // They have changed: products are of such words from now on.
    void reload(Words words) {
        for (const std::unique_ptr<Step>& step : steps_)
            step->reload(kernels_, words);
        ++times_;
    }

    size_t read(size_t rows, size_t width, const Place& place) {
        require_place(place, product_of(rows, width));
        const size_t numbers = row_bytes_ / sizeof(float);
        Value value{rows, width, width};
        if (floats_ && place.type == Type::F32 && (rows == 1 || numbers == rows * width)) {
            value.home = Home::Rows, value.begin = place.offset / sizeof(float);
            value.stride = rows == 1 ? numbers : width;
            return view(value);
        }
        return add<Read>(value, {}, {place.offset, static_cast<size_t>(place.type)}, place).output;
    }
    size_t one_hot(size_t rows, const Place& place, const std::vector<int64_t>& start,
                   const std::vector<int64_t>& counts) {
        require_choices(place, rows, start, counts);
        size_t width = 0;
        for (int64_t count : counts)
            width += static_cast<size_t>(count);
        const Value value{rows, width, width};
        return add<OneHot>(value, {}, {place.offset}, place, start, counts).output;
    }
    size_t embed(size_t rows, const Place& place, const std::vector<int64_t>& start,
                 const std::vector<int64_t>& counts, const std::vector<int64_t>& offsets,
                 const Matrix& table) {
        require_choices(place, rows, start, counts);
        require(offsets.size() == counts.size(), "embed: shapes do not fit");
        for (size_t i = 0; i < counts.size(); ++i)
            require(offsets[i] >= 0 && within(static_cast<size_t>(offsets[i]),
                                              static_cast<size_t>(counts[i]), table.rows),
                    "embed: the table is too short");
        const size_t width = counts.size() * table.columns;
        Embed& step = add<Embed>({rows, width, width}, {}, {place.offset}, place, start, counts);
        step.offsets = offsets;
        step.load(table, learned(table.data));
        return step.output;
    }
    size_t state(size_t begin, size_t width) {
        require(within(begin, width, state_size_), "state: there are not so many numbers");
        return view({1, width, state_size_, Home::State, 0, begin});
    }
    size_t constant(const Matrix& numbers) {
        Value value{numbers.rows, numbers.columns, numbers.columns, Home::Constant};
        Constant& step = add<Constant>(value, {}, {});
        step.load(numbers, learned(numbers.data));
        return step.output;
    }
    size_t scale(size_t input, const std::vector<float>& shift, const std::vector<float>& divisor,
                 float most) {
        const size_t width = value(input).width;
        require(shift.size() == width && divisor.size() == width, "scale: shapes do not fit");
        Scale& step = add<Scale>(like(input), {input}, {});
        step.load(shift.data(), divisor.data(), width), step.most = most;
        return step.output;
    }
    size_t normalise(size_t input, const Matrix& weight, const Matrix& bias, float epsilon) {
        const size_t width = value(input).width;
        require(weight.columns == width && bias.columns == width, "normalise: shapes do not fit");
        Normalise& step = add<Normalise>(like(input), {input}, {});
        step.load(weight.data, bias.data, width), step.epsilon = epsilon;
        step.weight = learned(weight.data), step.bias = learned(bias.data);
        return step.output;
    }
    size_t linear(size_t input, const Matrix& weight, const Matrix& bias) {
        const Value& x = value(input);
        require(weight.columns == x.width && bias.columns == weight.rows,
                "linear: shapes do not fit");
        const size_t rows = x.rows;
        Linear& step = add<Linear>({rows, weight.rows, weight.rows}, {input}, {});
        step.load(kernels_, weight, bias.data, learned(weight.data), learned(bias.data));
        return step.output;
    }
    // Gates of what is remembered, which begins there in a state.
    size_t recur(size_t input, Cell cell, size_t begin, const Matrix& weight, const Matrix& bias) {
        const size_t gates = value(input).width, hidden = gates / gates_of(cell);
        const bool scan = cell == Cell::Mingru;
        require(value(input).rows == 1 && value(input).dense() &&
                    hidden * gates_of(cell) == gates &&
                    within(begin, hidden * (cell == Cell::Lstm ? 2 : 1), state_size_) &&
                    (scan ||
                     (weight.rows == gates && weight.columns == hidden && bias.columns == gates)),
                "recur: shapes do not fit");
        Recurrent& step =
            add<Recurrent>({1, hidden, hidden}, {input}, {static_cast<size_t>(cell), begin}, cell,
                           hidden, begin, state_size_);
        if (!scan)
            step.load(kernels_, weight, bias.data, learned(weight.data), learned(bias.data));
        return step.output;
    }
    size_t apply(size_t input, Function function) {
        const size_t code = static_cast<size_t>(function);
        return add<Apply>(like(input), {input}, {code}, function).output;
    }
    size_t combine(size_t one, size_t other, Pair pair) {
        require_alike(one, other);
        const size_t code = static_cast<size_t>(pair);
        return add<Combine>(like(one), {one, other}, {code}, pair).output;
    }
    size_t blend(size_t start, size_t end, size_t weight) {
        require_alike(start, end), require_alike(start, weight);
        return add<Blend>(like(start), {start, end, weight}, {}).output;
    }
    size_t join(const std::vector<size_t>& inputs) {
        require(!inputs.empty(), "join: needs a value");
        size_t rows = value(inputs[0]).rows, width = 0;
        for (size_t input : inputs) {
            require(value(input).rows == rows, "join: rows differ");
            width += value(input).width;
        }
        return add<Join>({rows, width, width}, inputs, {}).output;
    }
    size_t cut(size_t input, size_t begin, size_t width) {
        Value part = value(input);
        require(within(begin, width, part.width), "cut: there are not so many columns");
        part.begin += begin, part.width = width;
        return view(part);
    }
    size_t reshape(size_t input, size_t rows, size_t width) {
        require(value(input).size() == product_of(rows, width), "reshape: sizes differ");
        if (!value(input).dense()) // a copy stands without gaps
            input = join({input});
        Value other = value(input);
        other.rows = rows, other.width = other.stride = width;
        return view(other);
    }
    size_t permute(size_t input, const std::vector<size_t>& shape,
                   const std::vector<size_t>& order) {
        size_t size = 1, seen = 0;
        require(shape.size() < 64, "permute: shapes do not fit");
        for (size_t side : shape)
            size = product_of(size, side);
        for (size_t axis : order)
            seen |= axis < shape.size() ? size_t{1} << axis : 0;
        require(size == value(input).width && order.size() == shape.size() &&
                    seen + 1 == size_t{1} << shape.size(),
                "permute: shapes do not fit");
        std::vector<size_t> facts = shape;
        facts.insert(facts.end(), order.begin(), order.end());
        return add<Permute>(like(input), {input}, facts, shape, order).output;
    }
    size_t convolve(size_t input, const Image& image, const Image& out, size_t kernel,
                    size_t stride, size_t padding, bool channels_last, const Matrix& weight,
                    const std::vector<float>& bias) {
        const size_t rows = value(input).rows,
                     depth = product_of(product_of(kernel, kernel), image.channels);
        require_windows(image, out, kernel, stride, padding);
        require(value(input).width == image.size() && weight.columns == depth &&
                    weight.rows == out.channels && bias.size() == out.channels,
                "convolve: shapes do not fit");
        Convolve& step = add<Convolve>({rows, out.size(), out.size()}, {input},
                                       {kernel, stride, padding, channels_last}, image, out, kernel,
                                       stride, padding, channels_last);
        step.load(kernels_, weight, bias.data());
        return step.output;
    }
    size_t pool(size_t input, const Image& image, const Image& out, size_t kernel, size_t stride,
                size_t padding) {
        require_windows(image, out, kernel, stride, padding);
        require(value(input).width == image.size() && out.channels == image.channels &&
                    padding < kernel,
                "pool: shapes do not fit");
        const Pooling task{image.height, image.width, image.channels, out.height,
                           out.width,    kernel,      stride,         padding};
        const Value given{value(input).rows, out.size(), out.size()};
        return add<Pool>(given, {input}, {kernel, stride, padding}, task).output;
    }
    size_t keep(size_t input, size_t mask) {
        require(value(mask).width == 1 && value(mask).rows == value(input).rows,
                "keep: shapes do not fit");
        return add<Keep>(like(input), {input, mask}, {}).output;
    }
    size_t reduce(size_t input, Reduction reduction, size_t count) {
        const Value& x = value(input);
        require(count && x.rows % count == 0, "reduce: rows do not divide");
        const Value given{x.rows / count, x.width, x.width};
        const size_t code = static_cast<size_t>(reduction);
        return add<Reduce>(given, {input}, {code, count}, reduction, count).output;
    }
    size_t attend(size_t query, size_t keys, size_t values, size_t count, size_t heads,
                  const Matrix& bias) {
        const size_t places = value(keys).rows, width = value(query).width;
        require_alike(keys, values);
        require(value(query).rows == 1 && value(keys).width == width && value(count).size() == 1 &&
                    heads && width % heads == 0 && bias.rows == heads && bias.columns >= places,
                "attend: shapes do not fit");
        Attend& step =
            add<Attend>({1, width, width}, {query, keys, values, count}, {heads}, heads, places);
        step.load(bias);
        return step.output;
    }

    // Nothing more comes; these are what it gives.
    void end(const std::array<int64_t, 3>& given) {
        for (int64_t index : given)
            require(index < 0 || value(static_cast<size_t>(index)).rows == 1,
                    "end: a value of several rows");
        require(given[0] >= 0 && next_ == values_.size(), "end: another network");
        require(given[2] < 0 || value(static_cast<size_t>(given[2])).width == state_size_,
                "end: states differ in size");
        given_ = given, whole_ = true, ++times_;
    }

private:
    Learned learned(const float* data) const {
        const bool inside = block_ && data >= block_ && data < block_ + block_size_;
        return {data, inside ? data - block_ : -1};
    }
    Value& value(size_t index) {
        require(index < next_, "network: no such value");
        return values_[index];
    }
    Value like(size_t input) {
        const Value& x = value(input);
        return {x.rows, x.width, x.width};
    }
    void require_alike(size_t one, size_t other) {
        require(value(one).rows == value(other).rows && value(one).width == value(other).width,
                "network: shapes differ");
    }
    void require_place(const Place& place, size_t count) const {
        require(within(place.offset, product_of(count, size_of(place.type)), row_bytes_),
                "read: beyond the end of a row");
    }
    void require_choices(const Place& place, size_t rows, const std::vector<int64_t>& start,
                         const std::vector<int64_t>& counts) const {
        require_place(place, product_of(rows, counts.size()));
        require(place.type != Type::F16 && place.type != Type::F32 && place.type != Type::F64 &&
                    start.size() == counts.size(),
                "choices: need integers");
        for (int64_t count : counts)
            require(count > 0 && count <= INT32_MAX, "choices: there are none, or too many");
    }
    static void require_size(const Value& given) {
        const size_t rows = std::max<size_t>(given.rows, 1);
        require(rows <= kMostItems && product_of(rows, given.width) <= kMostNumbers,
                "network: too many numbers");
    }
    static void require_windows(const Image& image, const Image& out, size_t kernel, size_t stride,
                                size_t padding) {
        for (size_t side : {image.height, image.width, image.channels, out.height, out.width,
                            out.channels, kernel, stride, padding})
            require(side <= size_t{1} << 20, "windows: too large");
        require(kernel && stride && out.height && out.width &&
                    (out.height - 1) * stride + kernel <= image.height + 2 * padding &&
                    (out.width - 1) * stride + kernel <= image.width + 2 * padding,
                "windows: beyond the image");
    }

    // What an operation was told, to tell whether it is told the same again.
    struct Told {
        Value value;
        size_t step; // which one gives it; none if it is a view
        std::vector<size_t> facts;
    };
    static constexpr size_t kNone = static_cast<size_t>(-1);

    static bool same(const Value& a, const Value& b) {
        return a.rows == b.rows && a.width == b.width && a.stride == b.stride && a.home == b.home &&
               a.begin == b.begin;
    }
    // A value that stands in another's memory, or in the caller's.
    size_t view(Value given) {
        require_size(given);
        if (given.home == Home::Rows || given.home == Home::State)
            given.owner = next_;
        if (next_ < told_.size()) {
            const Told& before = told_[next_];
            require(before.step == kNone && same(before.value, given) &&
                        before.value.owner == given.owner,
                    "network: another one");
        } else {
            told_.push_back({given, kNone, {}}), values_.push_back(given);
        }
        return next_++;
    }
    template <typename S, typename... Parts>
    S& add(Value given, const std::vector<size_t>& inputs, std::vector<size_t> facts,
           const Parts&... parts) {
        for (size_t input : inputs)
            facts.push_back(input), value(input);
        require_size(given);
        given.owner = next_;
        if (next_ < told_.size()) {
            const Told& before = told_[next_];
            require(before.step != kNone && same(before.value, given) && before.facts == facts,
                    "network: another one");
            S* const step = dynamic_cast<S*>(steps_[before.step].get());
            require(step, "network: another one");
            return ++next_, *step;
        }
        auto step = std::make_unique<S>(parts...);
        step->inputs = inputs, step->output = next_++;
        told_.push_back({given, steps_.size(), std::move(facts)}), values_.push_back(given);
        steps_.push_back(std::move(step));
        return static_cast<S&>(*steps_.back());
    }

    const Kernels& kernels_;
    const size_t row_bytes_, state_size_;
    const bool floats_;
    const float* block_ = nullptr;
    size_t block_size_ = 0;
    size_t next_ = 0, times_ = 0;
    bool whole_ = false;
    std::vector<Value> values_;
    std::vector<Told> told_; // of each value
    std::vector<std::unique_ptr<Step>> steps_;
    std::array<int64_t, 3> given_{-1, -1, -1};
};

} // namespace fugu::nets
