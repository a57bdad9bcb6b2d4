// Products of rows with a matrix, blocked so that sums stay in registers.
//
// A sum is taken in one order for any number of rows: lanes are columns, and each adds up its own
// column from the first row of the matrix to the last.
#pragma once

#include "nets/vectors.hpp"

namespace fugu::nets::FUGU_TARGET {

// Columns stand in panels [panels][depth][panel width], filled up with zeros; see Packed.
constexpr size_t kWide = 2; // vectors of a panel
constexpr size_t kMostRows = kRegisters == 32 ? 12 : 6;
constexpr size_t kShares = 4; // sums of a column of a narrow matrix, added up in the end

// Some rows of a product.
struct Rows {
    const float* x;
    float* out;
};

// R rows and P panels of `kWide` vectors each.
template <size_t R, size_t P>
FUGU_INLINE void wide_block(const Product& task, const Rows& at, size_t panel) {
    constexpr size_t vectors = P * kWide, width = kWide * kLanes;
    const size_t depth = task.num_pieces * task.length, stride = task.stride;
    const float* const bias = task.bias + panel * width;
    const float* weight = task.weight + panel * width * depth;
    Floats sums[R][vectors];
    for (size_t r = 0; r < R; ++r)
        for (size_t v = 0; v < vectors; ++v)
            sums[r][v] = load(bias + v * kLanes);
    for (size_t piece = 0; piece < task.num_pieces; ++piece) {
        const float* x = at.x + task.pieces[piece];
        for (size_t i = 0; i < task.length; ++i, ++x, weight += width) {
            Floats columns[vectors];
            for (size_t v = 0; v < vectors; ++v)
                columns[v] = load(weight + v / kWide * width * depth + v % kWide * kLanes);
            for (size_t r = 0; r < R; ++r) {
                const Floats number = splat(x[r * stride]);
                for (size_t v = 0; v < vectors; ++v)
                    sums[r][v] = fused(number, columns[v], sums[r][v]);
            }
        }
    }
    const size_t begin = panel * width, all = task.out.width;
    for (size_t r = 0; r < R; ++r)
        for (size_t v = 0; v < vectors; ++v) {
            const size_t column = begin + v * kLanes;
            float* const out = at.out + r * task.out.stride + column;
            if (column + kLanes <= all)
                store(sums[r][v], out);
            else if (column < all)
                store(sums[r][v], out, all - column);
        }
}

// All panels for R rows; few rows take several panels at once, so that enough sums are under way.
template <size_t R> void wide_rows(const Product& task, const Rows& at) {
    constexpr size_t together = R == 1 ? 4 : R == 2 ? 2 : 1;
    const size_t panels = (task.out.width + kWide * kLanes - 1) / (kWide * kLanes);
    size_t panel = 0;
    for (; panel + together <= panels; panel += together)
        wide_block<R, together>(task, at, panel);
    if constexpr (together > 1)
        for (; panel < panels; ++panel)
            wide_block<R, 1>(task, at, panel);
}

// R rows of a matrix of one vector's width, in shares of its depth; rows of x are whole.
template <size_t R> void narrow_rows(const Product& task, const Rows& at) {
    const size_t depth = task.length, stride = task.stride, width = task.out.width;
    const float *x = at.x, *weight = task.weight;
    Floats sums[R][kShares] = {};
    for (size_t r = 0; r < R; ++r)
        sums[r][0] = load(task.bias);
    const auto add = [&](size_t share) __attribute__((always_inline)) {
        const Floats column = load(weight);
        for (size_t r = 0; r < R; ++r)
            sums[r][share] = fused(splat(x[r * stride]), column, sums[r][share]);
        ++x, weight += kLanes;
    };
    size_t i = 0;
    for (; i + kShares <= depth; i += kShares)
        for (size_t share = 0; share < kShares; ++share)
            add(share);
    for (; i < depth; ++i)
        add(0);
    static_assert(kShares == 4, "they are added up in pairs");
    for (size_t r = 0; r < R; ++r) {
        const Floats sum = (sums[r][0] + sums[r][1]) + (sums[r][2] + sums[r][3]);
        float* const out = at.out + r * task.out.stride;
        width < kLanes ? store(sum, out, width) : store(sum, out);
    }
}

using Block = void (*)(const Product&, const Rows&);

// Rows in blocks of about one size, each by the function for so many.
FUGU_INLINE void in_blocks(const Product& task, const Block* blocks, size_t most) {
    const size_t rows = task.out.rows;
    if (!rows)
        return;
    const size_t count = (rows + most - 1) / most;
    for (size_t i = 0, row = 0; i < count; ++i) {
        const size_t size = (rows - row) / (count - i);
        blocks[size - 1](task, {task.x + row * task.stride, task.out.at(row)});
        row += size;
    }
}

inline void product(const Product& task) {
    static const Block narrow[] = {narrow_rows<1>, narrow_rows<2>, narrow_rows<3>};
    static const Block wide[] = {
        wide_rows<1>, wide_rows<2>, wide_rows<3>, wide_rows<4>,  wide_rows<5>,  wide_rows<6>,
#if defined(__AVX512F__) || defined(__aarch64__)
        wide_rows<7>, wide_rows<8>, wide_rows<9>, wide_rows<10>, wide_rows<11>, wide_rows<12>,
#endif
    };
    static_assert(sizeof(wide) / sizeof(wide[0]) == kMostRows, "one for each number of rows");
    task.narrow ? in_blocks(task, narrow, 3) : in_blocks(task, wide, kMostRows);
}

} // namespace fugu::nets::FUGU_TARGET
