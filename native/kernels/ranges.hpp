// Range checks over flat numeric data, without Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace fugu {

// Whether v lies in [low, high] given as int64; exact for every integer type.
template <typename T> inline bool inside(T v, int64_t low, int64_t high) {
    if constexpr (std::is_same_v<T, uint64_t>) {
        return v <= static_cast<uint64_t>(INT64_MAX) && static_cast<int64_t>(v) >= low &&
               static_cast<int64_t>(v) <= high;
    } else {
        return static_cast<int64_t>(v) >= low && static_cast<int64_t>(v) <= high;
    }
}

// Whether every one of `count` values lies in its own inclusive range. Not-a-number never does.
// Data may be unaligned, so values are loaded by memcpy.
template <typename T, typename B>
inline bool all_inside(const unsigned char* data, size_t count, const B* low, const B* high) {
    for (size_t i = 0; i < count; ++i) {
        T v;
        std::memcpy(&v, data + i * sizeof(T), sizeof(T));
        if constexpr (std::is_same_v<B, double>) {
            const double x = static_cast<double>(v);
            if (!(x >= low[i] && x <= high[i]))
                return false;
        } else {
            if (!inside<T>(v, low[i], high[i]))
                return false;
        }
    }
    return true;
}

} // namespace fugu
