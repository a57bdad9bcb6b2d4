// Learns with a network of every operation that knows the way back, for every kind of processor
// here and with both kinds of products: twice the same, whatever the threads. Then collects steps
// of every environment with one agent: the same, whatever the threads.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "core/actions.hpp"
#include "core/fugu_random.h"
#include "learn/forward.hpp"
#include "learn/gradients.hpp"
#include "learn/orthogonalise.hpp"
#include "learn/rollout.hpp"
#include "nets/targets.hpp"

extern "C" const FuguDefinition* const all_environments[]; // ends with a null

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
    constexpr size_t kTotal = kRows + 9, kAll = kTotal * kLength, kCount = kRows + 2;
    std::vector<char> table(kAll * kBytes, 0);
    for (size_t i = 0; i < kAll; ++i) {
        const std::vector<float> numbers = floats(random, kNumbers);
        std::memcpy(table.data() + i * kBytes, numbers.data(), 4 * kNumbers);
        for (size_t j = 4 * kNumbers; j < kBytes; ++j)
            table[i * kBytes + j] = static_cast<char>(fugu_below(&random, 70));
    }
    std::vector<int64_t> places(kRows), own(kRows);
    for (size_t i = 0; i < kRows; ++i) {
        places[i] = static_cast<int64_t>((i * 5) % kTotal);
        own[i] = static_cast<int64_t>((i * 3) % kCount);
    }
    std::vector<uint8_t> masks(kAll * 5, 1), terminations(kAll), truncations(kAll), valid(kAll);
    std::vector<float> samples(kAll * 4, 0.0f), weights(kRows, 1.0f), ratios(kLength * kCount);
    for (size_t i = 0; i < kAll; ++i) {
        terminations[i] = fugu_below(&random, 8) == 0, valid[i] = i % 11 != 0;
        samples[4 * i] = static_cast<float>(fugu_below(&random, 2));
        samples[4 * i + 1] = static_cast<float>(fugu_below(&random, 3));
    }
    std::vector<float> states = floats(random, kTotal * kState), log_probs = floats(random, kAll);
    std::vector<float> values = floats(random, kAll + kTotal);
    const std::vector<float> advantages = floats(random, kLength * kCount);
    const std::vector<float> merits = floats(random, kSteps);
    const int64_t choices[] = {2, 3};
    fugu::learn::Experience given;
    fugu::learn::Pages& pages = given.pages;
    pages.horizon = kLength, pages.total = kTotal, pages.observations = table.data();
    pages.samples = samples.data(), pages.masks = masks.data(), pages.states = states.data();
    pages.log_probabilities = log_probs.data(), pages.values = values.data();
    pages.terminations = terminations.data(), pages.truncations = truncations.data();
    pages.valid = valid.data();
    given.rows = kRows, given.length = kLength, given.count = kCount;
    given.places = places.data(), given.own = own.data(), given.weights = weights.data();
    given.merits = merits.data(), given.advantages = advantages.data();
    given.ratios = ratios.data();
    fugu::PpoTask& task = given.loss;
    task.heads = 2, task.width = 5, task.dims = 2, task.critics = 1, task.choices = choices;
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
    std::vector<float> alone = floats(random, 90 * 70), shared = alone;
    fugu::learn::Orthogonaliser(kernels, 90, 70, 1).run(alone.data(), {{3.4f, -4.8f, 2.0f}});
    fugu::learn::Orthogonaliser(kernels, 90, 70, 3).run(shared.data(), {{3.4f, -4.8f, 2.0f}});
    check(std::memcmp(alone.data(), shared.data(), alone.size() * sizeof(float)) == 0,
          "orthogonal matrices differ", kernels);
}

// ------------------------------------------------------------------ collecting

constexpr size_t kCopies = 70, kHorizon = 24, kSpare = 3; // rows of the tables that are not ours

const Type kTypes[] = {Type::U8, Type::I8, Type::I16, Type::I32, Type::I64, Type::F32};

