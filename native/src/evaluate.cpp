#include "evaluate.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "errors.hpp"
#include "text.hpp"

namespace whet {

namespace {

constexpr int64_t kMany = std::numeric_limits<int32_t>::max();

}  // namespace

HeldOut held_out_loss(const Model& model, const TokenFile& tokens, int64_t context, int64_t micro_batch,
                      int64_t most_windows, const Compute& compute) {
    int64_t windows = tokens.held_out_windows(context);
    if (windows == 0) {
        throw InputError("the corpus has " + std::to_string(tokens.held_out_tokens()) +
                         " held-out tokens, too few for a context of " + std::to_string(context) +
                         ": hold out more, or use a smaller --context");
    }
    if (most_windows > 0) windows = std::min(windows, most_windows);
    double total = 0;
    for (int64_t first = 0; first < windows; first += micro_batch) {
        const int64_t count = std::min(micro_batch, windows - first);
        total += summed_loss(model, {tokens.held_out(first, count, context), context}, count, compute);
    }
    return {total / static_cast<double>(windows * context), windows};
}

int64_t usable_context(int64_t asked, const Config& config) {
    if (asked > config.context) {
        throw InputError("--context is " + std::to_string(asked) + ", but the model has a context of " +
                         std::to_string(config.context));
    }
    return asked == 0 ? config.context : asked;
}

const Flags kEvalFlags = {
    {"--model", "DIR", "", "config.json and model.safetensors"},
    {"--data", "DIR", "", "corpus.json and tokens.bin"},
    {"--context", "N", "0", "tokens of a window, 0: the model's context"},
    {"--batch", "N", "8", "windows in memory at a time"},
    {"--eval-windows", "N", "0", "the most windows, 0: all"},
    {"--threads", "N", "0", "0: as torch likes"},
    {"--device", "NAME", "auto", "cpu, cuda or auto"},
    {"--precision", "NAME", "auto", "of products: fp32, bf16 or auto (bf16 on cuda)"},
};

int evaluate_command(const Arguments& arguments) {
    const std::string directory = arguments.text("--model"), data = arguments.text("--data");
    const int64_t asked = arguments.integer("--context", 0, kMany), batch = arguments.integer("--batch", 1, kMany);
    const int64_t most = arguments.integer("--eval-windows", 0, kMany);
    use_threads(arguments.integer("--threads", 0, 4096));
    const Compute compute = choose_compute(arguments.choice("--device", {"cpu", "cuda", "auto"}),
                                           arguments.choice("--precision", {"fp32", "bf16", "auto"}));
    const Model model = Model::load(directory, compute.device);
    const TokenFile tokens(data);
    tokens.check_fits(model.config().vocab_size);
    const int64_t context = usable_context(asked, model.config());
    const HeldOut found = held_out_loss(model, tokens, context, batch, most, compute);
    std::printf("{\"loss\":%s,\"perplexity\":%s,\"windows\":%lld,\"tokens\":%lld}\n", exact(found.loss).c_str(),
                exact(std::exp(found.loss)).c_str(), static_cast<long long>(found.windows),
                static_cast<long long>(found.windows * context));
    return 0;
}

}  // namespace whet
