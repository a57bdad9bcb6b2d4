// A whole collection of native environments: a thread takes a tile of copies through all its steps,
// acting, recording and stepping, and waits for nobody. All agents act in every step. The actions
// that follow the last step are left in place, for whoever steps the copies next.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "core/pool.hpp"
#include "kernels/sampling.hpp"
#include "kernels/team.hpp"
#include "learn/forward.hpp"
#include "learn/pages.hpp"

namespace fugu::learn {

// Where numbers of an action stand in its row: choices as 64-bit integers, or floats with bounds.
struct ActionPart {
    size_t offset = 0, count = 0;
    bool choices = false;
    const float *low = nullptr, *high = nullptr; // [count], of floats
};

struct Collection {
    size_t begin = 0; // steps of the open segments; agents await what the last of them earned
    size_t first_segment = 0; // agent i writes into segment `first_segment + i`
    size_t next_segment = 0;  // and into `next_segment + i` once that is full
    Pages pages;
    float* states = nullptr;                            // [agents, state size]: memory now
    const float *uniforms = nullptr, *noise = nullptr;  // [actions, agents, heads or dims]
    const int64_t* choices = nullptr;                   // [heads]
    size_t heads = 0, width = 0, dims = 0, critics = 0; // width: the sum of all choices

    std::vector<ActionPart> parts;
    double* episodes = nullptr; // [numbers of an episode]: sums over all that ended
};

enum class Collected { Whole, NoNumber, IdleAgent };

class Rollout {
public:
    Rollout(const nets::Network& network, Pool& pool) : network_(network), pool_(pool) {}
    Rollout(const Rollout&) = delete;
    Rollout& operator=(const Rollout&) = delete;

    static constexpr size_t kMostAgents = Forward::kRows / 2; // of a copy, which is in one tile

    // All copies are the caller's, and are so afterwards. Nothing of a collection can be used that
    // is not whole: the network gave what is no number, or an agent does not act after all.
    Collected collect(const Collection& given, size_t threads, bool pairs) {
        const size_t envs = pool_.num_envs(), tile = tile_for(envs, threads);
        const size_t tiles = (envs + tile - 1) / tile;
        const size_t shares = std::max<size_t>(1, std::min(threads, tiles));
        while (desks_.size() < shares)
            desks_.push_back(std::make_unique<Desk>(network_, given, pool_.episode_size()));
        std::atomic<Collected> outcome{Collected::Whole};
        std::atomic<size_t> next{
            0}; // whoever is idle takes the next tile: rows do not see each other
        Team::run(shares, threads, [&](size_t share) {
            Desk& desk = *desks_[share];
            std::fill(desk.episodes.begin(), desk.episodes.end(), 0.0);
            for (size_t i; outcome == Collected::Whole && (i = next.fetch_add(1)) < tiles;) {
                const size_t begin = i * tile, end = std::min(begin + tile, envs);
                const Collected found = run(desk, given, begin, end, share, pairs);
                if (found != Collected::Whole)
                    outcome = found;
            }
        });
        for (const std::unique_ptr<Desk>& desk : desks_)
            for (size_t i = 0; i < desk->episodes.size(); ++i)
                given.episodes[i] += desk->episodes[i], desk->episodes[i] = 0.0;
        return outcome;
    }

private:
    // Copies of a tile.
    size_t tile_for(size_t envs, size_t threads) const {
        const size_t share = (envs + threads - 1) / std::max<size_t>(threads, 1);
        const size_t most = Forward::kRows * 2 / 3 / pool_.num_agents();
        return std::max<size_t>(1, std::min<size_t>(most, share));
    }

    // What one thread works with.
    struct Desk {
        nets::Tape tape;
        std::vector<float> params, values, after, entropies, drawn, log_probabilities;
        std::vector<int64_t> chosen;
        std::vector<char> finals;
        std::vector<float> final_states, final_values;
        std::vector<size_t> cut;
        std::vector<double> episodes;

