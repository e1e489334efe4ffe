// A small strict command-line parser: `--name value` or `--name=value`, every name known, none twice.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace whet {

struct Flag {
    std::string name;      // with its dashes
    std::string value;     // what stands after it, in the help
    std::string fallback;  // "" if it has none
    std::string help;
};

using Flags = std::vector<Flag>;
using Values = std::map<std::string, std::string>;  // name → what was given

class Arguments {
   public:
    // `given` are the words after the command; UsageErrors name the nearest flag.
    Arguments(const Flags& flags, const std::vector<std::string>& given);

    // As if these had been given; a name that was given keeps its value.
    void add_defaults(const Values& values);

    bool has(const std::string& name) const { return given_.count(name) != 0; }
    const Values& given() const { return given_; }

    // What was given or else the fallback; without either, a UsageError.
    std::string text(const std::string& name) const;
    int64_t integer(const std::string& name, int64_t low, int64_t high) const;
    double number(const std::string& name, double low, double high) const;
    std::string choice(const std::string& name, const std::vector<std::string>& allowed) const;
    std::vector<int64_t> integers(const std::string& name, int64_t low, int64_t high) const;  // 1,2,3

   private:
    const Flag& flag(const std::string& name) const;

    Flags flags_;
    Values given_;
};

// One line for each flag.
std::string usage(const std::string& command, const Flags& flags);

}  // namespace whet
