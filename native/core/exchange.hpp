// The exchange: how a learner and its workers tell each other which environment is whose turn.
//
// It lives in one block of memory that they share, and holds a state for every environment and a
// bell for every side. Data never passes through it: that stands in the slab. A worker owns a range
// of environments; a kill at any moment leaves every state meaningful.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/oldest.hpp"
#include "core/wait.hpp"

namespace fugu {

enum class EnvState : uint32_t {
    Idle = 0,    // the learner's: it has the rows and owes an action
    Step = 1,    // the worker's: a step is due
    Command = 2, // the worker's: its mail says what to do
    Work = 3,    // the worker's: under way
    Ready = 4,   // the learner's: the rows are written
    Fault = 5,   // the learner's: the environment failed, a report is in the mail
};

class Exchange {
public:
    // What `next` says other than an environment; a command for e is kCommand - e.
    static constexpr int32_t kTimeout = -1, kClosing = -2, kCommand = -3;

    struct alignas(64) Learner {
        std::atomic<uint32_t> bell;    // rung by workers; the learner waits on it
        std::atomic<uint32_t> wake_at; // the bell's count that is worth a wake
        std::atomic<uint32_t> waiting;
        std::atomic<uint32_t> closing;
        std::atomic<uint32_t> clock;  // orders completions
        std::atomic<uint32_t> faults; // of environments, ever
    };
    struct alignas(64) Worker {
        std::atomic<uint32_t> bell; // rung by the learner; the worker waits on it
        std::atomic<uint32_t> waiting;
        std::atomic<uint32_t> current; // the environment it is in, plus one
        std::atomic<uint32_t> mail;    // 1: there is some; 2: it waits for the learner to read it
        std::atomic<int64_t> alive;    // its last sign of life, by now_ns
    };

    static size_t bytes(size_t workers, size_t envs) {
        return sizeof(Learner) + workers * sizeof(Worker) + 2 * envs * sizeof(uint32_t);
    }

    // The memory must be zeroed and aligned to 64 bytes.
    Exchange(void* memory, size_t workers, size_t envs, int64_t spin_ns)
        : workers_(workers), envs_(envs), learner_(static_cast<Learner*>(memory)),
          worker_(reinterpret_cast<Worker*>(learner_ + 1)),
          state_(reinterpret_cast<std::atomic<uint32_t>*>(worker_ + workers)),
          ticket_(reinterpret_cast<std::atomic<uint32_t>*>(state_ + envs)), spin_(spin_ns),
          posted_(envs) {}

    size_t first(size_t worker) const {
        const size_t share = envs_ / workers_, more = envs_ % workers_;
        return worker * share + std::min(worker, more);
    }
    size_t owner(size_t env) const {
        const size_t share = envs_ / workers_, more = envs_ % workers_;
        const size_t large = more * (share + 1); // environments of the workers that own one more
        return env < large ? env / (share + 1) : more + (env - large) / share;
    }
    size_t num_envs() const { return envs_; }
    size_t num_workers() const { return workers_; }
    EnvState state(size_t env) const {
        return static_cast<EnvState>(state_[env].load(std::memory_order_acquire));
    }

    // ------------------------------------------------------------------ the learner's side

    // Hands environments over to their workers, one bell a worker.
    void post(const int64_t* ids, size_t count, EnvState what) {
        size_t last = workers_;
        const int64_t now = now_ns();
        for (size_t i = 0; i < count; ++i) {
            posted_[static_cast<size_t>(ids[i])] = now;
            state_[ids[i]].store(static_cast<uint32_t>(what), std::memory_order_release);
        }
        for (size_t i = 0; i < count; ++i) {
            const size_t w = owner(static_cast<size_t>(ids[i]));
            if (w != last)
                ring(w);
            last = w;
        }
    }

    void ring(size_t worker) {
        Worker& w = worker_[worker];
        w.bell.fetch_add(1, std::memory_order_seq_cst);
        if (w.waiting.load(std::memory_order_seq_cst))
            wake(w.bell);
    }

