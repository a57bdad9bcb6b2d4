// Runs every kernel on random numbers, each array of its own allocation, on one thread and on
// three.
#include <cmath>
#include <cstdio>
#include <vector>

#include "core/fugu_random.h"
#include "kernels/adamw.hpp"
#include "kernels/advantage.hpp"
#include "kernels/gather.hpp"
#include "kernels/priorities.hpp"
#include "kernels/recurrent.hpp"
#include "kernels/sampling.hpp"

namespace {

std::vector<float> floats(FuguRandom& random, size_t count) {
    std::vector<float> out(count);
    for (float& value : out)
        value = fugu_normal(&random);
    return out;
}

std::vector<uint8_t> flags(FuguRandom& random, size_t count, float share) {
    std::vector<uint8_t> out(count);
    for (uint8_t& value : out)
        value = fugu_chance(&random, share);
    return out;
}

template <typename T> fugu::Grid<T> grid(T* data, size_t times, size_t rows, bool time_major) {
    if (time_major)
        return {data, static_cast<ptrdiff_t>(rows), 1};
    return {data, 1, static_cast<ptrdiff_t>(times)};
}

void run_advantages(FuguRandom& random, size_t times, size_t rows, bool time_major,
                    size_t threads) {
    const size_t size = times * rows;
    const auto rewards = floats(random, size), values = floats(random, size + rows);
    const auto finals = floats(random, size), ratios = floats(random, size);
    const auto ended = flags(random, size, 0.05f), cut = flags(random, size, 0.05f);
    const auto valid = flags(random, size, 0.9f), live = flags(random, size, 0.9f);
    std::vector<float> out(size), returns(size);
    std::vector<double> probabilities(rows), uniforms(rows);
    fugu::AdvantageTask task;
    task.horizon = times;
    task.rows = rows;
    task.rewards = grid(rewards.data(), times, rows, time_major);
    task.values =
        time_major ? fugu::Grid<const float>{values.data(), static_cast<ptrdiff_t>(rows), 1}
                   : fugu::Grid<const float>{values.data(), 1, static_cast<ptrdiff_t>(times + 1)};
    task.final_values = grid(finals.data(), times, rows, time_major);
    task.ratios = grid(ratios.data(), times, rows, time_major);
    task.terminations = grid(ended.data(), times, rows, time_major);
    task.truncations = grid(cut.data(), times, rows, time_major);
    task.valid = grid(valid.data(), times, rows, time_major);
    task.live = grid(live.data(), times, rows, time_major);
    task.advantages = grid(out.data(), times, rows, time_major);
    task.returns = grid(returns.data(), times, rows, time_major);
    task.gamma = 0.99f, task.decay = 0.9f, task.rho_clip = 1.0f, task.c_clip = 1.0f;
    fugu::advantages(task, threads);
    if (!time_major)
        return;
    fugu::PriorityTask priority;
    priority.horizon = times;
    priority.rows = rows;
    priority.advantages = grid(static_cast<const float*>(out.data()), times, rows, true);
    priority.alpha = 0.8, priority.epsilon = 1e-6;
    priority.probabilities = probabilities.data();
    fugu::segment_probabilities(priority);
    for (double& value : uniforms)
        value = static_cast<double>(fugu_unit(&random));
    std::vector<int64_t> chosen(rows / 2 + 1);
    std::vector<float> weights(chosen.size());
    fugu::sample_segments(probabilities.data(), uniforms.data(), rows, chosen.size(), 0.5, true,
                          chosen.data(), weights.data());
    std::vector<unsigned char> blocks(rows * 12), gathered(chosen.size() * 12);
    fugu::gather(blocks.data(), 12, chosen.data(), chosen.size(), gathered.data());
}

void run_sampling(FuguRandom& random, size_t batch, size_t threads) {
    const std::vector<int64_t> choices = {3, 1, 600};
    const size_t width = 604, heads = choices.size(), dims = 7;
    const auto logits = floats(random, batch * width), means = floats(random, batch * dims);
    auto masks = flags(random, batch * width, 0.7f);
    const auto live = flags(random, batch, 0.9f);
    std::vector<float> uniforms(batch * heads), log_probabilities(batch), entropies(batch);
    for (float& value : uniforms)
        value = fugu_unit(&random);
    std::vector<int64_t> actions(batch * heads);
    fugu::CategoricalTask task;
    task.batch = batch, task.heads = heads, task.width = width;
    task.choices = choices.data(), task.logits = logits.data(), task.masks = masks.data();
    task.live = live.data(), task.uniforms = uniforms.data(), task.actions = actions.data();
    task.log_probabilities = log_probabilities.data(), task.entropies = entropies.data();
    fugu::sample_categorical(task, threads); // heads without a choice are told, not crashed on
    const auto noise = floats(random, batch * dims), deviations = floats(random, dims);
    std::vector<float> moves(batch * dims);
    fugu::NormalTask normal;
    normal.batch = batch, normal.dims = dims, normal.means = means.data();
    normal.log_stds = deviations.data(), normal.noise = noise.data(), normal.live = live.data();
    normal.actions = moves.data(), normal.log_probabilities = log_probabilities.data();
    normal.entropies = entropies.data();
    fugu::sample_normal(normal, threads);
}

template <typename T> fugu::Rows<T> rows_of(T* data, size_t width) {
    return {data, static_cast<ptrdiff_t>(width)};
}

template <typename P>
void run_recurrent(FuguRandom& random, size_t rows, size_t hidden, size_t threads) {
    const size_t size = rows * hidden, times = 5;
    const std::vector<P> inputs(4 * size), recurrents(4 * size), gates(2 * size * times);
    const auto bias = floats(random, 4 * hidden), before = floats(random, size);
    const auto resets = flags(random, rows * times, 0.2f), next = flags(random, rows, 0.2f);
    std::vector<float> after(size), output(size), kept(4 * size), memory_grad(size);
    std::vector<P> fed(size), inputs_grad(4 * size), recurrents_grad(4 * size);
    fugu::CellForward<P> forward;
    fugu::CellBackward<P> backward;
    forward.rows = backward.rows = rows, forward.hidden = backward.hidden = hidden;
    forward.inputs = rows_of(inputs.data(), 4 * hidden);
    forward.recurrents = rows_of(recurrents.data(), 4 * hidden);
    forward.input_bias = forward.recurrent_bias = bias.data();
    forward.before = backward.before = rows_of(before.data(), hidden);
    forward.resets = backward.resets = resets.data();
    forward.next_resets = backward.next_resets = next.data();
    forward.after = rows_of(after.data(), hidden), forward.output = rows_of(output.data(), hidden);
    forward.kept = rows_of(kept.data(), 4 * hidden), forward.fed = rows_of(fed.data(), hidden);
    backward.kept = rows_of(static_cast<const float*>(kept.data()), 4 * hidden);
    backward.after = rows_of(static_cast<const float*>(after.data()), hidden);
    backward.output_grad = rows_of(static_cast<const float*>(output.data()), hidden);
    backward.fed_grad = rows_of(static_cast<const P*>(fed.data()), hidden);
    backward.memory_grad = rows_of(memory_grad.data(), hidden);
    backward.inputs_grad = rows_of(inputs_grad.data(), 4 * hidden);
    backward.recurrents_grad = rows_of(recurrents_grad.data(), 4 * hidden);
    fugu::lstm_step(forward, threads), fugu::lstm_step(backward, threads);
    fugu::gru_step(forward, threads), fugu::gru_step(backward, threads);
    std::vector<float> outputs(size * times);
    std::vector<P> gates_grad(gates.size());
    fugu::ScanBackward<P> scan;
    scan.forward.rows = rows, scan.forward.times = times, scan.forward.hidden = hidden;
    scan.forward.gates = gates.data(), scan.forward.start = forward.before;
    scan.forward.resets = resets.data(), scan.forward.outputs = outputs.data();
    fugu::mingru_scan(scan.forward, threads);
    scan.outputs = scan.outputs_grad = outputs.data();
    scan.gates_grad = gates_grad.data(), scan.start_grad = after.data();
    fugu::mingru_scan(scan, threads);
}

void run_adamw(FuguRandom& random, size_t size, size_t threads) {
    auto weights = floats(random, size), means = floats(random, size);
    const auto grads = floats(random, size);
    std::vector<float> squares(size);
    const fugu::AdamWBlock block{weights.data(), grads.data(), means.data(), squares.data(), size};
    for (const double step : {1.0, 2.0})
        fugu::adamw(block, {0.01, 0.9, 0.999, 1e-8, 0.1}, step, threads);
}

} // namespace

void run_kernels() {
    FuguRandom random{11};
    for (const size_t threads : {1, 3}) {
        for (const size_t rows : {1, 3, 64, 1000, 5000})
            for (const bool time_major : {true, false})
                run_advantages(random, 17, rows, time_major, threads);
        for (const size_t batch : {1, 5, 300, 2000})
            run_sampling(random, batch, threads);
        for (const size_t size : {0, 1, 37, 100000})
            run_adamw(random, size, threads);
        for (const size_t rows : {1, 5, 700})
            for (const size_t hidden : {1, 19, 64}) {
                run_recurrent<float>(random, rows, hidden, threads);
                run_recurrent<fugu::Bfloat16>(random, rows, hidden, threads);
            }
    }
    std::printf("kernels: clean\n");
}
