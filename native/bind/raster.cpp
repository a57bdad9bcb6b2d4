#include "bind/raster.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace nb = nanobind;

namespace fugu {
namespace {

using Three = std::tuple<float, float, float>;
using Item = std::tuple<int32_t, uint32_t, Three, Three, float, std::string>;

FuguShape as_shape(const Item& item) {
    const auto& [kind, color, x, y, size, text] = item;
    FuguShape shape{kind,
                    color,
                    {std::get<0>(x), std::get<1>(x), std::get<2>(x)},
                    {std::get<0>(y), std::get<1>(y), std::get<2>(y)},
                    size,
                    {}};
    text.copy(shape.text, FUGU_TEXT - 1);
    return shape;
}

void rasterise(uint32_t background, const std::vector<Item>& items,
               const std::pair<float, float>& size, const Pixels& out) {
    std::vector<FuguShape> shapes;
    for (const Item& item : items)
        shapes.push_back(as_shape(item));
    draw_pixels(background, shapes.data(), shapes.size(), size.first, size.second, out);
}

} // namespace

void draw_pixels(uint32_t background, const FuguShape* shapes, size_t count, float width,
                 float height, const Pixels& out) {
    if (!(width > 0 && height > 0 && std::isfinite(width) && std::isfinite(height)))
        throw nb::value_error("picture: needs a width and a height above 0");
    uint8_t* pixels = out.data();
    const size_t rows = out.shape(0), columns = out.shape(1);
    nb::gil_scoped_release release;
    Raster(background, shapes, count, width, height).draw(pixels, columns, rows);
}

void bind_raster(nb::module_& m) {
    m.def("rasterise", &rasterise, nb::arg(), nb::arg(), nb::arg(), nb::arg().noconvert(),
          "Draws a display list, as Pool.draw gives it, into pixels.");
}

} // namespace fugu
