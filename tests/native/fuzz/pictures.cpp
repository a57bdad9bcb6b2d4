// Any display list, of any bits, into a picture of any shape.
#include <cmath>
#include <vector>

#include "core/raster.hpp"
#include "input.hpp"

namespace {

float any_number(Input& input) {
    switch (input.below(4)) {
    case 0:
        return static_cast<float>(input.take<int8_t>()) / 8;
    case 1:
        return input.take<float>(); // any bits at all
    default: {
        const float odd[] = {0, -0.0f, 1e-45f, 3e38f, -3e38f, NAN, INFINITY, 1e-20f};
        return odd[input.below(8)];
    }
    }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    Input input(data, size);
    const size_t columns = input.below(70), rows = input.below(70);
    const float width = any_number(input), height = any_number(input);
    if (!(width > 0 && height > 0 && std::isfinite(width) && std::isfinite(height)))
        return 0; // refused by whoever asks
    std::vector<FuguShape> shapes;
    while (!input.empty() && shapes.size() < 40) {
        FuguShape shape{};
        shape.kind = input.take<int8_t>() % 6, shape.color = input.take<uint32_t>();
        for (int i = 0; i < 3; ++i)
            shape.x[i] = any_number(input), shape.y[i] = any_number(input);
        shape.size = any_number(input);
        if (shape.kind == FUGU_LETTERS)
            input.bytes(shape.text, input.below(FUGU_TEXT)); // the last byte stays 0
        shapes.push_back(shape);
    }
    const uint32_t background = 0x123456;
    std::vector<uint8_t> pixels(columns * rows * 3), again(pixels);
    fugu::Raster raster(background, shapes.data(), shapes.size(), width, height);
    raster.draw(pixels.data(), columns, rows);
    raster.draw(again.data(), columns, rows);
    promise(pixels == again, "a picture drawn twice is the same", "pictures");
    return 0;
}
