// Binds fugu::Raster: pictures of display lists.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "core/raster.hpp"

namespace fugu {

// Pixels that Python owns, [height, width, 3].
using Pixels = nanobind::ndarray<uint8_t, nanobind::shape<-1, -1, 3>, nanobind::c_contig,
                                 nanobind::device::cpu>;

// Draws shapes into pixels, without the GIL.
void draw_pixels(uint32_t background, const FuguShape* shapes, size_t count, float width,
                 float height, const Pixels& out);

// Adds rasterise() to the module.
void bind_raster(nanobind::module_& m);

} // namespace fugu
