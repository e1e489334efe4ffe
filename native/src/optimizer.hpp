// AdamW (Loshchilov & Hutter 2019), its learning-rate schedule, and clipping of the gradient.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "safetensors.hpp"

namespace whet {

struct Schedule {
    std::string kind;  // constant, linear or cosine
    double rate;       // the peak
    int64_t warmup_steps;
    double min_share;  // of the peak, that linear and cosine fall to

    // The rate of step 1 … steps: linear warm-up, then constant or falling.
    double at(int64_t step, int64_t steps) const;
};

struct AdamSettings {
    double beta1, beta2, epsilon, weight_decay;
};

class AdamW {
   public:
    // Decays matrices, not biases and norms.
    AdamW(const std::vector<std::pair<std::string, at::Tensor>>& parameters, const AdamSettings& settings);

    void zero_gradients();

    // The norm of the whole gradient, which is scaled down if it is above `most`.
    double clip_gradient(double most);

    void step(double rate);

    // Moments by parameter name, and back; `steps` is the number of steps that were taken.
    NamedTensors state() const;
    void restore(const SafetensorsFile& file, int64_t steps);

   private:
    struct Group {
        double weight_decay;
        std::vector<std::string> names;
        std::vector<at::Tensor> parameters, means, squares;
    };

    AdamSettings settings_;
    std::vector<Group> groups_;
    int64_t steps_ = 0;
};

}  // namespace whet