        Desk(const nets::Network& network, const Collection& given, size_t episode_size)
            : tape(network, nullptr, Forward::kRows),
              params(Forward::kRows * (given.width + 2 * given.dims)),
              values(Forward::kRows * given.critics), entropies(Forward::kRows),
              drawn(Forward::kRows * given.dims), log_probabilities(Forward::kRows),
              chosen(Forward::kRows * given.heads), finals(Forward::kRows * network.row_bytes()),
              final_states(Forward::kRows * network.state_size()),
              final_values(Forward::kRows * given.critics), episodes(episode_size) {}
    };

    Collected run(Desk& desk, const Collection& given, size_t first, size_t last, size_t share,
                  bool pairs) {
        const size_t agents = pool_.num_agents(), begin = first * agents, end = last * agents;
        for (size_t time = given.begin;; ++time) {
            if (time)
                record_rewards(desk, given, time - 1, begin, end, pairs);
            if (!act(desk, given, time, begin, end, pairs))
                return Collected::NoNumber;
            if (time == given.pages.horizon)
                return Collected::Whole;
            pool_.step_range(first, last, share);
            if (std::memchr(pool_.arrays(0).live + begin, 0, end - begin))
                return Collected::IdleAgent;
            pool_.add_episodes(first, last, desk.episodes.data());
        }
    }

    // Records what the last actions earned, and resets memory where episodes ended.
    void record_rewards(Desk& desk, const Collection& given, size_t time, size_t begin, size_t end,
                        bool pairs) {
        const FuguArrays& slab = pool_.arrays(0);
        const Pages& pages = given.pages;
        const size_t at = time * pages.total + given.first_segment, size = network_.state_size();
        desk.cut.clear();
        for (size_t i = begin; i < end; ++i) {
            pages.rewards[at + i] += slab.rewards[i];
            pages.terminations[at + i] = slab.terminations[i];
            pages.truncations[at + i] = slab.truncations[i];
            pages.valid[at + i] = 1;
            if (slab.truncations[i])
                desk.cut.push_back(i);
        }
        if (!desk.cut.empty())
            value_finals(desk, given, at, pairs);
        for (size_t i = begin; size && i < end; ++i)
            if (slab.terminations[i] | slab.truncations[i])
                std::fill_n(given.states + i * size, size, 0.0f);
    }

    // The values of what was seen last, in episodes that were cut off.
    void value_finals(Desk& desk, const Collection& given, size_t at, bool pairs) {
        const FuguArrays& slab = pool_.arrays(0);
        const size_t bytes = network_.row_bytes(), size = network_.state_size();
        for (size_t k = 0; k < desk.cut.size(); ++k) {
            std::memcpy(desk.finals.data() + k * bytes, slab.final + desk.cut[k] * bytes, bytes);
            std::copy_n(given.states + desk.cut[k] * size, size,
                        desk.final_states.data() + k * size);
        }
        Passing pass;
        pass.rows = desk.finals.data(), pass.state = desk.final_states.data();
        pass.params = desk.params.data(), pass.values = desk.final_values.data();
        pass.after = desk.final_states.data();
        Forward::pass(desk.tape, pass, 0, desk.cut.size(), pairs);
        for (size_t k = 0; k < desk.cut.size(); ++k)
            for (size_t c = 0; c < given.critics; ++c)
                given.pages
                    .final_values[c * given.pages.horizon * given.pages.total + at + desk.cut[k]] =
                    desk.final_values[k * given.critics + c];
    }

