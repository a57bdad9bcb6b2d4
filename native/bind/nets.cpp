#include "bind/nets.hpp"

#include "bind/numpy.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "nets/runner.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace fugu {
namespace {

using namespace nets;
using Weights = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Numbers = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Integers = std::vector<int64_t>;
using Sizes = std::vector<size_t>;
using Sides = std::array<size_t, 3>; // channels, height, width

Matrix matrix(const Weights& weights) {
    return {weights.data(), weights.shape(0), weights.shape(1)};
}

std::vector<float> row(const Numbers& numbers) {
    return {numbers.data(), numbers.data() + numbers.size()};
}

Matrix one_row(const Numbers& numbers) {
    return {numbers.data(), 1, numbers.size()};
}

Image image(const Sides& sides) {
    return {sides[0], sides[1], sides[2]};
}

nb::object new_table(size_t rows, size_t width) {
    npy_intp shape[] = {static_cast<npy_intp>(rows), static_cast<npy_intp>(width)};
    PyObject* array = PyArray_SimpleNew(2, shape, NPY_FLOAT32);
    if (!array)
        throw nb::python_error();
    return nb::steal(array);
}

// A network and its runner; what is told twice is taken over.
class NetRunner : public ToldNet {
public:
    using ToldNet::ToldNet;

    void end(const std::array<int64_t, 3>& given) {
        network.end(given);
        if (!runner_)
            runner_.emplace(network);
    }

    // Params, values and states, into `out` or new arrays.
    nb::object forward(nb::handle rows, nb::handle state, nb::handle out) {
        if (!runner_ || !PyArray_Check(rows.ptr()) ||
            PyArray_NDIM(reinterpret_cast<PyArrayObject*>(rows.ptr())) != 2)
            throw nb::value_error("rows");
        const size_t batch =
            static_cast<size_t>(PyArray_DIM(reinterpret_cast<PyArrayObject*>(rows.ptr()), 0));
        const void* seen = data_of(rows, kind, itemsize, batch, row_size, false, "rows");
        const void* before = data_of(state, 'f', 4, batch, network.state_size(), false, "state");
        nb::object given = out.is_none() ? new_tables(batch) : nb::borrow(out);
        if (!PyTuple_Check(given.ptr()) || PyTuple_GET_SIZE(given.ptr()) != 3)
            throw nb::value_error("out");
        float* tables[3];
        for (size_t i = 0; i < 3; ++i) {
            nb::handle table = PyTuple_GET_ITEM(given.ptr(), static_cast<Py_ssize_t>(i));
            tables[i] = static_cast<float*>(data_of(table, 'f', 4, batch, width(i), true, "out"));
        }
        nb::gil_scoped_release release;
        runner_->forward(seen, static_cast<const float*>(before), batch, tables[0], tables[1],
                         tables[2]);
        return given;
    }

private:
    size_t width(size_t part) const {
        const int64_t value = network.given()[part];
        return value < 0 ? 0 : network.values()[static_cast<size_t>(value)].width;
    }
    nb::object new_tables(size_t batch) const {
        return nb::make_tuple(new_table(batch, width(0)), new_table(batch, width(1)),
                              new_table(batch, width(2)));
    }

