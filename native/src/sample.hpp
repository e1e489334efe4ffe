// Continuations of a prompt, token ids in and out.
#pragma once

#include "arguments.hpp"
#include "model.hpp"

namespace whet {

struct Sampling {
    int64_t most_tokens;
    int64_t count;       // of continuations
    double temperature;  // 0: always the likeliest token
    int64_t top_k;       // of the likeliest tokens, 0: all
    int64_t seed;
    int64_t stop_id;  // ends a continuation and is its last token, −1: none
};

std::vector<std::vector<int64_t>> sample(const Model& model, const std::vector<int64_t>& prompt,
                                         const Sampling& sampling, const Compute& compute);

extern const Flags kSampleFlags;
int sample_command(const Arguments& arguments);

}  // namespace whet
