// Reads numbers out of a fuzzer's bytes; past their end everything is 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

class Input {
public:
    Input(const uint8_t* data, size_t size) : at_(data), left_(size) {}

    bool empty() const { return left_ == 0; }
    template <typename T> T take() {
        T value{};
        bytes(&value, sizeof(T));
        return value;
    }
    size_t below(size_t count) { return take<uint8_t>() % count; }
    void bytes(void* out, size_t count) {
        const size_t found = count < left_ ? count : left_;
        if (found)
            std::memcpy(out, at_, found);
        at_ += found, left_ -= found;
    }

private:
    const uint8_t* at_;
    size_t left_;
};

// What a fuzzer looks for: a promise that was broken.
inline void promise(bool kept, const char* what, const char* where) {
    if (kept)
        return;
    std::fprintf(stderr, "broken promise: %s (%s)\n", what, where);
    std::abort();
}
