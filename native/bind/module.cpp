// fugu._native: the one extension module.
#define FUGU_IMPORTS_NUMPY
#include "bind/numpy.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <chrono>
#include <cstring>

#include "bind/exchange.hpp"
#include "bind/finite.hpp"
#include "bind/kernels.hpp"
#include "bind/learner.hpp"
#include "bind/nets.hpp"
#include "bind/packer.hpp"
#include "bind/pool.hpp"
#include "bind/raster.hpp"
#include "bind/stepper.hpp"

namespace nb = nanobind;

namespace {

using Bytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Seconds of one bare memcpy, the mean of `repeats`: what benchmarks measure a packer against.
double time_memcpy(const Bytes& source, const Bytes& out, size_t repeats) {
    if (source.size() != out.size())
        throw nb::value_error("time_memcpy: source and out differ in size");
    const auto start = std::chrono::steady_clock::now();
    for (size_t i = 0; i < repeats; ++i) {
        std::memcpy(out.data(), source.data(), source.size());
        asm volatile("" : : "r"(out.data()) : "memory"); // keep every copy
    }
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    return elapsed.count() / static_cast<double>(repeats);
}

} // namespace

NB_MODULE(_native, m) {
    if (_import_array() < 0)
        throw nb::python_error();
    // Layouts that live until the interpreter ends are no leak worth a warning on stderr.
    nb::set_leak_warnings(false);
    m.doc() = "fugu's native core.";
    m.def("noop", [](nb::handle) {}, nb::arg().none(), "Does nothing: the cost of a call.");
    m.def("time_memcpy", &time_memcpy, nb::arg().noconvert(), nb::arg().noconvert(), nb::arg(),
          "Seconds of one bare memcpy.");
    fugu::bind_packer(m);
    fugu::bind_finite(m);
    fugu::bind_exchange(m);
    fugu::bind_kernels(m);
    fugu::bind_nets(m);
    fugu::bind_learner(m);
    fugu::bind_stepper(m);
    fugu::bind_pool(m);
    fugu::bind_raster(m);
}
