// Which kernels there are, and which of them this processor can run.
#pragma once

#include <vector>

#include "nets/kernels.hpp"

namespace fugu::nets {

const Kernels& kernels_baseline(); // each is made of target.cpp
const Kernels& kernels_avx2();
const Kernels& kernels_avx512();
const Kernels& kernels_avx512bf16();

// The best last.
inline std::vector<const Kernels*> usable_kernels() {
    std::vector<const Kernels*> found{&kernels_baseline()};
#if defined(FUGU_NET_TARGETS)
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return found;
    found.push_back(&kernels_avx2());
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512cd") || !__builtin_cpu_supports("avx512dq") ||
        !__builtin_cpu_supports("avx512vl"))
        return found;
    found.push_back(&kernels_avx512());
    if (__builtin_cpu_supports("avx512bf16"))
        found.push_back(&kernels_avx512bf16());
#endif
    return found;
}

} // namespace fugu::nets
