#include "bind/learner.hpp"

#include "bind/nets.hpp"
#include "bind/pool.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <tuple>

#include "learn/forward.hpp"
#include "learn/gradients.hpp"
#include "learn/orthogonalise.hpp"
#include "learn/rollout.hpp"
#include "nets/targets.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace fugu {
namespace {

template <typename T> using Flat = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T> using Table = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// What does not fit is refused as a ValueError; the Python front then says what exactly is wrong.
void require(bool fits, const char* name) {
    if (!fits)
        throw nb::value_error(name);
}
template <typename T> using Cube = nb::ndarray<T, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

template <typename T> T* data(const Flat<T>& array, size_t size, const char* name) {
    require(array.shape(0) == size, name);
    return array.data();
}
template <typename T> T* data(const Table<T>& array, size_t rows, size_t width, const char* name) {
    require(array.shape(0) == rows && array.shape(1) == width, name);
    return array.data();
}

template <typename T>
T* data(const Cube<T>& array, size_t first, size_t second, size_t third, const char* name) {
    require(array.shape(0) == first && array.shape(1) == second && array.shape(2) == third, name);
    return array.data();
}
uint8_t* flags(const Table<bool>& array, size_t rows, size_t width, const char* name) {
    return reinterpret_cast<uint8_t*>(data(array, rows, width, name));
}

// Places of a table that has so many.
const int64_t* below(const Flat<const int64_t>& array, size_t size, size_t end, const char* name) {
    const int64_t* const places = data(array, size, name);
    for (size_t i = 0; i < size; ++i)
        require(places[i] >= 0 && static_cast<size_t>(places[i]) < end, name);
    return places;
}

// Tables of segments that Python owns.
struct BoundPages {
    Cube<uint8_t> observations;
    Cube<float> samples;
    Cube<bool> masks;
    Table<float> states, log_probabilities, rewards;
    Cube<float> values, final_values;
    Table<bool> terminations, truncations, valid;
};

// Numbers of an action: where they stand in its row, and the bounds of those that are floats.
using BoundPart =
    std::tuple<size_t, size_t, std::optional<Flat<const float>>, std::optional<Flat<const float>>>;

// PPO's settings, as the kernel of its loss has them.
struct LossSettings {
    double clip, value_clip, huber_delta, value_coefficient, entropy_coefficient, normaliser;
    int value_loss;
};

// A network whose numbers stand in a block that Python owns, and their gradients in another.
class NetLearner : public ToldNet {
public:
    NetLearner(const std::string& code, size_t size, size_t state_size, const std::string& target,
               const Flat<float>& weights, const Flat<float>& grads)
        : ToldNet(code, size, state_size, target), weights_(weights), grads_(grads) {
        require(weights.size() == grads.size(), "grads");
        network.learn(weights.data(), weights.size());
    }

    void end(const std::array<int64_t, 3>& given) {
        network.end(given);
        if (!gradients_)
            gradients_.emplace(network), forward_.emplace(network);
    }
    void reload(bool pairs) {
        pairs_ = pairs;
        network.reload(pairs ? nets::Words::Pairs : nets::Words::Floats);
    }

    void forward(nb::handle rows, const Table<const float>& state, const Table<float>& params,
                 const Table<float>& values, const Table<float>& after, size_t threads) {
        require(gradients_.has_value(), "network");
        const size_t batch = state.shape(0), remembered = network.state_size();
        learn::Passing given;
        given.rows =
            static_cast<const char*>(data_of(rows, kind, itemsize, batch, row_size, false, "rows"));
        given.state = data(state, batch, remembered, "state");
        given.params = data(params, batch, width(0), "params");
        given.values = data(values, batch, width(1), "values");
        given.after = data(after, batch, remembered, "after");
        nb::gil_scoped_release release;
        forward_->compute(given, batch, threads, pairs_);
    }

