#include "run_directory.hpp"

#include <algorithm>
#include <filesystem>
#include <limits>

#include "errors.hpp"
#include "text.hpp"

namespace whet {

namespace {

constexpr int64_t kMany = std::numeric_limits<int64_t>::max();
const std::string kStep = "step-";

std::string made(const std::string& path) {
    make_directories(path);
    return path;
}

void cut(const File& log, int64_t bytes) {
    if (log.size() < bytes) {
        throw InputError(log.path() +
                         " is shorter than the checkpoint says: it was changed; restore it, or start a new run");
    }
    log.truncate(bytes);
}

}  // namespace

RunDirectory::RunDirectory(const std::string& path)
    : path_(made(path)),
      lock_(File::open_to_append(path + "/lock")),
      metrics_(File::open_to_append(path + "/metrics.jsonl")),
      timings_(File::open_to_append(path + "/timings.jsonl")) {
    if (!lock_.lock()) throw InputError(path + " is in use by another process: wait for it, or use another --out");
}

RunDirectory RunDirectory::create(const std::string& path, const Values& arguments) {
    RunDirectory run(path);
    make_directories(run.checkpoints());
    if (!run.steps().empty()) {
        throw InputError(path + " has a run already: continue it with --resume " + path + ", or use another --out");
    }
    run.rewind(State{});
    Json::Object texts;
    for (const auto& [name, value] : arguments) texts.emplace(name, Json::string(value));
    const Json settings = Json::object({{"format", Json::number(1)}, {"arguments", Json::object(texts)}});
    write_text(path + "/run.json", settings.dump(2) + "\n");
    sync_directory(path);
    return run;
}

RunDirectory RunDirectory::open(const std::string& path) {
    if (!std::filesystem::is_regular_file(path + "/run.json")) {
        throw InputError(path + " has no run.json: it is no run that can be resumed");
    }
    return RunDirectory(path);
}

Values RunDirectory::arguments() const {
    const std::string where = path_ + "/run.json";
    const Json settings = read_json_object(where);
    integer_at(settings, "format", 1, 1, where);
    Values values;
    for (const auto& [name, value] : settings["arguments"].members()) {
        values[name] = string_at(settings["arguments"], name, where);
    }
    return values;
}

std::vector<int64_t> RunDirectory::steps() const {
    std::vector<int64_t> found;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(checkpoints(), error)) {
        const std::string name = entry.path().filename().string();
        if (name.rfind(kStep, 0) != 0) continue;
        const auto step = parse_integer(std::string_view(name).substr(kStep.size()));
        if (step && *step >= 0 && name == kStep + std::to_string(*step)) found.push_back(*step);
    }
    if (error) throw InputError(checkpoints() + " cannot be read: " + error.message());
    std::sort(found.begin(), found.end());
    return found;
}

std::string RunDirectory::newest_checkpoint() const {
    const std::vector<int64_t> known = steps();
    if (known.empty()) throw InputError(path_ + " has no checkpoint: start the run again with --out " + path_);
    return checkpoint(known.back());
}

State RunDirectory::read_state(const std::string& directory) const {
    const std::string where = directory + "/state.json";
    const Json saved = read_json_object(where);
    integer_at(saved, "format", 1, 1, where);
    return {integer_at(saved, "step", 0, kMany, where), integer_at(saved, "tokens", 0, kMany, where),
            integer_at(saved, "metrics_bytes", 0, kMany, where), integer_at(saved, "timings_bytes", 0, kMany, where),
            string_at(saved, "corpus", where)};
}

void RunDirectory::rewind(const State& state) const {
    cut(metrics_, state.metrics_bytes);
    cut(timings_, state.timings_bytes);
}

void RunDirectory::save(const Model& model, const AdamW& optimizer, State state, int64_t keep) const {
    const std::string final_name = checkpoint(state.step), partial = final_name + ".partial";
    metrics_.sync();
    timings_.sync();
    state.metrics_bytes = metrics_.size();
    state.timings_bytes = timings_.size();
    const Json saved = Json::object({{"format", Json::number(1)},
                                     {"step", Json::number(state.step)},
                                     {"tokens", Json::number(state.tokens)},
                                     {"metrics_bytes", Json::number(state.metrics_bytes)},
                                     {"timings_bytes", Json::number(state.timings_bytes)},
                                     {"corpus", Json::string(state.corpus)}});
    remove_all(partial);
    make_directories(partial);
    write_text(partial + "/config.json", config_text(model.config()));
    write_safetensors(partial + "/model.safetensors", model.weights());
    write_safetensors(partial + "/optimizer.safetensors", optimizer.state());
    write_text(partial + "/state.json", saved.dump(2) + "\n");
    sync_directory(partial);
    remove_all(final_name);
    rename_path(partial, final_name);
    sync_directory(checkpoints());
    const std::vector<int64_t> known = steps();
    for (size_t i = 0; i + static_cast<size_t>(keep) < known.size(); ++i) remove_all(checkpoint(known[i]));
    std::vector<std::string> partials;  // what a crash has left
    for (const auto& entry : std::filesystem::directory_iterator(checkpoints())) {
        if (entry.path().extension() == ".partial") partials.push_back(entry.path().string());
    }
    for (const std::string& left : partials) remove_all(left);
}

}  // namespace whet
