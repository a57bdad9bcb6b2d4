#include "bind/pool.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind/library.hpp"
#include "bind/raster.hpp"
#include "core/actions.hpp"
#include "core/pool.hpp"

namespace nb = nanobind;

namespace fugu {
namespace {

template <typename T, size_t N>
using Array = nb::ndarray<T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
using Bytes2 = Array<uint8_t, 2>;
using Ids = Array<int64_t, 1>;
using Flags = Array<bool, 1>;
using Floats = Array<float, 1>;

// ------------------------------------------------------------------ descriptions as Python has
// them

nb::dict as_dict(const FuguLeaf& leaf) {
    nb::list shape;
    for (int i = 0; i < leaf.rank; ++i)
        shape.append(leaf.shape[i]);
    nb::dict out;
    out["name"] = leaf.name;
    out["text"] = leaf.text;
    out["kind"] = leaf.kind;
    out["type"] = leaf.type;
    out["shape"] = nb::tuple(shape);
    out["offset"] = leaf.offset;
    out["low"] = leaf.low;
    out["high"] = leaf.high;
    out["choices"] = leaf.choices;
    return out;
}

nb::list as_list(const FuguSpace& space) {
    nb::list leaves;
    for (int i = 0; i < space.count; ++i)
        leaves.append(as_dict(space.leaves[i]));
    return leaves;
}

nb::dict as_dict(const FuguSpec& spec) {
    nb::list groups, logs, keys, cells;
    for (int g = 0; g < spec.num_groups; ++g) {
        nb::dict group;
        group["name"] = spec.groups[g].name;
        group["agents"] = spec.groups[g].agents;
        group["costs"] = spec.groups[g].costs;
        group["observation"] = as_list(spec.groups[g].observation);
        group["action"] = as_list(spec.groups[g].action);
        groups.append(group);
    }
    for (int i = 0; i < spec.num_logs; ++i)
        logs.append(spec.logs[i]);
    for (int i = 0; i < spec.num_keys; ++i) {
        const FuguKey& key = spec.keys[i];
        keys.append(nb::make_tuple(key.name, key.group, key.agent, key.leaf, key.index, key.value));
    }
    for (int i = 0; i < spec.num_cells; ++i) {
        const FuguCells& c = spec.cells[i];
        cells.append(nb::make_tuple(c.agent, c.columns, c.rows, c.x, c.y, c.width, c.height));
    }
    nb::dict out;
    out["groups"] = groups;
    out["logs"] = logs;
    out["keys"] = keys;
    out["cells"] = cells;
    out["reward"] = spec.reward ? spec.reward : "";
    out["width"] = spec.width;
    out["height"] = spec.height;
    out["frames"] = spec.frames;
    out["waits_for_a_key"] = spec.waits_for_a_key;
    return out;
}

nb::list settings_of(const Library& library) {
    nb::list out;
    const FuguDefinition& definition = library.definition();
    for (uint32_t i = 0; i < definition.num_settings; ++i) {
        const FuguSetting& s = definition.settings[i];
        out.append(nb::make_tuple(s.name, s.type == FUGU_INT32, s.initial, s.low, s.high, s.text));
    }
    return out;
}

// ------------------------------------------------------------------ the pool

// A pool over arrays that Python owns; checks what the core trusts. It has the methods of Exchange
// that a learner calls, so that one vector serves both.
class BoundPool {
public:
    BoundPool(std::shared_ptr<Library> library, const std::vector<double>& values, size_t envs,
              size_t threads, bool helps, size_t chunk, double stall)
        : library_(std::move(library)), prototype_(library_->prototype(values)),
          spec_(library_->describe(prototype_)), hands_(threads + (helps ? 1 : 0)),
          threads_(threads), pool_(&library_->definition(), prototype_, spec_,
                                   PoolSettings{envs, threads, helps, chunk, stall}) {
        if (!envs || envs >= (1ull << 31) || !hands_)
            throw nb::value_error("Pool: needs environments, and somebody to step them");
    }

