// The pool: many copies of one native environment, stepped by threads and by the caller.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/fugu_env.h"
#include "core/oldest.hpp"
#include "core/wait.hpp"

namespace fugu {

// What a pool needs to know beside the environment itself.
struct PoolSettings {
    size_t envs = 1;
    size_t threads = 0; // beside the caller
    bool helps = true;  // the caller steps too while it waits
    size_t chunk = 0;   // environments that a thread claims at a time; 0: chosen
    double stall = 0.0; // seconds after which a caller that steps counts as stalled; 0: never
};

// Work is posted as chunks of neighbouring environments into a ring; whoever is idle claims the
// next. Each environment is at any time the caller's (idle or ready) or stands in one chunk, so the
// ring never overflows and no two threads ever write the same rows.
class Pool {
public:
    static constexpr size_t kEpisode = 3; // numbers before the log fields: episodes, return, length

    Pool(const FuguDefinition* definition, std::vector<unsigned char> prototype,
         const FuguSpec& spec, const PoolSettings& settings)
        : definition_(definition), settings_(settings), logs_(static_cast<size_t>(spec.num_logs)),
          all_act_(spec.all_act), state_(settings.envs), ticket_(settings.envs), spin_(50000) {
        const size_t envs = settings.envs, stride = (definition->state_bytes + 7) / 8;
        states_.resize(envs * stride + 8);
        batch_.states = reinterpret_cast<unsigned char*>(
            (reinterpret_cast<uintptr_t>(states_.data()) + 63) & ~uintptr_t{63});
        for (size_t e = 0; e < envs; ++e)
            std::memcpy(env(e), prototype.data(), definition->state_bytes);
        batch_.num_groups = spec.num_groups;
        for (int g = 0; g < spec.num_groups; ++g) {
            batch_.groups[g].agents = spec.groups[g].agents;
            batch_.groups[g].num_costs = static_cast<uint32_t>(spec.groups[g].costs);
            agents_ += static_cast<size_t>(spec.groups[g].agents);
        }
        returns_.resize(envs * agents_);
        lengths_.resize(envs * agents_);
        over_.resize(envs * agents_);
        size_t first = 0;
        for (int g = 0; g < spec.num_groups; ++g) {
            first_row_[g] = first;
            batch_.groups[g].over = over_.data() + first;
            first += envs * static_cast<size_t>(spec.groups[g].agents);
        }
        size_t capacity = 1;
        while (capacity < envs)
            capacity *= 2;
        ring_ = std::vector<std::atomic<uint64_t>>(capacity);
        since_ = std::vector<std::atomic<int64_t>>(settings.threads + 1);
    }

    ~Pool() { close(); }
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    size_t num_envs() const { return settings_.envs; }
    size_t num_agents() const { return agents_; }
    size_t num_logs() const { return logs_; }
    bool all_act() const { return all_act_ || agents_ == 1; } // in every step
    FuguArrays& arrays(size_t group) { return batch_.groups[group]; }
    unsigned char* env(size_t e) { return batch_.states + e * definition_->state_bytes; }

    // Episodes that ended in the last step: [envs, kEpisode + logs], summed over agents.
    void bind_episodes(float* episodes) {
        episodes_ = episodes;
        batch_.logs = episodes + kEpisode;
        batch_.log_stride = static_cast<int32_t>(kEpisode + logs_);
    }

    // All arrays are bound: work may begin.
    void start() {
        for (size_t t = 0; t < settings_.threads; ++t)
            threads_.emplace_back([this, t] { work(t); });
        if (settings_.helps && settings_.stall > 0)
            threads_.emplace_back([this] { watch(); });
    }

    void close() {
        {
            std::lock_guard<std::mutex> lock(watch_mutex_);
            closing_.store(true);
        }
        watch_bell_.notify_all();
        bell_.fetch_add(1);
        wake(bell_, 1 << 30);
        for (std::thread& thread : threads_)
            thread.join();
        threads_.clear();
    }

    // ------------------------------------------------------------------ the caller's side

