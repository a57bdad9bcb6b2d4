// Whether numbers are finite: neither NaN nor infinite.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace fugu {

// Whether `count` numbers, given by their bits, all have an exponent that is not all ones.
template <typename Bits, Bits kExponent>
inline bool all_finite(const unsigned char* numbers, size_t count) {
    Bits found = 0;
    for (size_t i = 0; i < count; ++i) {
        Bits bits;
        std::memcpy(&bits, numbers + i * sizeof(Bits), sizeof(Bits));
        found |= static_cast<Bits>((bits & kExponent) == kExponent);
    }
    return !found;
}

// Likewise of floating-point numbers of 2, 4 or 8 bytes.
inline bool all_finite(const unsigned char* numbers, size_t count, size_t bytes) {
    if (bytes == 4)
        return all_finite<uint32_t, 0x7F800000u>(numbers, count);
    if (bytes == 8)
        return all_finite<uint64_t, 0x7FF0000000000000u>(numbers, count);
    return all_finite<uint16_t, 0x7C00u>(numbers, count);
}

} // namespace fugu
