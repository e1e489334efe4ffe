#include "sample.hpp"

#include <cstdio>
#include <limits>

#include "errors.hpp"
#include "streams.hpp"
#include "text.hpp"

namespace whet {

namespace {

constexpr int64_t kMany = std::numeric_limits<int32_t>::max();

// (R, V) logits → (R,) ids on the CPU. Row r of a position is drawn by one random number of its own stream, by
// inversion of the cumulative distribution, so it depends on no other row.
at::Tensor drawn(const at::Tensor& logits, const Sampling& sampling, int64_t position) {
    if (sampling.temperature == 0) return logits.argmax(1).to(at::kCPU);
    at::Tensor scores = logits.to(at::kCPU, at::kDouble) / sampling.temperature;
    if (sampling.top_k > 0 && sampling.top_k < scores.size(1)) {
        const at::Tensor least = std::get<0>(scores.topk(sampling.top_k, 1)).select(1, sampling.top_k - 1).unsqueeze(1);
        scores.masked_fill_(scores < least, -std::numeric_limits<double>::infinity());
    }
    const at::Tensor sums = at::softmax(scores, 1).cumsum(1);
    const at::Tensor whole = sums.slice(1, sums.size(1) - 1).contiguous();
    at::Tensor places = at::empty_like(whole);
    for (int64_t row = 0; row < places.size(0); ++row) {
        places[row].fill_(uniform(stream_key(sampling.seed, row), position));
    }
    const at::Tensor found = at::searchsorted(sums, places * whole, /*out_int32=*/false, /*right=*/true);
    return at::minimum(found, at::searchsorted(sums, whole)).squeeze(1);  // rounding must not go past the last one
}

bool has_ended(const std::vector<int64_t>& tokens, int64_t stop_id) {
    return !tokens.empty() && tokens.back() == stop_id;
}

}  // namespace

std::vector<std::vector<int64_t>> sample(const Model& model, const std::vector<int64_t>& prompt,
                                         const Sampling& sampling, const Compute& compute) {
    const c10::NoGradGuard guard;
    const int64_t capacity = static_cast<int64_t>(prompt.size()) + sampling.most_tokens;
    const auto states_after = [&](const at::Tensor& tokens, Cache& cache) {
        const Autocast autocast(compute);
        return model.extend(tokens.to(compute.device), cache).to(at::kFloat);
    };
    Cache first = model.make_cache(1, static_cast<int64_t>(prompt.size()));
    at::Tensor states = states_after(at::tensor(prompt, at::kLong).unsqueeze(0), first).expand({sampling.count, -1});
    Cache cache = model.make_cache(sampling.count, capacity);
    cache.keys.slice(3, 0, first.length).copy_(first.keys);
    cache.values.slice(3, 0, first.length).copy_(first.values);
    cache.length = first.length;
    std::vector<std::vector<int64_t>> rows(static_cast<size_t>(sampling.count));
    for (int64_t position = 0; position < sampling.most_tokens; ++position) {
        const at::Tensor logits = at::mm(states, model.head_weight().t());
        const at::Tensor next = drawn(logits, sampling, position);
        bool all_ended = true;
        for (size_t row = 0; row < rows.size(); ++row) {
            if (!has_ended(rows[row], sampling.stop_id))
                rows[row].push_back(next[static_cast<int64_t>(row)].item<int64_t>());
            all_ended = all_ended && has_ended(rows[row], sampling.stop_id);
        }
        if (all_ended) break;
        if (position + 1 < sampling.most_tokens) states = states_after(next.unsqueeze(1), cache);
    }
    return rows;
}

const Flags kSampleFlags = {
    {"--model", "DIR", "", "config.json and model.safetensors"},
    {"--prompt-ids", "1,2,3", "", "the prompt"},
    {"--max-tokens", "N", "32", "the most tokens of a continuation"},
    {"--count", "N", "1", "continuations"},
    {"--temperature", "X", "1", "0: always the likeliest token"},
    {"--top-k", "N", "0", "only the likeliest tokens, 0: all"},
    {"--stop-id", "ID", "-1", "ends a continuation, -1: none"},
    {"--seed", "N", "0", "of the draws"},
    {"--threads", "N", "0", "0: as torch likes"},
    {"--device", "NAME", "auto", "cpu, cuda or auto"},
    {"--precision", "NAME", "auto", "of products: fp32, bf16 or auto (bf16 on cuda)"},
};

int sample_command(const Arguments& arguments) {
    const std::string directory = arguments.text("--model");
    const std::vector<int64_t> prompt = arguments.integers("--prompt-ids", 0, kMany);
    const Sampling sampling{arguments.integer("--max-tokens", 1, kMany),  arguments.integer("--count", 1, 1 << 20),
                            arguments.number("--temperature", 0, 1e6),    arguments.integer("--top-k", 0, kMany),
                            arguments.integer("--seed", 0, kLargestSeed), arguments.integer("--stop-id", -1, kMany)};
    use_threads(arguments.integer("--threads", 0, 4096));
    const Compute compute = choose_compute(arguments.choice("--device", {"cpu", "cuda", "auto"}),
                                           arguments.choice("--precision", {"fp32", "bf16", "auto"}));
    const Model model = Model::load(directory, compute.device);
    const Config& config = model.config();
    for (const int64_t id : prompt) {
        if (id >= config.vocab_size) {
            throw InputError("--prompt-ids has id " + std::to_string(id) + ", but the model has a vocabulary of " +
                             std::to_string(config.vocab_size));
        }
    }
    if (static_cast<int64_t>(prompt.size()) + sampling.most_tokens > config.context) {
        throw InputError("a prompt of " + std::to_string(prompt.size()) + " tokens and --max-tokens " +
                         std::to_string(sampling.most_tokens) + " exceed the model's context of " +
                         std::to_string(config.context));
    }
    Json::Array rows;
    for (const std::vector<int64_t>& tokens : sample(model, prompt, sampling, compute)) {
        Json::Array ids;
        for (const int64_t id : tokens) ids.push_back(Json::number(id));
        rows.push_back(Json::array(ids));
    }
    std::printf("%s\n", Json::object({{"tokens", Json::array(rows)}}).dump().c_str());
    return 0;
}

}  // namespace whet
