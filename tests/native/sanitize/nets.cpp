// Runs a network of every operation, for every kind of processor here, on rows and states of their
// own allocation; what it gives twice is the same.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "core/fugu_random.h"
#include "nets/runner.hpp"
#include "nets/targets.hpp"

namespace {

using namespace fugu::nets;

std::vector<float> floats(FuguRandom& random, size_t count) {
    std::vector<float> out(count);
    for (float& value : out)
        value = 0.3f * fugu_normal(&random);
    return out;
}

// Learned numbers that live as long as the network is told them.
struct Told {
    FuguRandom random;
    std::vector<std::vector<float>> kept;

    Matrix matrix(size_t rows, size_t columns) {
        kept.push_back(floats(random, rows * columns));
        return {kept.back().data(), rows, columns};
    }
    Matrix row(size_t count) { return matrix(1, count); }
    std::vector<float> numbers(size_t count) { return floats(random, count); }
};

constexpr size_t kNumbers = 3 * 7 * 6; // an image, and then four bytes
constexpr size_t kBytes = 4 * kNumbers + 4, kState = 9;

size_t tell_image(Network& net, Told& told, bool channels_last) {
    const Image image{3, 7, 6}, small{5, 4, 3};
    size_t value = net.read(1, kNumbers, {0, Type::F32});
    value = net.convolve(value, image, small, 3, 2, 1, channels_last, told.matrix(5, 27),
                         told.numbers(5));
    value = net.pool(value, small, {5, 2, 2}, 3, 2, 1);
    value = net.permute(value, {2, 2, 5}, {2, 0, 1});
    return net.linear(value, told.matrix(33, 20), told.row(33));
}

size_t tell_sets(Network& net, Told& told, size_t width) {
    const Place bytes{4 * kNumbers, Type::U8};
    const size_t hot = net.one_hot(2, bytes, {0, 100}, {3, 90});
    const size_t known = net.embed(2, bytes, {0, 0}, {4, 256}, {0, 4}, told.matrix(260, 3));
    size_t value = net.linear(net.join({hot, known}), told.matrix(width, 99), told.row(width));
    value = net.combine(value, net.constant(told.matrix(2, width)), Pair::Add);
    const size_t mask = net.cut(value, width - 1, 1);
    value = net.keep(value, mask);
    return net.join({net.reduce(value, Reduction::Sum, 2), net.reduce(value, Reduction::Mean, 2),
                     net.reduce(value, Reduction::Largest, 2)});
}

size_t tell_memory(Network& net, Told& told, size_t value, size_t width) {
    const size_t before = net.state(1, kState - 1);
    size_t keys = net.reshape(net.join({before, value, value}), 2 * width + kState - 1, 1);
    keys = net.linear(keys, told.matrix(2 * width, 1), told.row(2 * width));
    keys = net.normalise(keys, told.row(2 * width), told.row(2 * width), 1e-5f);
    const size_t half = net.cut(keys, width, width), whole = net.cut(keys, 0, width);
    const size_t count = net.scale(net.state(0, 1), {-1.0f}, {0.05f}, 40.0f);
    const Matrix bias = told.matrix(1, 2 * width + kState - 1);
    return net.attend(value, whole, half, count, 1, bias);
}

void tell(Network& net, uint64_t seed) {
    Told told{{seed}, {}};
    net.begin();
    size_t value = net.join(
        {tell_image(net, told, true), tell_image(net, told, false), tell_sets(net, told, 17)});
    value = net.linear(value, told.matrix(19, 117), told.row(19));
    value = tell_memory(net, told, value, 19);
    for (const Function function :
         {Function::Gelu, Function::Silu, Function::Tanh, Function::Sigmoid, Function::Symlog,
          Function::Mingru, Function::Finite, Function::Relu})
        value = net.blend(value, net.apply(value, function), value);
    const size_t state = net.linear(value, told.matrix(kState, 19), told.row(kState));
    const size_t params = net.linear(value, told.matrix(70, 19), told.row(70));
    net.end({static_cast<int64_t>(net.cut(params, 3, 67)),
             static_cast<int64_t>(net.cut(params, 0, 1)), static_cast<int64_t>(state)});
}

void run_target(const Kernels& kernels) {
    Network net(kernels, kBytes, false, kState);
    tell(net, 3);
    Runner runner(net);
    FuguRandom random{5};
    for (const size_t batch : {1, 2, 7, 40, 200}) {
        std::vector<char> rows(batch * kBytes);
        for (char& byte : rows)
            byte = static_cast<char>(fugu_below(&random, 60));
        const std::vector<float> state = floats(random, batch * kState);
        std::vector<float> params(batch * 67), values(batch), after(batch * kState), again = params;
        runner.forward(rows.data(), state.data(), batch, params.data(), values.data(),
                       after.data());
        tell(net, 3);
        for (size_t i = 0; i < batch; ++i)
            runner.forward(rows.data() + i * kBytes, state.data() + i * kState, 1,
                           again.data() + i * 67, values.data() + i, after.data() + i * kState);
        if (std::memcmp(params.data(), again.data(), params.size() * sizeof(float)) != 0) {
            std::printf("nets: rows differ by their batch (%s)\n", kernels.name);
            std::exit(1);
        }
    }
}

} // namespace

void run_nets() {
    for (const Kernels* kernels : usable_kernels())
        run_target(*kernels);
    std::printf("nets: clean\n");
}
