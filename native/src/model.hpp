// GPT-2 (Radford et al. 2019): pre-norm blocks, learned positions, tanh-GELU, a tied head. No dropout, as in whet.
// Weights are fp32 under the names and in the layout of the files: matrices of projections are (in, out).
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "config.hpp"
#include "device.hpp"
#include "safetensors.hpp"

namespace whet {

// Keys and values of the tokens that were read, for sampling.
struct Cache {
    at::Tensor keys, values;  // (layers, rows, heads, capacity, head_dim)
    int64_t length = 0;       // tokens of every row
};

class Model {
   public:
    // From config.json and model.safetensors of a directory; names, shapes and dtypes must be those of the config.
    static Model load(const std::string& directory, const at::Device& device);

    // Random weights: normal with the config's deviation, unit norms, zero biases; projections into the residual stream
    // are scaled by 1/√(2·layers), so that its variance does not depend on depth.
    static Model random(const Config& config, int64_t seed, const at::Device& device);

    const Config& config() const { return config_; }
    NamedTensors weights() const;  // by name
    const std::vector<std::pair<std::string, at::Tensor>>& parameters() const { return parameters_; }
    const at::Tensor& head_weight() const { return head_; }  // (V, D)

    // (B, T) ids → (B·T, D) states after the final norm.
    at::Tensor states(const at::Tensor& tokens) const;

    // Room for rows of `capacity` tokens.
    Cache make_cache(int64_t rows, int64_t capacity) const;

    // Appends (R, T) ids to the cache; T is 1 unless the cache is empty. Returns (R, D), the states of the last ones.
    at::Tensor extend(const at::Tensor& tokens, Cache& cache) const;

   private:
    struct Block {
        at::Tensor norm_1, norm_1_bias, qkv, qkv_bias, out, out_bias;
        at::Tensor norm_2, norm_2_bias, up, up_bias, down, down_bias;
    };
    // Attends in one layer: (B, heads, T, head_dim) queries, keys and values → the same shape.
    using Attend = std::function<at::Tensor(int64_t layer, const at::Tensor&, const at::Tensor&, const at::Tensor&)>;

    Model(const Config& config, const NamedTensors& weights, const at::Device& device);
    at::Tensor trunk(const at::Tensor& tokens, int64_t first_position, const Attend& attend) const;
    at::Tensor normed(const at::Tensor& states, const at::Tensor& weight, const at::Tensor& bias) const;

    Config config_;
    std::vector<std::pair<std::string, at::Tensor>> parameters_;
    at::Tensor embedding_, positions_, final_norm_, final_norm_bias_, head_;
    std::vector<Block> blocks_;
};

// Reads exactly the named shapes from a file; other tensors are refused.
NamedTensors read_weights(const SafetensorsFile& file, const std::vector<std::pair<std::string, Shape>>& shapes,
                          const std::map<std::string, std::string>& stored_names);

}  // namespace whet
