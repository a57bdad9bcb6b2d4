#include "bind/packer.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "bind/node.hpp"

namespace nb = nanobind;

namespace fugu {
namespace {

// A Python or NumPy integer as int64; false for anything else.
bool as_integer(PyObject* value, int64_t& v) {
    if (PyArray_IsScalar(value, LongLong)) {
        v = PyArrayScalar_VAL(value, LongLong);
        return true;
    }
    if (PyArray_IsScalar(value, Long)) {
        v = PyArrayScalar_VAL(value, Long);
        return true;
    }
    PyObject* integer = nullptr;
    if (PyLong_CheckExact(value))
        integer = Py_NewRef(value);
    else if (PyArray_IsScalar(value, Integer))
        integer = PyNumber_Index(value);
    if (!integer) {
        PyErr_Clear();
        return false;
    }
    int overflow = 0;
    v = PyLong_AsLongLongAndOverflow(integer, &overflow);
    Py_DECREF(integer);
    return overflow == 0;
}

template <typename T> T load(const unsigned char* at) {
    T v;
    std::memcpy(&v, at, sizeof(T));
    return v;
}

template <typename T> void store(unsigned char* at, T v) {
    std::memcpy(at, &v, sizeof(T));
}

class Packer {
public:
    Packer(nb::object root, nb::object dtype, size_t size, bool clear, nb::object slow_pack,
           nb::object slow_unpack, nb::object refuse_row)
        : dtype_(dtype), clear_(clear), slow_pack_(slow_pack), slow_unpack_(slow_unpack),
          refuse_row_(refuse_row) {
        if (!PyArray_DescrCheck(dtype.ptr()))
            throw nb::type_error("dtype must be a numpy.dtype");
        auto* descr = reinterpret_cast<PyArray_Descr*>(dtype.ptr());
        type_ = descr->type_num;
        bytes_ = size * static_cast<size_t>(PyDataType_ELSIZE(descr));
        size_ = static_cast<npy_intp>(size);
        root_ = build_node(root);
    }

    void pack(nb::handle value, nb::handle out) const {
        PyArrayObject* row = checked_row(out);
        if (!PyArray_ISWRITEABLE(row))
            throw nb::value_error("the row is read-only: give a writable one");
        auto* data = reinterpret_cast<unsigned char*>(PyArray_BYTES(row));
        if (clear_)
            std::memset(data, 0, bytes_);
        pack_node(*root_, value.ptr(), data, 0, out);
    }

    nb::object unpack(nb::handle flat, bool copy) const {
        PyArrayObject* row = checked_row(flat);
        return unpack_node(*root_, reinterpret_cast<unsigned char*>(PyArray_BYTES(row)), 0, flat,
                           copy);
    }

private:
    PyArrayObject* checked_row(nb::handle flat) const {
        auto* row = reinterpret_cast<PyArrayObject*>(flat.ptr());
        const bool fits =
            PyArray_Check(flat.ptr()) && PyArray_NDIM(row) == 1 && PyArray_DIM(row, 0) == size_ &&
            PyArray_IS_C_CONTIGUOUS(row) &&
            (PyArray_TYPE(row) == type_ || PyArray_EquivTypenums(PyArray_TYPE(row), type_)) &&
            PyArray_ISNOTSWAPPED(row);
        if (!fits) {
            refuse_row_(flat);
            throw nb::value_error("the row does not fit the layout");
        }
        return row;
    }

    // ------------------------------------------------------------------ values -> rows

    // Whatever is not an exact fit: the reference casts it or raises, naming the leaf.
    void slow_pack(const Node& n, PyObject* value, size_t slot, nb::handle out) const {
        nb::object hold = nb::borrow(value);
        slow_pack_(n.python, hold, out, slot);
    }

