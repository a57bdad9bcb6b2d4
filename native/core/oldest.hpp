// The environments that have been ready for longest.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace fugu {

// Keeps the `count` of `found` whose age is greatest, in ascending order as they came.
template <typename Age> inline void keep_oldest(std::vector<size_t>& found, size_t count, Age age) {
    if (found.size() <= count)
        return;
    std::nth_element(
        found.begin(), found.begin() + static_cast<ptrdiff_t>(count), found.end(),
        [&](size_t a, size_t b) { return age(a) != age(b) ? age(a) > age(b) : a < b; });
    found.resize(count);
    std::sort(found.begin(), found.end());
}

} // namespace fugu