    // The first episode of a seed, or the next one, of an environment that is the caller's.
    void reset(size_t e, const uint64_t* seed) {
        FuguEnv* base = reinterpret_cast<FuguEnv*>(env(e));
        base->episode = seed ? 0 : base->episode + 1;
        base->seed = seed ? *seed : base->seed;
        clear(e, e + 1);
        forget(e);
        definition_->reset(&batch_, e, e + 1);
    }

    // An environment of the caller's is ready to be taken.
    void done(size_t e) { finish(e, e + 1); }

    // Hands environments over, in runs of neighbours.
    void post(const int64_t* ids, size_t count) {
        const size_t chunk = chunk_for(count);
        uint64_t head = head_.load(std::memory_order_relaxed);
        for (size_t i = 0; i < count;) {
            size_t run = 1;
            const size_t first = static_cast<size_t>(ids[i]);
            while (run < chunk && i + run < count &&
                   ids[i + run] == ids[i] + static_cast<int64_t>(run))
                ++run;
            push(head, first, first + run);
            i += run;
        }
        publish(head, count);
    }

    void post_range(size_t begin, size_t end) {
        const size_t chunk = chunk_for(end - begin);
        uint64_t head = head_.load(std::memory_order_relaxed);
        for (size_t e = begin; e < end; e += chunk)
            push(head, e, e + chunk < end ? e + chunk : end);
        publish(head, end - begin);
    }

    // Waits until `count` of [begin, end) are ready or time is up; how many are. The caller steps
    // meanwhile if it helps.
    size_t wait_ready(size_t begin, size_t end, size_t count, int64_t timeout_ns) {
        const bool all = begin == 0 && end == settings_.envs;
        const int64_t start = now_ns();
        for (;;) {
            const uint32_t seen = done_.load(std::memory_order_seq_cst);
            const size_t found = all ? ready_.load(std::memory_order_acquire) : ready(begin, end);
            if (found >= count)
                return found;
            if (settings_.helps && run_one(settings_.threads))
                continue;
            const int64_t left = timeout_ns - (now_ns() - start);
            if (left <= 0)
                return found;
            if (spin_until(done_, spin_, [seen](uint32_t now) { return now != seen; }))
                continue;
            wanted_.store(all ? count : 0, std::memory_order_seq_cst);
            waiting_.store(1, std::memory_order_seq_cst);
            if (done_.load(std::memory_order_seq_cst) == seen)
                block(done_, seen, left);
            waiting_.store(0, std::memory_order_seq_cst);
        }
    }

    // Takes the `count` of [begin, end) that were ready first; their ids come out in order.
    size_t take(size_t begin, size_t end, size_t count, int64_t* ids) {
        found_.clear();
        for (size_t e = begin; e < end; ++e)
            if (state_[e].load(std::memory_order_acquire))
                found_.push_back(e);
        const uint32_t clock = clock_.load(std::memory_order_relaxed);
        keep_oldest(found_, count, [&](size_t e) { return clock - ticket_[e]; });
        for (size_t i = 0; i < found_.size(); ++i) {
            ids[i] = static_cast<int64_t>(found_[i]);
            state_[found_[i]].store(0, std::memory_order_relaxed);
        }
        ready_.fetch_sub(found_.size(), std::memory_order_relaxed);
        return found_.size();
    }

    // Takes all of them, which are ready.
    void take_all() {
        for (std::atomic<uint8_t>& ready : state_)
            ready.store(0, std::memory_order_relaxed);
        ready_.store(0, std::memory_order_relaxed);
    }

    // Steps one after the other, here and now: no threads, nothing is ready or taken.
    void step_now() { run(0, settings_.envs); }

    // Steps some of the caller's in one of its threads, which is known by its number.
    void step_range(size_t begin, size_t end, size_t hand) {
        std::atomic<int64_t>& since = own_since_[hand < kHands ? hand : kHands - 1];
        since.store(now_ns(), std::memory_order_release);
        run(begin, end);
        since.store(0, std::memory_order_release);
    }
    // Adds up what ended in the last step of some.
    void add_episodes(size_t begin, size_t end, double* sums) const {
        const size_t size = episode_size();
        for (size_t e = begin; e < end; ++e)
            if (const float* const episode = episodes_ + e * size; episode[0] != 0.0f)
                for (size_t i = 0; i < size; ++i)
                    sums[i] += static_cast<double>(episode[i]);
    }
    size_t episode_size() const { return kEpisode + logs_; }