    void pack_node(const Node& n, PyObject* value, unsigned char* row, size_t slot,
                   nb::handle out) const {
        switch (n.kind) {
        case Kind::Array:
            return pack_array(n, value, row, slot, out);
        case Kind::Scalar:
            return pack_scalar(n, value, row, slot, out);
        case Kind::Text:
            return pack_text(n, value, row, slot, out);
        case Kind::Dict:
            return pack_dict(n, value, row, slot, out);
        case Kind::Tuple:
            return pack_tuple(n, value, row, slot, out);
        case Kind::Sequence:
            return pack_sequence(n, value, row, slot, out);
        case Kind::OneOf:
            return pack_one_of(n, value, row, slot, out);
        case Kind::Converted: {
            nb::object converted = n.convert(nb::borrow(value), n.python.attr("path"));
            return pack_node(*n.children[0], converted.ptr(), row, slot, out);
        }
        }
    }

    static bool same_type(const Node& n, PyArrayObject* array) {
        const int type = PyArray_TYPE(array);
        return (type == n.type || PyArray_EquivTypenums(type, n.type)) &&
               PyArray_ISNOTSWAPPED(array);
    }

    void pack_array(const Node& n, PyObject* value, unsigned char* row, size_t slot,
                    nb::handle out) const {
        auto* array = reinterpret_cast<PyArrayObject*>(value);
        if (!PyArray_Check(value) || !same_type(n, array) ||
            PyArray_NDIM(array) != static_cast<int>(n.shape.size()) ||
            !PyArray_CompareLists(PyArray_DIMS(array), n.shape.data(), PyArray_NDIM(array)))
            return slow_pack(n, value, slot, out);
        unsigned char* target = row + n.offset + slot * n.bytes;
        if (PyArray_IS_C_CONTIGUOUS(array)) {
            const auto* data = reinterpret_cast<const unsigned char*>(PyArray_BYTES(array));
            if (!keeps_bounds(n, data))
                return slow_pack(n, value, slot, out);
            std::memmove(target, data, n.bytes);
            return;
        }
        nb::object view = array_view(n, n.shape, target, out, true);
        if (PyArray_CopyInto(reinterpret_cast<PyArrayObject*>(view.ptr()), array) < 0)
            throw nb::python_error();
        if (!keeps_bounds(n, target))
            slow_pack(n, value, slot, out);
    }

    void pack_scalar(const Node& n, PyObject* value, unsigned char* row, size_t slot,
                     nb::handle out) const {
        int64_t v = 0;
        if (!as_integer(value, v) || v < n.low_integer[0] || v > n.high_integer[0])
            return slow_pack(n, value, slot, out);
        store_integer(n, row + n.offset + slot * n.item_bytes, v);
    }

    static void store_length(const Node& n, unsigned char* row, size_t slot, size_t length) {
        store<int32_t>(row + n.length_offset + slot * sizeof(int32_t),
                       static_cast<int32_t>(length));
        std::memset(row + n.mask_offset + slot * n.capacity, 1, length);
    }

    void pack_text(const Node& n, PyObject* value, unsigned char* row, size_t slot,
                   nb::handle out) const {
        if (!PyUnicode_Check(value))
            return slow_pack(n, value, slot, out);
        if (n.utf8)
            return pack_utf8(n, value, row, slot, out);
        const auto length = static_cast<size_t>(PyUnicode_GET_LENGTH(value));
        if (length < n.min_length || length > n.capacity)
            return slow_pack(n, value, slot, out);
        unsigned char* target = row + n.offset + slot * n.capacity * n.item_bytes;
        for (size_t i = 0; i < length; ++i) {
            const Py_UCS4 character = PyUnicode_READ_CHAR(value, static_cast<Py_ssize_t>(i));
            const auto at = std::lower_bound(n.alphabet.begin(), n.alphabet.end(), character);
            if (at == n.alphabet.end() || *at != character)
                return slow_pack(n, value, slot, out);
            store_integer(n, target + i * n.item_bytes, at - n.alphabet.begin());
        }
        store_length(n, row, slot, length);
    }

    void pack_utf8(const Node& n, PyObject* value, unsigned char* row, size_t slot,
                   nb::handle out) const {
        Py_ssize_t length = 0;
        const char* text = PyUnicode_AsUTF8AndSize(value, &length);
        if (!text)
            PyErr_Clear(); // lone surrogates
        if (!text || static_cast<size_t>(length) > n.capacity)
            return slow_pack(n, value, slot, out);
        std::memcpy(row + n.offset + slot * n.capacity, text, static_cast<size_t>(length));
        store_length(n, row, slot, static_cast<size_t>(length));
    }