    void bind(size_t group, const Bytes2& observations, const Bytes2& final, const Bytes2& actions,
              const Array<bool, 2>& masks, const Floats& rewards, const Array<float, 2>& costs,
              const Flags& terminations, const Flags& truncations, const Flags& live) {
        if (group >= static_cast<size_t>(spec_.num_groups))
            throw nb::index_error("Pool.bind: no such group");
        FuguArrays& arrays = pool_.arrays(group);
        const size_t rows = pool_.num_envs() * static_cast<size_t>(arrays.agents);
        for (size_t found : {observations.shape(0), final.shape(0), actions.shape(0),
                             masks.shape(0), rewards.shape(0), costs.shape(0),
                             terminations.shape(0), truncations.shape(0), live.shape(0)})
            if (found != rows)
                throw nb::value_error("Pool.bind: one row for each agent of each environment");
        if (observations.shape(1) != final.shape(1) || costs.shape(1) != arrays.num_costs ||
            masks.shape(1) != choices_of(spec_.groups[group].action))
            throw nb::value_error("Pool.bind: rows of the wrong width");
        check_width(spec_.groups[group].observation, observations.shape(1));
        check_width(spec_.groups[group].action, actions.shape(1));
        arrays.observations = observations.data();
        arrays.final = final.data();
        arrays.actions = actions.data();
        arrays.masks = reinterpret_cast<uint8_t*>(masks.data());
        arrays.rewards = rewards.data();
        arrays.costs = costs.data();
        arrays.terminations = reinterpret_cast<uint8_t*>(terminations.data());
        arrays.truncations = reinterpret_cast<uint8_t*>(truncations.data());
        arrays.live = reinterpret_cast<uint8_t*>(live.data());
        arrays.observation_bytes = static_cast<uint32_t>(observations.shape(1));
        arrays.action_bytes = static_cast<uint32_t>(actions.shape(1));
        arrays.mask_width = static_cast<uint32_t>(masks.shape(1));
        std::memset(arrays.masks, 1, masks.size());
        kept_.append(nb::make_tuple(observations, final, actions, masks, rewards, costs));
        kept_.append(nb::make_tuple(terminations, truncations, live));
        ++bound_;
    }

    void start(const Array<float, 2>& episodes) {
        if (bound_ < static_cast<size_t>(spec_.num_groups))
            throw nb::value_error("Pool.start: every group must be bound");
        if (episodes.shape(0) != pool_.num_envs() ||
            episodes.shape(1) != Pool::kEpisode + pool_.num_logs())
            throw nb::value_error("Pool.start: episodes of the wrong shape");
        kept_.append(nb::cast(episodes));
        pool_.bind_episodes(episodes.data());
        pool_.start();
        started_ = true;
    }

    void reset(size_t env, std::optional<uint64_t> seed) {
        check_env(env);
        check_started();
        pool_.reset(env, seed ? &*seed : nullptr);
    }

    void done(size_t, size_t env) {
        check_env(env);
        pool_.done(env);
    }

    // A row of a group whose action is no value of its space, or -1.
    int64_t bad_action(size_t group, const Bytes2& actions) const {
        if (group >= static_cast<size_t>(spec_.num_groups))
            throw nb::index_error("Pool.bad_action: no such group");
        const FuguSpace& space = spec_.groups[group].action;
        check_width(space, actions.shape(1));
        return fugu::bad_action(space, actions.data(), actions.shape(0), actions.shape(1));
    }

    void post(const Ids& ids, bool command) {
        check_started();
        if (command || !ids.size())
            return; // commands are done where they are given
        const size_t count = ids.size(), envs = pool_.num_envs();
        for (size_t i = 0; i < count; ++i)
            if (static_cast<uint64_t>(ids.data()[i]) >= envs)
                throw nb::index_error("Pool.post: no such environment");
        pool_.post(ids.data(), count);
    }

    void post_all() {
        check_started();
        pool_.post_range(0, pool_.num_envs());
    }

