// Any settings, seeds and actions for every native environment, loaded as fugu loads them.
//
// FUGU_FUZZ_ENVS names a folder of their libraries. What is out of range must be refused; with what
// is not, every observation is a value of its space, and every reward a number.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "bind/library.hpp"
#include "core/actions.hpp"
#include "core/pool.hpp"
#include "core/raster.hpp"
#include "input.hpp"

namespace {

using fugu::Library;
using fugu::Pool;

constexpr int kMostSteps = 300; // of one input

std::vector<std::unique_ptr<Library>> libraries;

// Arrays of one group, each of its own allocation, so that a step beyond one is seen.
struct Rows {
    std::vector<unsigned char> observations, final, actions;
    std::vector<uint8_t> masks, terminations, truncations, live;
    std::vector<float> rewards, costs;
};

double any_value(Input& input, const FuguSetting& setting) {
    switch (input.below(8)) {
    case 7:
        return input.take<double>(); // any bits at all
    case 1:
        return input.take<int32_t>();
    case 2:
        return setting.low;
    case 3:
        return setting.high;
    case 4: {
        const double share = input.take<uint16_t>() / 65535.0;
        return setting.low + (setting.high - setting.low) * share;
    }
    case 5: {
        const double odd[] = {std::nan(""), INFINITY, -INFINITY, 1e300, -1e300, 5e-324, -0.0, 0.5};
        return odd[input.below(8)];
    }
    case 6:
        return setting.low + input.take<uint8_t>();
    default:
        return setting.initial;
    }
}

std::vector<double> any_settings(Input& input, const FuguDefinition& definition) {
    std::vector<double> values;
    for (uint32_t i = 0; i < definition.num_settings; ++i)
        values.push_back(any_value(input, definition.settings[i]));
    const size_t count = input.below(32);
    if (count >= 30)
        values.resize(values.size() + (count - 30) * 2 - 1); // one too few, one too many
    return values;
}

bool allowed(const FuguDefinition& definition, const std::vector<double>& values) {
    bool good = values.size() == definition.num_settings;
    for (size_t i = 0; good && i < values.size(); ++i)
        good = values[i] >= definition.settings[i].low && values[i] <= definition.settings[i].high;
    return good;
}

double number_at(const FuguLeaf& leaf, const unsigned char* row, size_t i) {
    const auto read = [&](auto zero) {
        std::memcpy(&zero, row + leaf.offset + i * sizeof(zero), sizeof(zero));
        return static_cast<double>(zero);
    };
    switch (leaf.type) {
    case FUGU_U8:
        return read(uint8_t{});
    case FUGU_I8:
        return read(int8_t{});
    case FUGU_I16:
        return read(int16_t{});
    case FUGU_I32:
        return read(int32_t{});
    case FUGU_I64:
        return read(int64_t{});
    default:
        return read(float{});
    }
}

// Rows as layouts have them: whole multiples of the widest number.
uint32_t row_bytes(const FuguSpace& space) {
    static const size_t kBytes[] = {1, 1, 2, 4, 8, 4};
    size_t widest = 1;
    for (int i = 0; i < space.count; ++i)
        widest = std::max(widest, kBytes[space.leaves[i].type]);
    return static_cast<uint32_t>((fugu::bytes_of(space) + widest - 1) / widest * widest);
}

// The slow, obvious check of a row.
bool inside(const FuguSpace& space, const unsigned char* row) {
    for (int l = 0; l < space.count; ++l) {
        const FuguLeaf& leaf = space.leaves[l];
        const bool box = leaf.kind == FUGU_BOX, real = leaf.type == FUGU_F32;
        const double low = !box ? 0 : real ? static_cast<float>(leaf.low) : leaf.low;
        const double high = !box   ? leaf.choices - 1
                            : real ? static_cast<float>(leaf.high)
                                   : leaf.high;
        for (size_t i = 0; i < fugu::numbers_of(leaf); ++i)
            if (const double number = number_at(leaf, row, i); !(number >= low && number <= high))
                return false;
    }
    return true;
}

class Session {
public:
    Session(const Library& library, std::vector<unsigned char> prototype, const FuguSpec& spec,
            size_t envs)
        : definition_(library.definition()), spec_(spec), envs_(envs),
          pool_(&definition_, std::move(prototype), spec, fugu::PoolSettings{envs, 0, true, 0, 0}),
          groups_(static_cast<size_t>(spec.num_groups)) {
        for (size_t g = 0; g < groups_.size(); ++g)
            bind(g);
        episodes_.resize(envs * pool_.episode_size());
        pool_.bind_episodes(episodes_.data());
        pool_.start();
    }

