// A corpus on disk: tokens.bin (training tokens, then held-out tokens) and corpus.json, which describes it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "files.hpp"

namespace whet {

class TokenFile {
   public:
    // Checks the description, the size and every id, which must be below corpus.json's vocab_size.
    explicit TokenFile(const std::string& directory);

    int64_t training_tokens() const { return training_tokens_; }
    int64_t held_out_tokens() const { return tokens_ - training_tokens_; }
    const std::string& checksum() const { return checksum_; }

    // Refuses a model whose vocabulary is smaller than the largest id.
    void check_fits(int64_t vocab_size) const;

    // Refuses a context for which there is no window of training tokens.
    void check_context(int64_t context) const;

    // The windows of a training step: rows of context + 1 ids, one after the other.
    std::vector<int64_t> step_windows(int64_t seed, int64_t step, int64_t rows, int64_t context) const;

    // How many windows the held-out tokens have: consecutive, every target in one of them, the rest at the end left
    // out.
    int64_t held_out_windows(int64_t context) const;
    std::vector<int64_t> held_out(int64_t first_window, int64_t windows, int64_t context) const;

   private:
    void read_ids(int64_t first, int64_t count, int64_t* ids) const;
    void find_largest_id();

    std::string directory_;
    File file_;
    int64_t bytes_per_id_ = 0, tokens_ = 0, training_tokens_ = 0, vocab_size_ = 0, largest_id_ = -1;
    std::string checksum_;
};

}  // namespace whet
