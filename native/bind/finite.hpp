// Finds rows that hold a number which is NaN or infinite.
#pragma once

#include <memory>
#include <vector>

#include <nanobind/nanobind.h>

namespace fugu {

// The floating-point numbers of some rows that Python owns.
class FiniteCheck {
public:
    struct Span {
        size_t offset, count, bytes; // of numbers of so many bytes each, in every row
    };

    void add(nanobind::object rows, const std::vector<std::vector<size_t>>& spans,
             nanobind::object flags, nanobind::object more_flags);

    // Whether all numbers of all rows are finite, but for rows whose flags are all 0.
    bool finite() const;

private:
    struct Part {
        const unsigned char* rows;
        size_t count, width;
        std::vector<Span> spans;
        std::vector<const bool*> flags; // of each row; none: every row counts
    };
    std::vector<Part> parts_;
    nanobind::list kept_; // arrays
};

// Adds class FiniteCheck to the module.
void bind_finite(nanobind::module_& m);

} // namespace fugu