    void run(Input& input) {
        for (size_t e = 0; e < envs_; ++e)
            reset(e, input.take<uint16_t>());
        look();
        random_.state = input.take<uint64_t>();
        for (int steps = 0; steps < kMostSteps && !input.empty();) {
            const size_t e = input.below(envs_);
            switch (input.below(8)) {
            case 0:
                reset(e, input.take<uint64_t>());
                look();
                break;
            case 1:
                pool_.reset(e, nullptr);
                look();
                break;
            case 2:
                save_and_load(e);
                break;
            case 3:
                draw(e, 1 + input.below(64), 1 + input.below(64));
                break;
            case 4: // any bytes
                for (Rows& rows : groups_)
                    input.bytes(rows.actions.data(), rows.actions.size());
                ++steps, step();
                break;
            case 5: // many of chance
                for (size_t n = input.below(64); n; --n)
                    draw_actions(nullptr), ++steps, step();
                break;
            default: // chosen ones
                draw_actions(&input), ++steps, step();
            }
        }
    }

private:
    void bind(size_t g) {
        const FuguGroup& group = spec_.groups[g];
        FuguArrays& arrays = pool_.arrays(g);
        Rows& rows = groups_[g];
        const size_t count = envs_ * static_cast<size_t>(group.agents);
        arrays.observation_bytes = row_bytes(group.observation);
        arrays.action_bytes = row_bytes(group.action);
        arrays.mask_width = static_cast<uint32_t>(fugu::choices_of(group.action));
        rows.observations.resize(count * arrays.observation_bytes);
        rows.final.resize(count * arrays.observation_bytes);
        rows.actions.resize(count * arrays.action_bytes);
        rows.masks.reserve(1), rows.costs.reserve(1); // never null
        rows.masks.assign(count * arrays.mask_width, 1);
        rows.terminations.resize(count), rows.truncations.resize(count), rows.live.resize(count);
        rows.rewards.resize(count), rows.costs.resize(count * static_cast<size_t>(group.costs));
        arrays.observations = rows.observations.data(), arrays.final = rows.final.data();
        arrays.actions = rows.actions.data(), arrays.masks = rows.masks.data();
        arrays.terminations = rows.terminations.data();
        arrays.truncations = rows.truncations.data(), arrays.live = rows.live.data();
        arrays.rewards = rows.rewards.data(), arrays.costs = rows.costs.data();
    }

    void reset(size_t e, uint64_t seed) { pool_.reset(e, &seed); }

    // Steps if fugu lets these actions pass, which must be as the slow check says.
    void step() {
        bool good = true;
        for (size_t g = 0; g < groups_.size(); ++g) {
            const FuguSpace& space = spec_.groups[g].action;
            const size_t width = pool_.arrays(g).action_bytes, rows = groups_[g].live.size();
            const unsigned char* actions = groups_[g].actions.data();
            int64_t expected = -1;
            for (size_t row = rows; row-- > 0;)
                if (!inside(space, actions + row * width))
                    expected = static_cast<int64_t>(row);
            const int64_t found = fugu::bad_action(space, actions, rows, width);
            promise((found < 0) == (expected < 0), "bad actions are refused", definition_.name);
            good = good && found < 0;
        }
        if (!good)
            return;
        pool_.step_now();
        look();
    }

    // All that is shown keeps its word.
    void look() {
        for (size_t g = 0; g < groups_.size(); ++g) {
            const Rows& rows = groups_[g];
            const size_t width = pool_.arrays(g).observation_bytes;
            for (size_t i = 0; i < rows.live.size(); ++i) {
                promise(inside(spec_.groups[g].observation, rows.observations.data() + i * width),
                        "observations are of their space", definition_.name);
                promise(std::isfinite(rows.rewards[i]), "rewards are numbers", definition_.name);
                promise(rows.live[i] < 2 && rows.terminations[i] < 2 && rows.truncations[i] < 2,
                        "flags are 0 or 1", definition_.name);
            }
            for (const float cost : rows.costs)
                promise(std::isfinite(cost), "costs are numbers", definition_.name);
            for (const uint8_t mask : rows.masks)
                promise(mask < 2, "masks are 0 or 1", definition_.name);
        }
        for (const float number : episodes_)
            promise(std::isfinite(number), "logs are numbers", definition_.name);
    }

