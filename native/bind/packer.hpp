// The packer: walks a Python value by the nodes of a layout and copies it into a flat row.
#pragma once

#include <nanobind/nanobind.h>

namespace fugu {

// Adds class Packer to the module.
void bind_packer(nanobind::module_& m);

} // namespace fugu