// Copies of an environment and all that a collection of it writes, each of its own allocation.
class Table {
public:
    Table(const FuguDefinition& definition, const std::vector<unsigned char>& state,
          const FuguSpec& spec)
        : pool_(&definition, state, spec, {kCopies, 0, true, 0, 0.0}),
          agents_(kCopies * pool_.num_agents()) {
        const FuguGroup& group = spec.groups[0];
        FuguArrays& arrays = pool_.arrays(0);
        const size_t seen = round(group.observation), done = round(group.action);
        const size_t width = fugu::choices_of(group.action);
        observations_.resize(agents_ * seen), final_.resize(agents_ * seen);
        actions_.resize(agents_ * done), masks_.assign(agents_ * width, 1);
        flags_.resize(3, std::vector<uint8_t>(agents_));
        rewards_.resize(agents_), costs_.reserve(1), masks_.reserve(1);
        episodes_.resize(kCopies * pool_.episode_size());
        arrays.observations = observations_.data(), arrays.final = final_.data();
        arrays.actions = actions_.data(), arrays.masks = masks_.data();
        arrays.terminations = flags_[0].data(), arrays.truncations = flags_[1].data();
        arrays.live = flags_[2].data(), arrays.rewards = rewards_.data();
        arrays.costs = costs_.data();
        arrays.observation_bytes = static_cast<uint32_t>(seen);
        arrays.action_bytes = static_cast<uint32_t>(done);
        arrays.mask_width = static_cast<uint32_t>(width);
        pool_.bind_episodes(episodes_.data());
        pool_.start();
        for (uint64_t e = 0; e < kCopies; ++e)
            pool_.reset(e, &e);
        tell_parts(group.action);
    }

    static size_t round(const FuguSpace& space) { return (fugu::bytes_of(space) + 7) / 8 * 8; }

    // Everything that was written, as bytes.
    std::vector<unsigned char> collect(const Network& net, size_t threads, bool pairs) {
        const size_t total = 2 * agents_ + kSpare, numbers = given_.heads + given_.dims;
        const size_t actions = kHorizon + 1, seen = net.row_bytes(), size = net.state_size();
        FuguRandom random{5};
        std::vector<float> uniforms(actions * agents_ * given_.heads + 1);
        for (float& number : uniforms)
            number = fugu_unit(&random);
        const std::vector<float> noise = floats(random, actions * agents_ * given_.dims + 1);
        std::vector<char> rows(total * kHorizon * seen);
        std::vector<uint8_t> masks(total * kHorizon * given_.width + 1);
        std::vector<float> samples(total * kHorizon * numbers), begun(total * size);
        std::vector<float> now(agents_ * size), values(total * (kHorizon + 1));
        std::vector<std::vector<float>> told(3, std::vector<float>(total * kHorizon));
        std::vector<std::vector<uint8_t>> flags(3, std::vector<uint8_t>(total * kHorizon));
        std::vector<double> sums(pool_.episode_size());
        given_.critics = 1, given_.states = now.data();
        given_.uniforms = uniforms.data(), given_.noise = noise.data();
        given_.choices = choices_.data(), given_.episodes = sums.data();
        fugu::learn::Pages& pages = given_.pages;
        pages.horizon = kHorizon, pages.total = total;
        pages.observations = rows.data(), pages.samples = samples.data();
        pages.masks = masks.data(), pages.states = begun.data(), pages.values = values.data();
        pages.log_probabilities = told[0].data(), pages.rewards = told[1].data();
        pages.final_values = told[2].data(), pages.terminations = flags[0].data();
        pages.truncations = flags[1].data(), pages.valid = flags[2].data();
        fugu::learn::Rollout rollout(net, pool_);
        for (const size_t begin :
             {0, 1}) { // as a vector asks for them: a first segment, and a second
            given_.begin = begin, given_.first_segment = kSpare + begin * agents_;
            given_.next_segment = kSpare + (1 - begin) * agents_;
            check(rollout.collect(given_, threads, pairs) == fugu::learn::Collected::Whole,
                  "a collection is not whole", net.kernels());
            pool_.step_now();
        }
        std::vector<unsigned char> written;
        const auto write = [&](const auto& array) {
            const auto* data = reinterpret_cast<const unsigned char*>(array.data());
            written.insert(written.end(), data, data + array.size() * sizeof(array[0]));
        };
        write(rows), write(masks), write(samples), write(begun), write(now), write(values);
        for (size_t i = 0; i < 3; ++i)
            write(told[i]), write(flags[i]);
        return written;
    }

