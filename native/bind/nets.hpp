// Binds fugu::nets: networks that run without torch.
#pragma once

#include "bind/numpy.hpp"

#include <nanobind/nanobind.h>

#include <string>
#include <utility>

#include "nets/network.hpp"
#include "nets/targets.hpp"

namespace fugu {

// An entry of a table of names.
template <typename T, size_t N>
inline T named(const std::string& name, const std::pair<const char*, T> (&table)[N]) {
    for (const auto& [known, entry] : table)
        if (name == known)
            return entry;
    throw nanobind::value_error("network: no such name");
}

inline constexpr std::pair<const char*, nets::Function> kFunctions[] = {
    {"relu", nets::Function::Relu},       {"gelu", nets::Function::Gelu},
    {"silu", nets::Function::Silu},       {"tanh", nets::Function::Tanh},
    {"sigmoid", nets::Function::Sigmoid}, {"symlog", nets::Function::Symlog},
    {"mingru", nets::Function::Mingru},   {"finite", nets::Function::Finite},
};
inline constexpr std::pair<const char*, nets::Pair> kPairs[] = {{"add", nets::Pair::Add},
                                                                {"multiply", nets::Pair::Multiply}};
inline constexpr std::pair<const char*, nets::Reduction> kReductions[] = {
    {"sum", nets::Reduction::Sum},
    {"mean", nets::Reduction::Mean},
    {"largest", nets::Reduction::Largest}};
inline constexpr std::pair<const char*, nets::Type> kTypes[] = {
    {"b1", nets::Type::Bool}, {"i1", nets::Type::I8},  {"u1", nets::Type::U8},
    {"i2", nets::Type::I16},  {"u2", nets::Type::U16}, {"i4", nets::Type::I32},
    {"u4", nets::Type::U32},  {"i8", nets::Type::I64}, {"u8", nets::Type::U64},
    {"f2", nets::Type::F16},  {"f4", nets::Type::F32}, {"f8", nets::Type::F64},
};

inline constexpr std::pair<const char*, nets::Cell> kCells[] = {
    {"lstm", nets::Cell::Lstm}, {"gru", nets::Cell::Gru}, {"mingru", nets::Cell::Mingru}};

inline const nets::Kernels& find_kernels(const std::string& target) {
    for (const nets::Kernels* kernels : nets::usable_kernels())
        if (target == kernels->name)
            return *kernels;
    throw nanobind::value_error("network: this processor has no such instructions");
}

// An array's data, if it is just what is wanted. NumPy is asked directly: a call is shorter than
// what nanobind's arrays would add to it.
inline void* data_of(nanobind::handle given, char kind, size_t itemsize, size_t rows, size_t width,
                     bool written, const char* name) {
    if (!PyArray_Check(given.ptr()))
        throw nanobind::value_error(name);
    PyArrayObject* array = reinterpret_cast<PyArrayObject*>(given.ptr());
    const int flags = written ? NPY_ARRAY_CARRAY : NPY_ARRAY_CARRAY_RO;
    const bool fits = PyArray_NDIM(array) == 2 && PyArray_CHKFLAGS(array, flags) &&
                      PyArray_ISNOTSWAPPED(array) && PyArray_DESCR(array)->kind == kind &&
                      static_cast<size_t>(PyArray_ITEMSIZE(array)) == itemsize &&
                      static_cast<size_t>(PyArray_DIM(array, 0)) == rows &&
                      static_cast<size_t>(PyArray_DIM(array, 1)) == width;
    if (!fits)
        throw nanobind::value_error(name);
    return PyArray_DATA(array);
}

// A network, and what rows of its observations are.
struct ToldNet {
    const char kind;
    const size_t itemsize, row_size;
    nets::Network network;

    ToldNet(const std::string& code, size_t size, size_t state_size, const std::string& target)
        : kind(code.at(0)), itemsize(nets::size_of(named(code, kTypes))), row_size(size),
          network(find_kernels(target), size * itemsize, code == "f4", state_size) {}
    ToldNet(const ToldNet&) = delete;
    ToldNet& operator=(const ToldNet&) = delete;
};

// Adds ToldNet, NetRunner and net_targets() to the module.
void bind_nets(nanobind::module_& m);

} // namespace fugu
