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

// The products of a word with a vector of words, added to sums.
template <Words words>
FUGU_NET_INLINE Floats multiply(const float* word, Floats column, Floats sums) {
    if constexpr (words == Words::Floats) {
        return fused(splat(*word), column, sums);
    } else {
        int32_t bits;
        std::memcpy(&bits, word, sizeof(bits));
        return add_pairs(bits - Ints{}, (Ints)column, sums);
    }
}

// R rows and P panels of `kWide` vectors each. `last`: whether columns may end within the panels.
template <Words words, size_t R, size_t P, bool last>
FUGU_NET_INLINE void wide_block(const Product& task, const Rows& at, size_t panel) {
    constexpr size_t vectors = P * kWide, width = kWide * kLanes;
    const size_t depth = task.num_pieces * task.length, stride = task.stride;
    const size_t begin = panel * width, all = task.out.width;
    const float* const bias = task.bias + begin;
    const float* weight = task.weight + begin * depth;
    Floats sums[R][vectors];
    FUGU_UNROLLED
    for (size_t v = 0; v < vectors; ++v) {
        const Floats start = load(bias + v * kLanes);
        FUGU_UNROLLED
        for (size_t r = 0; r < R; ++r)
            sums[r][v] = start;
    }
    for (size_t piece = 0; piece < task.num_pieces; ++piece) {
        const float* x = at.x + task.pieces[piece];
        for (size_t i = 0; i < task.length; ++i, ++x, weight += width) {
            Floats columns[vectors];
            FUGU_UNROLLED
            for (size_t v = 0; v < vectors; ++v)
                columns[v] = load(weight + v / kWide * width * depth + v % kWide * kLanes);
            FUGU_UNROLLED
            for (size_t r = 0; r < R; ++r) {
                FUGU_UNROLLED
                for (size_t v = 0; v < vectors; ++v)
                    sums[r][v] = multiply<words>(x + r * stride, columns[v], sums[r][v]);
            }
        }
    }
    FUGU_UNROLLED
    for (size_t r = 0; r < R; ++r) {
        float* const out = at.out + r * task.out.stride;
        FUGU_UNROLLED
        for (size_t v = 0; v < vectors; ++v) {
            const size_t column = begin + v * kLanes;
            if constexpr (last)
                store_within(task.adds ? sums[r][v] + load_within(out, column, all) : sums[r][v],
                             out, column, all);
            else
                store(task.adds ? sums[r][v] + load(out + column) : sums[r][v], out + column);
        }
    }
}

// From a panel on, as many as R rows take at once: few rows take several, so that enough sums are
// under way. Gives the next one.
template <Words words, size_t R>
size_t wide_rows(const Product& task, const Rows& at, size_t panel) {
    constexpr size_t together = R == 1 ? 4 : R == 2 ? 2 : 1, width = kWide * kLanes;
    if ((panel + together) * width <= task.out.width)
        return wide_block<words, R, together, false>(task, at, panel), panel + together;
    wide_block<words, R, 1, true>(task, at, panel);
    return panel + 1;
}

// R rows of a matrix of one vector's width, in shares of its depth; rows of x are whole.
template <Words words, size_t R>
size_t narrow_rows(const Product& task, const Rows& at, size_t panel) {
    const size_t depth = task.length, stride = task.stride, width = task.out.width;
    const float *x = at.x, *weight = task.weight;
    Floats sums[R][kShares] = {};
    FUGU_UNROLLED
    for (size_t r = 0; r < R; ++r)
        sums[r][0] = load(task.bias);
    const auto add = [&](size_t share) __attribute__((always_inline)) {
        const Floats column = load(weight);
        FUGU_UNROLLED
        for (size_t r = 0; r < R; ++r)
            sums[r][share] = multiply<words>(x + r * stride, column, sums[r][share]);
        ++x, weight += kLanes;
    };
    size_t i = 0;
    for (; i + kShares <= depth; i += kShares) {
        FUGU_UNROLLED
        for (size_t share = 0; share < kShares; ++share)
            add(share);
    }
    for (; i < depth; ++i)
        add(0);
    static_assert(kShares == 4, "they are added up in pairs");
    FUGU_UNROLLED
    for (size_t r = 0; r < R; ++r) {
        const Floats sum = (sums[r][0] + sums[r][1]) + (sums[r][2] + sums[r][3]);
        float* const out = at.out + r * task.out.stride;
        store_within(task.adds ? sum + load_within(out, 0, width) : sum, out, 0, width);
    }
    return panel + 1;
}

