// Json::parse: recursive descent over untrusted text.

#include "errors.hpp"
#include "json.hpp"
#include "text.hpp"

namespace whet {

namespace {

constexpr int kDeepest = 64;  // levels of nesting

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// The length of the UTF-8 sequence at the start of a text; 0 if it is invalid, overlong or a surrogate.
size_t utf8_length(std::string_view text) {
    const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
    const auto continues = [&](size_t i) { return (byte(i) & 0xc0U) == 0x80U; };
    const unsigned first = byte(0);
    if (first < 0x80) return 1;
    if (first >= 0xc2 && first <= 0xdf) return continues(1) ? 2 : 0;
    if (first >= 0xe0 && first <= 0xef) {
        const unsigned low = first == 0xe0 ? 0xa0 : 0x80, high = first == 0xed ? 0x9f : 0xbf;
        return byte(1) >= low && byte(1) <= high && continues(2) ? 3 : 0;
    }
    if (first >= 0xf0 && first <= 0xf4) {
        const unsigned low = first == 0xf0 ? 0x90 : 0x80, high = first == 0xf4 ? 0x8f : 0xbf;
        return byte(1) >= low && byte(1) <= high && continues(2) && continues(3) ? 4 : 0;
    }
    return 0;
}

void append_utf8(std::string& out, uint32_t code) {
    const auto put = [&](uint32_t byte) { out += static_cast<char>(byte); };
    if (code < 0x80) {
        put(code);
    } else if (code < 0x800) {
        put(0xc0U | (code >> 6U));
        put(0x80U | (code & 0x3fU));
    } else if (code < 0x10000) {
        put(0xe0U | (code >> 12U));
        put(0x80U | ((code >> 6U) & 0x3fU));
        put(0x80U | (code & 0x3fU));
    } else {
        put(0xf0U | (code >> 18U));
        put(0x80U | ((code >> 12U) & 0x3fU));
        put(0x80U | ((code >> 6U) & 0x3fU));
        put(0x80U | (code & 0x3fU));
    }
}

// Recursive descent; the recursion is bounded by kDeepest.
class Parser {
   public:
    Parser(std::string_view text, const std::string& where) : text_(text), where_(where) {}

    Json whole() {
        Json value = parse_value(0);
        skip_space();
        if (at_ < text_.size()) fail("expected nothing after the value");
        return value;
    }

   private:
    [[noreturn]] void fail(const std::string& problem) const {
        throw InputError(where_ + " is not valid JSON: " + problem + " at byte " + std::to_string(at_));
    }

    char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

    void skip_space() {
        while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos) ++at_;
    }

    void expect(char wanted) {
        skip_space();
        if (at_ >= text_.size() || text_[at_] != wanted) fail(std::string("expected '") + wanted + "'");
        ++at_;
    }

    bool take(std::string_view word) {
        if (text_.substr(at_, word.size()) != word) return false;
        at_ += word.size();
        return true;
    }

    Json parse_value(int depth) {
        if (depth > kDeepest) fail("more than " + std::to_string(kDeepest) + " levels of nesting");
        skip_space();
        switch (peek()) {
            case '{':
                return parse_object(depth);
            case '[':
                return parse_array(depth);
            case '"':
                return Json::string(parse_string());
            default:
                break;
        }
        if (take("null")) return Json();
        if (take("true")) return Json::boolean(true);
        if (take("false")) return Json::boolean(false);
        return parse_number();
    }

    Json parse_object(int depth) {
        Json::Object members;
        expect('{');
        skip_space();
        if (peek() == '}') {
            ++at_;
            return Json::object(std::move(members));
        }
        while (true) {
            skip_space();
            if (peek() != '"') fail("expected a key in quotes");
            std::string key = parse_string();
            expect(':');
            Json value = parse_value(depth + 1);
            if (members.count(key) != 0) fail("key " + in_quotes(key) + " stands twice");
            members.emplace(std::move(key), std::move(value));
            skip_space();
            if (peek() == ',') {
                ++at_;
                continue;
            }
            expect('}');
            return Json::object(std::move(members));
        }
    }

    Json parse_array(int depth) {
        Json::Array items;
        expect('[');
        skip_space();
        if (peek() == ']') {
            ++at_;
            return Json::array(std::move(items));
        }
        while (true) {
            items.push_back(parse_value(depth + 1));
            skip_space();
            if (peek() == ',') {
                ++at_;
                continue;
            }
            expect(']');
            return Json::array(std::move(items));
        }
    }

    Json parse_number() {
        const size_t start = at_;
        if (peek() == '-') ++at_;
        if (!is_digit(peek())) fail("expected a value");
        if (peek() == '0') {
            ++at_;
        } else {
            skip_digits();
        }
        if (peek() == '.') {
            ++at_;
            skip_digits();
        }
        if (peek() == 'e' || peek() == 'E') {
            ++at_;
            if (peek() == '+' || peek() == '-') ++at_;
            skip_digits();
        }
        return Json::number_text(std::string(text_.substr(start, at_ - start)));
    }

    void skip_digits() {
        if (!is_digit(peek())) fail("expected a digit");
        while (is_digit(peek())) ++at_;
    }

    std::string parse_string() {
        std::string out;
        ++at_;
        while (true) {
            if (at_ >= text_.size()) fail("the text ends in a string");
            const char c = text_[at_];
            if (c == '"') {
                ++at_;
                return out;
            }
            if (static_cast<unsigned char>(c) < 0x20) fail("a control character in a string");
            if (c == '\\') {
                ++at_;
                parse_escape(out);
                continue;
            }
            const size_t length = utf8_length(text_.substr(at_));
            if (length == 0) fail("invalid UTF-8");
            out += text_.substr(at_, length);
            at_ += length;
        }
    }

    void parse_escape(std::string& out) {
        static constexpr std::string_view kLetters = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
        const char c = peek();
        if (c == 'u') {
            ++at_;
            append_utf8(out, parse_code_point());
            return;
        }
        const size_t place = kLetters.find(c);
        if (c == '\0' || place == std::string_view::npos) fail("an unknown escape");
        out += kMeanings[place];
        ++at_;
    }

    uint32_t parse_code_point() {
        const uint32_t first = parse_hex();
        if (first < 0xd800 || first > 0xdfff) return first;
        if (first > 0xdbff || !take("\\u")) fail("half of a surrogate pair");
        const uint32_t second = parse_hex();
        if (second < 0xdc00 || second > 0xdfff) fail("half of a surrogate pair");
        return 0x10000 + ((first - 0xd800) << 10U) + (second - 0xdc00);
    }

    uint32_t parse_hex() {
        static constexpr std::string_view kDigits = "0123456789abcdef";
        uint32_t code = 0;
        for (int i = 0; i < 4; ++i, ++at_) {
            const char c = peek();
            const char lower = c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c;
            const size_t digit = c == '\0' ? std::string_view::npos : kDigits.find(lower);
            if (digit == std::string_view::npos) fail("expected four hexadecimal digits");
            code = code * 16 + static_cast<uint32_t>(digit);
        }
        return code;
    }

    std::string_view text_;
    const std::string& where_;
    size_t at_ = 0;
};

}  // namespace

Json Json::parse(std::string_view text, const std::string& where) { return Parser(text, where).whole(); }

}  // namespace whet
