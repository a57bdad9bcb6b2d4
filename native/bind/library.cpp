#include "bind/library.hpp"

#include <cstring>
#include <stdexcept>

#if defined(_WIN32)
#include <windows.h>
#else
#include <dlfcn.h>
#endif

namespace fugu {
namespace {

#if defined(_WIN32)
void* open_library(const std::string& path, std::string& error) {
    void* handle = LoadLibraryA(path.c_str());
    if (!handle)
        error = "error " + std::to_string(GetLastError());
    return handle;
}
void* find_symbol(void* handle, const char* name) {
    return reinterpret_cast<void*>(GetProcAddress(static_cast<HMODULE>(handle), name));
}
void close_library(void* handle) {
    FreeLibrary(static_cast<HMODULE>(handle));
}
#else
void* open_library(const std::string& path, std::string& error) {
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        error = dlerror();
    return handle;
}
void* find_symbol(void* handle, const char* name) {
    return dlsym(handle, name);
}
void close_library(void* handle) {
    dlclose(handle);
}
#endif

} // namespace

Library::Library(const std::string& path) {
    std::string error;
    handle_ = open_library(path, error);
    if (!handle_)
        throw std::runtime_error("it cannot be loaded (" + error + ")");
    using Entry = const FuguDefinition* (*)();
    const auto entry = reinterpret_cast<Entry>(find_symbol(handle_, "fugu_environment"));
    const FuguDefinition* found = entry ? entry() : nullptr;
    std::string wrong;
    if (!found)
        wrong = "it has no function fugu_environment";
    else if (found->abi != FUGU_ABI)
        wrong = "it was built for version " + std::to_string(found->abi) +
                " of the interface, and this is version " + std::to_string(FUGU_ABI);
    else if (found->spec_bytes != sizeof(FuguSpec) || found->state_bytes < sizeof(FuguEnv))
        wrong = "it was built with another fugu_env.h";
    if (!wrong.empty()) {
        close_library(handle_);
        throw std::runtime_error(wrong);
    }
    definition_ = found;
}

Library::~Library() {
    if (handle_)
        close_library(handle_);
}

std::vector<unsigned char> Library::prototype(const std::vector<double>& settings) const {
    if (settings.size() != definition_->num_settings)
        throw std::runtime_error("as many values as settings are needed");
    std::vector<unsigned char> state(definition_->state_bytes, 0);
    for (size_t i = 0; i < settings.size(); ++i) {
        const FuguSetting& setting = definition_->settings[i];
        if (!(settings[i] >= setting.low && settings[i] <= setting.high))
            throw std::runtime_error(std::string(setting.name) + " is out of range");
        if (setting.type == FUGU_INT32) {
            const auto value = static_cast<int32_t>(settings[i]);
            std::memcpy(state.data() + setting.offset, &value, sizeof(value));
        } else {
            const auto value = static_cast<float>(settings[i]);
            std::memcpy(state.data() + setting.offset, &value, sizeof(value));
        }
    }
    definition_->init(state.data());
    return state;
}

FuguSpec Library::describe(const std::vector<unsigned char>& prototype) const {
    FuguSpec spec;
    std::memset(&spec, 0, sizeof(spec));
    definition_->describe(prototype.data(), &spec);
    bool fits = spec.num_groups >= 1 && spec.num_groups <= FUGU_MAX_GROUPS && spec.num_logs >= 0 &&
                spec.num_logs <= FUGU_MAX_LOGS && spec.num_keys <= FUGU_MAX_KEYS &&
                spec.num_cells <= FUGU_MAX_CELLS;
    for (int g = 0; fits && g < spec.num_groups; ++g) {
        const FuguGroup& group = spec.groups[g];
        fits = group.agents >= 1 && group.costs >= 0 && group.observation.count >= 1 &&
               group.observation.count <= FUGU_MAX_LEAVES && group.action.count >= 1 &&
               group.action.count <= FUGU_MAX_LEAVES;
    }
    if (!fits)
        throw std::runtime_error("its description has no group of agents, or more of something "
                                 "than fugu_env.h has room for");
    return spec;
}

} // namespace fugu
