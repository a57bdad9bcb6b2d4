// Binds the kernels of learners.
#pragma once

#include <nanobind/nanobind.h>

namespace fugu {

// Adds advantages, sampling and priorities to the module.
void bind_kernels(nanobind::module_& m);

} // namespace fugu
