#include "bind/node.hpp"

#include <nanobind/stl/string.h>

#include <cstring>
#include <string>
#include <type_traits>

#include "kernels/ranges.hpp"

namespace nb = nanobind;

namespace fugu {
namespace {

template <typename Visitor> bool visit_type(int type, Visitor&& visit) {
    switch (type) {
    case NPY_BOOL: // one byte, 0 or 1
    case NPY_UINT8:
        return visit(uint8_t{});
    case NPY_INT8:
        return visit(int8_t{});
    case NPY_UINT16:
        return visit(uint16_t{});
    case NPY_INT16:
        return visit(int16_t{});
    case NPY_UINT32:
        return visit(uint32_t{});
    case NPY_INT32:
        return visit(int32_t{});
    case NPY_FLOAT32:
        return visit(float{});
    case NPY_FLOAT64:
        return visit(double{});
    default:
        break;
    }
    // 64-bit integers have two type numbers (long and long long) where they are the same size
    if (type == NPY_LONG || type == NPY_LONGLONG)
        return visit(int64_t{});
    if (type == NPY_ULONG || type == NPY_ULONGLONG)
        return visit(uint64_t{});
    return false;
}

void read_capacity(Node& n) {
    n.capacity = nb::cast<size_t>(n.python.attr("capacity"));
    n.length_offset = nb::cast<size_t>(n.python.attr("length_offset"));
    n.mask_offset = nb::cast<size_t>(n.python.attr("mask_offset"));
}

void read_bounds(Node& n) {
    nb::object low = n.python.attr("low"), high = n.python.attr("high");
    if (low.is_none())
        return;
    n.slow_bounds = n.item_bytes == 2 ? PyTypeNum_ISFLOAT(n.type)
                                      : n.item_bytes == 8 && PyTypeNum_ISUNSIGNED(n.type);
    if (n.slow_bounds)
        return;
    const bool is_float = PyTypeNum_ISFLOAT(n.type);
    for (nb::handle x : low)
        is_float ? n.low_float.push_back(nb::cast<double>(nb::float_(x)))
                 : n.low_integer.push_back(nb::cast<int64_t>(nb::int_(x)));
    for (nb::handle x : high)
        is_float ? n.high_float.push_back(nb::cast<double>(nb::float_(x)))
                 : n.high_integer.push_back(nb::cast<int64_t>(nb::int_(x)));
}

} // namespace

std::unique_ptr<Node> build_node(nb::handle python) {
    auto n = std::make_unique<Node>();
    n->python = nb::borrow(python);
    const auto name = nb::cast<std::string>(python.type().attr("__name__"));
    auto number = [&](const char* key) { return nb::cast<size_t>(python.attr(key)); };
    auto child_of = [&](const char* key) {
        n->children.push_back(build_node(nb::object(python.attr(key))));
    };
    auto children = [&] {
        for (nb::handle child : nb::object(python.attr("children")))
            n->children.push_back(build_node(child));
    };
    auto descr = [&] {
        nb::object dtype = python.attr("dtype");
        n->descr = reinterpret_cast<PyArray_Descr*>(dtype.ptr());
        n->type = n->descr->type_num;
        n->item_bytes = n->bytes = static_cast<size_t>(PyDataType_ELSIZE(n->descr));
    };
    if (name == "ArrayNode") {
        n->kind = Kind::Array;
        n->offset = number("offset");
        descr();
        for (nb::handle dim : nb::object(python.attr("shape"))) {
            n->shape.push_back(nb::cast<npy_intp>(dim));
            n->bytes *= static_cast<size_t>(n->shape.back());
        }
        read_bounds(*n);
    } else if (name == "ScalarNode") {
        n->kind = Kind::Scalar;
        n->offset = number("offset");
        descr();
        n->low_integer = {nb::cast<int64_t>(python.attr("low"))};
        n->high_integer = {nb::cast<int64_t>(python.attr("high"))};
        n->plain = nb::cast<bool>(python.attr("plain"));
    } else if (name == "TextNode") {
        n->kind = Kind::Text;
        n->offset = number("offset");
        descr();
        read_capacity(*n);
        n->min_length = number("min_length");
        nb::object alphabet = python.attr("alphabet");
        n->utf8 = alphabet.is_none();
        for (Py_ssize_t i = 0; !n->utf8 && i < PyUnicode_GET_LENGTH(alphabet.ptr()); ++i)
            n->alphabet.push_back(PyUnicode_READ_CHAR(alphabet.ptr(), i));
    } else if (name == "DictNode") {
        n->kind = Kind::Dict;
        for (nb::handle key : nb::object(python.attr("keys")))
            n->keys.push_back(nb::borrow(key));
        children();
    } else if (name == "TupleNode") {
        n->kind = Kind::Tuple;
        children();
    } else if (name == "SequenceNode") {
        n->kind = Kind::Sequence;
        read_capacity(*n);
        n->stacked = nb::cast<bool>(python.attr("stacked"));
        child_of("child");
    } else if (name == "OneOfNode") {
        n->kind = Kind::OneOf;
        n->offset = number("index_offset");
        children();
    } else if (name == "ConvertedNode") {
        n->kind = Kind::Converted;
        n->convert = python.attr("convert");
        n->restore = python.attr("restore");
        child_of("child");
    } else {
        throw nb::type_error(("unknown node " + name).c_str());
    }
    return n;
}

bool has_bounds(const Node& n) {
    return !n.low_integer.empty() || !n.low_float.empty() || n.slow_bounds;
}

bool keeps_bounds(const Node& n, const unsigned char* data) {
    if (!has_bounds(n))
        return true;
    if (n.slow_bounds)
        return false;
    if (!n.low_integer.empty())
        return visit_type(n.type, [&](auto zero) {
            using T = decltype(zero);
            if constexpr (std::is_floating_point_v<T>)
                return false;
            else
                return all_inside<T>(data, n.low_integer.size(), n.low_integer.data(),
                                     n.high_integer.data());
        });
    return visit_type(n.type, [&](auto zero) {
        return all_inside<decltype(zero)>(data, n.low_float.size(), n.low_float.data(),
                                          n.high_float.data());
    });
}

void store_integer(const Node& n, unsigned char* at, int64_t v) {
    visit_type(n.type, [&](auto zero) {
        auto narrow = static_cast<decltype(zero)>(v);
        std::memcpy(at, &narrow, sizeof(narrow));
        return true;
    });
}

bool load_integer(const Node& n, const unsigned char* at, int64_t& v) {
    return visit_type(n.type, [&](auto zero) {
        decltype(zero) narrow;
        std::memcpy(&narrow, at, sizeof(narrow));
        v = static_cast<int64_t>(narrow);
        if constexpr (std::is_same_v<decltype(zero), uint64_t>)
            return narrow <= static_cast<uint64_t>(INT64_MAX);
        return true;
    });
}

} // namespace fugu
