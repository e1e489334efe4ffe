#include "optimizer.hpp"

#include <algorithm>
#include <cmath>

#include "model.hpp"

namespace whet {

namespace {

const std::string kMean = "exp_avg/", kSquare = "exp_avg_sq/";
constexpr double kPi = 3.14159265358979323846;

}  // namespace

double Schedule::at(int64_t step, int64_t steps) const {
    if (step <= warmup_steps) return rate * static_cast<double>(step) / static_cast<double>(warmup_steps);
    const double progress = static_cast<double>(step - 1 - warmup_steps) / static_cast<double>(steps - warmup_steps);
    if (kind == "constant") return rate;
    const double factor = kind == "linear" ? 1 - progress : (1 + std::cos(kPi * progress)) / 2;
    return rate * (min_share + (1 - min_share) * factor);
}

AdamW::AdamW(const std::vector<std::pair<std::string, at::Tensor>>& parameters, const AdamSettings& settings)
    : settings_(settings), groups_(2) {
    groups_[0].weight_decay = settings.weight_decay;
    groups_[1].weight_decay = 0;
    for (const auto& [name, parameter] : parameters) {
        Group& group = groups_[parameter.dim() >= 2 ? 0 : 1];
        group.names.push_back(name);
        group.parameters.push_back(parameter);
        group.means.push_back(at::zeros_like(parameter).detach());
        group.squares.push_back(at::zeros_like(parameter).detach());
    }
}

void AdamW::zero_gradients() {
    for (Group& group : groups_) {
        for (at::Tensor& parameter : group.parameters) parameter.mutable_grad() = at::Tensor();
    }
}

double AdamW::clip_gradient(double most) {
    const c10::NoGradGuard guard;
    std::vector<at::Tensor> gradients;
    for (const Group& group : groups_) {
        for (const at::Tensor& parameter : group.parameters) gradients.push_back(parameter.grad());
    }
    const double norm = at::linalg_vector_norm(at::stack(at::_foreach_norm(gradients)), 2).item<double>();
    if (!(norm <= most)) at::_foreach_mul_(gradients, std::min(1.0, most / (norm + 1e-6)));
    return norm;
}

void AdamW::step(double rate) {
    const c10::NoGradGuard guard;
    ++steps_;
    for (Group& group : groups_) {
        std::vector<at::Tensor> gradients;
        for (const at::Tensor& parameter : group.parameters) gradients.push_back(parameter.grad());
        const at::Tensor count = at::full({}, static_cast<double>(steps_), group.means[0].options());
        const std::vector<at::Tensor> counts(group.parameters.size(), count);
        at::_fused_adamw_(group.parameters, gradients, group.means, group.squares, {}, counts, rate, settings_.beta1,
                          settings_.beta2, group.weight_decay, settings_.epsilon, /*amsgrad=*/false,
                          /*maximize=*/false);
    }
}

NamedTensors AdamW::state() const {
    NamedTensors moments;
    for (const Group& group : groups_) {
        for (size_t i = 0; i < group.names.size(); ++i) {
            moments.emplace(kMean + group.names[i], group.means[i]);
            moments.emplace(kSquare + group.names[i], group.squares[i]);
        }
    }
    return moments;
}

void AdamW::restore(const SafetensorsFile& file, int64_t steps) {
    const c10::NoGradGuard guard;
    std::vector<std::pair<std::string, Shape>> shapes;
    for (const auto& [name, moment] : state()) shapes.emplace_back(name, moment.sizes().vec());
    std::map<std::string, std::string> names;
    for (const auto& [name, stored] : file.tensors()) names.emplace(name, name);
    NamedTensors own = state();
    for (const auto& [name, moment] : read_weights(file, shapes, names)) own.at(name).copy_(moment);
    steps_ = steps;
}

}  // namespace whet