    void pack_dict(const Node& n, PyObject* value, unsigned char* row, size_t slot,
                   nb::handle out) const {
        if (!PyDict_Check(value) ||
            static_cast<size_t>(PyDict_GET_SIZE(value)) != n.children.size())
            return slow_pack(n, value, slot, out);
        for (size_t i = 0; i < n.children.size(); ++i) {
            PyObject* item = PyDict_GetItemWithError(value, n.keys[i].ptr());
            if (!item) {
                if (PyErr_Occurred())
                    throw nb::python_error();
                return slow_pack(n, value, slot, out);
            }
            nb::object hold = nb::borrow(item); // the slow path may run anybody's code
            pack_node(*n.children[i], item, row, slot, out);
        }
    }

    void pack_tuple(const Node& n, PyObject* value, unsigned char* row, size_t slot,
                    nb::handle out) const {
        if (!PyTuple_Check(value) ||
            static_cast<size_t>(PyTuple_GET_SIZE(value)) != n.children.size())
            return slow_pack(n, value, slot, out);
        for (size_t i = 0; i < n.children.size(); ++i)
            pack_node(*n.children[i], PyTuple_GET_ITEM(value, static_cast<Py_ssize_t>(i)), row,
                      slot, out);
    }

    void pack_sequence(const Node& n, PyObject* value, unsigned char* row, size_t slot,
                       nb::handle out) const {
        if (n.stacked)
            return pack_stacked(n, value, row, slot, out);
        if (!PyTuple_Check(value) || static_cast<size_t>(PyTuple_GET_SIZE(value)) > n.capacity)
            return slow_pack(n, value, slot, out);
        const auto length = static_cast<size_t>(PyTuple_GET_SIZE(value));
        store_length(n, row, slot, length);
        for (size_t i = 0; i < length; ++i)
            pack_node(*n.children[0], PyTuple_GET_ITEM(value, static_cast<Py_ssize_t>(i)), row,
                      slot * n.capacity + i, out);
    }

    // Items stacked into one array are copied at once; the reference takes what is not an exact
    // fit.
    void pack_stacked(const Node& n, PyObject* value, unsigned char* row, size_t slot,
                      nb::handle out) const {
        const Node& item = *n.children[0];
        auto* array = reinterpret_cast<PyArrayObject*>(value);
        if (!PyArray_Check(value) || !same_type(item, array) || !PyArray_IS_C_CONTIGUOUS(array) ||
            PyArray_NDIM(array) != static_cast<int>(item.shape.size()) + 1 ||
            static_cast<size_t>(PyArray_DIM(array, 0)) > n.capacity ||
            !PyArray_CompareLists(PyArray_DIMS(array) + 1, item.shape.data(),
                                  static_cast<int>(item.shape.size())))
            return slow_pack(n, value, slot, out);
        const auto length = static_cast<size_t>(PyArray_DIM(array, 0));
        const auto* data = reinterpret_cast<const unsigned char*>(PyArray_BYTES(array));
        for (size_t i = 0; has_bounds(item) && i < length; ++i)
            if (!keeps_bounds(item, data + i * item.bytes))
                return slow_pack(n, value, slot, out);
        store_length(n, row, slot, length);
        std::memmove(row + item.offset + slot * n.capacity * item.bytes, data, length * item.bytes);
    }

    void pack_one_of(const Node& n, PyObject* value, unsigned char* row, size_t slot,
                     nb::handle out) const {
        int64_t index = 0;
        if (!PyTuple_Check(value) || PyTuple_GET_SIZE(value) != 2 ||
            !as_integer(PyTuple_GET_ITEM(value, 0), index) || index < 0 ||
            static_cast<size_t>(index) >= n.children.size())
            return slow_pack(n, value, slot, out);
        store<int64_t>(row + n.offset + slot * sizeof(int64_t), index);
        pack_node(*n.children[static_cast<size_t>(index)], PyTuple_GET_ITEM(value, 1), row, slot,
                  out);
    }

