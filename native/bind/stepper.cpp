#include "bind/stepper.hpp"

#include <nanobind/ndarray.h>

#include "bind/numpy.hpp"
#include "bind/packer.hpp"

namespace nb = nanobind;

namespace fugu {
namespace {

using Rewards = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// One agent's ordinary steps: unpack the action, step, pack the observation, write the reward. What
// is out of the ordinary is handed back to Python.
class Stepper {
public:
    Stepper(nb::object step, nb::object slow_action, nb::object action_packer, nb::object action,
            nb::object observation_packer, nb::object observation, Rewards rewards, size_t row)
        : step_(step), slow_action_(slow_action), action_packer_(action_packer), action_(action),
          observation_packer_(observation_packer), observation_(observation), rewards_(rewards),
          reward_(rewards.data() + row) {
        if (!is_packer(action_packer) || !is_packer(observation_packer))
            throw nb::type_error("Stepper: needs native packers");
        if (row >= rewards.size())
            throw nb::index_error("Stepper: no such row");
    }

    // None after an ordinary step; the info, if it is all that is left to look at; else the
    // whole result, of which nothing is written yet.
    nb::object step() {
        nb::object action = unpack_action();
        PyObject* arguments[] = {nullptr, action.ptr()};
        PyObject* raw = PyObject_Vectorcall(step_.ptr(), arguments + 1,
                                            1 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
        if (!raw)
            throw nb::python_error();
        nb::object result = nb::steal(raw);
        if (!PyTuple_CheckExact(raw) || PyTuple_GET_SIZE(raw) != 5)
            return result;
        PyObject* info = PyTuple_GET_ITEM(raw, 4);
        double reward = 0;
        if (PyTuple_GET_ITEM(raw, 2) != Py_False || PyTuple_GET_ITEM(raw, 3) != Py_False ||
            !PyDict_CheckExact(info) || !as_real(PyTuple_GET_ITEM(raw, 1), reward))
            return result;
        pack_value(observation_packer_, PyTuple_GET_ITEM(raw, 0), observation_);
        *reward_ = static_cast<float>(reward);
        sum_ += reward;
        ++count_;
        return PyDict_GET_SIZE(info) ? nb::borrow(info) : nb::none();
    }

    // Rewards and steps since the last call.
    nb::tuple collect() {
        nb::tuple sums = nb::make_tuple(sum_, count_);
        sum_ = 0;
        count_ = 0;
        return sums;
    }

    int64_t count() const { return count_; }

private:
    nb::object unpack_action() {
        try {
            return unpack_row(action_packer_, action_, true);
        } catch (nb::python_error&) {
            return slow_action_(); // raises the same, as an error of an action
        }
    }

    static bool as_real(PyObject* value, double& v) {
        if (PyFloat_Check(value)) // np.float64 too
            v = PyFloat_AS_DOUBLE(value);
        else if (PyArray_IsScalar(value, Float))
            v = static_cast<double>(PyArrayScalar_VAL(value, Float));
        else if (PyLong_CheckExact(value))
            v = PyLong_AsDouble(value);
        else
            return false;
        if (PyErr_Occurred()) {
            PyErr_Clear();
            return false;
        }
        return true;
    }

    nb::object step_, slow_action_, action_packer_, action_, observation_packer_, observation_;
    Rewards rewards_; // kept alive
    float* reward_;
    double sum_ = 0;
    int64_t count_ = 0;
};

} // namespace

void bind_stepper(nb::module_& m) {
    nb::class_<Stepper>(m, "Stepper", "One agent's ordinary steps of a Gymnasium environment.")
        .def(nb::init<nb::object, nb::object, nb::object, nb::object, nb::object, nb::object,
                      Rewards, size_t>())
        .def("step", &Stepper::step)
        .def("collect", &Stepper::collect)
        .def_prop_ro("count", &Stepper::count);
}

} // namespace fugu