    fugu::learn::Collection& given() { return given_; }

private:
    void tell_parts(const FuguSpace& space) {
        for (int i = 0; i < space.count; ++i) {
            const FuguLeaf& leaf = space.leaves[i];
            const size_t count = fugu::numbers_of(leaf);
            const bool choices = leaf.kind != FUGU_BOX;
            bounds_.emplace_back(count, static_cast<float>(leaf.low));
            const float* const low = bounds_.back().data();
            bounds_.emplace_back(count, static_cast<float>(leaf.high));
            given_.parts.push_back({leaf.offset, count, choices, low, bounds_.back().data()});
            for (size_t k = 0; choices && k < count; ++k)
                choices_.push_back(leaf.choices), given_.width += static_cast<size_t>(leaf.choices);
            given_.heads += choices ? count : 0, given_.dims += choices ? 0 : count;
        }
    }

    fugu::Pool pool_;
    size_t agents_; // of all copies
    std::vector<unsigned char> observations_, final_, actions_;
    std::vector<uint8_t> masks_;
    std::vector<std::vector<uint8_t>> flags_;
    std::vector<float> rewards_, costs_, episodes_;
    std::vector<std::vector<float>> bounds_;
    std::vector<int64_t> choices_;
    fugu::learn::Collection given_;
};

// A network with memory for rows of a space.
void tell(Network& net, float* block, const FuguSpace& space, size_t params) {
    Taken taken{block};
    net.begin();
    std::vector<size_t> seen;
    size_t width = 0;
    for (int i = 0; i < space.count; ++i) {
        const FuguLeaf& leaf = space.leaves[i];
        seen.push_back(net.read(1, fugu::numbers_of(leaf), {leaf.offset, kTypes[leaf.type]}));
        width += fugu::numbers_of(leaf);
    }
    size_t value = seen.size() > 1 ? net.join(seen) : seen[0];
    value = net.linear(value, taken.matrix(kHidden, width), taken.matrix(1, kHidden));
    value = remember(net, taken, net.apply(value, Function::Tanh), Cell::Gru, 0);
    const size_t out =
        net.linear(value, taken.matrix(params + 1, kHidden), taken.matrix(1, params + 1));
    net.end({static_cast<int64_t>(net.cut(out, 0, params)),
             static_cast<int64_t>(net.cut(out, params, 1)), -1});
}

// Whether the core collects for it.
bool collects(const FuguSpec& spec) {
    const FuguGroup& group = spec.groups[0];
    return spec.num_groups == 1 && (group.agents == 1 || spec.all_act) && !group.costs;
}

bool collect(const FuguDefinition& definition, const Kernels& kernels, bool pairs) {
    std::vector<unsigned char> state(definition.state_bytes, 0);
    for (uint32_t i = 0; i < definition.num_settings; ++i) {
        const FuguSetting& setting = definition.settings[i];
        const double value = i ? setting.initial : 7; // max_steps: many episodes are cut off
        const auto whole = static_cast<int32_t>(value);
        const auto real = static_cast<float>(value);
        std::memcpy(state.data() + setting.offset,
                    setting.type == FUGU_INT32 ? static_cast<const void*>(&whole) : &real, 4);
    }
    definition.init(state.data());
    auto spec = std::make_unique<FuguSpec>();
    std::memset(spec.get(), 0, sizeof(FuguSpec));
    definition.describe(state.data(), spec.get());
    if (!collects(*spec))
        return false;
    std::vector<std::vector<unsigned char>> found;
    for (const size_t threads : {1, 3}) {
        Table table(definition, state, *spec);
        const FuguSpace& space = spec->groups[0].observation;
        const size_t params = table.given().width + 2 * table.given().dims;
        FuguRandom random{3};
        std::vector<float> block =
            floats(random, kHidden * (fugu::bytes_of(space) + params + 8 * kHidden + 16));
        Network net(kernels, Table::round(space), false, kHidden);
        net.learn(block.data(), block.size());
        tell(net, block.data(), space, params);
        net.reload(pairs ? Words::Pairs : Words::Floats);
        found.push_back(table.collect(net, threads, pairs));
    }
    check(found[0] == found[1], "collections differ", kernels);
    return true;
}

} // namespace

void run_learning() {
    for (const Kernels* kernels : usable_kernels())
        for (const bool pairs : {false, true})
            run_target(*kernels, pairs);
    size_t collected = 0;
    for (const Kernels* kernels : usable_kernels())
        for (const bool pairs : {false, true})
            for (const FuguDefinition* const* at = all_environments; *at; ++at)
                collected += collect(**at, *kernels, pairs);
    std::printf("learn: clean, %zu collections\n", 2 * collected);
}
