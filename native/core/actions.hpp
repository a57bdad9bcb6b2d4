// What stands between a caller's actions and an environment, which trusts them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/fugu_env.h"

namespace fugu {

inline size_t numbers_of(const FuguLeaf& leaf) {
    size_t count = 1;
    for (int i = 0; i < leaf.rank; ++i)
        count *= static_cast<size_t>(leaf.shape[i]);
    return count;
}

// Bytes that rows of a space must have at least.
inline size_t bytes_of(const FuguSpace& space) {
    static const size_t kBytes[] = {1, 1, 2, 4, 8, 4}; // of each type
    size_t end = 0;
    for (int i = 0; i < space.count; ++i) {
        const FuguLeaf& leaf = space.leaves[i];
        const size_t last = leaf.offset + numbers_of(leaf) * kBytes[leaf.type];
        end = last > end ? last : end;
    }
    return end;
}

// Numbers of a mask: one for each choice.
inline size_t choices_of(const FuguSpace& space) {
    size_t total = 0;
    for (int i = 0; i < space.count; ++i)
        if (space.leaves[i].kind != FUGU_BOX)
            total += static_cast<size_t>(space.leaves[i].choices) * numbers_of(space.leaves[i]);
    return total;
}

// One leaf of all rows.
struct Leaves {
    const unsigned char* data;
    size_t rows, width, count; // width: bytes from row to row
};

// The first row with a bad number, or -1. All numbers are looked at before the row is searched for,
// in a loop without a way out, since almost never one is bad.
template <typename T, typename Bad> int64_t first_bad(const Leaves& leaves, Bad bad) {
    const auto at = [&](size_t row, size_t k) {
        T value;
        std::memcpy(&value, leaves.data + row * leaves.width + k * sizeof(T), sizeof(T));
        return value;
    };
    size_t found = 0;
    if (leaves.width == leaves.count * sizeof(T)) {
        for (size_t i = 0; i < leaves.rows * leaves.count; ++i)
            found += bad(at(0, i));
    } else {
        for (size_t row = 0; row < leaves.rows; ++row)
            for (size_t k = 0; k < leaves.count; ++k)
                found += bad(at(row, k));
    }
    for (size_t row = 0; found && row < leaves.rows; ++row)
        for (size_t k = 0; k < leaves.count; ++k)
            if (bad(at(row, k)))
                return static_cast<int64_t>(row);
    return -1;
}

template <typename T> int64_t first_outside(const Leaves& leaves, double low, double high) {
    return first_bad<T>(leaves, [low, high](T v) {
        return !(static_cast<double>(v) >= low && static_cast<double>(v) <= high);
    });
}

inline int64_t first_bad_of(const FuguLeaf& leaf, const Leaves& leaves) {
    if (leaf.kind != FUGU_BOX)
        return first_bad<uint64_t>(leaves, [choices = static_cast<uint64_t>(leaf.choices)](
                                               uint64_t v) { return v >= choices; });
    switch (leaf.type) {
    case FUGU_U8:
        return first_outside<uint8_t>(leaves, leaf.low, leaf.high);
    case FUGU_I8:
        return first_outside<int8_t>(leaves, leaf.low, leaf.high);
    case FUGU_I16:
        return first_outside<int16_t>(leaves, leaf.low, leaf.high);
    case FUGU_I32:
        return first_outside<int32_t>(leaves, leaf.low, leaf.high);
    case FUGU_I64:
        return first_outside<int64_t>(leaves, leaf.low, leaf.high);
    default: // in float32, as the bounds are told to callers
        return first_bad<float>(leaves, [low = static_cast<float>(leaf.low),
                                         high = static_cast<float>(leaf.high)](float v) {
            return !(v >= low && v <= high);
        });
    }
}

// A row whose action is no value of its space, or -1; rows are `width` bytes, enough for it.
inline int64_t bad_action(const FuguSpace& space, const unsigned char* actions, size_t rows,
                          size_t width) {
    for (int i = 0; i < space.count; ++i) {
        const FuguLeaf& leaf = space.leaves[i];
        const int64_t row =
            first_bad_of(leaf, {actions + leaf.offset, rows, width, numbers_of(leaf)});
        if (row >= 0)
            return row;
    }
    return -1;
}

} // namespace fugu
