#include "bind/kernels.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <optional>

#include "kernels/adamw.hpp"
#include "kernels/advantage.hpp"
#include "kernels/ppo_loss.hpp"
#include "kernels/priorities.hpp"
#include "kernels/recurrent.hpp"
#include "kernels/sampling.hpp"

namespace nb = nanobind;

namespace fugu {
namespace {

// Arrays [time, row] with any strides, and contiguous ones.
template <typename T> using Strided = nb::ndarray<T, nb::ndim<2>, nb::device::cpu>;
template <typename T> using Flat = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T> using Table = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <typename T> using Maybe = std::optional<T>;
using FlagsStrided = nb::ndarray<nb::ro, nb::ndim<2>, nb::device::cpu>;
using FlagsFlat = nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using FlagsTable = nb::ndarray<nb::ro, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// What does not fit is refused as a ValueError; the Python front then says what exactly is wrong.
void require(bool fits, const char* message) {
    if (!fits)
        throw nb::value_error(message);
}

template <typename T> Grid<T> grid(const Strided<T>& array, size_t times, size_t rows) {
    require(array.shape(0) == times && array.shape(1) == rows, "kernel: shapes do not fit");
    // The stride of a single row is of no use, so it counts as side by side.
    return {array.data(), array.stride(0), rows == 1 ? 1 : array.stride(1)};
}

template <typename T>
Grid<T> maybe_grid(const Maybe<Strided<T>>& array, size_t times, size_t rows) {
    return array ? grid(*array, times, rows) : Grid<T>{};
}

bool is_flag(nb::dlpack::dtype dtype) {
    return dtype == nb::dtype<bool>() || dtype == nb::dtype<uint8_t>();
}

Grid<const uint8_t> flags(const FlagsStrided& array, size_t times, size_t rows) {
    require(is_flag(array.dtype()), "kernel: flags are bool or uint8");
    require(array.shape(0) == times && array.shape(1) == rows, "kernel: shapes do not fit");
    return {static_cast<const uint8_t*>(array.data()), array.stride(0),
            rows == 1 ? 1 : array.stride(1)};
}

Grid<const uint8_t> maybe_flags(const Maybe<FlagsStrided>& array, size_t times, size_t rows) {
    return array ? flags(*array, times, rows) : Grid<const uint8_t>{};
}

// The memory that a grid may touch.
struct Extent {
    uintptr_t begin = 0, end = 0;