    // ------------------------------------------------------------------ rows -> values

    static nb::object array_view(const Node& n, const std::vector<npy_intp>& shape,
                                 unsigned char* data, nb::handle base, bool writable) {
        Py_INCREF(n.descr);
        PyObject* view = PyArray_NewFromDescr(&PyArray_Type, n.descr,
                                              static_cast<int>(shape.size()), shape.data(), nullptr,
                                              data, writable ? NPY_ARRAY_WRITEABLE : 0, nullptr);
        if (!view)
            throw nb::python_error();
        nb::object owned = nb::steal(view);
        Py_INCREF(base.ptr());
        if (PyArray_SetBaseObject(reinterpret_cast<PyArrayObject*>(view), base.ptr()) < 0)
            throw nb::python_error();
        return owned;
    }

    static nb::object array_at(const Node& n, const std::vector<npy_intp>& shape,
                               unsigned char* data, size_t bytes, nb::handle flat, bool copy) {
        if (!copy)
            return array_view(n, shape, data, flat,
                              PyArray_ISWRITEABLE(reinterpret_cast<PyArrayObject*>(flat.ptr())));
        Py_INCREF(n.descr);
        PyObject* fresh =
            PyArray_NewFromDescr(&PyArray_Type, n.descr, static_cast<int>(shape.size()),
                                 shape.data(), nullptr, nullptr, 0, nullptr);
        if (!fresh)
            throw nb::python_error();
        std::memcpy(PyArray_BYTES(reinterpret_cast<PyArrayObject*>(fresh)), data, bytes);
        return nb::steal(fresh);
    }

    // Flat data that is no value of the space: the reference raises, naming the leaf.
    nb::object slow_unpack(const Node& n, size_t slot, nb::handle flat, bool copy = false) const {
        return slow_unpack_(n.python, copy ? flat.attr("copy")() : nb::borrow(flat), slot);
    }

    nb::object unpack_node(const Node& n, unsigned char* row, size_t slot, nb::handle flat,
                           bool copy) const {
        switch (n.kind) {
        case Kind::Array: {
            unsigned char* data = row + n.offset + slot * n.bytes;
            if (!keeps_bounds(n, data))
                return slow_unpack(n, slot, flat, copy);
            return array_at(n, n.shape, data, n.bytes, flat, copy);
        }
        case Kind::Scalar: {
            unsigned char* data = row + n.offset + slot * n.item_bytes;
            int64_t v = 0;
            if (!load_integer(n, data, v) || v < n.low_integer[0] || v > n.high_integer[0])
                return slow_unpack(n, slot, flat);
            PyObject* scalar =
                n.plain ? PyLong_FromLongLong(v) : PyArray_Scalar(data, n.descr, nullptr);
            if (!scalar)
                throw nb::python_error();
            return nb::steal(scalar);
        }
        case Kind::Text:
            return unpack_text(n, row, slot, flat);
        case Kind::Dict: {
            nb::dict items;
            for (size_t i = 0; i < n.children.size(); ++i)
                items[n.keys[i]] = unpack_node(*n.children[i], row, slot, flat, copy);
            return items;
        }
        case Kind::Tuple: {
            nb::object items = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(n.children.size())));
            for (size_t i = 0; i < n.children.size(); ++i)
                PyTuple_SET_ITEM(
                    items.ptr(), static_cast<Py_ssize_t>(i),
                    unpack_node(*n.children[i], row, slot, flat, copy).release().ptr());
            return items;
        }
        case Kind::Sequence:
            return unpack_sequence(n, row, slot, flat, copy);
        case Kind::OneOf: {
            const auto index = load<int64_t>(row + n.offset + slot * sizeof(int64_t));
            if (index < 0 || static_cast<size_t>(index) >= n.children.size())
                return slow_unpack(n, slot, flat);
            PyObject* number = PyArrayScalar_New(Int64);
            if (!number)
                throw nb::python_error();
            PyArrayScalar_ASSIGN(number, Int64, index);
            nb::object first = nb::steal(number);
            return nb::make_tuple(
                first, unpack_node(*n.children[static_cast<size_t>(index)], row, slot, flat, copy));
        }
        case Kind::Converted:
            return n.restore(unpack_node(*n.children[0], row, slot, flat, copy));
        }
        throw nb::type_error("unknown node");
    }