    void take_all() { pool_.take_all(); }
    PoolCore core() {
        check_started();
        return {&pool_};
    }

    size_t wait_ready(size_t begin, size_t end, size_t count, uint32_t, double timeout) {
        check_range(begin, end);
        nb::gil_scoped_release release;
        return pool_.wait_ready(begin, end, count, static_cast<int64_t>(timeout * 1e9));
    }

    size_t take(size_t begin, size_t end, size_t count, const Ids& ids) {
        check_range(begin, end);
        if (ids.size() < count)
            throw nb::value_error("Pool.take: too few ids");
        return pool_.take(begin, end, count, ids.data());
    }

    void step_now() {
        check_started();
        nb::gil_scoped_release release;
        pool_.step_now();
    }

    size_t state_bytes() const { return pool_.state_bytes(); }
    bool all_act() const { return pool_.all_act(); }

    void save(const Ids& ids, const Bytes2& out) {
        check_states(ids, out);
        for (size_t i = 0; i < ids.size(); ++i)
            pool_.save(static_cast<size_t>(ids.data()[i]), out.data() + i * out.shape(1));
    }

    void load(const Ids& ids, const Bytes2& from) {
        check_states(ids, from);
        check_started();
        for (size_t i = 0; i < ids.size(); ++i)
            check_settings(from.data() + i * from.shape(1));
        for (size_t i = 0; i < ids.size(); ++i)
            pool_.load(static_cast<size_t>(ids.data()[i]), from.data() + i * from.shape(1));
    }

    // (background, shapes): each (kind, colour, x, y, size, text).
    nb::tuple draw(size_t env) {
        std::vector<FuguShape> shapes(256);
        const FuguCanvas canvas = canvas_of(env, shapes);
        nb::list out;
        for (int i = 0; i < canvas.count; ++i) {
            const FuguShape& s = shapes[static_cast<size_t>(i)];
            out.append(nb::make_tuple(s.kind, s.color, nb::make_tuple(s.x[0], s.x[1], s.x[2]),
                                      nb::make_tuple(s.y[0], s.y[1], s.y[2]), s.size,
                                      std::string(s.text)));
        }
        return nb::make_tuple(canvas.background, out);
    }

    void picture(size_t env, const Pixels& out) {
        std::vector<FuguShape> shapes(256);
        const FuguCanvas canvas = canvas_of(env, shapes);
        draw_pixels(canvas.background, shapes.data(), static_cast<size_t>(canvas.count),
                    spec_.width, spec_.height, out);
    }

    // ------------------------------------------------------------------ as of an exchange

    nb::tuple silent(size_t worker) const {
        // The caller knows when it is busy; threads come first.
        return nb::make_tuple(worker < threads_ ? pool_.busy(worker) : 0.0, -1);
    }
    uint32_t faults() const { return 0; }
    uint32_t mail(size_t) const { return mail_; }
    void send_mail(size_t, bool) { mail_ = 1; }
    void read_mail(size_t) { mail_ = 0; }
    size_t owner(size_t) const { return 0; }
    void close() {
        nb::gil_scoped_release release;
        pool_.close();
    }

private:
    // What an environment draws, into shapes that grow as they must.
    FuguCanvas canvas_of(size_t env, std::vector<FuguShape>& shapes) {
        check_env(env);
        for (;;) {
            FuguCanvas canvas{shapes.data(), 0, static_cast<int32_t>(shapes.size()), 0};
            library_->definition().draw(pool_.env(env), &canvas);
            if (canvas.count <= canvas.capacity)
                return canvas;
            shapes.resize(static_cast<size_t>(canvas.count));
        }
    }
    static void check_width(const FuguSpace& space, size_t bytes) {
        if (bytes_of(space) > bytes)
            throw nb::value_error("Pool: rows of the wrong width");
    }
    // A state holds its settings, and all copies must have the same.
    void check_settings(const unsigned char* state) const {
        const FuguDefinition& definition = library_->definition();
        for (uint32_t i = 0; i < definition.num_settings; ++i) {
            const FuguSetting& setting = definition.settings[i];
            if (std::memcmp(state + setting.offset, prototype_.data() + setting.offset, 4))
                throw nb::value_error(
                    (std::string("a state with another setting of ") + setting.name).c_str());
        }
    }
    void check_started() const {
        if (!started_)
            throw nb::value_error("Pool: not started");
    }
    void check_env(size_t env) const {
        if (env >= pool_.num_envs())
            throw nb::index_error("Pool: no such environment");
    }
    void check_range(size_t begin, size_t end) const {
        if (begin > end || end > pool_.num_envs())
            throw nb::index_error("Pool: no such range of environments");
    }
    void check_states(const Ids& ids, const Bytes2& states) const {
        if (states.shape(0) != ids.size() || states.shape(1) != pool_.state_bytes())
            throw nb::value_error("Pool: states of the wrong shape");
        for (size_t i = 0; i < ids.size(); ++i)
            check_env(static_cast<size_t>(ids.data()[i]));
    }

