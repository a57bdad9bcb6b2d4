#include "bind/exchange.hpp"

#include <nanobind/ndarray.h>

#include "bind/finite.hpp"
#include "core/exchange.hpp"
#include "kernels/gather.hpp"

namespace nb = nanobind;

namespace fugu {
namespace {

using Bytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ids = nb::ndarray<int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

int64_t nanoseconds(double seconds) {
    return static_cast<int64_t>(seconds * 1e9);
}

// The exchange over memory that Python owns; checks what the core trusts.
class BoundExchange {
public:
    BoundExchange(Bytes memory, size_t workers, size_t envs, double spin)
        : memory_(memory), exchange_(memory.data(), workers, envs, nanoseconds(spin)) {
        if (!workers || !envs || workers > envs)
            throw nb::value_error("Exchange: needs 1 <= workers <= envs");
        if (memory.size() < Exchange::bytes(workers, envs))
            throw nb::value_error("Exchange: the memory is too small");
        if (reinterpret_cast<uintptr_t>(memory.data()) % 64)
            throw nb::value_error("Exchange: the memory is not aligned to 64 bytes");
    }

    static size_t bytes(size_t workers, size_t envs) { return Exchange::bytes(workers, envs); }

    void post(const Ids& ids, bool command) {
        for (size_t i = 0; i < ids.size(); ++i)
            if (ids.data()[i] < 0 || static_cast<size_t>(ids.data()[i]) >= exchange_.num_envs())
                throw nb::index_error("Exchange.post: no such environment");
        exchange_.post(ids.data(), ids.size(), command ? EnvState::Command : EnvState::Step);
    }

    size_t wait_ready(size_t begin, size_t end, size_t count, uint32_t known_faults,
                      double timeout) {
        check_range(begin, end);
        if (const size_t found = exchange_.ready(begin, end);
            found >= count || timeout <= 0 || exchange_.wanted(known_faults))
            return found;
        nb::gil_scoped_release release;
        return exchange_.wait_ready(begin, end, count, known_faults, nanoseconds(timeout));
    }

    size_t take(size_t begin, size_t end, size_t count, const Ids& ids) {
        check_range(begin, end);
        if (ids.size() < count)
            throw nb::value_error("Exchange.take: too few ids");
        return exchange_.take(begin, end, count, ids.data());
    }

    int32_t next(size_t worker, double timeout) {
        check_worker(worker);
        if (const int32_t env = exchange_.next(worker, 0);
            env != Exchange::kTimeout || timeout <= 0)
            return env;
        nb::gil_scoped_release release;
        return exchange_.next(worker, nanoseconds(timeout));
    }

    // Steps what is due, up to `limit` times, until something is out of the ordinary:
    // (event, environment, error or None). `steps[i]` is what to call for the worker's i-th
    // environment, None if it wants more care, `envs[i]` the environment itself, `checks[i]` the
    // FiniteCheck of what it writes, or None.
    nb::tuple serve(size_t worker, nb::list steps, nb::list envs, nb::list checks, size_t limit,
                    double timeout) {
        check_worker(worker);
        const size_t first = exchange_.first(worker);
        const size_t owned = exchange_.first(worker + 1) - first;
        if (nb::len(steps) != owned || nb::len(envs) != owned || nb::len(checks) != owned)
            throw nb::value_error("Exchange.serve: one entry for each environment of the worker");
        for (size_t n = 0; n < limit; ++n) {
            const int32_t due = next(worker, n ? 0.0 : timeout);
            if (due == Exchange::kTimeout && n)
                return event(kDone, -1);
            if (due == Exchange::kTimeout || due == Exchange::kClosing)
                return event(due == Exchange::kTimeout ? kTimeout : kClosing, -1);
            if (due <= Exchange::kCommand)
                return event(kCommand, Exchange::kCommand - due);
            const size_t i = static_cast<size_t>(due) - first;
            PyObject* step = PyList_GET_ITEM(steps.ptr(), static_cast<Py_ssize_t>(i));
            if (step == Py_None)
                return event(kOdd, due);
            PyObject* result = PyObject_CallNoArgs(step);
            if (!result) {
                nb::python_error error;
                if (error.matches(PyExc_KeyboardInterrupt))
                    throw error;
                return nb::make_tuple(static_cast<int>(kError), due, error.value());
            }
            Py_DECREF(result);
            nb::object infos = nb::steal(PyObject_GetAttr(
                PyList_GET_ITEM(envs.ptr(), static_cast<Py_ssize_t>(i)), infos_.ptr()));
            const int some = infos.is_valid() ? PyObject_IsTrue(infos.ptr()) : -1;
            if (some < 0)
                throw nb::python_error();
            if (some)
                return event(kInfos, due);
            const nb::handle check = PyList_GET_ITEM(checks.ptr(), static_cast<Py_ssize_t>(i));
            if (!check.is_none() && !nb::cast<const FiniteCheck&>(check).finite())
                return event(kNotFinite, due);
            exchange_.done(worker, static_cast<size_t>(due), EnvState::Ready);
        }
        return event(kDone, -1);
    }

