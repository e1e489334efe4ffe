#include "safetensors.hpp"

#include <algorithm>

#include "errors.hpp"
#include "json.hpp"
#include "text.hpp"

namespace whet {

namespace {

constexpr int64_t kLargestHeader = int64_t{1} << 25;  // bytes, about a hundred for each tensor
constexpr int64_t kLengthBytes = 8;
const std::string kMetadata = "__metadata__";

const std::map<std::string, int64_t> kItemBytes = {
    {"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"I64", 8},  {"I32", 4},     {"I16", 2},     {"I8", 1},
    {"U64", 8}, {"U32", 4}, {"U16", 2}, {"U8", 1},   {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1},
};
const std::map<std::string, at::ScalarType> kReadable = {
    {"F32", at::kFloat}, {"F16", at::kHalf}, {"BF16", at::kBFloat16}};

Shape read_shape(const Json& entry, const std::string& where) {
    if (entry["shape"].kind() != Json::Kind::array) throw InputError(where + " has no shape");
    Shape shape;
    for (const Json& size : entry["shape"].items()) {
        const auto number = size.kind() == Json::Kind::number ? parse_integer(size.text()) : std::nullopt;
        if (!number || *number < 0)
            throw InputError(where + " has an impossible shape " + in_quotes(entry["shape"].dump()));
        shape.push_back(*number);
    }
    return shape;
}

StoredTensor read_entry(const Json& entry, const std::string& where, int64_t data_bytes) {
    if (entry.kind() != Json::Kind::object) throw InputError(where + " is no object in the header");
    StoredTensor tensor{string_at(entry, "dtype", where), read_shape(entry, where), 0, 0};
    const auto item = kItemBytes.find(tensor.dtype);
    if (item == kItemBytes.end()) throw InputError(where + " has an unknown dtype " + in_quotes(tensor.dtype));
    const Json::Array& offsets = entry["data_offsets"].items();
    if (offsets.size() != 2) throw InputError(where + " has no data_offsets of two numbers");
    const auto begin = parse_integer(offsets[0].text()), end = parse_integer(offsets[1].text());
    if (!begin || !end || *begin < 0 || *end < *begin || *end > data_bytes) {
        throw InputError(where + " lies outside of the file: data_offsets " + entry["data_offsets"].dump() + " of " +
                         std::to_string(data_bytes) + " bytes; copy the file again");
    }
    int64_t bytes = item->second;
    for (const int64_t size : tensor.shape) {
        if (__builtin_mul_overflow(bytes, size, &bytes)) throw InputError(where + " has an impossible shape");
    }
    if (bytes != *end - *begin) {
        throw InputError(where + " has " + std::to_string(*end - *begin) + " bytes, but " + tensor.dtype +
                         " of shape " + shape_text(tensor.shape) + " needs " + std::to_string(bytes));
    }
    tensor.begin = *begin;
    tensor.end = *end;
    return tensor;
}

void check_coverage(const std::map<std::string, StoredTensor>& tensors, int64_t data_bytes, const std::string& path) {
    std::vector<std::pair<int64_t, int64_t>> ranges;
    for (const auto& [name, tensor] : tensors) ranges.emplace_back(tensor.begin, tensor.end);
    std::sort(ranges.begin(), ranges.end());
    int64_t covered = 0;
    for (const auto& [begin, end] : ranges) {
        if (begin < covered) throw InputError(path + " is damaged: tensors overlap at byte " + std::to_string(begin));
        if (begin > covered) throw InputError(path + " is damaged: no tensor at byte " + std::to_string(covered));
        covered = end;
    }
    if (covered != data_bytes) {
        throw InputError(path + " is damaged: " + std::to_string(data_bytes - covered) +
                         " bytes after the last tensor");
    }
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(File::open_to_read(path)) {
    const int64_t size = file_.size();
    if (size < kLengthBytes) throw InputError(path + " is truncated: it has no safetensors header");
    uint64_t length = 0;
    file_.read_at(0, &length, kLengthBytes);
    if (length > static_cast<uint64_t>(size - kLengthBytes)) {
        throw InputError(path + " is truncated or no safetensors file: its header ends after the file");
    }
    if (length > static_cast<uint64_t>(kLargestHeader)) {
        throw InputError(path + " has a header of " + std::to_string(length) + " bytes: expected at most " +
                         std::to_string(kLargestHeader));
    }
    std::string text(length, '\0');
    file_.read_at(kLengthBytes, text.data(), static_cast<int64_t>(length));
    const Json header = Json::parse(text, "the header of " + path);
    if (header.kind() != Json::Kind::object) throw InputError("the header of " + path + " is no JSON object");
    data_start_ = kLengthBytes + static_cast<int64_t>(length);
    for (const auto& [name, entry] : header.members()) {
        if (name == kMetadata) continue;
        tensors_.emplace(name, read_entry(entry, path + ": tensor " + in_quotes(name), size - data_start_));
    }
    check_coverage(tensors_, size - data_start_, path);
}

at::Tensor SafetensorsFile::read(const std::string& name) const {
    const StoredTensor& stored = tensors_.at(name);
    const auto dtype = kReadable.find(stored.dtype);
    if (dtype == kReadable.end()) {
        throw InputError(path() + ": tensor " + in_quotes(name) + " is " + stored.dtype +
                         ": only F32, F16 and BF16 can be trained");
    }
    at::Tensor tensor = at::empty(stored.shape, at::TensorOptions().dtype(dtype->second));
    file_.read_at(data_start_ + stored.begin, tensor.data_ptr(), stored.end - stored.begin);
    return tensor.to(at::kFloat);
}

void write_safetensors(const std::string& path, const NamedTensors& tensors) {
    std::string header = "{\"" + kMetadata + "\":{\"format\":\"pt\"}";
    int64_t offset = 0;
    for (const auto& [name, tensor] : tensors) {
        Json::Array shape;
        for (const int64_t size : tensor.sizes()) shape.push_back(Json::number(size));
        const int64_t end = offset + tensor.numel() * static_cast<int64_t>(sizeof(float));
        header += "," + Json::string(name).dump() + ":{\"dtype\":\"F32\",\"shape\":" + Json::array(shape).dump() +
                  ",\"data_offsets\":[" + std::to_string(offset) + "," + std::to_string(end) + "]}";
        offset = end;
    }
    header += "}";
    header.resize((header.size() + 7) / 8 * 8, ' ');
    const uint64_t length = header.size();
    const File file = File::open_to_write(path);
    file.write(&length, kLengthBytes);
    file.write(header);
    for (const auto& [name, tensor] : tensors) {
        const at::Tensor plain = tensor.detach().to(at::kCPU, at::kFloat).contiguous();
        file.write(plain.const_data_ptr(), plain.numel() * static_cast<int64_t>(sizeof(float)));
    }
    file.sync();
}

}  // namespace whet