    nb::tuple learn(const BoundPages& tables, const Flat<const int64_t>& places,
                    const Flat<const int64_t>& own, const std::optional<Flat<const int64_t>>& times,
                    const Flat<const float>& weights, const Table<const float>& merits,
                    const Cube<const float>& advantages, const Flat<const int64_t>& choices,
                    const Table<float>& ratios, const LossSettings& settings, size_t threads) {
        require(gradients_.has_value(), "network");
        learn::Experience given;
        PpoTask& task = given.loss;
        task.heads = choices.size(), task.critics = width(1), task.choices = choices.data();
        for (size_t h = 0; h < task.heads; ++h) {
            require(choices.data()[h] > 0, "choices");
            task.width += static_cast<size_t>(choices.data()[h]);
        }
        require(tables.samples.shape(2) >= task.heads, "samples");
        task.dims = tables.samples.shape(2) - task.heads;
        require(task.heads + task.dims > 0, "choices");
        require(task.width + 2 * task.dims == width(0), "choices");
        fill(given.pages, tables, task.heads + task.dims, task.width, task.critics);
        given.rows = places.size(), given.length = merits.shape(0), given.count = ratios.shape(1);
        const size_t horizon = given.pages.horizon;
        require(given.length <= horizon && (times || given.length == horizon), "merits");
        given.places = below(places, given.rows, given.pages.total, "places");
        given.own = below(own, given.rows, given.count, "own");
        given.times =
            times ? below(*times, given.rows, horizon - given.length + 1, "times") : nullptr;
        given.weights = data(weights, given.rows, "weights");
        given.merits = data(merits, given.length, given.rows, "merits");
        given.advantages = data(advantages, task.critics, horizon, given.count, "advantages");
        given.ratios = data(ratios, horizon, given.count, "ratios");
        require(settings.value_loss >= 0 && settings.value_loss < kValueLosses, "value_loss");
        task.value_loss = static_cast<ValueLoss>(settings.value_loss);
        task.clip = settings.clip, task.value_clip = settings.value_clip;
        task.huber_delta = settings.huber_delta, task.normaliser = settings.normaliser;
        task.value_coefficient = settings.value_coefficient;
        task.entropy_coefficient = settings.entropy_coefficient;
        PpoSums sums;
        {
            nb::gil_scoped_release release;
            sums = gradients_->compute(given, grads_.data(), threads, pairs_);
        }
        return nb::make_tuple(sums.good, sums.policy, sums.value, sums.entropy, sums.kl,
                              sums.clipped, sums.rows);
    }

    // What hindered it; nothing if the collection is whole.
    const char* collect(const PoolCore& core, const BoundPages& tables, size_t begin,
                        size_t first_segment, size_t next_segment, const Table<float>& states,
                        const Flat<const int64_t>& choices, size_t dims,
                        const Cube<const float>& uniforms, const Cube<const float>& noise,
                        const std::vector<BoundPart>& parts, const Flat<double>& episodes,
                        size_t threads) {
        require(gradients_.has_value(), "network");
        Pool& pool = *core.pool;
        learn::Collection given;
        const size_t agents = pool.num_envs() * pool.num_agents(), critics = width(1);
        const FuguArrays& slab = pool.arrays(0);
        require(pool.all_act() && pool.num_agents() <= learn::Rollout::kMostAgents &&
                    static_cast<size_t>(slab.agents) == pool.num_agents() && !slab.num_costs &&
                    slab.observation_bytes == network.row_bytes(),
                "pool");
        given.begin = begin, given.dims = dims;
        given.choices = choices.data(), given.heads = choices.size(), given.critics = critics;
        for (size_t h = 0; h < given.heads; ++h) {
            require(choices.data()[h] > 0, "choices");
            given.width += static_cast<size_t>(choices.data()[h]);
        }
        require(given.width + 2 * dims == width(0) && slab.mask_width == given.width, "choices");

        fill(given.pages, tables, given.heads + dims, given.width, critics);
        const size_t horizon = given.pages.horizon, total = given.pages.total;
        require(begin <= horizon && first_segment + agents <= total &&
                    next_segment + agents <= total,
                "segments");
        given.first_segment = first_segment, given.next_segment = next_segment;
        const size_t actions = horizon - begin + 1;
        given.states = data(states, agents, network.state_size(), "states");
        given.uniforms = data(uniforms, actions, agents, given.heads, "uniforms");
        given.noise = data(noise, actions, agents, dims, "noise");
        given.episodes = data(episodes, pool.episode_size(), "episodes");
        size_t numbers = 0;
        for (const auto& [offset, count, low, high] : parts) {
            learn::ActionPart part{offset, count, !low.has_value(), nullptr, nullptr};
            const size_t size = part.choices ? sizeof(int64_t) : sizeof(float);
            require(offset + count * size <= slab.action_bytes, "parts");
            if (low && high)
                part.low = data(*low, count, "parts"), part.high = data(*high, count, "parts");
            require(part.choices || part.high, "parts");
            given.parts.push_back(part), numbers += count;
        }
        require(numbers == given.heads + dims, "parts");
        nb::gil_scoped_release release;
        if (!rollout_ || pool_ != &pool)
            rollout_ = std::make_unique<learn::Rollout>(network, pool), pool_ = &pool;
        const char* const hindrances[] = {"", "no number", "idle agent"};
        return hindrances[static_cast<size_t>(rollout_->collect(given, threads, pairs_))];
    }

private:
    void fill(learn::Pages& pages, const BoundPages& tables, size_t numbers, size_t choices,
              size_t critics) const {
        const size_t total = tables.observations.shape(0), horizon = tables.observations.shape(1);
        pages.total = total, pages.horizon = horizon;
        pages.observations = reinterpret_cast<char*>(
            data(tables.observations, total, horizon, network.row_bytes(), "observations"));
        pages.samples = data(tables.samples, total, horizon, numbers, "samples");
        pages.masks =
            reinterpret_cast<uint8_t*>(data(tables.masks, total, horizon, choices, "masks"));
        pages.states = data(tables.states, total, network.state_size(), "states");
        pages.log_probabilities =
            data(tables.log_probabilities, horizon, total, "log_probabilities");
        pages.rewards = data(tables.rewards, horizon, total, "rewards");
        pages.values = data(tables.values, critics, horizon + 1, total, "values");
        pages.final_values = data(tables.final_values, critics, horizon, total, "final_values");
        pages.terminations = flags(tables.terminations, horizon, total, "terminations");
        pages.truncations = flags(tables.truncations, horizon, total, "truncations");
        pages.valid = flags(tables.valid, horizon, total, "valid");
    }
    size_t width(size_t part) const {
        const int64_t value = network.given()[part];
        return value < 0 ? 0 : network.values()[static_cast<size_t>(value)].width;
    }

