// Binds fugu::Exchange.
#pragma once

#include <nanobind/nanobind.h>

namespace fugu {

// Adds class Exchange to the module.
void bind_exchange(nanobind::module_& m);

} // namespace fugu
