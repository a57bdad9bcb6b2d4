// The nodes of fugu.native.nodes on the native side.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "bind/numpy.hpp"

namespace fugu {

enum class Kind { Array, Scalar, Text, Dict, Tuple, Sequence, OneOf, Converted };

// A node of fugu.native.nodes, copied out of Python once.
struct Node {
    Kind kind;
    nanobind::object python; // the Python node, for the slow path
    size_t offset = 0;
    // Array, Scalar, Text: the dtype; Array: the shape
    PyArray_Descr* descr = nullptr; // borrowed from `python`, which outlives it
    int type = NPY_NOTYPE;
    size_t item_bytes = 0; // of one number
    size_t bytes = 0;      // of one value: the whole array
    std::vector<npy_intp> shape;
    std::vector<int64_t> low_integer, high_integer; // bounds, where there are any
    std::vector<double> low_float, high_float;
    bool slow_bounds = false; // bounds that only the reference checks: of float16 and uint64
    // Text, Sequence, OneOf
    size_t capacity = 0, min_length = 0, length_offset = 0, mask_offset = 0;
    bool stacked = false;
    bool plain = false;            // Scalar: a Python int
    std::vector<Py_UCS4> alphabet; // sorted
    bool utf8 = false;             // no alphabet: bytes of UTF-8
    // Dict, Tuple, Sequence, OneOf, Converted
    std::vector<nanobind::object> keys;
    std::vector<std::unique_ptr<Node>> children;
    nanobind::object convert, restore;
};

// The tree below a Python node.
std::unique_ptr<Node> build_node(nanobind::handle python);

// Whether the node bounds its values.
bool has_bounds(const Node& n);

// Whether one value of the node, at data, is known to keep the node's bounds.
bool keeps_bounds(const Node& n, const unsigned char* data);

// One integer of the node's type, to and from memory of any alignment.
void store_integer(const Node& n, unsigned char* at, int64_t v);
bool load_integer(const Node& n, const unsigned char* at, int64_t& v);

} // namespace fugu
