// Binds native environments: libraries that hold them, and fugu::Pool.
#pragma once

#include <nanobind/nanobind.h>

#include "core/pool.hpp"

namespace fugu {

// The pool within a bound one, for those who step its copies themselves.
struct PoolCore {
    Pool* pool;
};

// Adds classes Library, Pool and PoolCore to the module.
void bind_pool(nanobind::module_& m);

} // namespace fugu