    // Environments of [begin, end) in a state.
    size_t count(size_t begin, size_t end, EnvState s) const {
        size_t found = 0;
        for (size_t e = begin; e < end; ++e)
            found += state_[e].load(std::memory_order_relaxed) == static_cast<uint32_t>(s);
        std::atomic_thread_fence(std::memory_order_acquire);
        return found;
    }
    size_t ready(size_t begin, size_t end) const { return count(begin, end, EnvState::Ready); }

    uint32_t faults() const { return learner_->faults.load(std::memory_order_acquire); }
    uint32_t mail(size_t worker) const {
        return worker_[worker].mail.load(std::memory_order_acquire);
    }
    void read_mail(size_t worker) { worker_[worker].mail.store(0, std::memory_order_seq_cst); }

    // Whether something other than readiness wants the learner.
    bool wanted(uint32_t known_faults) const {
        if (faults() != known_faults)
            return true;
        for (size_t w = 0; w < workers_; ++w)
            if (mail(w) == 2)
                return true;
        return false;
    }

    // Waits until `count` of [begin, end) are ready, or something else wants the learner, or time
    // is up; how many are ready.
    size_t wait_ready(size_t begin, size_t end, size_t count, uint32_t known_faults,
                      int64_t timeout_ns) {
        const int64_t start = now_ns();
        for (;;) {
            const uint32_t seen = learner_->bell.load(std::memory_order_seq_cst);
            const size_t found = ready(begin, end);
            if (found >= count || wanted(known_faults))
                return found;
            const int64_t left = timeout_ns - (now_ns() - start);
            if (left <= 0)
                return found;
            const uint32_t goal = seen + static_cast<uint32_t>(count - found);
            if (spin(learner_->bell, goal))
                continue;
            learner_->wake_at.store(goal, std::memory_order_seq_cst);
            learner_->waiting.store(1, std::memory_order_seq_cst);
            // Workers ring without waking until the goal; a ring from now on ends the block at
            // once.
            const uint32_t current = learner_->bell.load(std::memory_order_seq_cst);
            if (static_cast<int32_t>(current - goal) < 0)
                block(learner_->bell, current, left);
            learner_->waiting.store(0, std::memory_order_seq_cst);
        }
    }

    // Takes the `count` of [begin, end) that were ready first; their ids come out in order.
    size_t take(size_t begin, size_t end, size_t count, int64_t* ids) {
        found_.clear();
        for (size_t e = begin; e < end; ++e)
            if (state(e) == EnvState::Ready)
                found_.push_back(e);
        const uint32_t clock = learner_->clock.load(std::memory_order_acquire);
        keep_oldest(found_, count,
                    [&](size_t e) { return clock - ticket_[e].load(std::memory_order_relaxed); });
        for (size_t i = 0; i < found_.size(); ++i) {
            ids[i] = static_cast<int64_t>(found_[i]);
            set(found_[i], EnvState::Idle);
        }
        return found_.size();
    }

    // An environment is the learner's, to be sent another time.
    void hold(size_t env) { set(env, EnvState::Idle); }

    // How long a worker has given no sign of life although it has something to do, whether it has
    // begun that or not; 0 if it has nothing to do. `env` is the environment it is in, or -1.
    int64_t silent_ns(size_t worker, int64_t* env) const {
        const int64_t now = now_ns();
        int64_t since = now; // when the oldest of what it has to do was posted
        for (size_t e = first(worker); e < first(worker + 1); ++e)
            if (const EnvState s = state(e);
                s == EnvState::Step || s == EnvState::Command || s == EnvState::Work)
                since = std::min(since, posted_[e]);
        const Worker& w = worker_[worker];
        *env = static_cast<int64_t>(w.current.load(std::memory_order_acquire)) - 1;
        return std::max<int64_t>(now - std::max(since, w.alive.load(std::memory_order_relaxed)), 0);
    }

    // After a worker's death: its side as for a new one, which is due to step what the old one
    // had not finished.
    void revive(size_t worker) {
        for (size_t e = first(worker); e < first(worker + 1); ++e)
            if (state(e) == EnvState::Work || state(e) == EnvState::Command)
                set(e, EnvState::Step);
        worker_[worker].current.store(0);
        worker_[worker].alive.store(0);
        worker_[worker].waiting.store(0);
        worker_[worker].mail.store(0);
    }