using Block = size_t (*)(const Product&, const Rows&, size_t panel);

// Rows in blocks of about one size, each by the function for so many. A panel stays in the nearest
// cache while rows go by, and those stay in the next one.
FUGU_NET_INLINE void in_blocks(const Product& task, const Block* blocks, size_t most,
                               size_t panels) {
    constexpr size_t kRowsAtOnce = 96;
    for (size_t begin = 0; begin < task.out.rows; begin += kRowsAtOnce) {
        const size_t left = task.out.rows - begin, rows = left < kRowsAtOnce ? left : kRowsAtOnce;
        const size_t count = (rows + most - 1) / most;
        for (size_t panel = 0; panel < panels;) {
            size_t next = panel;
            for (size_t i = 0, row = 0; i < count; ++i) {
                const size_t size = (rows - row) / (count - i), at = begin + row;
                next = blocks[size - 1](task, {task.x + at * task.stride, task.out.at(at)}, panel);
                row += size;
            }
            panel = next;
        }
    }
}

template <Words words> FUGU_NET_INLINE void product_of(const Product& task) {
    static const Block narrow[] = {narrow_rows<words, 1>, narrow_rows<words, 2>,
                                   narrow_rows<words, 3>};
    static const Block wide[] = {
        wide_rows<words, 1>,  wide_rows<words, 2>,  wide_rows<words, 3>,
        wide_rows<words, 4>,  wide_rows<words, 5>,  wide_rows<words, 6>,
#if defined(__AVX512F__) || defined(__aarch64__)
        wide_rows<words, 7>,  wide_rows<words, 8>,  wide_rows<words, 9>,
        wide_rows<words, 10>, wide_rows<words, 11>, wide_rows<words, 12>,
#endif
    };
    static_assert(sizeof(wide) / sizeof(wide[0]) == kMostRows, "one for each number of rows");
    const size_t panels = (task.out.width + kWide * kLanes - 1) / (kWide * kLanes);
    task.narrow ? in_blocks(task, narrow, 3, 1) : in_blocks(task, wide, kMostRows, panels);
}

inline void product(const Product& task) {
    task.words == Words::Floats ? product_of<Words::Floats>(task) : product_of<Words::Pairs>(task);
}

// ------------------------------------------------------------------ products of columns

// R rows and up to `kWide` vectors of what comes out; the last vector may be a part of one.
template <Words words, size_t R, typename Last>
FUGU_NET_INLINE void outer_block(const Outer& task, size_t row, size_t column, size_t vectors,
                                 Last last) {
    const float *one = task.one.data + row, *other = task.other.data + column;
    float* const out = task.out.at(row) + column;
    if (vectors == kWide) {
        Floats sums[R][kWide];
        FUGU_UNROLLED
        for (size_t r = 0; r < R; ++r) {
            FUGU_UNROLLED
            for (size_t v = 0; v + 1 < kWide; ++v)
                sums[r][v] = load(out + r * task.out.stride + v * kLanes);
            sums[r][kWide - 1] = last.take(out + r * task.out.stride + (kWide - 1) * kLanes);
        }
        for (size_t d = 0; d < task.one.rows; ++d, one += task.one.stride) {
            Floats columns[kWide];
            FUGU_UNROLLED
            for (size_t v = 0; v + 1 < kWide; ++v)
                columns[v] = load(other + v * kLanes);
            columns[kWide - 1] = last.take(other + (kWide - 1) * kLanes);
            FUGU_UNROLLED
            for (size_t r = 0; r < R; ++r) {
                FUGU_UNROLLED
                for (size_t v = 0; v < kWide; ++v)
                    sums[r][v] = multiply<words>(one + r, columns[v], sums[r][v]);
            }
            other += task.other.stride;
        }
        FUGU_UNROLLED
        for (size_t r = 0; r < R; ++r) {
            FUGU_UNROLLED
            for (size_t v = 0; v + 1 < kWide; ++v)
                store(sums[r][v], out + r * task.out.stride + v * kLanes);
            last.give(sums[r][kWide - 1], out + r * task.out.stride + (kWide - 1) * kLanes);
        }
        return;
    }
    Floats sums[R];
    FUGU_UNROLLED
    for (size_t r = 0; r < R; ++r)
        sums[r] = last.take(out + r * task.out.stride);
    for (size_t d = 0; d < task.one.rows; ++d) {
        const Floats columns = last.take(other);
        FUGU_UNROLLED
        for (size_t r = 0; r < R; ++r)
            sums[r] = multiply<words>(one + r, columns, sums[r]);
        one += task.one.stride, other += task.other.stride;
    }
    FUGU_UNROLLED
    for (size_t r = 0; r < R; ++r)
        last.give(sums[r], out + r * task.out.stride);
}

