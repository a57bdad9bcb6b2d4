// Rows side by side in lanes, and functions of float64 that vectorise over them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/hot.hpp"

namespace fugu {

constexpr size_t kLanes = 32; // on every kind of processor, so that all take sums in one order

// e^x within 2 units in the last place, for x from -708 to 709 (beyond, the value at the bound);
// e^0 is exactly 1, and what is no number stays none. See exp_of_negative of sampling.hpp.
FUGU_KERNEL_INLINE double exp_of(double x) {
    const double low = x < -708.0 ? -708.0 : x;
    const double clamped = low > 709.0 ? 709.0 : low;
    const double shifted = clamped * 1.4426950408889634 + 6755399441055744.0; // 1.5 * 2^52
    const double n = shifted - 6755399441055744.0;
    // log 2 in two pieces, the first so short that its product with n is exact.
    const double r = clamped - n * 0.6931471803691238 - n * 1.9082149292705877e-10;
    double e = 1.0 / 6227020800.0;
    e = e * r + 1.0 / 479001600.0;
    e = e * r + 1.0 / 39916800.0;
    e = e * r + 1.0 / 3628800.0;
    e = e * r + 1.0 / 362880.0;
    e = e * r + 1.0 / 40320.0;
    e = e * r + 1.0 / 5040.0;
    e = e * r + 1.0 / 720.0;
    e = e * r + 1.0 / 120.0;
    e = e * r + 1.0 / 24.0;
    e = e * r + 1.0 / 6.0;
    e = e * r + 0.5;
    e = e * r + 1.0;
    e = e * r + 1.0;
    uint64_t bits; // the low ones hold n
    std::memcpy(&bits, &shifted, sizeof(bits));
    bits = (bits + 1023) << 52;
    double power;
    std::memcpy(&power, &bits, sizeof(power));
    return e * power;
}

// log x for a positive, normal x within 1e-15 of max(1, log x); log 1 is exactly 0, and of
// anything that is not positive there is no number. With x = m 2^n and m around 1, log m = 2
// artanh((m - 1) / (m + 1)).
FUGU_KERNEL_INLINE double log_of_positive(double x) {
    uint64_t bits;
    std::memcpy(&bits, &x, sizeof(bits));
    // Counted from just below sqrt(1/2), so that m lies between sqrt(1/2) and sqrt(2).
    const uint64_t offset = bits - 0x3fe6a09e00000000u;
    const uint64_t exponent_bits = ((offset >> 52) + 2048) & 4095;    // n + 2048
    const uint64_t number_bits = exponent_bits | 0x4330000000000000u; // 2^52 + that
    const uint64_t mantissa_bits = bits - ((offset >> 52) << 52);
    double shifted, m;
    std::memcpy(&shifted, &number_bits, sizeof(shifted));
    std::memcpy(&m, &mantissa_bits, sizeof(m));
    const double n = shifted - 4503599627372544.0; // 2^52 + 2048
    const double s = (m - 1.0) / (m + 1.0), q = s * s;
    double sum = 1.0 / 23.0;
    sum = sum * q + 1.0 / 21.0;
    sum = sum * q + 1.0 / 19.0;
    sum = sum * q + 1.0 / 17.0;
    sum = sum * q + 1.0 / 15.0;
    sum = sum * q + 1.0 / 13.0;
    sum = sum * q + 1.0 / 11.0;
    sum = sum * q + 1.0 / 9.0;
    sum = sum * q + 1.0 / 7.0;
    sum = sum * q + 1.0 / 5.0;
    sum = sum * q + 1.0 / 3.0;
    const double of_mantissa = 2.0 * s + 2.0 * s * (q * sum);
    const double result = n * 0.6931471805599453 + of_mantissa;
    return x > 0.0 ? result : std::numeric_limits<double>::quiet_NaN();
}

} // namespace fugu
