#include "train.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <limits>
#include <set>

#include "errors.hpp"
#include "evaluate.hpp"
#include "run_directory.hpp"
#include "stop_signal.hpp"
#include "streams.hpp"
#include "text.hpp"

namespace whet {

namespace {

constexpr int64_t kMany = std::numeric_limits<int32_t>::max();
constexpr int kInterrupted = 130;  // the exit code of a process that Ctrl-C has ended

// What a resumed run may change, and what belongs to one process; the other arguments are those of run.json.
const std::set<std::string> kOfTheProcess = {"--resume", "--out", "--stop-after"};
const std::set<std::string> kMayChange = {"--data", "--threads",    "--device", "--save-every",
                                          "--keep", "--stop-after", "--resume"};

struct Settings {
    std::string data;
    int64_t steps, batch, micro_batch, context, seed, save_every, keep, eval_every, eval_windows, stop_after;
    double max_grad_norm;
    Schedule schedule;
    AdamSettings adam;
};

Settings read_settings(const Arguments& given) {
    const double most = std::numeric_limits<double>::max(), least = std::numeric_limits<double>::min();
    const int64_t batch = given.integer("--batch", 1, kMany), micro = given.integer("--micro-batch", 0, kMany);
    return {
        given.text("--data"),
        given.integer("--steps", 1, kMany),
        batch,
        micro == 0 ? batch : micro,
        given.integer("--context", 0, kMany),
        given.integer("--seed", 0, kLargestSeed),
        given.integer("--save-every", 1, kMany),
        given.integer("--keep", 1, kMany),
        given.integer("--eval-every", 0, kMany),
        given.integer("--eval-windows", 0, kMany),
        given.integer("--stop-after", 0, kMany),
        given.number("--max-grad-norm", least, most),
        {given.choice("--schedule", {"constant", "linear", "cosine"}), given.number("--lr", least, most),
         given.integer("--warmup-steps", 0, kMany), given.number("--min-lr-share", 0, 1)},
        {given.number("--beta1", 0, 1 - 1e-9), given.number("--beta2", 0, 1 - 1e-9),
         given.number("--epsilon", least, most), given.number("--weight-decay", 0, most)},
    };
}

// A run that is ready for its next step.
struct Training {
    Settings settings;
    Compute compute;
    RunDirectory run;
    Model model;
    AdamW optimizer;
    TokenFile tokens;
    State state;
};

Compute read_compute(const Arguments& arguments) {
    return choose_compute(arguments.choice("--device", {"cpu", "cuda", "auto"}),
                          arguments.choice("--precision", {"fp32", "bf16", "auto"}));
}

// Sets the context, and refuses a corpus that cannot be trained on.
void fit_corpus(Settings& settings, const Config& config, const TokenFile& tokens) {
    settings.context = usable_context(settings.context, config);
    tokens.check_fits(config.vocab_size);
    tokens.check_context(settings.context);
    if (settings.eval_every > 0 && tokens.held_out_windows(settings.context) == 0) {
        throw InputError(settings.data + " has too few held-out tokens for --eval-every: hold out more than " +
                         std::to_string(settings.context));
    }
}

Training start(const Arguments& arguments) {
    Settings settings = read_settings(arguments);
    const std::string out = arguments.text("--out");
    if (arguments.has("--model") == arguments.has("--config")) {
        throw UsageError("give either --model DIR (its weights) or --config FILE (new random weights)");
    }
    const Compute compute = read_compute(arguments);
    Values kept;
    for (const Flag& flag : kTrainFlags) {  // also the defaults, which a later version may change
        const bool has_value = arguments.has(flag.name) || !flag.fallback.empty();
        if (has_value && kOfTheProcess.count(flag.name) == 0) kept[flag.name] = arguments.text(flag.name);
    }
    kept["--threads"] = std::to_string(use_threads(arguments.integer("--threads", 0, 4096)));
    kept["--data"] = std::filesystem::absolute(settings.data).string();
    TokenFile tokens(settings.data);
    Model model = arguments.has("--model")
                      ? Model::load(arguments.text("--model"), compute.device)
                      : Model::random(read_config(arguments.text("--config")), settings.seed, compute.device);
    fit_corpus(settings, model.config(), tokens);
    AdamW optimizer(model.parameters(), settings.adam);
    const State state{0, 0, 0, 0, tokens.checksum()};
    Training training{settings, compute, RunDirectory::create(out, kept), model, optimizer, std::move(tokens), state};
    training.run.save(training.model, training.optimizer, training.state, settings.keep);
    return training;
}

Training resume(Arguments arguments) {
    for (const auto& [name, value] : arguments.given()) {
        if (kMayChange.count(name) == 0) throw UsageError(name + " is of the run that is resumed: leave it out");
    }
    RunDirectory run = RunDirectory::open(arguments.text("--resume"));
    Values saved = run.arguments();
    for (const auto& [name, value] : saved) {
        const bool is_known = std::any_of(kTrainFlags.begin(), kTrainFlags.end(),
                                          [&, &name = name](const Flag& flag) { return flag.name == name; });
        if (!is_known) throw InputError(run.path() + "/run.json has an unknown argument " + in_quotes(name));
    }
    arguments.add_defaults(saved);
    Settings settings = read_settings(arguments);
    use_threads(arguments.integer("--threads", 0, 4096));
    const Compute compute = read_compute(arguments);
    const std::string checkpoint = run.newest_checkpoint();
    const State state = run.read_state(checkpoint);
    Model model = Model::load(checkpoint, compute.device);
    AdamW optimizer(model.parameters(), settings.adam);
    optimizer.restore(SafetensorsFile(checkpoint + "/optimizer.safetensors"), state.step);
    TokenFile tokens(settings.data);
    if (tokens.checksum() != state.corpus) {
        throw InputError(settings.data + " is not the corpus that the run was started with: its sha256 differs");
    }
    fit_corpus(settings, model.config(), tokens);
    run.rewind(state);
    return {settings, compute, std::move(run), model, optimizer, std::move(tokens), state};
}

// Time since it was made: that of the clock, and that of the processor in all threads, which other processes do not
// change.
class Stopwatch {
   public:
    double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }
    double cpu_seconds() const { return static_cast<double>(std::clock() - cpu_start_) / CLOCKS_PER_SEC; }