    void save_and_load(size_t e) {
        std::vector<unsigned char> saved(pool_.state_bytes()), again(saved);
        pool_.save(e, saved.data());
        pool_.load(e, saved.data());
        pool_.save(e, again.data());
        promise(saved == again, "a snapshot goes back exactly", definition_.name);
        look();
    }

    void draw(size_t e, size_t columns, size_t rows) {
        std::vector<FuguShape> shapes(16);
        FuguCanvas canvas{};
        for (;;) {
            canvas = {shapes.data(), 0, static_cast<int32_t>(shapes.size()), 0};
            definition_.draw(pool_.env(e), &canvas);
            if (canvas.count <= canvas.capacity)
                break;
            shapes.resize(static_cast<size_t>(canvas.count));
        }
        std::vector<uint8_t> pixels(columns * rows * 3);
        fugu::Raster raster(canvas.background, shapes.data(), static_cast<size_t>(canvas.count),
                            spec_.width, spec_.height);
        raster.draw(pixels.data(), columns, rows);
    }

    // Actions of the space: chosen by the input, or of chance.
    void draw_actions(Input* input) {
        for (size_t g = 0; g < groups_.size(); ++g) {
            const FuguSpace& space = spec_.groups[g].action;
            const size_t width = pool_.arrays(g).action_bytes;
            for (size_t row = 0; row < groups_[g].live.size(); ++row)
                for (int l = 0; l < space.count; ++l)
                    draw_leaf(space.leaves[l], groups_[g].actions.data() + row * width, input);
        }
    }

    void draw_leaf(const FuguLeaf& leaf, unsigned char* row, Input* input) {
        for (size_t i = 0; i < fugu::numbers_of(leaf); ++i) {
            const uint64_t bits =
                input ? input->take<uint8_t>() * 0x0101010101010101ull : fugu_bits(&random_);
            if (leaf.kind == FUGU_BOX) {
                const auto low = static_cast<float>(leaf.low), high = static_cast<float>(leaf.high);
                const float share = static_cast<float>(bits >> 40) / 16777215.0f;
                const float number = std::min(high, std::max(low, low + (high - low) * share));
                std::memcpy(row + leaf.offset + i * sizeof(number), &number, sizeof(number));
            } else {
                const uint64_t choice = (bits >> 32) % static_cast<uint64_t>(leaf.choices);
                std::memcpy(row + leaf.offset + i * sizeof(choice), &choice, sizeof(choice));
            }
        }
    }

    const FuguDefinition& definition_;
    const FuguSpec& spec_;
    size_t envs_;
    Pool pool_;
    std::vector<Rows> groups_;
    std::vector<float> episodes_;
    FuguRandom random_{0};
};

} // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
    const char* folder = std::getenv("FUGU_FUZZ_ENVS");
    std::vector<std::string> paths;
    for (const auto& file : std::filesystem::directory_iterator(folder ? folder : "."))
        if (file.path().extension() == ".so")
            paths.push_back(file.path().string());
    std::sort(paths.begin(), paths.end());
    for (const std::string& path : paths)
        libraries.push_back(std::make_unique<Library>(path));
    promise(!libraries.empty(), "there are environments", "FUGU_FUZZ_ENVS");
    return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    Input input(data, size);
    const Library& library = *libraries[input.below(libraries.size())];
    const FuguDefinition& definition = library.definition();
    const size_t envs = 1 + input.below(3);
    const std::vector<double> values = any_settings(input, definition);
    const bool good = allowed(definition, values);
    std::vector<unsigned char> prototype;
    try {
        prototype = library.prototype(values);
    } catch (const std::runtime_error&) {
        promise(!good, "settings in range are taken", definition.name);
        return 0;
    }
    promise(good, "settings out of range are refused", definition.name);
    const FuguSpec spec = library.describe(prototype);
    Session(library, std::move(prototype), spec, envs).run(input);
    return 0;
}
