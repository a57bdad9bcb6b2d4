// Steps Gymnasium environments without a line of Python but theirs.
#pragma once

#include <nanobind/nanobind.h>

namespace fugu {

// Adds class Stepper to the module.
void bind_stepper(nanobind::module_& m);

} // namespace fugu
