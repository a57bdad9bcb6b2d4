// Waiting on a word of memory, shared between threads or processes: block until it changes.
#pragma once

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <thread>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#elif defined(_WIN32)
#include <windows.h>
#endif

namespace fugu {

// Nanoseconds of a clock that all processes of the machine share.
inline int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

// Tells the core that this is a spin loop.
inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Blocks while `word` equals `seen`, for at most `timeout_ns`; may return early for no reason.
inline void block(std::atomic<uint32_t>& word, uint32_t seen, int64_t timeout_ns) {
#if defined(__linux__)
    timespec limit{static_cast<time_t>(timeout_ns / 1000000000),
                   static_cast<long>(timeout_ns % 1000000000)};
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, seen, &limit, nullptr, 0);
#elif defined(_WIN32)
    // Wakes threads of this process only, so other processes are looked at every millisecond.
    const DWORD limit = timeout_ns < 1000000 ? 0 : 1;
    WaitOnAddress(reinterpret_cast<volatile void*>(&word), &seen, sizeof(seen), limit);
#else
    if (word.load(std::memory_order_acquire) == seen)
        std::this_thread::sleep_for(
            std::chrono::nanoseconds(timeout_ns < 100000 ? timeout_ns : 100000));
#endif
}

// Wakes waiters of `word`, one if nobody says more.
inline void wake(std::atomic<uint32_t>& word, int count = 1) {
#if defined(__linux__)
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, count, nullptr, nullptr, 0);
#elif defined(_WIN32)
    (void)count;
    WakeByAddressAll(reinterpret_cast<void*>(&word));
#else
    (void)word, (void)count;
#endif
}

// How long to spin before blocking: more while spinning pays, nothing once it does not.
class SpinBudget {
public:
    explicit SpinBudget(int64_t most_ns) : most_(most_ns), budget_(most_ns / 2) {}

    int64_t nanoseconds() {
        // Now and then a short try, so that a budget of nothing can grow again.
        return budget_ > 0 || ++skipped_ % 32 ? budget_ : most_ / 8;
    }
    void paid() { budget_ = budget_ * 2 + most_ / 16 < most_ ? budget_ * 2 + most_ / 16 : most_; }
    void wasted() { budget_ = budget_ / 2 < most_ / 32 ? 0 : budget_ / 2; }

private:
    int64_t most_, budget_;
    uint32_t skipped_ = 0;
};

// Spins until `reached(word)`, within the budget; whether it was.
template <typename Reached>
inline bool spin_until(std::atomic<uint32_t>& word, SpinBudget& budget, Reached reached) {
    const int64_t nanoseconds = budget.nanoseconds();
    if (nanoseconds <= 0)
        return false;
    const int64_t end = now_ns() + nanoseconds;
    do {
        for (int i = 0; i < 32; ++i) {
            if (reached(word.load(std::memory_order_acquire))) {
                budget.paid();
                return true;
            }
            pause();
        }
    } while (now_ns() < end);
    budget.wasted();
    return false;
}

} // namespace fugu
