// A fork-join of threads that stay: the caller and helpers share out the parts of one task.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>

#if !defined(_WIN32)
#include <signal.h>
#include <unistd.h>
#endif

#include "core/wait.hpp"

namespace fugu {

class Team {
public:
    // Calls work(part) once for each part below `parts`, by up to `threads` threads, the caller one
    // of them. Never waits for a helper that has not begun: on a busy machine the caller does it
    // all. While another thread has the team, the caller works alone.
    template <typename Work> static void run(size_t parts, size_t threads, const Work& work) {
        Team* team = threads > 1 && parts > 1 ? &current() : nullptr;
        if (!team || team->busy_.exchange(true, std::memory_order_acquire)) {
            for (size_t part = 0; part < parts; ++part)
                work(part);
            return;
        }
        team->call_ = [](const void* task, size_t part) {
            (*static_cast<const Work*>(task))(part);
        };
        team->task_ = &work;
        team->parts_ = parts;
        team->go(threads - 1 < parts - 1 ? threads - 1 : parts - 1);
        team->busy_.store(false, std::memory_order_release);
    }

private:
    static constexpr uint32_t kClosed = 1u << 31;
    static constexpr int64_t kSpin = 100000; // nanoseconds a helper looks for more before it sleeps
    static constexpr size_t kMostHelpers = 255;

    static int64_t process() {
#if defined(_WIN32)
        return 0;
#else
        return getpid();
#endif
    }

    // The team of this process. A forked child has none of its parent's threads and begins anew;
    // no team is ever destroyed, since its helpers may outlive every static object.
    static Team& current() {
        static std::atomic<Team*> current{nullptr};
        Team* team = current.load(std::memory_order_acquire);
        while (!team || team->process_ != process()) {
            Team* fresh = new Team;
            if (current.compare_exchange_strong(team, fresh, std::memory_order_acq_rel))
                return *fresh;
            delete fresh; // another thread was first
        }
        return *team;
    }

    void go(size_t wanted) {
        hire(wanted < kMostHelpers ? wanted : kMostHelpers);
        next_.store(0, std::memory_order_relaxed);
        gate_.store(0, std::memory_order_release); // open
        {
            std::lock_guard<std::mutex> lock(mutex_);
            wanted_ = wanted;
            round_.fetch_add(1, std::memory_order_release);
        }
        arrived_.notify_all();
        work();
        gate_.fetch_or(kClosed, std::memory_order_acq_rel);
        for (size_t i = 0; gate_.load(std::memory_order_acquire) != kClosed; ++i)
            i < 4096 ? pause() : std::this_thread::yield();
    }

    void work() {
        for (size_t part; (part = next_.fetch_add(1, std::memory_order_relaxed)) < parts_;)
            call_(task_, part);
    }

    void hire(size_t wanted) {
        while (helpers_ < wanted) {
#if !defined(_WIN32)
            sigset_t all, before; // signals are for the threads that Python knows
            sigfillset(&all);
            pthread_sigmask(SIG_SETMASK, &all, &before);
#endif
            try {
                std::thread(&Team::help, this, helpers_, round_.load()).detach();
                ++helpers_;
            } catch (const std::system_error&) {
                wanted = helpers_; // the system gives no more: fewer will do
            }
#if !defined(_WIN32)
            pthread_sigmask(SIG_SETMASK, &before, nullptr);
#endif
        }
    }

    void help(size_t number, uint32_t seen) {
        for (;;) {
            const int64_t start = now_ns();
            while (round_.load(std::memory_order_acquire) == seen && now_ns() - start < kSpin)
                pause();
            size_t wanted;
            {
                std::unique_lock<std::mutex> lock(mutex_);
                arrived_.wait(lock, [&] { return round_.load() != seen; });
                seen = round_.load();
                wanted = wanted_;
            }
            if (number < wanted && enter()) {
                work();
                gate_.fetch_sub(1, std::memory_order_release);
            }
        }
    }

    // Counts this helper in, unless the caller has closed the gate.
    bool enter() {
        uint32_t gate = gate_.load(std::memory_order_relaxed);
        while (!(gate & kClosed))
            if (gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acquire))
                return true;
        return false;
    }

    const int64_t process_ = process();
    std::atomic<bool> busy_{false};
    std::atomic<uint32_t> gate_{kClosed}; // helpers inside, and whether no more may enter
    std::atomic<size_t> next_{0};
    void (*call_)(const void*, size_t) = nullptr;
    const void* task_ = nullptr;
    size_t parts_ = 0;
    size_t helpers_ = 0;
    std::mutex mutex_;
    std::condition_variable arrived_;
    std::atomic<uint32_t> round_{0};
    size_t wanted_ = 0;
};

} // namespace fugu