    // The length at a slot, or -1 when it is out of range.
    static int32_t load_length(const Node& n, const unsigned char* row, size_t slot) {
        const auto length = load<int32_t>(row + n.length_offset + slot * sizeof(int32_t));
        return length >= 0 && static_cast<size_t>(length) <= n.capacity ? length : -1;
    }

    nb::object unpack_text(const Node& n, unsigned char* row, size_t slot, nb::handle flat) const {
        const int32_t length = load_length(n, row, slot);
        if (length < 0)
            return slow_unpack(n, slot, flat);
        const unsigned char* codes = row + n.offset + slot * n.capacity * n.item_bytes;
        if (n.utf8) {
            PyObject* decoded =
                PyUnicode_DecodeUTF8(reinterpret_cast<const char*>(codes), length, "strict");
            if (decoded)
                return nb::steal(decoded);
            PyErr_Clear();
            return slow_unpack(n, slot, flat);
        }
        std::vector<Py_UCS4> text(static_cast<size_t>(length));
        for (size_t i = 0; i < text.size(); ++i) {
            int64_t code = 0;
            if (!load_integer(n, codes + i * n.item_bytes, code) ||
                static_cast<size_t>(code) >= n.alphabet.size())
                return slow_unpack(n, slot, flat);
            text[i] = n.alphabet[static_cast<size_t>(code)];
        }
        PyObject* string = PyUnicode_FromKindAndData(PyUnicode_4BYTE_KIND, text.data(), length);
        if (!string)
            throw nb::python_error();
        return nb::steal(string);
    }

    nb::object unpack_sequence(const Node& n, unsigned char* row, size_t slot, nb::handle flat,
                               bool copy) const {
        const int32_t length = load_length(n, row, slot);
        if (length < 0)
            return slow_unpack(n, slot, flat);
        const Node& item = *n.children[0];
        const auto count = static_cast<size_t>(length);
        if (n.stacked) {
            unsigned char* data = row + item.offset + slot * n.capacity * item.bytes;
            for (size_t i = 0; has_bounds(item) && i < count; ++i)
                if (!keeps_bounds(item, data + i * item.bytes))
                    return slow_unpack(n, slot, flat, copy);
            std::vector<npy_intp> shape{length};
            shape.insert(shape.end(), item.shape.begin(), item.shape.end());
            return array_at(item, shape, data, count * item.bytes, flat, copy);
        }
        nb::object items = nb::steal(PyTuple_New(length));
        for (size_t i = 0; i < count; ++i)
            PyTuple_SET_ITEM(
                items.ptr(), static_cast<Py_ssize_t>(i),
                unpack_node(item, row, slot * n.capacity + i, flat, copy).release().ptr());
        return items;
    }

    nb::object dtype_;
    int type_ = NPY_NOTYPE;
    npy_intp size_ = 0;
    size_t bytes_ = 0;
    bool clear_;
    nb::object slow_pack_, slow_unpack_, refuse_row_;
    std::unique_ptr<Node> root_;
};

} // namespace

void pack_value(nb::handle packer, nb::handle value, nb::handle out) {
    nb::inst_ptr<Packer>(packer)->pack(value, out);
}

nb::object unpack_row(nb::handle packer, nb::handle row, bool copy) {
    return nb::inst_ptr<Packer>(packer)->unpack(row, copy);
}

bool is_packer(nb::handle value) {
    return nb::isinstance<Packer>(value);
}

void bind_packer(nb::module_& m) {
    nb::class_<Packer>(m, "Packer", "Walks Python values and flat rows by the nodes of a layout.")
        .def(nb::init<nb::object, nb::object, size_t, bool, nb::object, nb::object, nb::object>())
        .def("pack", &Packer::pack, nb::arg().none(), nb::arg().none())
        .def("unpack", &Packer::unpack, nb::arg().none(), nb::arg() = false);
}

} // namespace fugu
