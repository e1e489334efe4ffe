// The loss of a model on the held-out tokens of a corpus.
#pragma once

#include "arguments.hpp"
#include "loss.hpp"
#include "token_file.hpp"

namespace whet {

struct HeldOut {
    double loss;      // the mean over all targets
    int64_t windows;  // consecutive, without overlap
};

// `most_windows` 0: all of them.
HeldOut held_out_loss(const Model& model, const TokenFile& tokens, int64_t context, int64_t micro_batch,
                      int64_t most_windows, const Compute& compute);

// A context that is not above the model's; 0 is the model's.
int64_t usable_context(int64_t asked, const Config& config);

extern const Flags kEvalFlags;
int evaluate_command(const Arguments& arguments);

}  // namespace whet