    template <typename T> Extent(const Grid<T>& grid, size_t times, size_t rows) {
        if (!grid.data || !times || !rows)
            return;
        const ptrdiff_t far[2] = {grid.time * static_cast<ptrdiff_t>(times - 1),
                                  grid.row * static_cast<ptrdiff_t>(rows - 1)};
        ptrdiff_t low = 0, high = 1;
        for (ptrdiff_t step : far)
            (step < 0 ? low : high) += step;
        begin = reinterpret_cast<uintptr_t>(grid.data + low);
        end = reinterpret_cast<uintptr_t>(grid.data + high);
    }
    bool meets(const Extent& other) const { return begin < other.end && other.begin < end; }
};

void require_apart(const AdvantageTask& task) {
    const size_t times = task.horizon, rows = task.rows;
    const Extent out(task.advantages, times, rows), returns(task.returns, times, rows);
    bool apart = !out.meets(returns);
    const Extent inputs[] = {{task.rewards, times, rows},      {task.values, times + 1, rows},
                             {task.final_values, times, rows}, {task.ratios, times, rows},
                             {task.terminations, times, rows}, {task.truncations, times, rows},
                             {task.valid, times, rows},        {task.live, times, rows}};
    for (const Extent& input : inputs)
        apart = apart && !out.meets(input) && !returns.meets(input);
    require(apart, "advantages: an output overlaps another array");
}

void bound_advantages(const Strided<const float>& rewards, const Strided<const float>& values,
                      const Strided<const float>& final_values,
                      const Maybe<Strided<const float>>& ratios, const FlagsStrided& terminations,
                      const FlagsStrided& truncations, const Maybe<FlagsStrided>& valid,
                      const Maybe<FlagsStrided>& live, const Strided<float>& out,
                      const Maybe<Strided<float>>& returns, double gamma, double decay,
                      double rho_clip, double c_clip, size_t threads) {
    AdvantageTask task;
    const size_t times = task.horizon = rewards.shape(0), rows = task.rows = rewards.shape(1);
    task.rewards = grid(rewards, times, rows);
    task.values = grid(values, times + 1, rows);
    task.final_values = grid(final_values, times, rows);
    task.ratios = maybe_grid(ratios, times, rows);
    task.terminations = flags(terminations, times, rows);
    task.truncations = flags(truncations, times, rows);
    task.valid = maybe_flags(valid, times, rows);
    task.live = maybe_flags(live, times, rows);
    task.advantages = grid(out, times, rows);
    task.returns = maybe_grid(returns, times, rows);
    require_apart(task);
    task.gamma = static_cast<float>(gamma), task.decay = static_cast<float>(decay);
    task.rho_clip = static_cast<float>(rho_clip), task.c_clip = static_cast<float>(c_clip);
    nb::gil_scoped_release release;
    advantages(task, threads);
}

template <typename T> T* data(const Maybe<Flat<T>>& array, size_t size) {
    require(!array || array->size() == size, "kernel: shapes do not fit");
    return array ? array->data() : nullptr;
}

template <typename Flags, typename... Sizes>
const uint8_t* flag_data(const Maybe<Flags>& array, Sizes... sizes) {
    if (!array)
        return nullptr;
    size_t axis = 0;
    const bool fits = (... && (array->shape(axis++) == sizes));
    require(fits && is_flag(array->dtype()), "kernel: flags do not fit");
    return static_cast<const uint8_t*>(array->data());
}

template <typename T> T* data(const Table<T>& array, size_t batch, size_t width) {
    require(array.shape(0) == batch && array.shape(1) == width, "kernel: shapes do not fit");
    return array.data();
}

template <typename T> T* data(const Maybe<Table<T>>& array, size_t batch, size_t width) {
    return array ? data(*array, batch, width) : nullptr;
}

nb::tuple told(const FaultyRow& faulty) {
    return nb::make_tuple(static_cast<int>(faulty.fault), faulty.row, faulty.head);
}

nb::tuple bound_categorical(const Table<const float>& logits, const Flat<const int64_t>& choices,
                            const Maybe<FlagsTable>& masks, const Maybe<FlagsFlat>& live,
                            const Maybe<Table<const float>>& uniforms,
                            const Table<int64_t>& actions, const Flat<float>& log_probabilities,
                            const Flat<float>& entropies, size_t threads) {
    CategoricalTask task;
    task.batch = logits.shape(0), task.width = logits.shape(1), task.heads = choices.size();
    size_t width = 0;
    for (size_t h = 0; h < task.heads; ++h) {
        require(choices.data()[h] > 0, "sample_categorical: a head without choices");
        width += static_cast<size_t>(choices.data()[h]);
    }
    require(width == task.width, "sample_categorical: logits do not fit the choices");
    task.choices = choices.data();
    task.logits = logits.data(), task.stride = task.width;
    task.masks = flag_data(masks, task.batch, task.width);
    task.live = flag_data(live, task.batch);
    task.uniforms = data(uniforms, task.batch, task.heads);
    task.actions = data(actions, task.batch, task.heads);
    task.log_probabilities = data<float>(log_probabilities, task.batch);
    task.entropies = data<float>(entropies, task.batch);
    FaultyRow faulty;
    {
        nb::gil_scoped_release release;
        faulty = sample_categorical(task, threads);
    }
    return told(faulty);
}

nb::tuple bound_normal(const Table<const float>& means, const Strided<const float>& log_stds,
                       const Maybe<Table<const float>>& noise, const Maybe<FlagsFlat>& live,
                       const Table<float>& actions, const Flat<float>& log_probabilities,
                       const Flat<float>& entropies, size_t threads) {
    NormalTask task;
    task.batch = means.shape(0), task.dims = means.shape(1);
    require(log_stds.shape(0) == task.batch && log_stds.shape(1) == task.dims &&
                (task.dims == 1 || log_stds.stride(1) == 1),
            "sample_normal: log_stds do not fit");
    task.means = means.data();
    task.log_stds = log_stds.data();
    task.log_std_stride = log_stds.stride(0);
    task.noise = data(noise, task.batch, task.dims);
    task.live = flag_data(live, task.batch);
    task.actions = data(actions, task.batch, task.dims);
    task.log_probabilities = data<float>(log_probabilities, task.batch);
    task.entropies = data<float>(entropies, task.batch);
    FaultyRow faulty;
    {
        nb::gil_scoped_release release;
        faulty = sample_normal(task, threads);
    }
    return told(faulty);
}

size_t bound_probabilities(const Strided<const float>& advantages, const Maybe<FlagsStrided>& valid,
                           const Maybe<FlagsStrided>& live, double alpha, double epsilon,
                           const Flat<double>& out) {
    PriorityTask task;
    task.horizon = advantages.shape(0), task.rows = advantages.shape(1);
    task.advantages = grid(advantages, task.horizon, task.rows);
    task.valid = maybe_flags(valid, task.horizon, task.rows);
    task.live = maybe_flags(live, task.horizon, task.rows);
    require(task.advantages.row == 1 && task.valid.row == 1 && task.live.row == 1,
            "segment_probabilities: rows must stand side by side");
    task.alpha = alpha, task.epsilon = epsilon;
    task.probabilities = data<double>(out, task.rows);
    nb::gil_scoped_release release;
    return segment_probabilities(task);
}

void bound_sample_segments(const Flat<const double>& probabilities,
                           const Flat<const double>& uniforms, double beta, bool inclusion,
                           const Flat<int64_t>& out, const Flat<float>& weights) {
    const size_t rows = probabilities.size(), count = out.size();
    require(uniforms.size() == rows && weights.size() == count && count <= rows,
            "sample_segments: shapes do not fit");
    nb::gil_scoped_release release;
    sample_segments(probabilities.data(), uniforms.data(), rows, count, beta, inclusion, out.data(),
                    weights.data());
}

nb::tuple bound_ppo_loss(const Table<const float>& params, const Table<const float>& values,
                         const Table<const float>& samples, const Maybe<FlagsTable>& masks,
                         const Flat<const float>& old_log_probs,
                         const Flat<const float>& advantages, const Table<const float>& old_values,
                         const Table<const float>& returns, const Flat<const float>& weights,
                         const Flat<const int64_t>& choices, const Table<float>& params_grad,
                         const Table<float>& values_grad, const Flat<float>& ratios, double clip,
                         int value_loss, double value_clip, double huber_delta,
                         double value_coefficient, double entropy_coefficient, double normaliser,
                         size_t threads) {
    PpoTask task;
    task.rows = params.shape(0), task.critics = values.shape(1), task.heads = choices.size();
    for (size_t h = 0; h < task.heads; ++h) {
        require(choices.data()[h] > 0, "ppo_loss: a head without choices");
        task.width += static_cast<size_t>(choices.data()[h]);
    }
    require(samples.shape(1) >= task.heads, "ppo_loss: samples do not fit the choices");
    task.dims = samples.shape(1) - task.heads;
    const size_t rows = task.rows, size = task.width + 2 * task.dims;
    task.choices = choices.data();
    task.params = data(params, rows, size), task.params_grad = data(params_grad, rows, size);
    task.samples = data(samples, rows, task.heads + task.dims);
    task.masks = flag_data(masks, rows, task.width);
    task.values = data(values, rows, task.critics);
    task.old_values = data(old_values, rows, task.critics);
    task.returns = data(returns, rows, task.critics);
    task.values_grad = data(values_grad, rows, task.critics);
    task.old_log_probs = data<const float>(old_log_probs, rows);
    task.advantages = data<const float>(advantages, rows);
    task.weights = data<const float>(weights, rows);
    task.ratios = data<float>(ratios, rows);
    require(value_loss >= 0 && value_loss < kValueLosses, "ppo_loss: no such value loss");
    task.value_loss = static_cast<ValueLoss>(value_loss);
    task.clip = clip, task.value_clip = value_clip, task.huber_delta = huber_delta;
    task.value_coefficient = value_coefficient, task.entropy_coefficient = entropy_coefficient;
    task.normaliser = normaliser;
    PpoSums sums;
    {
        nb::gil_scoped_release release;
        sums = ppo_loss(task, threads);
    }
    return nb::make_tuple(sums.good, sums.policy, sums.value, sums.entropy, sums.kl, sums.clipped,
                          sums.rows);
}

void bound_adamw(const Flat<float>& weights, const Flat<const float>& grads,
                 const Flat<float>& means, const Flat<float>& squares, double step, double rate,
                 double beta1, double beta2, double eps, double decay, size_t threads) {
    const size_t size = weights.size();
    require(grads.size() == size && means.size() == size && squares.size() == size,
            "adamw: shapes do not fit");
    const AdamWBlock block{weights.data(), grads.data(), means.data(), squares.data(), size};
    nb::gil_scoped_release release;
    adamw(block, {rate, beta1, beta2, eps, decay}, step, threads);
}

template <typename T> using Cube = nb::ndarray<T, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

template <typename T> Rows<T> rows_of(const Strided<T>& array, size_t rows, size_t width) {
    require(array.shape(0) == rows && array.shape(1) == width &&
                (width == 1 || array.stride(1) == 1),
            "kernel: shapes do not fit");
    return {array.data(), array.stride(0)};
}

template <typename T> Rows<T> rows_of(const Maybe<Strided<T>>& array, size_t rows, size_t width) {
    return array ? rows_of(*array, rows, width) : Rows<T>{};
}

// The steps of the two cells differ in how many gates there are, and in which arrays they have.
enum class Cell { Lstm, Gru };

template <Cell cell, typename P>
void bound_step(const Strided<const P>& inputs, const Strided<const P>& recurrents,
                const Flat<const float>& input_bias, const Flat<const float>& recurrent_bias,
                const Strided<const float>& before, const Maybe<FlagsFlat>& resets,
                const Maybe<FlagsFlat>& next_resets, const Strided<float>& after,
                const Maybe<Strided<float>>& output, const Maybe<Strided<float>>& kept,
                const Maybe<Strided<P>>& fed, size_t threads) {
    CellForward<P> task;
    const size_t rows = task.rows = before.shape(0), hidden = task.hidden = before.shape(1);
    const size_t gates = (cell == Cell::Lstm ? 4 : 3) * hidden;
    task.inputs = rows_of(inputs, rows, gates), task.recurrents = rows_of(recurrents, rows, gates);
    task.input_bias = data<const float>(input_bias, gates);
    task.recurrent_bias = data<const float>(recurrent_bias, gates);
    task.before = rows_of(before, rows, hidden), task.after = rows_of(after, rows, hidden);
    task.resets = flag_data(resets, rows), task.next_resets = flag_data(next_resets, rows);
    task.output = rows_of(output, rows, hidden), task.kept = rows_of(kept, rows, 4 * hidden);
    task.fed = rows_of(fed, rows, hidden);
    require(cell == Cell::Gru || output, "lstm_step: an output is missing");
    nb::gil_scoped_release release;
    cell == Cell::Lstm ? lstm_step(task, threads) : gru_step(task, threads);
}

template <Cell cell, typename P>
void bound_step_back(const Strided<const float>& kept, const Strided<const float>& before,
                     const Maybe<Strided<const float>>& after, const Maybe<FlagsFlat>& resets,
                     const Maybe<FlagsFlat>& next_resets, const Strided<const float>& output_grad,
                     const Strided<const P>& fed_grad, const Strided<float>& memory_grad,
                     const Strided<P>& inputs_grad, const Maybe<Strided<P>>& recurrents_grad,
                     size_t threads) {
    CellBackward<P> task;
    const size_t rows = task.rows = before.shape(0), hidden = task.hidden = before.shape(1);
    const size_t gates = (cell == Cell::Lstm ? 4 : 3) * hidden;
    task.kept = rows_of(kept, rows, 4 * hidden), task.before = rows_of(before, rows, hidden);
    task.after = rows_of(after, rows, hidden);
    task.resets = flag_data(resets, rows), task.next_resets = flag_data(next_resets, rows);
    task.output_grad = rows_of(output_grad, rows, hidden);
    task.fed_grad = rows_of(fed_grad, rows, hidden);
    task.memory_grad = rows_of(memory_grad, rows, hidden);
    task.inputs_grad = rows_of(inputs_grad, rows, gates);
    task.recurrents_grad = rows_of(recurrents_grad, rows, gates);
    require(cell == Cell::Lstm ? bool(after) : bool(recurrents_grad),
            "cell step: an array is missing");
    nb::gil_scoped_release release;
    cell == Cell::Lstm ? lstm_step(task, threads) : gru_step(task, threads);
}

template <typename P>
ScanForward<P> scan_task(const Cube<const P>& gates, const Strided<const float>& start,
                         const Maybe<FlagsTable>& resets) {
    ScanForward<P> task;
    task.rows = gates.shape(0), task.times = gates.shape(1), task.hidden = start.shape(1);
    require(gates.shape(2) == 2 * task.hidden, "mingru_scan: shapes do not fit");
    task.gates = gates.data();
    task.start = rows_of(start, task.rows, task.hidden);
    task.resets = flag_data(resets, task.rows, task.times);
    return task;
}

template <typename T, typename P> T* data(const Cube<T>& array, const ScanForward<P>& task) {
    require(array.shape(0) == task.rows && array.shape(1) == task.times, "kernel: shapes differ");
    require(array.shape(2) == task.hidden, "kernel: shapes do not fit");
    return array.data();
}

template <typename P>
void bound_scan(const Cube<const P>& gates, const Strided<const float>& start,
                const Maybe<FlagsTable>& resets, const Cube<float>& outputs, size_t threads) {
    ScanForward<P> task = scan_task<P>(gates, start, resets);
    task.outputs = data(outputs, task);
    nb::gil_scoped_release release;
    mingru_scan(task, threads);
}

template <typename P>
void bound_scan_back(const Cube<const P>& gates, const Strided<const float>& start,
                     const Maybe<FlagsTable>& resets, const Cube<const float>& outputs,
                     const Cube<const float>& outputs_grad, const Cube<P>& gates_grad,
                     const Table<float>& start_grad, size_t threads) {
    ScanBackward<P> task;
    task.forward = scan_task<P>(gates, start, resets);
    task.outputs = data(outputs, task.forward);
    task.outputs_grad = data(outputs_grad, task.forward);
    require(gates_grad.size() == gates.size(), "mingru_scan: shapes do not fit");
    task.gates_grad = gates_grad.data();
    task.start_grad = data(start_grad, task.forward.rows, task.forward.hidden);
    nb::gil_scoped_release release;
    mingru_scan(task, threads);
}

// Products in P: float32, or bfloat16 as its bits.
template <typename P> void bind_recurrent(nb::module_& m) {
    const auto exact = [] { return nb::arg().noconvert(); };
    const auto maybe = [] { return nb::arg().noconvert().none(); };
    const auto step = [&](const char* name, auto* function) {
        m.def(name, function, exact(), exact(), exact(), exact(), exact(), maybe(), maybe(),
              exact(), maybe(), maybe(), maybe(), nb::arg(), "One step of a recurrent cell.");
    };
    const auto step_back = [&](const char* name, auto* function) {
        m.def(name, function, exact(), exact(), maybe(), maybe(), maybe(), exact(), exact(),
              exact(), exact(), maybe(), nb::arg(), "The gradient of one step.");
    };
    step("lstm_step", &bound_step<Cell::Lstm, P>);
    step("gru_step", &bound_step<Cell::Gru, P>);
    step_back("lstm_step_back", &bound_step_back<Cell::Lstm, P>);
    step_back("gru_step_back", &bound_step_back<Cell::Gru, P>);
    m.def("mingru_scan", &bound_scan<P>, exact(), exact(), maybe(), exact(), nb::arg(),
          "All steps of a MinGRU.");
    m.def("mingru_scan_back", &bound_scan_back<P>, exact(), exact(), maybe(), exact(), exact(),
          exact(), exact(), nb::arg(), "The gradient of all steps.");
}

} // namespace

void bind_kernels(nb::module_& m) {
    const auto exact = [] { return nb::arg().noconvert(); };
    const auto maybe = [] { return nb::arg().noconvert().none(); };
    m.def("advantages", &bound_advantages, exact(), exact(), exact(), maybe(), exact(), exact(),
          maybe(), maybe(), exact(), maybe(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
          "Advantages of arrays [time, row].");
    m.def("sample_categorical", &bound_categorical, exact(), exact(), maybe(), maybe(), maybe(),
          exact(), exact(), exact(), nb::arg(),
          "Samples categorical heads; returns (fault, row, head), 0 for no fault.");
    m.def("sample_normal", &bound_normal, exact(), exact(), maybe(), maybe(), exact(), exact(),
          exact(), nb::arg(),
          "Samples diagonal normals; returns (fault, row, dimension), 0 for no fault.");
    m.def("segment_probabilities", &bound_probabilities, exact(), maybe(), maybe(), nb::arg(),
          nb::arg(), exact(), "Probabilities of rows; returns the first row that is not finite.");
    m.def("sample_segments", &bound_sample_segments, exact(), exact(), nb::arg(), nb::arg(),
          exact(), exact(), "Draws distinct rows by their probabilities.");
    m.def("ppo_loss", &bound_ppo_loss, exact(), exact(), exact(), maybe(), exact(), exact(),
          exact(), exact(), exact(), exact(), exact(), exact(), exact(), nb::arg(), nb::arg(),
          nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
          "PPO's loss; writes gradients and ratios, returns (samples fit, sums...).");
    m.def("adamw", &bound_adamw, exact(), exact(), exact(), exact(), nb::arg(), nb::arg(),
          nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
          "A step of AdamW on blocks of weights, gradients and their moments.");
    bind_recurrent<float>(m);
    bind_recurrent<Bfloat16>(m);
}

} // namespace fugu
