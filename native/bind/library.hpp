// A shared library that holds one native environment.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/fugu_env.h"

namespace fugu {

// Loads a library by its path; throws std::runtime_error with what is wrong with it.
class Library {
public:
    explicit Library(const std::string& path);
    ~Library();
    Library(const Library&) = delete;
    Library& operator=(const Library&) = delete;

    const FuguDefinition& definition() const { return *definition_; }

    // An environment's state with these settings, in the order of the definition.
    std::vector<unsigned char> prototype(const std::vector<double>& settings) const;

    // What an environment with these settings looks like; throws if it is more than can be.
    FuguSpec describe(const std::vector<unsigned char>& prototype) const;

private:
    void* handle_ = nullptr;
    const FuguDefinition* definition_ = nullptr;
};

} // namespace fugu
