#include "config.hpp"

#include "errors.hpp"
#include "text.hpp"

namespace whet {

namespace {

// Far above every published model: a larger number is a mistake or an attack on memory.
constexpr int64_t kMostVocabulary = int64_t{1} << 24;
constexpr int64_t kMostLayers = int64_t{1} << 14;
constexpr int64_t kMostHeads = int64_t{1} << 16;
constexpr int64_t kMostWidth = int64_t{1} << 20;
constexpr int64_t kMostMlpWidth = int64_t{1} << 22;
constexpr int64_t kMostContext = int64_t{1} << 31;

[[noreturn]] void refuse(const std::string& where, const Json& config, const std::string& key, const std::string& why) {
    throw InputError(where + ": " + in_quotes(key) + " is " + in_quotes(config[key].dump()) + ": " + why);
}

void require_text(const std::string& where, const Json& config, const std::string& key,
                  const std::vector<std::string>& allowed) {
    if (config[key].is_null()) return;
    for (const std::string& value : allowed) {
        if (config[key].kind() == Json::Kind::string && config[key].text() == value) return;
    }
    refuse(where, config, key, "the native trainer has only " + joined(allowed, " and "));
}

void require_flag(const std::string& where, const Json& config, const std::string& key, bool allowed) {
    if (!config[key].is_null() && boolean_at(config, key, where) != allowed) {
        refuse(where, config, key, std::string("the native trainer has only ") + (allowed ? "true" : "false"));
    }
}

double small_number(const std::string& where, const Json& config, const std::string& key, double fallback) {
    if (config[key].is_null()) return fallback;
    const double value = number_at(config, key, where);
    if (value < 0 || value > 1) refuse(where, config, key, "expected a number from 0 to 1");
    return value;
}

}  // namespace

Config read_config(const std::string& path) {
    Config config;
    config.source = read_json_object(path);
    const Json& source = config.source;
    if (string_at(source, "model_type", path) != "gpt2") {
        refuse(path, source, "model_type", "the native trainer has only gpt2");
    }
    if (!source["quantization_config"].is_null())
        refuse(path, source, "quantization_config", "use the original weights");
    require_text(path, source, "activation_function", {"gelu_new", "gelu_pytorch_tanh"});
    require_flag(path, source, "scale_attn_weights", true);
    require_flag(path, source, "scale_attn_by_inverse_layer_idx", false);
    require_flag(path, source, "add_cross_attention", false);
    config.vocab_size = integer_at(source, "vocab_size", 1, kMostVocabulary, path);
    config.width = integer_at(source, "n_embd", 1, kMostWidth, path);
    config.layers = integer_at(source, "n_layer", 1, kMostLayers, path);
    config.heads = integer_at(source, "n_head", 1, kMostHeads, path);
    config.context = integer_at(source, "n_positions", 1, kMostContext, path);
    config.mlp_width = 4 * config.width;
    if (!source["n_inner"].is_null()) config.mlp_width = integer_at(source, "n_inner", 1, kMostMlpWidth, path);
    if (config.width % config.heads != 0) {
        refuse(path, source, "n_embd",
               "it cannot be divided among " + std::to_string(config.heads) + " heads evenly, use a multiple");
    }
    config.norm_eps = small_number(path, source, "layer_norm_epsilon", config.norm_eps);
    config.init_std = small_number(path, source, "initializer_range", config.init_std);
    if (!source["tie_word_embeddings"].is_null()) config.tied_head = boolean_at(source, "tie_word_embeddings", path);
    return config;
}

std::string config_text(const Config& config) {
    Json written = config.source;
    Json::Object& members = written.members();
    members.emplace("bos_token_id", Json());  // or transformers assumes the ids of the original GPT-2
    members.emplace("eos_token_id", Json());
    members["architectures"] = Json::array({Json::string("GPT2LMHeadModel")});
    members["activation_function"] = Json::string("gelu_new");
    members["dtype"] = Json::string("float32");
    members["torch_dtype"] = Json::string("float32");
    members["n_inner"] = Json::number(config.mlp_width);
    members["tie_word_embeddings"] = Json::boolean(config.tied_head);
    return written.dump(2) + "\n";
}

std::vector<std::pair<std::string, Shape>> weight_shapes(const Config& config) {
    const int64_t width = config.width, inner = config.mlp_width;
    std::vector<std::pair<std::string, Shape>> shapes = {
        {"transformer.wte.weight", {config.vocab_size, width}},
        {"transformer.wpe.weight", {config.context, width}},
    };
    for (int64_t layer = 0; layer < config.layers; ++layer) {
        const std::string block = "transformer.h." + std::to_string(layer) + ".";
        const std::vector<std::pair<std::string, Shape>> own = {
            {"ln_1.weight", {width}},
            {"ln_1.bias", {width}},
            {"attn.c_attn.weight", {width, 3 * width}},
            {"attn.c_attn.bias", {3 * width}},
            {"attn.c_proj.weight", {width, width}},
            {"attn.c_proj.bias", {width}},
            {"ln_2.weight", {width}},
            {"ln_2.bias", {width}},
            {"mlp.c_fc.weight", {width, inner}},
            {"mlp.c_fc.bias", {inner}},
            {"mlp.c_proj.weight", {inner, width}},
            {"mlp.c_proj.bias", {width}},
        };
        for (const auto& [name, shape] : own) shapes.emplace_back(block + name, shape);
    }
    shapes.emplace_back("transformer.ln_f.weight", Shape{width});
    shapes.emplace_back("transformer.ln_f.bias", Shape{width});
    if (!config.tied_head) shapes.emplace_back("lm_head.weight", Shape{config.vocab_size, width});
    return shapes;
}

}  // namespace whet