    void done(size_t worker, size_t env, bool fault) {
        check_worker(worker);
        check_env(env);
        exchange_.done(worker, env, fault ? EnvState::Fault : EnvState::Ready);
    }

    nb::tuple silent(size_t worker) {
        check_worker(worker);
        int64_t env = -1;
        const int64_t silent = exchange_.silent_ns(worker, &env);
        return nb::make_tuple(static_cast<double>(silent) * 1e-9, env);
    }

    void hold(size_t env) {
        check_env(env);
        exchange_.hold(env);
    }
    uint32_t state(size_t env) {
        check_env(env);
        return static_cast<uint32_t>(exchange_.state(env));
    }
    size_t owner(size_t env) {
        check_env(env);
        return exchange_.owner(env);
    }
    nb::tuple envs_of(size_t worker) {
        check_worker(worker);
        return nb::make_tuple(exchange_.first(worker), exchange_.first(worker + 1));
    }
    void leave(size_t worker) { exchange_.leave(checked(worker)); }
    void send_mail(size_t worker, bool waits) { exchange_.send_mail(checked(worker), waits); }
    uint32_t mail(size_t worker) { return exchange_.mail(checked(worker)); }
    void read_mail(size_t worker) { exchange_.read_mail(checked(worker)); }
    uint32_t faults() { return exchange_.faults(); }
    void revive(size_t worker) { exchange_.revive(checked(worker)); }
    void close() { exchange_.close(); }

private:
    enum Event { kDone, kTimeout, kClosing, kCommand, kOdd, kError, kInfos, kNotFinite };

    static nb::tuple event(Event what, int32_t env) {
        return nb::make_tuple(static_cast<int>(what), env, nb::none());
    }

    size_t checked(size_t worker) const {
        check_worker(worker);
        return worker;
    }
    void check_worker(size_t worker) const {
        if (worker >= exchange_.num_workers())
            throw nb::index_error("Exchange: no such worker");
    }
    void check_env(size_t env) const {
        if (env >= exchange_.num_envs())
            throw nb::index_error("Exchange: no such environment");
    }
    void check_range(size_t begin, size_t end) const {
        if (begin > end || end > exchange_.num_envs())
            throw nb::index_error("Exchange: no such range of environments");
    }

    nb::object infos_ = nb::str("infos");
    Bytes memory_; // kept alive
    Exchange exchange_;
};

// Gathers the same blocks of several arrays, as bytes [blocks, bytes of a block], in one call.
void gather_blocks(const Ids& ids, nb::list sources, nb::list outs) {
    using Blocks = nb::ndarray<uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
    if (nb::len(sources) != nb::len(outs))
        throw nb::value_error("gather: as many outs as sources");
    for (size_t a = 0; a < nb::len(sources); ++a) {
        const auto source = nb::cast<Blocks>(sources[a], false);
        const auto out = nb::cast<Blocks>(outs[a], false);
        if (source.shape(1) != out.shape(1) || out.shape(0) < ids.size())
            throw nb::value_error("gather: source and out do not fit");
        for (size_t i = 0; i < ids.size(); ++i)
            if (ids.data()[i] < 0 || static_cast<size_t>(ids.data()[i]) >= source.shape(0))
                throw nb::index_error("gather: no such block");
        gather(source.data(), source.shape(1), ids.data(), ids.size(), out.data());
    }
}

} // namespace

void bind_exchange(nb::module_& m) {
    nb::class_<BoundExchange>(m, "Exchange", "Whose turn each environment is, in shared memory.")
        .def(nb::init<Bytes, size_t, size_t, double>(), nb::arg("memory").noconvert(),
             nb::arg("workers"), nb::arg("envs"), nb::arg("spin"))
        .def_static("bytes", &BoundExchange::bytes)
        .def("post", &BoundExchange::post, nb::arg().noconvert(), nb::arg() = false)
        .def("wait_ready", &BoundExchange::wait_ready)
        .def("take", &BoundExchange::take, nb::arg(), nb::arg(), nb::arg(), nb::arg().noconvert())
        .def("next", &BoundExchange::next)
        .def("serve", &BoundExchange::serve)
        .def("done", &BoundExchange::done, nb::arg(), nb::arg(), nb::arg() = false)
        .def("silent", &BoundExchange::silent)
        .def("hold", &BoundExchange::hold)
        .def("state", &BoundExchange::state)
        .def("owner", &BoundExchange::owner)
        .def("envs_of", &BoundExchange::envs_of)
        .def("leave", &BoundExchange::leave)
        .def("send_mail", &BoundExchange::send_mail)
        .def("mail", &BoundExchange::mail)
        .def("read_mail", &BoundExchange::read_mail)
        .def("faults", &BoundExchange::faults)
        .def("revive", &BoundExchange::revive)
        .def("close", &BoundExchange::close);
    m.def("gather", &gather_blocks, nb::arg().noconvert(), nb::arg(), nb::arg(),
          "Gathers blocks of several arrays.");
}

} // namespace fugu
