#include "bind/finite.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include "kernels/finite.hpp"

namespace nb = nanobind;

namespace fugu {

void FiniteCheck::add(nb::object rows, const std::vector<std::vector<size_t>>& spans,
                      nb::object flags, nb::object more_flags) {
    using Rows = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
    using Flags = nb::ndarray<const bool, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
    const auto array = nb::cast<Rows>(rows, false);
    Part part{array.data(), array.shape(0), array.shape(1), {}, {}};
    for (const std::vector<size_t>& span : spans) {
        if (span.size() != 3 || (span[2] != 2 && span[2] != 4 && span[2] != 8))
            throw nb::value_error("FiniteCheck.add: a span is an offset, a count and 2, 4 or 8");
        if (span[0] > part.width || span[1] > (part.width - span[0]) / span[2])
            throw nb::value_error("FiniteCheck.add: a span ends after its row");
        part.spans.push_back({span[0], span[1], span[2]});
    }
    for (const nb::object& each : {flags, more_flags}) {
        if (each.is_none())
            continue;
        const auto found = nb::cast<Flags>(each, false);
        if (found.size() != part.count)
            throw nb::value_error("FiniteCheck.add: one flag for each row");
        part.flags.push_back(found.data());
    }
    kept_.append(nb::make_tuple(rows, flags, more_flags));
    parts_.push_back(std::move(part));
}

bool FiniteCheck::finite() const {
    for (const Part& part : parts_)
        for (size_t row = 0; row < part.count; ++row) {
            bool counts = part.flags.empty();
            for (const bool* flags : part.flags)
                counts = counts || flags[row];
            if (!counts)
                continue;
            for (const Span& span : part.spans)
                if (!all_finite(part.rows + row * part.width + span.offset, span.count, span.bytes))
                    return false;
        }
    return true;
}

void bind_finite(nb::module_& m) {
    const auto array = nb::arg().noconvert();
    nb::class_<FiniteCheck>(m, "FiniteCheck", "The floating-point numbers of some rows.")
        .def(nb::init<>())
        .def("add", &FiniteCheck::add, array, nb::arg(), nb::arg().none() = nb::none(),
             nb::arg().none() = nb::none())
        .def("finite", &FiniteCheck::finite);
}

} // namespace fugu