    void close() {
        learner_->closing.store(1, std::memory_order_seq_cst);
        for (size_t w = 0; w < workers_; ++w)
            ring(w);
    }

    // ------------------------------------------------------------------ a worker's side

    // The next environment that is due, which the worker is in from then on (a command is told
    // apart), or kTimeout, or kClosing.
    int32_t next(size_t worker, int64_t timeout_ns) {
        Worker& w = worker_[worker];
        const size_t begin = first(worker), end = first(worker + 1);
        int64_t now = now_ns();
        const int64_t limit = now + timeout_ns;
        for (;; now = now_ns()) {
            w.alive.store(now, std::memory_order_relaxed);
            const uint32_t seen = w.bell.load(std::memory_order_seq_cst);
            if (learner_->closing.load(std::memory_order_acquire))
                return kClosing;
            for (size_t i = 0; i < end - begin; ++i) {
                if (cursor_ < begin || cursor_ >= end)
                    cursor_ = begin;
                const size_t e = cursor_++;
                const EnvState s = state(e);
                if (s == EnvState::Step || s == EnvState::Command) {
                    set(e, EnvState::Work);
                    w.current.store(static_cast<uint32_t>(e) + 1, std::memory_order_release);
                    const auto env = static_cast<int32_t>(e);
                    return s == EnvState::Step ? env : kCommand - env;
                }
            }
            if (now >= limit)
                return kTimeout;
            if (spin(w.bell, seen + 1))
                continue;
            w.waiting.store(1, std::memory_order_seq_cst);
            if (w.bell.load(std::memory_order_seq_cst) == seen)
                block(w.bell, seen, limit - now);
            w.waiting.store(0, std::memory_order_seq_cst);
        }
    }

    // A sign of life of a worker that is in no environment now.
    void leave(size_t worker) {
        worker_[worker].alive.store(now_ns(), std::memory_order_relaxed);
        worker_[worker].current.store(0, std::memory_order_release);
    }

    // The environment's rows are written (or it failed): it is the learner's again.
    void done(size_t worker, size_t env, EnvState how) {
        leave(worker);
        ticket_[env].store(learner_->clock.fetch_add(1, std::memory_order_acq_rel),
                           std::memory_order_relaxed);
        set(env, how);
        if (how == EnvState::Fault)
            learner_->faults.fetch_add(1, std::memory_order_seq_cst);
        ring_learner(how == EnvState::Fault);
    }

    // There is mail from this worker; if it waits until the mail is read, the learner is woken.
    void send_mail(size_t worker, bool waits) {
        worker_[worker].mail.store(waits ? 2 : 1, std::memory_order_seq_cst);
        if (waits)
            ring_learner(true);
    }

private:
    void set(size_t env, EnvState s) {
        state_[env].store(static_cast<uint32_t>(s), std::memory_order_release);
    }

    void ring_learner(bool always) {
        const uint32_t count = learner_->bell.fetch_add(1, std::memory_order_seq_cst) + 1;
        if (learner_->waiting.load(std::memory_order_seq_cst) &&
            (always ||
             static_cast<int32_t>(count - learner_->wake_at.load(std::memory_order_seq_cst)) >= 0))
            wake(learner_->bell);
    }

    // Spins until the bell reaches `goal`, within the budget; whether it did.
    bool spin(std::atomic<uint32_t>& bell, uint32_t goal) {
        return spin_until(bell, spin_, [goal](uint32_t count) {
            return static_cast<int32_t>(count - goal) >= 0;
        });
    }

    size_t workers_, envs_;
    Learner* learner_;
    Worker* worker_;
    std::atomic<uint32_t>* state_;
    std::atomic<uint32_t>* ticket_;
    SpinBudget spin_;
    size_t cursor_ = 0;           // a worker's place in its range, so that each gets its turn
    std::vector<size_t> found_;   // the learner's scratch
    std::vector<int64_t> posted_; // the learner's: when it handed each environment over, by now_ns
};

} // namespace fugu
