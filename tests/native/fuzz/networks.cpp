// Any network, told with any numbers, for rows and states of any bits.
//
// What does not fit is refused. What a row gives is the same alone and among others, to the bit,
// unless it is no number: those differ in their signs.
#include <array>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <vector>

#include "input.hpp"
#include "nets/runner.hpp"
#include "nets/targets.hpp"

namespace {

using namespace fugu::nets;

constexpr size_t kBytes = 96, kState = 6, kMost = 4096; // numbers of a value
constexpr size_t kBatch = 5;

class Teller {
public:
    Teller(Input& input, Network& net) : input_(input), net_(net) {}

    void tell() {
        net_.begin();
        net_.read(1, 8, {0, Type::F32});
        for (int i = 0; i < 24 && !input_.empty(); ++i)
            try {
                operation();
            } catch (const std::invalid_argument&) {
            }
        size_t last = net_.values().size() - 1;
        if (net_.values()[last].rows != 1)
            last = net_.reshape(last, 1, net_.values()[last].size());
        net_.end({static_cast<int64_t>(last), -1, -1});
    }

private:
    size_t number() { return input_.below(20); }
    size_t any_number() {
        const size_t odd[] = {~size_t{0}, size_t{1} << 63, size_t{1} << 32, 0, 1, 2, 63, 64};
        return input_.below(8) ? number() : odd[input_.below(8)];
    }
    // Mostly what was told last.
    size_t value() {
        const size_t last = net_.values().size() - 1;
        return input_.below(3) ? last : any_number();
    }
    size_t width(size_t index) {
        return index < net_.values().size() ? net_.values()[index].width : 1;
    }
    Place place() { return {any_number(), static_cast<Type>(input_.below(12))}; }
    Matrix matrix(size_t rows, size_t columns) {
        if (rows > kMost || columns > kMost || rows * columns > kMost)
            throw std::invalid_argument("too large for a test");
        kept_.emplace_back(rows * columns + 1);
        for (float& weight : kept_.back())
            weight = static_cast<float>(input_.take<int8_t>()) / 16;
        return {kept_.back().data(), rows, columns};
    }
    std::vector<int64_t> integers(size_t count) {
        std::vector<int64_t> out(count);
        for (int64_t& each : out)
            each = input_.below(6) ? input_.take<int8_t>() : input_.take<int64_t>();
        return out;
    }
    std::vector<int64_t> small(size_t count) {
        std::vector<int64_t> out(count);
        for (int64_t& each : out)
            each = input_.below(9) ? static_cast<int64_t>(number()) : INT64_MAX;
        return out;
    }
    Image image() { return {any_number(), any_number(), any_number()}; }

    void operation() {
        const size_t all = net_.values().size();
        for (const Value& value : net_.values())
            if (value.rows > kMost || value.width > kMost || value.size() > kMost)
                throw std::invalid_argument("too large for a test");
        tell_one(input_.below(20), value());
        promise(net_.values().size() >= all, "values stay", "networks");
    }

    void tell_one(size_t kind, size_t from) {
        switch (kind) {
        case 0:
            net_.read(any_number(), any_number(), place());
            return;
        case 1: {
            const size_t count = number() % 4;
            const std::vector<int64_t> counts = small(count);
            for (const int64_t each : counts)
                if (each > 64)
                    throw std::invalid_argument("too large for a test");
            net_.one_hot(any_number(), place(), integers(count), counts);
            return;
        }
        case 2: {
            const size_t count = number() % 4;
            const Matrix table = matrix(number(), 3);
            net_.embed(number(), place(), integers(count), small(count), small(count), table);
            return;
        }
        case 3:
            net_.state(any_number(), any_number());
            return;
        case 4:
            net_.constant(matrix(1 + number() % 3, 1 + number()));
            return;
        case 5:
            net_.scale(from, std::vector<float>(width(from), 0.5f),
                       std::vector<float>(width(from), 2.0f), 10.0f);
            return;
        case 6:
            net_.normalise(from, matrix(1, width(from)), matrix(1, width(from)), 1e-5f);
            return;
        case 7:
        case 8: {
            const size_t out = 1 + number();
            net_.linear(from, matrix(out, width(from)), matrix(1, out));
            return;
        }
        case 9:
        case 10:
            net_.apply(from, static_cast<Function>(input_.below(8)));
            return;
        case 11:
            net_.combine(from, value(), static_cast<Pair>(input_.below(2)));
            return;
        case 12:
            net_.blend(from, value(), value());
            return;
        case 13:
            net_.join({from, value()});
            return;
        case 14:
            net_.cut(from, any_number(), any_number());
            return;
        case 15:
            net_.reshape(from, any_number(), any_number());
            return;
        case 16: {
            std::vector<size_t> shape(number() % 4), order(shape.size());
            for (size_t i = 0; i < shape.size(); ++i)
                shape[i] = any_number(), order[i] = any_number();
            net_.permute(from, shape, order);
            return;
        }
        case 17: {
            const size_t kernel = any_number(), stride = any_number(), padding = any_number();
            const Image one = image(), other = image();
            if (input_.below(2)) {
                net_.pool(from, one, other, kernel, stride, padding);
                return;
            }
            const Matrix weight = matrix(other.channels, kernel * kernel * one.channels);
            net_.convolve(from, one, other, kernel, stride, padding, input_.below(2), weight,
                          std::vector<float>(other.channels, 0.5f));
            return;
        }
        case 18:
            net_.reduce(from, static_cast<Reduction>(input_.below(3)), any_number());
            return;
        default:
            net_.attend(from, value(), value(), value(), any_number(), matrix(1, number()));
        }
    }

    Input& input_;
    Network& net_;
    std::vector<std::vector<float>> kept_;
};

bool same(const std::vector<float>& one, const std::vector<float>& other) {
    for (size_t i = 0; i < one.size(); ++i)
        if (std::memcmp(&one[i], &other[i], sizeof(float)) &&
            !(std::isnan(one[i]) && std::isnan(other[i])))
            return false;
    return true;
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    Input input(data, size);
    const std::unique_ptr<Network> net =
        std::make_unique<Network>(*usable_kernels()[0], kBytes, input.below(2) == 0, kState);
    std::vector<char> rows(kBatch * kBytes);
    std::vector<float> states(kBatch * kState);
    input.bytes(rows.data(), kBytes), input.bytes(states.data(), kState * sizeof(float));
    for (size_t i = kBytes; i < rows.size(); ++i)
        rows[i] = static_cast<char>(i * 7);
    Teller teller(input, *net);
    teller.tell();
    const size_t width = net->values()[static_cast<size_t>(net->given()[0])].width;
    if (width > kMost)
        return 0;
    std::vector<float> params(kBatch * width + 1), alone(params);
    Runner runner(*net);
    runner.forward(rows.data(), states.data(), kBatch, params.data(), nullptr, nullptr);
    for (size_t i = 0; i < kBatch; ++i)
        runner.forward(rows.data() + i * kBytes, states.data() + i * kState, 1,
                       alone.data() + i * width, nullptr, nullptr);
    promise(same(params, alone), "a row is the same alone", "networks");
    return 0;
}