    std::shared_ptr<Library> library_;
    std::vector<unsigned char> prototype_;
    FuguSpec spec_;
    size_t hands_, threads_;
    size_t bound_ = 0;
    bool started_ = false;
    uint32_t mail_ = 0;
    nb::list kept_; // arrays that the pool writes
    Pool pool_;
};

} // namespace

void bind_pool(nb::module_& m) {
    nb::class_<Library>(m, "Library", "A shared library that holds one native environment.")
        .def(nb::init<const std::string&>())
        .def_prop_ro("name", [](const Library& l) { return l.definition().name; })
        .def_prop_ro("summary", [](const Library& l) { return l.definition().summary; })
        .def_prop_ro("state_bytes", [](const Library& l) { return l.definition().state_bytes; })
        .def_prop_ro("settings", &settings_of)
        .def("describe", [](const Library& l, const std::vector<double>& values) {
            return as_dict(l.describe(l.prototype(values)));
        });
    const auto array = nb::arg().noconvert();
    nb::class_<PoolCore>(m, "PoolCore", "What a pool is made of.");
    nb::class_<BoundPool>(m, "Pool", "Many copies of one native environment.")
        .def(nb::init<std::shared_ptr<Library>, const std::vector<double>&, size_t, size_t, bool,
                      size_t, double>(),
             nb::arg("library"), nb::arg("settings"), nb::arg("envs"), nb::arg("threads"),
             nb::arg("helps"), nb::arg("chunk"), nb::arg("stall"))
        .def("bind", &BoundPool::bind, nb::arg(), array, array, array, array, array, array, array,
             array, array)
        .def("start", &BoundPool::start, array)
        .def("reset", &BoundPool::reset, nb::arg(), nb::arg().none())
        .def("done", &BoundPool::done)
        .def("bad_action", &BoundPool::bad_action, nb::arg(), array)
        .def("post", &BoundPool::post, array, nb::arg() = false)
        .def("wait_ready", &BoundPool::wait_ready)
        .def("take", &BoundPool::take, nb::arg(), nb::arg(), nb::arg(), array)
        .def("post_all", &BoundPool::post_all)
        .def("core", &BoundPool::core, nb::keep_alive<0, 1>())
        .def("take_all", &BoundPool::take_all)
        .def("step_now", &BoundPool::step_now)
        .def_prop_ro("state_bytes", &BoundPool::state_bytes)
        .def_prop_ro("all_act", &BoundPool::all_act)
        .def("save", &BoundPool::save, array, array)
        .def("load", &BoundPool::load, array, array)
        .def("draw", &BoundPool::draw)
        .def("picture", &BoundPool::picture, nb::arg(), array)
        .def("silent", &BoundPool::silent)
        .def("faults", &BoundPool::faults)
        .def("mail", &BoundPool::mail)
        .def("send_mail", &BoundPool::send_mail)
        .def("read_mail", &BoundPool::read_mail)
        .def("owner", &BoundPool::owner)
        .def("close", &BoundPool::close);
}

} // namespace fugu
