#include "model.hpp"

#include <cmath>

#include "errors.hpp"
#include "text.hpp"

namespace whet {

namespace {

const std::string kHead = "lm_head.weight";
const std::string kTrunk = "transformer.";

bool ends_with(const std::string& text, const std::string& end) {
    return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// Canonical name → the name in the file: old files lack the prefix and have causal masks, which are left out.
std::map<std::string, std::string> spelled(const SafetensorsFile& file) {
    std::map<std::string, std::string> names;
    for (const auto& [name, tensor] : file.tensors()) {
        if (ends_with(name, ".attn.bias") || ends_with(name, ".attn.masked_bias")) continue;
        const bool is_canonical = name == kHead || name.rfind(kTrunk, 0) == 0;
        if (!names.emplace(is_canonical ? name : kTrunk + name, name).second) {
            throw InputError(file.path() + " has tensor " + in_quotes(name) + " under two names: remove one");
        }
    }
    return names;
}

// (N, in) → (N, out).
at::Tensor projected(const at::Tensor& states, const at::Tensor& weight, const at::Tensor& bias) {
    return at::addmm(bias, states, weight);
}

at::Tensor random_weight(const std::string& name, const Shape& shape, const Config& config, at::Generator& generator) {
    if (ends_with(name, ".bias")) return at::zeros(shape);
    if (shape.size() == 1) return at::ones(shape);
    const bool into_residual = ends_with(name, ".c_proj.weight");
    const double depth = into_residual ? std::sqrt(2.0 * static_cast<double>(config.layers)) : 1.0;
    return at::empty(shape).normal_(0.0, config.init_std / depth, generator);
}

}  // namespace

NamedTensors read_weights(const SafetensorsFile& file, const std::vector<std::pair<std::string, Shape>>& shapes,
                          const std::map<std::string, std::string>& stored_names) {
    std::map<std::string, std::string> left = stored_names;
    for (const auto& [name, shape] : shapes) {  // all are checked before one is read
        const auto stored = left.find(name);
        if (stored == left.end()) {
            throw InputError(file.path() + " lacks tensor " + in_quotes(name) + ": does config.json belong to it?");
        }
        const Shape& found = file.tensors().at(stored->second).shape;
        if (found != shape) {
            throw InputError(file.path() + ": tensor " + in_quotes(name) + " has shape " + shape_text(found) +
                             ", config.json implies " + shape_text(shape));
        }
        left.erase(stored);
    }
    if (!left.empty()) {
        throw InputError(file.path() + " has an unexpected tensor " + in_quotes(left.begin()->second) +
                         ": does config.json belong to it?");
    }
    NamedTensors weights;
    for (const auto& [name, shape] : shapes) weights.emplace(name, file.read(stored_names.at(name)));
    return weights;
}

Model Model::load(const std::string& directory, const at::Device& device) {
    const Config config = read_config(directory + "/config.json");
    const SafetensorsFile file(directory + "/model.safetensors");
    std::map<std::string, std::string> names = spelled(file);
    std::string copied_head;
    if (config.tied_head && names.count(kHead) != 0) {
        copied_head = names.at(kHead);
        names.erase(kHead);
    }
    const NamedTensors weights = read_weights(file, weight_shapes(config), names);
    if (!copied_head.empty() && !at::equal(file.read(copied_head), weights.at("transformer.wte.weight"))) {
        throw InputError(file.path() + " has its own lm_head.weight: set tie_word_embeddings to false in config.json");
    }
    return Model(config, weights, device);
}

Model Model::random(const Config& config, int64_t seed, const at::Device& device) {
    at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(seed));
    NamedTensors weights;
    for (const auto& [name, shape] : weight_shapes(config)) {
        weights.emplace(name, random_weight(name, shape, config, generator));
    }
    return Model(config, weights, device);
}

Model::Model(const Config& config, const NamedTensors& weights, const at::Device& device) : config_(config) {
    NamedTensors placed;
    for (const auto& [name, shape] : weight_shapes(config)) {
        at::Tensor weight = weights.at(name).to(device).set_requires_grad(true);
        parameters_.emplace_back(name, weight);
        placed.emplace(name, weight);
    }
    embedding_ = placed.at("transformer.wte.weight");
    positions_ = placed.at("transformer.wpe.weight");
    final_norm_ = placed.at("transformer.ln_f.weight");
    final_norm_bias_ = placed.at("transformer.ln_f.bias");
    head_ = config.tied_head ? embedding_ : placed.at(kHead);
    for (int64_t layer = 0; layer < config.layers; ++layer) {
        const auto part = [&](const char* name) { return placed.at("transformer.h." + std::to_string(layer) + name); };
        blocks_.push_back({part(".ln_1.weight"), part(".ln_1.bias"), part(".attn.c_attn.weight"),
                           part(".attn.c_attn.bias"), part(".attn.c_proj.weight"), part(".attn.c_proj.bias"),
                           part(".ln_2.weight"), part(".ln_2.bias"), part(".mlp.c_fc.weight"), part(".mlp.c_fc.bias"),
                           part(".mlp.c_proj.weight"), part(".mlp.c_proj.bias")});
    }
}

NamedTensors Model::weights() const { return {parameters_.begin(), parameters_.end()}; }

at::Tensor Model::normed(const at::Tensor& states, const at::Tensor& weight, const at::Tensor& bias) const {
    return at::layer_norm(states, {config_.width}, weight, bias, config_.norm_eps);
}

at::Tensor Model::trunk(const at::Tensor& tokens, int64_t first_position, const Attend& attend) const {
    const int64_t rows = tokens.size(0), time = tokens.size(1), dim = config_.width / config_.heads;
    const at::Tensor places = positions_.slice(0, first_position, first_position + time);
    at::Tensor states = (at::embedding(embedding_, tokens) + places).view({rows * time, config_.width});
    for (int64_t layer = 0; layer < config_.layers; ++layer) {
        const Block& block = blocks_[static_cast<size_t>(layer)];
        const at::Tensor qkv = projected(normed(states, block.norm_1, block.norm_1_bias), block.qkv, block.qkv_bias);
        const auto parts = qkv.view({rows, time, 3, config_.heads, dim}).permute({2, 0, 3, 1, 4}).unbind();
        const at::Tensor attended = attend(layer, parts[0], parts[1], parts[2]);
        const at::Tensor flat = attended.transpose(1, 2).reshape({rows * time, config_.width});
        states = states + projected(flat, block.out, block.out_bias);
        const at::Tensor inner = projected(normed(states, block.norm_2, block.norm_2_bias), block.up, block.up_bias);
        states = states + projected(at::gelu(inner, "tanh"), block.down, block.down_bias);
    }
    return states;
}

at::Tensor Model::states(const at::Tensor& tokens) const {
    const Attend attend = [](int64_t, const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values) {
        return at::scaled_dot_product_attention(queries, keys, values, {}, 0.0, /*is_causal=*/true);
    };
    return normed(trunk(tokens, 0, attend), final_norm_, final_norm_bias_);
}

Cache Model::make_cache(int64_t rows, int64_t capacity) const {
    const Shape shape = {config_.layers, rows, config_.heads, capacity, config_.width / config_.heads};
    const auto options = embedding_.options().requires_grad(false);
    return {at::empty(shape, options), at::empty(shape, options)};
}

at::Tensor Model::extend(const at::Tensor& tokens, Cache& cache) const {
    const int64_t rows = tokens.size(0), time = tokens.size(1), past = cache.length, now = past + time;
    const Attend attend = [&](int64_t layer, const at::Tensor& queries, const at::Tensor& keys,
                              const at::Tensor& values) {
        cache.keys[layer].slice(2, past, now).copy_(keys);
        cache.values[layer].slice(2, past, now).copy_(values);
        const at::Tensor all_keys = cache.keys[layer].slice(2, 0, now),
                         all_values = cache.values[layer].slice(2, 0, now);
        return at::scaled_dot_product_attention(queries, all_keys, all_values, {}, 0.0, /*is_causal=*/past == 0);
    };
    const at::Tensor read = trunk(tokens, past, attend).view({rows, time, config_.width});
    cache.length = now;
    return normed(read.select(1, time - 1), final_norm_, final_norm_bias_);
}

}  // namespace whet
