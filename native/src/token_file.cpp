#include "token_file.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "errors.hpp"
#include "json.hpp"
#include "streams.hpp"
#include "text.hpp"

namespace whet {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the files are little-endian and are read as they are");

namespace {

constexpr int64_t kMany = int64_t{1} << 48;  // more tokens than any file has
constexpr int64_t kScanned = int64_t{1} << 20;

template <typename Id>
void widen(const std::vector<char>& bytes, int64_t count, int64_t* ids) {
    for (int64_t i = 0; i < count; ++i) {
        Id id;
        std::memcpy(&id, bytes.data() + static_cast<size_t>(i) * sizeof(Id), sizeof(Id));
        ids[i] = id;
    }
}

}  // namespace

TokenFile::TokenFile(const std::string& directory)
    : directory_(directory), file_(File::open_to_read(directory + "/tokens.bin")) {
    const std::string where = directory + "/corpus.json";
    const Json facts = read_json_object(where);
    integer_at(facts, "format", 1, 1, where);
    const std::string dtype = string_at(facts, "dtype", where);
    if (dtype != "uint16" && dtype != "uint32") {
        throw InputError(where + ": 'dtype' is " + in_quotes(dtype) + ": expected uint16 or uint32");
    }
    bytes_per_id_ = dtype == "uint16" ? 2 : 4;
    tokens_ = integer_at(facts, "tokens", 1, kMany, where);
    training_tokens_ = integer_at(facts, "training_tokens", 0, tokens_, where);
    vocab_size_ = integer_at(facts, "vocab_size", 1, int64_t{1} << 32, where);
    checksum_ = string_at(facts, "sha256", where);
    if (file_.size() != tokens_ * bytes_per_id_) {
        throw InputError(file_.path() + " has " + std::to_string(file_.size()) + " bytes, but corpus.json describes " +
                         std::to_string(tokens_) + " tokens of " + dtype + ": make the corpus again");
    }
    find_largest_id();
    if (largest_id_ >= vocab_size_) {
        throw InputError(file_.path() + " has id " + std::to_string(largest_id_) +
                         ", but corpus.json says vocab_size " + std::to_string(vocab_size_) +
                         ": make the corpus again");
    }
}

void TokenFile::find_largest_id() {
    std::vector<int64_t> ids(static_cast<size_t>(std::min(kScanned, tokens_)));
    for (int64_t first = 0; first < tokens_; first += kScanned) {
        const int64_t count = std::min(kScanned, tokens_ - first);
        read_ids(first, count, ids.data());
        largest_id_ = std::max(largest_id_, *std::max_element(ids.begin(), ids.begin() + count));
    }
}

void TokenFile::read_ids(int64_t first, int64_t count, int64_t* ids) const {
    std::vector<char> bytes(static_cast<size_t>(count * bytes_per_id_));
    file_.read_at(first * bytes_per_id_, bytes.data(), count * bytes_per_id_);
    if (bytes_per_id_ == 2) {
        widen<uint16_t>(bytes, count, ids);
    } else {
        widen<uint32_t>(bytes, count, ids);
    }
}

void TokenFile::check_fits(int64_t vocab_size) const {
    if (largest_id_ >= vocab_size) {
        throw InputError(file_.path() + " has id " + std::to_string(largest_id_) +
                         ", but the model has a vocabulary of " + std::to_string(vocab_size) +
                         ": use the tokenizer of this model");
    }
}

void TokenFile::check_context(int64_t context) const {
    if (training_tokens_ <= context) {
        throw InputError(directory_ + " has " + std::to_string(training_tokens_) +
                         " training tokens, too few for a context of " + std::to_string(context) +
                         ": use more text or a smaller --context");
    }
}

std::vector<int64_t> TokenFile::step_windows(int64_t seed, int64_t step, int64_t rows, int64_t context) const {
    const int64_t width = context + 1;
    std::vector<int64_t> ids(static_cast<size_t>(rows * width));
    for (int64_t row = 0; row < rows; ++row) {
        const double where = uniform(stream_key(seed, step), row) * static_cast<double>(training_tokens_ - context);
        read_ids(static_cast<int64_t>(std::floor(where)), width, ids.data() + row * width);
    }
    return ids;
}

int64_t TokenFile::held_out_windows(int64_t context) const {
    return std::max<int64_t>(0, held_out_tokens() - 1) / context;
}

std::vector<int64_t> TokenFile::held_out(int64_t first_window, int64_t windows, int64_t context) const {
    const int64_t width = context + 1;
    std::vector<int64_t> ids(static_cast<size_t>(windows * width));
    for (int64_t row = 0; row < windows; ++row) {
        read_ids(training_tokens_ + (first_window + row) * context, width, ids.data() + row * width);
    }
    return ids;
}

}  // namespace whet