    // Seconds since a thread began the chunk that it is in; 0 if it is in none.
    double busy(size_t thread) const { return seconds_since(since_[thread]); }

    // ------------------------------------------------------------------ snapshots

    size_t state_bytes() const { return (definition_->state_bytes + agents_ * 10 + 7) / 8 * 8; }

    void save(size_t e, unsigned char* out) {
        std::memset(out, 0, state_bytes());
        std::memcpy(out, env(e), definition_->state_bytes);
        each_agent(e, out + definition_->state_bytes,
                   [](unsigned char* at, void* value, size_t n) { std::memcpy(at, value, n); });
    }

    void load(size_t e, const unsigned char* from) {
        std::memcpy(env(e), from, definition_->state_bytes);
        each_agent(e, const_cast<unsigned char*>(from) + definition_->state_bytes,
                   [](unsigned char* at, void* value, size_t n) { std::memcpy(value, at, n); });
        definition_->observe(&batch_, e, e + 1);
    }

private:
    static constexpr size_t kHands = 64; // of the caller, that are told apart

    static double seconds_since(const std::atomic<int64_t>& then) {
        const int64_t since = then.load(std::memory_order_acquire);
        return since ? static_cast<double>(now_ns() - since) * 1e-9 : 0.0;
    }

    template <typename Move> void each_agent(size_t e, unsigned char* at, Move move) {
        for (int g = 0; g < batch_.num_groups; ++g) {
            const FuguArrays& group = batch_.groups[g];
            const size_t row = e * static_cast<size_t>(group.agents);
            for (size_t i = row; i < row + static_cast<size_t>(group.agents); ++i, at += 10) {
                move(at, &returns_[first_row_[g] + i], 4);
                move(at + 4, &lengths_[first_row_[g] + i], 4);
                move(at + 8, &over_[first_row_[g] + i], 1);
                move(at + 9, &group.live[i], 1);
            }
        }
    }

    void forget(size_t e) {
        for (int g = 0; g < batch_.num_groups; ++g) {
            const size_t agents = static_cast<size_t>(batch_.groups[g].agents);
            std::fill_n(returns_.begin() + static_cast<ptrdiff_t>(first_row_[g] + e * agents),
                        agents, 0.0f);
            std::fill_n(lengths_.begin() + static_cast<ptrdiff_t>(first_row_[g] + e * agents),
                        agents, 0);
        }
    }

    // What is 0 before every step.
    void clear(size_t begin, size_t end) {
        for (int g = 0; g < batch_.num_groups; ++g) {
            FuguArrays& group = batch_.groups[g];
            const size_t agents = static_cast<size_t>(group.agents);
            const size_t row = begin * agents, rows = (end - begin) * agents;
            std::memset(group.rewards + row, 0, rows * sizeof(float));
            std::memset(group.terminations + row, 0, rows);
            std::memset(group.truncations + row, 0, rows);
            if (group.num_costs)
                std::memset(group.costs + row * group.num_costs, 0,
                            rows * group.num_costs * sizeof(float));
        }
        const size_t stride = static_cast<size_t>(batch_.log_stride);
        std::memset(episodes_ + begin * stride, 0, (end - begin) * stride * sizeof(float));
    }

    void run(size_t begin, size_t end) {
        clear(begin, end);
        for (int g = 0; g < batch_.num_groups; ++g) {
            const FuguArrays& group = batch_.groups[g];
            const size_t agents = static_cast<size_t>(group.agents);
            int32_t* lengths = lengths_.data() + first_row_[g];
            for (size_t i = begin * agents; i < end * agents; ++i)
                lengths[i] += group.live[i] & (lengths[i] < INT32_MAX);
        }
        definition_->step(&batch_, begin, end);
        for (int g = 0; g < batch_.num_groups; ++g)
            count_episodes(g, begin, end);
    }

