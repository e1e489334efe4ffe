// The directory of a training run: settings, metrics, checkpoints. A crash at any moment leaves it resumable.
//
//   run.json                     the arguments of the run
//   metrics.jsonl                one line a step: what was learnt; the same for the same run
//   timings.jsonl                one line a step: how long it took
//   checkpoints/step-N/          config.json, model.safetensors, optimizer.safetensors, state.json
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "arguments.hpp"
#include "files.hpp"
#include "model.hpp"
#include "optimizer.hpp"

namespace whet {

// What a checkpoint says besides its tensors.
struct State {
    int64_t step = 0;
    int64_t tokens = 0;  // trained on so far
    int64_t metrics_bytes = 0,
            timings_bytes = 0;  // lengths of the logs: later lines are of steps that will be repeated
    std::string corpus;         // the checksum of the token file
};

class RunDirectory {
   public:
    // Makes the directory, or takes over one without checkpoints. Refuses one that another process uses.
    static RunDirectory create(const std::string& path, const Values& arguments);
    static RunDirectory open(const std::string& path);

    const std::string& path() const { return path_; }
    Values arguments() const;  // of run.json

    // The directory of the newest checkpoint.
    std::string newest_checkpoint() const;
    State read_state(const std::string& checkpoint) const;

    // Cuts the logs to what a checkpoint knows.
    void rewind(const State& state) const;
    void log_metrics(const std::string& line) const { metrics_.write(line + "\n"); }
    void log_timing(const std::string& line) const { timings_.write(line + "\n"); }

    // Writes a checkpoint under another name and renames it when it is on the disk; then removes all but the newest
    // `keep`.
    void save(const Model& model, const AdamW& optimizer, State state, int64_t keep) const;

   private:
    explicit RunDirectory(const std::string& path);
    std::string checkpoints() const { return path_ + "/checkpoints"; }
    std::vector<int64_t> steps() const;  // of complete checkpoints, in order
    std::string checkpoint(int64_t step) const { return checkpoints() + "/step-" + std::to_string(step); }

    std::string path_;
    File lock_, metrics_, timings_;
};

}  // namespace whet