    // Records what agents see and do at a time; past the horizon, at the start of new segments.
    bool act(Desk& desk, const Collection& given, size_t time, size_t begin, size_t end,
             bool pairs) {
        const FuguArrays& slab = pool_.arrays(0);
        const Pages& pages = given.pages;
        const bool full = time == pages.horizon;
        const size_t count = end - begin, action = time - given.begin;
        const size_t agents = pool_.num_envs() * pool_.num_agents();
        const size_t size = network_.state_size(), bytes = network_.row_bytes();
        const size_t first = (full ? given.next_segment : given.first_segment) + begin;
        const size_t into = full ? 0 : time;
        if (size && into == 0)
            std::copy_n(given.states + begin * size, count * size, pages.states + first * size);
        Passing pass;
        pass.rows = reinterpret_cast<const char*>(slab.observations) + begin * bytes;
        pass.state = given.states + begin * size, pass.after = given.states + begin * size;
        pass.params = desk.params.data(), pass.values = desk.values.data();
        Forward::pass(desk.tape, pass, 0, count, pairs);
        if (!draw(desk, given, action * agents + begin, begin, count))
            return false;
        const size_t numbers = given.heads + given.dims;
        unsigned char* const actions = const_cast<unsigned char*>(slab.actions); // the caller's
        for (size_t k = 0; k < count; ++k) {
            const size_t place = (first + k) * pages.horizon + into;
            std::memcpy(pages.observations + place * bytes, pass.rows + k * bytes, bytes);
            float* const sample = pages.samples + place * numbers;
            for (size_t h = 0; h < given.heads; ++h)
                sample[h] = static_cast<float>(desk.chosen[k * given.heads + h]);
            std::copy_n(desk.drawn.data() + k * given.dims, given.dims, sample + given.heads);
            if (given.width)
                std::memcpy(pages.masks + place * given.width,
                            slab.masks + (begin + k) * given.width, given.width);
            write_action(given, sample, actions + (begin + k) * slab.action_bytes);
        }
        const size_t at = into * pages.total + first;
        std::copy_n(desk.log_probabilities.data(), count, pages.log_probabilities + at);
        std::fill_n(pages.rewards + at, count, 0.0f); // what comes is added
        write_values(desk, given, into, first, count);
        if (full) // the value of what follows the last step
            write_values(desk, given, time, given.first_segment + begin, count);
        return true;
    }

    static void write_values(const Desk& desk, const Collection& given, size_t time, size_t first,
                             size_t count) {
        const Pages& pages = given.pages;
        for (size_t c = 0; c < given.critics; ++c)
            for (size_t k = 0; k < count; ++k)
                pages.values[(c * (pages.horizon + 1) + time) * pages.total + first + k] =
                    desk.values[k * given.critics + c];
    }

    // Actions of some rows; `chance` is the first one's place in the random numbers.
    bool draw(Desk& desk, const Collection& given, size_t chance, size_t begin, size_t count) {
        const size_t stride = given.width + 2 * given.dims;
        float* const log_probabilities = desk.log_probabilities.data();
        std::fill_n(log_probabilities, count, 0.0f);
        if (given.heads) {
            CategoricalTask task;
            task.batch = count, task.heads = given.heads, task.width = given.width;
            task.stride = stride, task.choices = given.choices, task.logits = desk.params.data();
            task.masks = pool_.arrays(0).masks + begin * given.width;
            task.uniforms = given.uniforms + chance * given.heads;
            task.actions = desk.chosen.data(), task.entropies = desk.entropies.data();
            task.log_probabilities = log_probabilities;
            if (sampling_detail::categorical_rows(task, 0, count).fault != RowFault::None)
                return false;
        }
        if (given.dims) {
            const float* const noise = given.noise + chance * given.dims;
            for (size_t k = 0; k < count; ++k) {
                const float* const params = desk.params.data() + k * stride + given.width;
                NormalTask task;
                float log_probability = 0, entropy = 0;
                task.batch = 1, task.dims = given.dims, task.means = params;
                task.log_stds = params + given.dims, task.noise = noise + k * given.dims;
                task.actions = desk.drawn.data() + k * given.dims;
                task.log_probabilities = &log_probability, task.entropies = &entropy;
                if (sampling_detail::normal_rows(task, 0, 1).fault != RowFault::None)
                    return false;
                log_probabilities[k] += log_probability;
            }
        }
        return true;
    }

    static void write_action(const Collection& given, const float* sample, unsigned char* row) {
        for (const ActionPart& part : given.parts) {
            for (size_t i = 0; i < part.count; ++i, ++sample) {
                if (part.choices) {
                    const int64_t choice = static_cast<int64_t>(*sample);
                    std::memcpy(row + part.offset + i * sizeof(choice), &choice, sizeof(choice));
                } else {
                    const float low = part.low[i], high = part.high[i];
                    const float number = *sample < low ? low : *sample > high ? high : *sample;
                    std::memcpy(row + part.offset + i * sizeof(number), &number, sizeof(number));
                }
            }
        }
    }

    const nets::Network& network_;
    Pool& pool_;
    std::vector<std::unique_ptr<Desk>> desks_;
};

} // namespace fugu::learn
