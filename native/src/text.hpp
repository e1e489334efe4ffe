// Text of messages and numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace whet {

// Without control characters, which would move a terminal's cursor: each becomes \xNN.
std::string printable(std::string_view text);

// In single quotes, cut to a readable length.
std::string in_quotes(std::string_view text);

// As a shell reads it back: in quotes where that is needed.
std::string shell_word(const std::string& text);

// Parts with a separator between them.
std::string joined(const std::vector<std::string>& parts, std::string_view separator);

// A shape as Python writes it: (2, 3).
std::string shape_text(const std::vector<int64_t>& shape);

// The candidate with the fewest edits, if it is near enough to be meant.
std::optional<std::string> nearest(std::string_view name, const std::vector<std::string>& candidates);

// A whole number without a sign other than a leading minus, or nothing.
std::optional<int64_t> parse_integer(std::string_view text);

// A finite decimal number, or nothing.
std::optional<double> parse_number(std::string_view text);

// 17 significant digits: reading them gives the same double.
std::string exact(double value);

}  // namespace whet
