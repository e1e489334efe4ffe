// The mean of −log p over the targets of windows, and its gradient.
#pragma once

#include <vector>

#include "model.hpp"

namespace whet {

// Rows of context + 1 ids, one after the other: the first `context` are inputs, the last `context` targets.
struct Windows {
    std::vector<int64_t> ids;
    int64_t context;

    int64_t rows() const { return static_cast<int64_t>(ids.size()) / (context + 1); }
    int64_t targets() const { return rows() * context; }
};

// The sum of −log p over all targets, `micro_batch` rows in memory at a time.
double summed_loss(const Model& model, const Windows& windows, int64_t micro_batch, const Compute& compute);

// The same; adds the gradient of the mean over all targets to the weights' gradients.
double summed_loss_with_gradient(const Model& model, const Windows& windows, int64_t micro_batch,
                                 const Compute& compute);

}  // namespace whet
