// Steps every native environment and runs every kernel under a sanitizer: drive STEPS
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "core/pool.hpp"

void run_kernels();
void run_nets();
void run_learning();
extern "C" const FuguDefinition* const all_environments[]; // ends with a null

namespace {

// Arrays of one group, each of its own allocation, so that a step beyond one is seen.
struct Rows {
    std::vector<unsigned char> observations, final, actions;
    std::vector<uint8_t> masks, terminations, truncations, live;
    std::vector<float> rewards, costs;
};

size_t bytes_of(const FuguSpace& space) {
    static const size_t kBytes[] = {1, 1, 2, 4, 8, 4};
    size_t end = 0, widest = 1;
    for (int i = 0; i < space.count; ++i) {
        size_t count = 1;
        for (int d = 0; d < space.leaves[i].rank; ++d)
            count *= static_cast<size_t>(space.leaves[i].shape[d]);
        const size_t size = kBytes[space.leaves[i].type];
        end = space.leaves[i].offset + count * size > end ? space.leaves[i].offset + count * size
                                                          : end;
        widest = size > widest ? size : widest;
    }
    return (end + widest - 1) / widest * widest;
}

size_t choices_of(const FuguSpace& space) {
    size_t total = 0;
    for (int i = 0; i < space.count; ++i)
        if (space.leaves[i].kind != FUGU_BOX)
            total += static_cast<size_t>(space.leaves[i].choices) *
                     static_cast<size_t>(space.leaves[i].rank ? space.leaves[i].shape[0] : 1);
    return total;
}

void draw_action(const FuguSpace& space, unsigned char* row, FuguRandom& random) {
    for (int i = 0; i < space.count; ++i) {
        const FuguLeaf& leaf = space.leaves[i];
        const int count = leaf.rank ? leaf.shape[0] : 1;
        for (int k = 0; k < count; ++k) {
            if (leaf.kind == FUGU_BOX) {
                const float value = fugu_uniform(&random, static_cast<float>(leaf.low),
                                                 static_cast<float>(leaf.high));
                std::memcpy(row + leaf.offset + k * 4, &value, 4);
            } else {
                const int64_t value = fugu_below(&random, leaf.choices);
                std::memcpy(row + leaf.offset + k * 8, &value, 8);
            }
        }
    }
}

std::vector<unsigned char> prototype(const FuguDefinition& definition, FuguRandom* random) {
    std::vector<unsigned char> state(definition.state_bytes, 0);
    for (uint32_t i = 0; i < definition.num_settings; ++i) {
        const FuguSetting& s = definition.settings[i];
        double value = s.initial;
        if (random && i && fugu_chance(random, 0.5f)) // max_steps, the first, stays
            value = s.low + (s.high - s.low) * static_cast<double>(fugu_unit(random));
        if (s.type == FUGU_INT32) {
            const auto whole = static_cast<int32_t>(value);
            std::memcpy(state.data() + s.offset, &whole, 4);
        } else {
            const auto real = static_cast<float>(value);
            std::memcpy(state.data() + s.offset, &real, 4);
        }
    }
    definition.init(state.data());
    return state;
}

// `helps`: the caller steps too, in batches of all copies; else batches of half of them.
void run(const FuguDefinition& definition, size_t steps, bool helps, FuguRandom& random,
         bool fuzz) {
    const size_t envs = 16;
    const auto state = prototype(definition, fuzz ? &random : nullptr);
    auto spec = std::make_unique<FuguSpec>();
    std::memset(spec.get(), 0, sizeof(FuguSpec));
    definition.describe(state.data(), spec.get());
    std::vector<Rows> rows(static_cast<size_t>(spec->num_groups));
    fugu::Pool pool(&definition, state, *spec, fugu::PoolSettings{envs, 2, helps, 3, 0.0});
    for (size_t g = 0; g < rows.size(); ++g) {
        const FuguGroup& group = spec->groups[g];
        FuguArrays& arrays = pool.arrays(g);
        const size_t count = envs * static_cast<size_t>(group.agents);
        arrays.observation_bytes = static_cast<uint32_t>(bytes_of(group.observation));
        arrays.action_bytes = static_cast<uint32_t>(bytes_of(group.action));
        arrays.mask_width = static_cast<uint32_t>(choices_of(group.action));
        Rows& r = rows[g];
        r.observations.resize(count * arrays.observation_bytes);
        r.final.resize(count * arrays.observation_bytes);
        r.actions.resize(count * arrays.action_bytes);
        r.masks.assign(count * arrays.mask_width, 1);
        r.terminations.resize(count);
        r.truncations.resize(count);
        r.live.resize(count);
        r.rewards.resize(count);
        r.costs.resize(count * static_cast<size_t>(group.costs));
        arrays.observations = r.observations.data();
        arrays.final = r.final.data();
        arrays.actions = r.actions.data();
        arrays.masks = r.masks.data();
        arrays.terminations = r.terminations.data();
        arrays.truncations = r.truncations.data();
        arrays.live = r.live.data();
        arrays.rewards = r.rewards.data();
        arrays.costs = r.costs.data();
    }
    std::vector<float> episodes(envs *
                                (fugu::Pool::kEpisode + static_cast<size_t>(spec->num_logs)));
    pool.bind_episodes(episodes.data());
    pool.start();
    for (size_t e = 0; e < envs; ++e) {
        const uint64_t seed = fugu_bits(&random);
        pool.reset(e, &seed);
        pool.done(e);
    }
    std::vector<int64_t> ids(envs);
    std::vector<FuguShape> shapes(4096);
    std::vector<unsigned char> saved(pool.state_bytes());
    const size_t batch = helps ? envs : envs / 2;
    for (size_t done = 0; done < steps; done += batch) {
        while (pool.wait_ready(0, envs, batch, 1000000000) < batch) {
        }
        const size_t count = pool.take(0, envs, batch, ids.data());
        for (size_t i = 0; i < count; ++i) {
            const auto e = static_cast<size_t>(ids[i]);
            for (size_t g = 0; g < rows.size(); ++g)
                for (size_t a = 0; a < static_cast<size_t>(spec->groups[g].agents); ++a)
                    draw_action(spec->groups[g].action,
                                rows[g].actions.data() +
                                    (e * static_cast<size_t>(spec->groups[g].agents) + a) *
                                        pool.arrays(g).action_bytes,
                                random);
            if (fugu_chance(&random, 0.001f)) {
                FuguCanvas canvas{shapes.data(), 0, static_cast<int32_t>(shapes.size()), 0};
                definition.draw(pool.env(e), &canvas);
                pool.save(e, saved.data());
                pool.load(e, saved.data());
            }
        }
        pool.post(ids.data(), count);
    }
    pool.close();
}

} // namespace

int main(int argc, char** argv) {
    const size_t steps = argc > 1 ? std::stoul(argv[1]) : 1000000;
    run_kernels();
    run_nets();
    run_learning();
    FuguRandom random{7};
    int count = 0;
    for (const FuguDefinition* const* at = all_environments; *at; ++at) {
        run(**at, steps / 2, true, random, false);
        run(**at, steps / 2, false, random, false);
        for (int i = 0; i < 10; ++i)
            run(**at, steps / 100, i % 2 == 0, random, true);
        std::printf("%s: %zu steps, clean\n", (*at)->name, steps + steps / 10);
        std::fflush(stdout);
        ++count;
    }
    return count ? 0 : 1;
}