using OuterBlock = void (*)(const Outer&, size_t row, size_t column);

template <Words words, size_t R> void outer_rows(const Outer& task, size_t row, size_t column) {
    const size_t left = task.out.width - column;
    if (left >= kWide * kLanes)
        return outer_block<words, R>(task, row, column, kWide, Whole{});
    static_assert(kWide == 2, "what is left is one vector, or one and a part");
    if (left > kLanes)
        return outer_block<words, R>(task, row, column, kWide, Rest{left - kLanes});
    outer_block<words, R>(task, row, column, 1, Rest{left});
}

template <Words words> FUGU_NET_INLINE void outer_of(const Outer& task) {
    static const OuterBlock blocks[] = {
        outer_rows<words, 1>,  outer_rows<words, 2>,  outer_rows<words, 3>,
        outer_rows<words, 4>,  outer_rows<words, 5>,  outer_rows<words, 6>,
#if defined(__AVX512F__) || defined(__aarch64__)
        outer_rows<words, 7>,  outer_rows<words, 8>,  outer_rows<words, 9>,
        outer_rows<words, 10>, outer_rows<words, 11>, outer_rows<words, 12>,
#endif
    };
    constexpr size_t kDepthAtOnce = 128;
    const size_t rows = task.out.rows, count = (rows + kMostRows - 1) / kMostRows;
    Outer part = task;
    for (size_t depth = task.one.rows; depth; depth -= part.one.rows) {
        part.one.rows = depth < kDepthAtOnce ? depth : kDepthAtOnce;
        for (size_t column = 0; column < task.out.width; column += kWide * kLanes)
            for (size_t i = 0, row = 0; i < count; ++i) {
                const size_t size = (rows - row) / (count - i);
                blocks[size - 1](part, row, column);
                row += size;
            }
        part.one.data += part.one.rows * part.one.stride;
        part.other.data += part.one.rows * part.other.stride;
    }
}

inline void outer(const Outer& task) {
    task.words == Words::Floats ? outer_of<Words::Floats>(task) : outer_of<Words::Pairs>(task);
}

// ------------------------------------------------------------------ numbers as pairs

FUGU_NET_INLINE float* pair_row(const float* x, size_t width, float* out) {
    size_t i = 0;
    for (; i + 2 * kLanes <= width; i += 2 * kLanes, out += kLanes)
        store((Floats)pairs_of(load(x + i), load(x + i + kLanes)), out);
    if (i == width)
        return out;
    const Ints pairs = pairs_of(load_within(x, i, width), load_within(x, i + kLanes, width));
    const size_t words = (width - i + 1) / 2;
    store_within((Floats)pairs, out, 0, words);
    return out + words;
}

inline void pair_rows(const In& in, float* out) {
    for (size_t row = 0; row < in.rows; ++row)
        out = pair_row(in.at(row), in.width, out);
}

inline void pair_columns(const In& in, size_t stride, float* out) {
    for (size_t row = 0; row < in.rows; row += 2, out += stride) {
        const float* const low = in.at(row);
        const bool both = row + 1 < in.rows;
        const float* const high = both ? in.at(row + 1) : low;
        each_vector(in.width, [&](size_t i, auto part) __attribute__((always_inline)) {
            const Floats second = both ? part.take(high + i) : Floats{};
            part.give((Floats)zip_pairs(part.take(low + i), second), out + i);
        });
    }
}

} // namespace fugu::nets::FUGU_TARGET