    std::optional<Runner> runner_;
};

template <typename Class> void bind_inputs(Class& c) {
    c.def(
        "read",
        [](ToldNet& r, size_t rows, size_t width, size_t offset, const std::string& code) {
            return r.network.read(rows, width, {offset, named(code, kTypes)});
        },
        "rows"_a, "width"_a, "offset"_a, "code"_a, "Numbers of observations.");
    c.def(
        "one_hot",
        [](ToldNet& r, size_t rows, size_t offset, const std::string& code, const Integers& start,
           const Integers& counts) {
            return r.network.one_hot(rows, {offset, named(code, kTypes)}, start, counts);
        },
        "rows"_a, "offset"_a, "code"_a, "start"_a, "counts"_a, "Integers, each one-hot.");
    c.def(
        "embed",
        [](ToldNet& r, size_t rows, size_t offset, const std::string& code, const Integers& start,
           const Integers& counts, const Integers& offsets, const Weights& table) {
            const Place place{offset, named(code, kTypes)};
            return r.network.embed(rows, place, start, counts, offsets, matrix(table));
        },
        "rows"_a, "offset"_a, "code"_a, "start"_a, "counts"_a, "offsets"_a, "table"_a.noconvert(),
        "Integers, each a row of the table.");
    c.def(
        "state",
        [](ToldNet& r, size_t begin, size_t width) { return r.network.state(begin, width); },
        "begin"_a, "width"_a, "Numbers of the state.");
    c.def(
        "constant",
        [](ToldNet& r, const Weights& numbers) { return r.network.constant(matrix(numbers)); },
        "numbers"_a.noconvert(), "Always the same.");
}

template <typename Class> void bind_layers(Class& c) {
    c.def(
        "linear",
        [](ToldNet& r, size_t value, const Weights& weight, const Numbers& bias) {
            return r.network.linear(value, matrix(weight), one_row(bias));
        },
        "value"_a, "weight"_a.noconvert(), "bias"_a.noconvert(), "A linear layer.");
    c.def(
        "convolve",
        [](ToldNet& r, size_t value, const Sides& from, const Sides& to, size_t kernel,
           size_t stride, size_t padding, bool channels_last, const Weights& weight,
           const Numbers& bias) {
            return r.network.convolve(value, image(from), image(to), kernel, stride, padding,
                                      channels_last, matrix(weight), row(bias));
        },
        "value"_a, "image"_a, "out"_a, "kernel"_a, "stride"_a, "padding"_a, "channels_last"_a,
        "weight"_a.noconvert(), "bias"_a.noconvert(),
        "A convolution, whose weight has the order of what it reads; channels come out last.");
    c.def(
        "pool",
        [](ToldNet& r, size_t value, const Sides& from, const Sides& to, size_t kernel,
           size_t stride, size_t padding) {
            return r.network.pool(value, image(from), image(to), kernel, stride, padding);
        },
        "value"_a, "image"_a, "out"_a, "kernel"_a, "stride"_a, "padding"_a,
        "The largest of each window, channels last.");
    c.def(
        "scale",
        [](ToldNet& r, size_t value, const Numbers& shift, const Numbers& divisor, float most) {
            return r.network.scale(value, row(shift), row(divisor), most);
        },
        "value"_a, "shift"_a.noconvert(), "divisor"_a.noconvert(), "most"_a, "A scale.");
    c.def(
        "normalise",
        [](ToldNet& r, size_t value, const Numbers& weight, const Numbers& bias, float epsilon) {
            return r.network.normalise(value, one_row(weight), one_row(bias), epsilon);
        },
        "value"_a, "weight"_a.noconvert(), "bias"_a.noconvert(), "epsilon"_a, "A layer norm.");
    c.def(
        "attend",
        [](ToldNet& r, size_t query, size_t keys, size_t values, size_t count, size_t heads,
           const Weights& bias) {
            return r.network.attend(query, keys, values, count, heads, matrix(bias));
        },
        "query"_a, "keys"_a, "values"_a, "count"_a, "heads"_a, "bias"_a.noconvert(),
        "Attention of one query.");
    c.def(
        "recur",
        [](ToldNet& r, size_t gates, const std::string& cell, size_t begin, const Weights& weight,
           const Numbers& bias) {
            return r.network.recur(gates, named(cell, kCells), begin, matrix(weight),
                                   one_row(bias));
        },
        "gates"_a, "cell"_a, "begin"_a, "weight"_a.noconvert(), "bias"_a.noconvert(),
        "What is remembered, whole segments of it.");
}

template <typename Class> void bind_tables(Class& c) {
    c.def(
        "apply",
        [](ToldNet& r, size_t value, const std::string& function) {
            return r.network.apply(value, named(function, kFunctions));
        },
        "value"_a, "function"_a, "A function of each number.");
    c.def(
        "combine",
        [](ToldNet& r, size_t one, size_t other, const std::string& function) {
            return r.network.combine(one, other, named(function, kPairs));
        },
        "one"_a, "other"_a, "function"_a, "Two values, number by number.");
    c.def(
        "blend",
        [](ToldNet& r, size_t start, size_t end, size_t weight) {
            return r.network.blend(start, end, weight);
        },
        "start"_a, "end"_a, "weight"_a, "From one to the other.");
    c.def(
        "join", [](ToldNet& r, const Sizes& inputs) { return r.network.join(inputs); }, "inputs"_a,
        "Side by side.");
    c.def(
        "cut",
        [](ToldNet& r, size_t value, size_t begin, size_t width) {
            return r.network.cut(value, begin, width);
        },
        "value"_a, "begin"_a, "width"_a, "Columns.");
    c.def(
        "reshape",
        [](ToldNet& r, size_t value, size_t rows, size_t width) {
            return r.network.reshape(value, rows, width);
        },
        "value"_a, "rows"_a, "width"_a, "Another shape.");
    c.def(
        "permute",
        [](ToldNet& r, size_t value, const Sizes& shape, const Sizes& order) {
            return r.network.permute(value, shape, order);
        },
        "value"_a, "shape"_a, "order"_a, "Axes in another order.");
    c.def(
        "keep", [](ToldNet& r, size_t value, size_t mask) { return r.network.keep(value, mask); },
        "value"_a, "mask"_a, "Rows that count.");
    c.def(
        "reduce",
        [](ToldNet& r, size_t value, const std::string& function, size_t count) {
            return r.network.reduce(value, named(function, kReductions), count);
        },
        "value"_a, "function"_a, "count"_a, "Rows made one.");
}

} // namespace

void bind_nets(nb::module_& m) {
    m.def(
        "net_targets",
        [] {
            std::vector<std::pair<std::string, size_t>> found;
            for (const Kernels* kernels : usable_kernels())
                found.emplace_back(kernels->name, kernels->lanes);
            return found;
        },
        "Kinds of processor that networks can run for here, the best last, with the numbers that "
        "each computes at once.");
    nb::class_<ToldNet> told(m, "ToldNet", "A network, told operation by operation.");
    told.def("begin", [](ToldNet& r) { r.network.begin(); }, "The operations follow.");
    bind_inputs(told);
    bind_layers(told);
    bind_tables(told);
    nb::class_<NetRunner, ToldNet> c(m, "NetRunner", "A network that runs.");
    c.def(nb::init<const std::string&, size_t, size_t, const std::string&>(), "code"_a,
          "row_size"_a, "state_size"_a, "target"_a);
    c.def("end", &NetRunner::end, "given"_a,
          "Nothing follows; these are params, values and state, or -1.");
    c.def("forward", &NetRunner::forward, "rows"_a.none(), "state"_a.none(), "out"_a.none(),
          "Params, values and states of rows; a ValueError names what does not fit.");
}

} // namespace fugu
