// Binds native environments: libraries that hold them, and fugu::Pool.
#pragma once

#include <nanobind/nanobind.h>

namespace fugu {

// Adds classes Library and Pool to the module.
void bind_pool(nanobind::module_& m);

} // namespace fugu
