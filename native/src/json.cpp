#include "json.hpp"

#include <cstdio>

#include "errors.hpp"
#include "files.hpp"
#include "text.hpp"

namespace whet {

namespace {

constexpr int64_t kLargestFile = int64_t{1} << 24;

void write_string(std::string& out, const std::string& text) {
    out += '"';
    for (const char c : text) {
        if (c == '"' || c == '\\') {
            out += '\\';
            out += c;
        } else if (static_cast<unsigned char>(c) < 0x20) {
            char code[8];
            std::snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned>(c));
            out += code;
        } else {
            out += c;
        }
    }
    out += '"';
}

void new_line(std::string& out, int indent, int level) {
    if (indent == 0) return;
    out += '\n';
    out.append(static_cast<size_t>(indent) * static_cast<size_t>(level), ' ');
}

}  // namespace

Json Json::boolean(bool value) {
    Json made;
    made.kind_ = Kind::boolean;
    made.flag_ = value;
    return made;
}

Json Json::number(int64_t value) { return number_text(std::to_string(value)); }

Json Json::number_text(std::string digits) {
    Json made;
    made.kind_ = Kind::number;
    made.text_ = std::move(digits);
    return made;
}

Json Json::string(std::string value) {
    Json made;
    made.kind_ = Kind::string;
    made.text_ = std::move(value);
    return made;
}

Json Json::array(Array values) {
    Json made;
    made.kind_ = Kind::array;
    made.items_ = std::move(values);
    return made;
}

Json Json::object(Object members) {
    Json made;
    made.kind_ = Kind::object;
    made.members_ = std::move(members);
    return made;
}

const Json& Json::operator[](const std::string& key) const {
    static const Json kNull;
    const auto found = members_.find(key);
    return found == members_.end() ? kNull : found->second;
}

std::string Json::dump(int indent) const {
    std::string out;
    write(out, indent, 0);
    return out;
}

void Json::write(std::string& out, int indent, int level) const {
    bool is_first = true;
    const auto begin_item = [&] {
        if (!is_first) out += ',';
        is_first = false;
        new_line(out, indent, level + 1);
    };
    switch (kind_) {
        case Kind::null:
            out += "null";
            break;
        case Kind::boolean:
            out += flag_ ? "true" : "false";
            break;
        case Kind::number:
            out += text_;
            break;
        case Kind::string:
            write_string(out, text_);
            break;
        case Kind::array:
            out += '[';
            for (const Json& item : items_) {
                begin_item();
                item.write(out, indent, level + 1);
            }
            if (!is_first) new_line(out, indent, level);
            out += ']';
            break;
        case Kind::object:
            out += '{';
            for (const auto& [key, value] : members_) {
                begin_item();
                write_string(out, key);
                out += indent == 0 ? ":" : ": ";
                value.write(out, indent, level + 1);
            }
            if (!is_first) new_line(out, indent, level);
            out += '}';
            break;
    }
}

namespace {

const Json& present(const Json& object, const std::string& key, const std::string& where) {
    const Json& value = object[key];
    if (value.is_null()) throw InputError(where + ": " + in_quotes(key) + " is missing");
    return value;
}

[[noreturn]] void refuse(const Json& value, const std::string& key, const std::string& where, const std::string& want) {
    throw InputError(where + ": " + in_quotes(key) + " is " + in_quotes(value.dump()) + ": expected " + want);
}

}  // namespace

int64_t integer_at(const Json& object, const std::string& key, int64_t low, int64_t high, const std::string& where) {
    const Json& value = present(object, key, where);
    const auto number = value.kind() == Json::Kind::number ? parse_integer(value.text()) : std::nullopt;
    if (!number || *number < low || *number > high) {
        refuse(value, key, where, "a whole number from " + std::to_string(low) + " to " + std::to_string(high));
    }
    return *number;
}

double number_at(const Json& object, const std::string& key, const std::string& where) {
    const Json& value = present(object, key, where);
    const auto number = value.kind() == Json::Kind::number ? parse_number(value.text()) : std::nullopt;
    if (!number) refuse(value, key, where, "a finite number");
    return *number;
}

bool boolean_at(const Json& object, const std::string& key, const std::string& where) {
    const Json& value = present(object, key, where);
    if (value.kind() != Json::Kind::boolean) refuse(value, key, where, "true or false");
    return value.is_true();
}

const std::string& string_at(const Json& object, const std::string& key, const std::string& where) {
    const Json& value = present(object, key, where);
    if (value.kind() != Json::Kind::string) refuse(value, key, where, "a text");
    return value.text();
}

Json read_json_object(const std::string& path) {
    Json value = Json::parse(read_text(path, kLargestFile), path);
    if (value.kind() != Json::Kind::object) throw InputError(path + " is no JSON object: expected {…}");
    return value;
}

}  // namespace whet
