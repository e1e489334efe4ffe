#include "arguments.hpp"

#include <algorithm>
#include <cstdio>

#include "errors.hpp"
#include "text.hpp"

namespace whet {

namespace {

std::string plain(double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%g", value);
    return text;
}

}  // namespace

Arguments::Arguments(const Flags& flags, const std::vector<std::string>& given) : flags_(flags) {
    std::vector<std::string> names;
    for (const Flag& flag : flags_) names.push_back(flag.name);
    for (size_t i = 0; i < given.size(); ++i) {
        const size_t equals = given[i].find('=');
        const std::string name = given[i].substr(0, equals);
        if (name.rfind("--", 0) != 0) throw UsageError("unexpected " + in_quotes(given[i]) + ": write --name value");
        if (std::find(names.begin(), names.end(), name) == names.end()) {
            const auto near = nearest(name, names);
            throw UsageError("unknown flag " + in_quotes(name) +
                             (near ? ": did you mean " + *near + "?" : ": see --help"));
        }
        if (has(name)) throw UsageError(name + " is given twice: leave one out");
        if (equals != std::string::npos) {
            given_[name] = given[i].substr(equals + 1);
        } else if (i + 1 < given.size()) {
            given_[name] = given[++i];
        } else {
            throw UsageError(name + " needs a value: " + flag(name).value);
        }
    }
}

void Arguments::add_defaults(const Values& values) { given_.insert(values.begin(), values.end()); }

const Flag& Arguments::flag(const std::string& name) const {
    const auto found = std::find_if(flags_.begin(), flags_.end(), [&](const Flag& flag) { return flag.name == name; });
    if (found == flags_.end()) throw UsageError("unknown flag " + in_quotes(name));
    return *found;
}

std::string Arguments::text(const std::string& name) const {
    const auto found = given_.find(name);
    const std::string value = found == given_.end() ? flag(name).fallback : found->second;
    if (value.empty()) throw UsageError(name + " is missing: write " + name + " " + flag(name).value);
    return value;
}

int64_t Arguments::integer(const std::string& name, int64_t low, int64_t high) const {
    const std::string value = text(name);
    const auto number = parse_integer(value);
    if (!number || *number < low || *number > high) {
        throw UsageError(name + " is " + in_quotes(value) + ": expected a whole number from " + std::to_string(low) +
                         " to " + std::to_string(high));
    }
    return *number;
}

double Arguments::number(const std::string& name, double low, double high) const {
    const std::string value = text(name);
    const auto number = parse_number(value);
    if (!number || *number < low || *number > high) {
        throw UsageError(name + " is " + in_quotes(value) + ": expected a number from " + plain(low) + " to " +
                         plain(high));
    }
    return *number;
}

std::string Arguments::choice(const std::string& name, const std::vector<std::string>& allowed) const {
    const std::string value = text(name);
    if (std::find(allowed.begin(), allowed.end(), value) == allowed.end()) {
        throw UsageError(name + " is " + in_quotes(value) + ": choose " + joined(allowed, ", "));
    }
    return value;
}

std::vector<int64_t> Arguments::integers(const std::string& name, int64_t low, int64_t high) const {
    const std::string value = text(name);
    std::vector<int64_t> numbers;
    for (size_t start = 0; start <= value.size();) {
        const size_t comma = std::min(value.find(',', start), value.size());
        const auto number = parse_integer(std::string_view(value).substr(start, comma - start));
        if (!number || *number < low || *number > high) {
            throw UsageError(name + " is " + in_quotes(value) + ": expected whole numbers from " + std::to_string(low) +
                             " to " + std::to_string(high) + " with commas between them");
        }
        numbers.push_back(*number);
        start = comma + 1;
    }
    return numbers;
}

std::string usage(const std::string& command, const Flags& flags) {
    std::string text = "whet-native " + command + "\n";
    for (const Flag& flag : flags) {
        std::string line = "  " + flag.name + " " + flag.value;
        line.resize(std::max<size_t>(line.size() + 1, 28), ' ');
        text += line + flag.help + (flag.fallback.empty() ? "" : " [" + flag.fallback + "]") + "\n";
    }
    return text;
}

}  // namespace whet
