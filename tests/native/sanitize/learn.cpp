// Learns with a network of every operation that knows the way back, for every kind of processor
// here and with both kinds of products: twice the same, whatever the threads.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "core/fugu_random.h"
#include "learn/forward.hpp"
#include "learn/gradients.hpp"
#include "nets/targets.hpp"

namespace {

using namespace fugu::nets;

constexpr size_t kNumbers = 13, kBytes = 4 * kNumbers + 4, kHidden = 9, kState = 4 * kHidden;
constexpr size_t kRows = 45, kLength = 7, kSteps = kRows * kLength;

std::vector<float> floats(FuguRandom& random, size_t count) {
    std::vector<float> out(count);
    for (float& value : out)
        value = 0.3f * fugu_normal(&random);
    return out;
}

// Learned numbers, one after the other out of a block.
struct Taken {
    float* next;

    Matrix matrix(size_t rows, size_t columns) {
        const Matrix found{next, rows, columns};
        next += rows * columns;
        return found;
    }
};

size_t remember(Network& net, Taken& taken, size_t value, Cell cell, size_t begin) {
    const size_t gates = gates_of(cell) * kHidden;
    value = net.linear(value, taken.matrix(gates, kHidden), taken.matrix(1, gates));
    const bool scan = cell == Cell::Mingru;
    return net.recur(value, cell, begin, scan ? Matrix{} : taken.matrix(gates, kHidden),
                     scan ? Matrix{} : taken.matrix(1, gates));
}

void tell(Network& net, float* block) {
    Taken taken{block};
    const Place bytes{4 * kNumbers, Type::U8};
    net.begin();
    const size_t seen =
        net.scale(net.read(1, kNumbers, {0, Type::F32}), std::vector<float>(kNumbers, 0.1f),
                  std::vector<float>(kNumbers, 2.0f), 10.0f);
    const size_t hot = net.one_hot(2, bytes, {0, 3}, {3, 9});
    size_t items = net.linear(hot, taken.matrix(5, 12), taken.matrix(1, 5));
    items = net.keep(items, net.cut(hot, 1, 1));
    items = net.combine(items, net.constant(taken.matrix(2, 5)), Pair::Add);
    const size_t pooled =
        net.join({net.reduce(items, Reduction::Sum, 2), net.reduce(items, Reduction::Mean, 2),
                  net.reduce(items, Reduction::Largest, 2)});
    const size_t known =
        net.reshape(net.embed(2, bytes, {0, 0}, {4, 60}, {0, 4}, taken.matrix(64, 3)), 1, 12);
    size_t value = net.join({seen, pooled, known});
    for (const Function function :
         {Function::Gelu, Function::Silu, Function::Tanh, Function::Sigmoid, Function::Relu}) {
        const size_t width = value == net.values().size() - 1 && function == Function::Gelu
                                 ? kNumbers + 15 + 12
                                 : kHidden;
        value = net.linear(value, taken.matrix(kHidden, width), taken.matrix(1, kHidden));
        value = net.normalise(value, taken.matrix(1, kHidden), taken.matrix(1, kHidden), 1e-5f);
        value = net.apply(value, function);
    }
    value = remember(net, taken, value, Cell::Lstm, 0);
    value = remember(net, taken, value, Cell::Gru, 2 * kHidden);
    value = remember(net, taken, value, Cell::Mingru, 3 * kHidden);
    const size_t out = net.linear(value, taken.matrix(8, kHidden), taken.matrix(1, 8));
    const size_t log_std = net.constant(taken.matrix(1, 2));
    net.end({static_cast<int64_t>(net.join({net.cut(out, 0, 7), log_std})),
             static_cast<int64_t>(net.cut(out, 7, 1)), -1});
}

void check(bool good, const char* what, const Kernels& kernels) {
    if (good)
        return;
    std::printf("learn: %s (%s)\n", what, kernels.name);
    std::exit(1);
}

void run_target(const Kernels& kernels, bool pairs) {
    FuguRandom random{7};
    std::vector<float> block = floats(random, 4000), grads(block.size()), again(block.size());
    Network net(kernels, kBytes, false, kState);
    net.learn(block.data(), block.size());
    tell(net, block.data());
    net.reload(pairs ? Words::Pairs : Words::Floats);
    std::vector<char> table((kRows + 9) * kLength * kBytes, 0);
    for (size_t i = 0; i < table.size() / kBytes; ++i) {
        const std::vector<float> numbers = floats(random, kNumbers);
        std::memcpy(table.data() + i * kBytes, numbers.data(), 4 * kNumbers);
        for (size_t j = 4 * kNumbers; j < kBytes; ++j)
            table[i * kBytes + j] = static_cast<char>(fugu_below(&random, 70));
    }
    std::vector<int64_t> places(kRows);
    for (size_t i = 0; i < kRows; ++i)
        places[i] = static_cast<int64_t>((i * 5) % (kRows + 9));
    std::vector<uint8_t> resets(kSteps), masks(kSteps * 5, 1);
    std::vector<float> samples(kSteps * 4, 0.0f), weights(kSteps, 1.0f), ratios(kSteps);
    for (size_t i = 0; i < kSteps; ++i) {
        resets[i] = fugu_below(&random, 8) == 0, weights[i] = i % 11 ? 1.0f : 0.0f;
        samples[4 * i] = static_cast<float>(fugu_below(&random, 2));
        samples[4 * i + 1] = static_cast<float>(fugu_below(&random, 3));
    }
    const std::vector<float> states = floats(random, kRows * kState);
    const std::vector<float> log_probs = floats(random, kSteps), values = floats(random, kSteps);
    const std::vector<float> returns = floats(random, kSteps), merits = floats(random, kSteps);
    const int64_t choices[] = {2, 3};
    fugu::learn::Experience given;
    given.rows = kRows, given.length = kLength, given.observations = table.data();
    given.places = places.data(), given.states = states.data(), given.resets = resets.data();
    fugu::PpoTask& task = given.loss;
    task.rows = kSteps, task.heads = 2, task.width = 5, task.dims = 2, task.critics = 1;
    task.choices = choices, task.samples = samples.data(), task.masks = masks.data();
    task.old_log_probs = log_probs.data(), task.old_values = values.data();
    task.returns = returns.data(), task.advantages = merits.data();
    task.weights = weights.data(), task.ratios = ratios.data();
    task.clip = task.value_clip = 0.2, task.value_coefficient = 0.5, task.normaliser = 100.0;
    fugu::learn::Gradients gradients(net);
    for (const size_t threads : {1, 3}) {
        check(gradients.compute(given, grads.data(), threads, pairs).good, "samples", kernels);
        gradients.compute(given, again.data(), threads, pairs);
        check(std::memcmp(grads.data(), again.data(), grads.size() * sizeof(float)) == 0,
              "gradients differ", kernels);
    }
    fugu::learn::Forward forward(net);
    std::vector<float> params(kRows * 9), said(kRows), after(kRows * kState);
    forward.compute({table.data(), states.data(), params.data(), said.data(), after.data()}, kRows,
                    2, pairs);
    for (const float number : params)
        check(number - number == 0.0f, "no numbers", kernels);
}

} // namespace

void run_learning() {
    for (const Kernels* kernels : usable_kernels())
        for (const bool pairs : {false, true})
            run_target(*kernels, pairs);
    std::printf("learn: clean\n");
}