    const Flat<float> weights_, grads_;
    bool pairs_ = false;
    std::optional<learn::Gradients> gradients_;
    std::optional<learn::Forward> forward_;
    std::unique_ptr<learn::Rollout> rollout_;
    Pool* pool_ = nullptr; // that it is of
};

void orthogonalise(const Cube<float>& matrices, const Table<const float>& steps, size_t threads) {
    require(matrices.shape(1) >= matrices.shape(2), "matrices");
    require(steps.shape(1) == 3, "steps");
    std::vector<learn::Orthogonaliser::Polynomial> polynomials;
    for (size_t i = 0; i < steps.shape(0); ++i) {
        const float* const row = steps.data() + 3 * i;
        polynomials.push_back({row[0], row[1], row[2]});
    }
    const size_t rows = matrices.shape(1), columns = matrices.shape(2);
    nb::gil_scoped_release release;
    learn::Orthogonaliser worker(*nets::usable_kernels().back(), rows, columns, threads);
    for (size_t i = 0; i < matrices.shape(0); ++i)
        worker.run(matrices.data() + i * rows * columns, polynomials);
}

} // namespace

void bind_learner(nb::module_& m) {
    m.def("orthogonalise", &orthogonalise, "matrices"_a.noconvert(), "steps"_a.noconvert(),
          "threads"_a, "Brings singular values near 1, by Newton-Schulz steps, in place.");
    nb::class_<LossSettings>(m, "LossSettings", "Settings of PPO's loss.")
        .def(nb::init<double, double, double, double, double, double, int>(), "clip"_a,
             "value_clip"_a, "huber_delta"_a, "value_coefficient"_a, "entropy_coefficient"_a,
             "normaliser"_a, "value_loss"_a);
    nb::class_<BoundPages>(m, "Pages", "Tables of segments.")
        .def(nb::init<Cube<uint8_t>, Cube<float>, Cube<bool>, Table<float>, Table<float>,
                      Table<float>, Cube<float>, Cube<float>, Table<bool>, Table<bool>,
                      Table<bool>>(),
             "observations"_a.noconvert(), "samples"_a.noconvert(), "masks"_a.noconvert(),
             "states"_a.noconvert(), "log_probabilities"_a.noconvert(), "rewards"_a.noconvert(),
             "values"_a.noconvert(), "final_values"_a.noconvert(), "terminations"_a.noconvert(),
             "truncations"_a.noconvert(), "valid"_a.noconvert());
    nb::class_<NetLearner, ToldNet> c(m, "NetLearner", "A network that learns.");
    c.def(nb::init<const std::string&, size_t, size_t, const std::string&, const Flat<float>&,
                   const Flat<float>&>(),
          "code"_a, "row_size"_a, "state_size"_a, "target"_a, "weights"_a.noconvert(),
          "grads"_a.noconvert());
    c.attr("most_agents") = learn::Rollout::kMostAgents; // of an environment that it collects
    c.def("end", &NetLearner::end, "given"_a,
          "Nothing follows; these are params, values and state, or -1.");
    c.def("reload", &NetLearner::reload, "pairs"_a,
          "The weights have changed; products are of float32, or of bfloat16.");
    c.def("forward", &NetLearner::forward, "rows"_a, "state"_a.noconvert(), "params"_a.noconvert(),
          "values"_a.noconvert(), "after"_a.noconvert(), "threads"_a,
          "Writes params, values and states after rows of observations.");
    c.def("collect", &NetLearner::collect, "pool"_a, "pages"_a, "begin"_a, "first_segment"_a,
          "next_segment"_a, "states"_a.noconvert(), "choices"_a.noconvert(), "dims"_a,
          "uniforms"_a.noconvert(), "noise"_a.noconvert(), "parts"_a, "episodes"_a.noconvert(),
          "threads"_a,
          "Fills the open segments of a pool's agents; says what hindered it, if any.");
    c.def("learn", &NetLearner::learn, "pages"_a, "places"_a.noconvert(), "own"_a.noconvert(),
          "times"_a.none().noconvert(), "weights"_a.noconvert(), "merits"_a.noconvert(),
          "advantages"_a.noconvert(), "choices"_a.noconvert(), "ratios"_a.noconvert(), "settings"_a,
          "threads"_a, "Writes gradients and ratios; the sums of the loss.");
}

} // namespace fugu