    // Adds what ended in this step to the episodes.
    void count_episodes(int g, size_t begin, size_t end) {
        const FuguArrays& group = batch_.groups[g];
        const size_t agents = static_cast<size_t>(group.agents);
        float* returns = returns_.data() + first_row_[g];
        int32_t* lengths = lengths_.data() + first_row_[g];
        for (size_t i = begin * agents; i < end * agents; ++i)
            returns[i] += group.rewards[i];
        for (size_t i = begin * agents; i < end * agents;) {
            uint64_t terminated, truncated; // eight agents at a time, since few end
            if (i + 8 <= end * agents) {
                std::memcpy(&terminated, group.terminations + i, 8);
                std::memcpy(&truncated, group.truncations + i, 8);
                if (!(terminated | truncated)) {
                    i += 8;
                    continue;
                }
            }
            const size_t stop = i + 8 < end * agents ? i + 8 : end * agents;
            for (; i < stop; ++i)
                if (group.terminations[i] | group.truncations[i])
                    count_episode(episodes_ + i / agents * static_cast<size_t>(batch_.log_stride),
                                  returns[i], lengths[i]);
        }
    }

    static void count_episode(float* episode, float& total, int32_t& length) {
        episode[0] += 1.0f;
        episode[1] += total;
        episode[2] += static_cast<float>(length);
        total = 0.0f;
        length = 0;
    }

    // ------------------------------------------------------------------ chunks

    size_t chunk_for(size_t count) const {
        if (settings_.chunk)
            return settings_.chunk;
        const size_t hands = settings_.threads + (settings_.helps ? 1 : 0);
        const size_t chunk = hands > 1 ? count / (hands * 8) : 1024;
        return chunk < 1 ? 1 : chunk > 1024 ? 1024 : chunk;
    }

    void push(uint64_t& head, size_t begin, size_t end) {
        ring_[head & (ring_.size() - 1)].store(static_cast<uint64_t>(begin) << 32 | end,
                                               std::memory_order_relaxed);
        ++head;
    }

    // Makes chunks visible, and wakes threads if the work is worth their waking.
    void publish(uint64_t head, size_t count) {
        head_.store(head, std::memory_order_seq_cst);
        if (!settings_.threads)
            return;
        const double expected =
            nanoseconds_.load(std::memory_order_relaxed) * static_cast<double>(count);
        if (settings_.helps && expected < kWorthWaking)
            return; // the caller is done before they are up
        bell_.fetch_add(1, std::memory_order_seq_cst);
        if (sleepers_.load(std::memory_order_seq_cst))
            wake(bell_, static_cast<int>(settings_.threads));
    }

    bool run_one(size_t thread) {
        uint64_t tail = tail_.load(std::memory_order_acquire);
        for (;;) {
            if (tail >= head_.load(std::memory_order_acquire))
                return false;
            const uint64_t chunk = ring_[tail & (ring_.size() - 1)].load(std::memory_order_relaxed);
            if (!tail_.compare_exchange_weak(tail, tail + 1, std::memory_order_acq_rel))
                continue;
            const size_t begin = chunk >> 32, end = chunk & 0xFFFFFFFFu;
            const int64_t start = now_ns();
            since_[thread].store(start, std::memory_order_release);
            run(begin, end);
            since_[thread].store(0, std::memory_order_release);
            const double each =
                static_cast<double>(now_ns() - start) / static_cast<double>(end - begin);
            const double before = nanoseconds_.load(std::memory_order_relaxed);
            nanoseconds_.store(before + (each - before) * 0.1, std::memory_order_relaxed);
            finish(begin, end);
            return true;
        }
    }