   private:
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
    std::clock_t cpu_start_ = std::clock();
};

struct Step {
    double loss, grad_norm, rate, seconds, cpu_seconds;
};

Step take_step(Training& training, int64_t number) {
    const Settings& settings = training.settings;
    const Stopwatch watch;
    const Windows windows{training.tokens.step_windows(settings.seed, number, settings.batch, settings.context),
                          settings.context};
    training.optimizer.zero_gradients();
    const double total = summed_loss_with_gradient(training.model, windows, settings.micro_batch, training.compute);
    const double loss = total / static_cast<double>(windows.targets());
    const double norm = training.optimizer.clip_gradient(settings.max_grad_norm);
    if (!std::isfinite(loss) || !std::isfinite(norm)) {
        throw InputError("step " + std::to_string(number) + ": the loss is " + exact(loss) +
                         " and the norm of its gradient " + exact(norm) + "; no step was taken: lower --lr");
    }
    const double rate = settings.schedule.at(number, settings.steps);
    training.optimizer.step(rate);
    return {loss, norm, rate, watch.seconds(), watch.cpu_seconds()};
}

void log_step(Training& training, const Step& step) {
    const Settings& settings = training.settings;
    State& state = training.state;
    const int64_t own = settings.batch * settings.context;
    ++state.step;
    state.tokens += own;
    std::string line = "{\"step\":" + std::to_string(state.step) + ",\"loss\":" + exact(step.loss) +
                       ",\"lr\":" + exact(step.rate) + ",\"grad_norm\":" + exact(step.grad_norm) +
                       ",\"tokens\":" + std::to_string(state.tokens);
    const bool is_last = state.step == settings.steps;
    if (settings.eval_every > 0 && (state.step % settings.eval_every == 0 || is_last)) {
        const HeldOut found = held_out_loss(training.model, training.tokens, settings.context, settings.micro_batch,
                                            settings.eval_windows, training.compute);
        line += ",\"held_out_loss\":" + exact(found.loss);
    }
    training.run.log_metrics(line + "}");
    training.run.log_timing("{\"step\":" + std::to_string(state.step) + ",\"seconds\":" + exact(step.seconds) +
                            ",\"cpu_seconds\":" + exact(step.cpu_seconds) +
                            ",\"tokens_per_second\":" + exact(static_cast<double>(own) / step.seconds) + "}");
}

void say(const Training& training, const Step& step) {
    const double speed = static_cast<double>(training.settings.batch * training.settings.context) / step.seconds;
    std::printf("step %lld/%lld  loss %.4f  lr %.3g  grad norm %.3g  %.0f tokens/s\n",
                static_cast<long long>(training.state.step), static_cast<long long>(training.settings.steps), step.loss,
                step.rate, step.grad_norm, speed);
    std::fflush(stdout);
}

}  // namespace

