// Gathers blocks of memory by their numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace fugu {

// Copies blocks ids[0], ids[1], ... of `source` one behind the other; runs are copied at once.
inline void gather(const unsigned char* source, size_t block, const int64_t* ids, size_t count,
                   unsigned char* out) {
    for (size_t i = 0; i < count;) {
        size_t run = 1;
        while (i + run < count && ids[i + run] == ids[i] + static_cast<int64_t>(run))
            ++run;
        std::memcpy(out + i * block, source + static_cast<size_t>(ids[i]) * block, run * block);
        i += run;
    }
}

} // namespace fugu
