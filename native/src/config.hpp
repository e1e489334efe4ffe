// The shape of a GPT-2, read from a Hugging Face config.json and written back with all of its other keys.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "json.hpp"

namespace whet {

struct Config {
    int64_t vocab_size = 0;
    int64_t layers = 0;
    int64_t heads = 0;
    int64_t width = 0;  // of the residual stream
    int64_t mlp_width = 0;
    int64_t context = 0;  // the most tokens in a sequence
    double norm_eps = 1e-5;
    double init_std = 0.02;
    bool tied_head = true;
    Json source;  // config.json as it was read
};

Config read_config(const std::string& path);

// config.json of a saved model: fp32 weights, everything else as it was read.
std::string config_text(const Config& config);

using Shape = std::vector<int64_t>;

// Names and shapes of all weights as they are stored; matrices of projections are (in, out).
std::vector<std::pair<std::string, Shape>> weight_shapes(const Config& config);

}  // namespace whet