    // Environments are the caller's again.
    void finish(size_t begin, size_t end) {
        const uint32_t ticket = clock_.fetch_add(1, std::memory_order_relaxed);
        for (size_t e = begin; e < end; ++e) {
            ticket_[e] = ticket;
            state_[e].store(1, std::memory_order_release);
        }
        const size_t all = ready_.fetch_add(end - begin, std::memory_order_seq_cst) + end - begin;
        done_.fetch_add(1, std::memory_order_seq_cst);
        if (waiting_.load(std::memory_order_seq_cst) &&
            all >= wanted_.load(std::memory_order_seq_cst))
            wake(done_);
    }

    size_t ready(size_t begin, size_t end) const {
        size_t found = 0;
        for (size_t e = begin; e < end; ++e)
            found += state_[e].load(std::memory_order_acquire);
        return found;
    }

    // ------------------------------------------------------------------ threads

    void work(size_t thread) {
        SpinBudget budget(200000);
        while (!closing_.load(std::memory_order_acquire)) {
            const uint32_t seen = bell_.load(std::memory_order_seq_cst);
            if (run_one(thread))
                continue;
            if (spin_until(bell_, budget, [seen](uint32_t now) { return now != seen; }))
                continue;
            sleepers_.fetch_add(1, std::memory_order_seq_cst);
            if (bell_.load(std::memory_order_seq_cst) == seen && !closing_.load())
                block(bell_, seen, 500000000);
            sleepers_.fetch_sub(1, std::memory_order_seq_cst);
        }
    }

    // A caller that is stuck in an environment cannot be told so: say it for it, and end.
    void watch() {
        std::unique_lock<std::mutex> lock(watch_mutex_);
        while (!closing_.load()) {
            watch_bell_.wait_for(lock, std::chrono::milliseconds(500));
            double longest = busy(settings_.threads);
            for (const std::atomic<int64_t>& since : own_since_)
                longest = std::max(longest, seconds_since(since));
            if (longest < settings_.stall)
                continue;
            std::fprintf(stderr,
                         "fugu: fatal: the native environment '%s' did not end a step within "
                         "step_timeout=%g s. It runs in the caller's own thread, which nothing can "
                         "break off, so the process ends here. Mend its step; with batch_size < "
                         "num_envs it runs in threads of the pool, and this is an exception.\n",
                         definition_->name, settings_.stall);
            std::fflush(stderr);
            std::_Exit(70);
        }
    }

    static constexpr double kWorthWaking = 20000; // nanoseconds

    const FuguDefinition* definition_;
    PoolSettings settings_;
    size_t logs_, agents_ = 0;
    bool all_act_;
    size_t first_row_[FUGU_MAX_GROUPS] = {};
    FuguBatch batch_{};
    float* episodes_ = nullptr;
    std::vector<uint64_t> states_;
    std::vector<float> returns_;              // by group, then environment, then agent
    std::vector<int32_t> lengths_;            // likewise
    std::vector<uint8_t> over_;               // likewise
    std::vector<std::atomic<uint8_t>> state_; // 1 if ready
    std::vector<uint32_t> ticket_;
    std::vector<size_t> found_;
    std::vector<std::atomic<uint64_t>> ring_; // begin << 32 | end
    std::vector<std::atomic<int64_t>> since_; // of each thread; the caller's is the last
    std::array<std::atomic<int64_t>, kHands> own_since_{}; // of the caller's own threads
    std::atomic<double> nanoseconds_{0};                   // of one environment's step, lately
    SpinBudget spin_;                                      // the caller's
    alignas(64) std::atomic<uint64_t> head_{0};
    alignas(64) std::atomic<uint64_t> tail_{0};
    alignas(64) std::atomic<size_t> ready_{0};
    std::atomic<uint32_t> done_{0}; // rung for every chunk; the caller waits on it
    std::atomic<uint32_t> waiting_{0}, clock_{0};
    std::atomic<size_t> wanted_{0};
    alignas(64) std::atomic<uint32_t> bell_{0}; // rung for work; threads wait on it
    std::atomic<uint32_t> sleepers_{0};
    std::atomic<bool> closing_{false};
    std::mutex watch_mutex_;
    std::condition_variable watch_bell_;
    std::vector<std::thread> threads_;
};

} // namespace fugu
