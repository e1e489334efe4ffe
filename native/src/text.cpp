#include "text.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>

namespace whet {

namespace {

constexpr size_t kLongestQuote = 80;

size_t edit_distance(std::string_view a, std::string_view b) {
    std::vector<size_t> row(b.size() + 1);
    std::iota(row.begin(), row.end(), size_t{0});
    for (size_t i = 1; i <= a.size(); ++i) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b.size(); ++j) {
            const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
            diagonal = row[j];
            row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
        }
    }
    return row[b.size()];
}

}  // namespace

std::string printable(std::string_view text) {
    std::string plain;
    for (const char letter : text) {
        const auto byte = static_cast<unsigned char>(letter);
        if (byte < 0x20 || byte == 0x7f) {
            char code[5];
            std::snprintf(code, sizeof code, "\\x%02x", static_cast<unsigned>(byte));
            plain += code;
        } else {
            plain += letter;
        }
    }
    return plain;
}

std::string in_quotes(std::string_view text) {
    const bool is_long = text.size() > kLongestQuote;
    return "'" + std::string(text.substr(0, kLongestQuote)) + (is_long ? "…'" : "'");
}

std::string shell_word(const std::string& text) {
    const auto is_plain = [](unsigned char c) {
        return std::isalnum(c) != 0 || std::strchr("_./-+=:,@%", c) != nullptr;
    };
    if (!text.empty() && std::all_of(text.begin(), text.end(), is_plain)) return text;
    std::string word = "'";
    for (const char c : text) word += c == '\'' ? "'\\''" : std::string(1, c);
    return word + "'";
}

std::string joined(const std::vector<std::string>& parts, std::string_view separator) {
    std::string text;
    for (const std::string& part : parts) {
        if (!text.empty()) text += separator;
        text += part;
    }
    return text;
}

std::string shape_text(const std::vector<int64_t>& shape) {
    std::vector<std::string> sizes;
    for (const int64_t size : shape) sizes.push_back(std::to_string(size));
    return "(" + joined(sizes, ", ") + (shape.size() == 1 ? ",)" : ")");
}

std::optional<std::string> nearest(std::string_view name, const std::vector<std::string>& candidates) {
    std::optional<std::string> best;
    size_t fewest = std::max<size_t>(2, name.size() / 2) + 1;
    for (const std::string& candidate : candidates) {
        const size_t edits = edit_distance(name, candidate);
        if (edits < fewest) {
            fewest = edits;
            best = candidate;
        }
    }
    return best;
}

std::optional<int64_t> parse_integer(std::string_view text) {
    int64_t value = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || stop != end || text.empty()) return std::nullopt;
    return value;
}

std::optional<double> parse_number(std::string_view text) {
    double value = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || stop != end || text.empty() || !std::isfinite(value)) return std::nullopt;
    return value;
}

std::string exact(double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.17g", value);
    return text;
}

}  // namespace whet
