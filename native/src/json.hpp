// A strict JSON reader and writer for untrusted files: limited depth, no duplicate keys, valid UTF-8 only.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace whet {

// One JSON value. A number keeps its text, so that a file which is read and written again has the same digits.
class Json {
   public:
    enum class Kind { null, boolean, number, string, array, object };
    using Array = std::vector<Json>;
    using Object = std::map<std::string, Json>;

    Json() = default;
    static Json boolean(bool value);
    static Json number(int64_t value);
    static Json number_text(std::string digits);  // must be a JSON number
    static Json string(std::string value);
    static Json array(Array values);
    static Json object(Object members);

    // The value of a text; `where` begins the message of an InputError.
    static Json parse(std::string_view text, const std::string& where);

    Kind kind() const { return kind_; }
    bool is_null() const { return kind_ == Kind::null; }
    bool is_true() const { return kind_ == Kind::boolean && flag_; }
    const std::string& text() const { return text_; }  // of a string, or the digits of a number
    const Array& items() const { return items_; }
    const Object& members() const { return members_; }
    Object& members() { return members_; }

    // The member of an object, or null.
    const Json& operator[](const std::string& key) const;

    // Sorted keys; with an indent, one line for each member.
    std::string dump(int indent = 0) const;

   private:
    void write(std::string& out, int indent, int level) const;

    Kind kind_ = Kind::null;
    bool flag_ = false;
    std::string text_;
    Array items_;
    Object members_;
};

// A member of an object, of the right kind; InputErrors begin with `where` and name the key.
int64_t integer_at(const Json& object, const std::string& key, int64_t low, int64_t high, const std::string& where);
double number_at(const Json& object, const std::string& key, const std::string& where);
bool boolean_at(const Json& object, const std::string& key, const std::string& where);
const std::string& string_at(const Json& object, const std::string& key, const std::string& where);

// The content of a file that must be a JSON object.
Json read_json_object(const std::string& path);

}  // namespace whet
