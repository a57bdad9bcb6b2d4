// The packer: walks a Python value by the nodes of a layout and copies it into a flat row.
#pragma once

#include <nanobind/nanobind.h>

namespace fugu {

// Adds class Packer to the module.
void bind_packer(nanobind::module_& m);

// The methods of a Packer, for the rest of the module; `packer` must be one.
void pack_value(nanobind::handle packer, nanobind::handle value, nanobind::handle out);
nanobind::object unpack_row(nanobind::handle packer, nanobind::handle row, bool copy);
bool is_packer(nanobind::handle value);

} // namespace fugu