const Flags kTrainFlags = {
    {"--model", "DIR", "", "config.json and model.safetensors to start from"},
    {"--config", "FILE", "", "config.json of a new model with random weights"},
    {"--data", "DIR", "", "corpus.json and tokens.bin"},
    {"--out", "DIR", "", "the directory of the run"},
    {"--resume", "DIR", "", "continue the run in this directory with its own arguments"},
    {"--steps", "N", "", "optimizer steps"},
    {"--batch", "N", "8", "windows of a step"},
    {"--micro-batch", "N", "0", "windows in memory at a time, 0: all of a step"},
    {"--context", "N", "0", "tokens of a window, 0: the model's context"},
    {"--lr", "X", "3e-4", "peak learning rate"},
    {"--schedule", "NAME", "cosine", "constant, linear or cosine"},
    {"--warmup-steps", "N", "0", "the rate rises linearly over so many steps"},
    {"--min-lr-share", "X", "0", "share of lr that linear and cosine fall to"},
    {"--weight-decay", "X", "0", "decoupled, of matrices"},
    {"--beta1", "X", "0.9", "decay of the mean gradient"},
    {"--beta2", "X", "0.95", "decay of the mean squared gradient"},
    {"--epsilon", "X", "1e-8", "in AdamW's denominator"},
    {"--max-grad-norm", "X", "1", "longer gradients are scaled down to it"},
    {"--seed", "N", "0", "of windows and random weights"},
    {"--save-every", "N", "100", "steps between checkpoints"},
    {"--keep", "N", "2", "newest checkpoints that are kept"},
    {"--eval-every", "N", "0", "steps between held-out losses, 0: none"},
    {"--eval-windows", "N", "0", "the most held-out windows, 0: all"},
    {"--stop-after", "N", "0", "stop after this step, to be resumed, 0: at the end"},
    {"--threads", "N", "0", "0: as torch likes"},
    {"--device", "NAME", "auto", "cpu, cuda or auto"},
    {"--precision", "NAME", "auto", "of products: fp32, bf16 or auto (bf16 on cuda)"},
};

int train_command(const Arguments& arguments) {
    watch_stop_signals();
    Training training = arguments.has("--resume") ? resume(arguments) : start(arguments);
    const Settings& settings = training.settings;
    const int64_t last = settings.stop_after > 0 ? std::min(settings.stop_after, settings.steps) : settings.steps;
    const std::string again = "whet-native train --resume " + shell_word(training.run.path());
    Stopwatch said;
    while (training.state.step < last && !stop_is_asked()) {
        const Step step = take_step(training, training.state.step + 1);
        log_step(training, step);
        if (training.state.step == last || said.seconds() > 1) {
            say(training, step);
            said = Stopwatch();
        }
        if (training.state.step % settings.save_every == 0 || training.state.step == last || stop_is_asked()) {
            training.run.save(training.model, training.optimizer, training.state, settings.keep);
        }
    }
    if (training.state.step < settings.steps) {
        std::printf("stopped after step %lld of %lld; continue with: %s\n", static_cast<long long>(training.state.step),
                    static_cast<long long>(settings.steps), again.c_str());
        return stop_is_asked() ? kInterrupted : 0;
    }
    std::printf("finished; the model is in %s\n", training.run.newest_checkpoint().c_str());
    return 0;
}

}  // namespace whet
