#include "loss.hpp"

#include <algorithm>

namespace whet {

namespace {

// Logits that are in memory at a time, and the least rows of a chunk: each adds a full gradient of the head.
constexpr int64_t kCpuLogits = int64_t{1} << 24;
constexpr int64_t kCudaLogits = int64_t{1} << 27;
constexpr int64_t kLeastRows = 512;

struct MicroBatch {
    at::Tensor inputs;   // (B, T)
    at::Tensor targets;  // (B·T,)
};

MicroBatch micro_batch_at(const Windows& windows, int64_t first, int64_t rows, const at::Device& device) {
    const int64_t width = windows.context + 1;
    const at::Tensor own =
        at::tensor(at::ArrayRef<int64_t>(windows.ids.data() + first * width, rows * width), at::kLong)
            .view({rows, width})
            .to(device);
    return {own.slice(1, 0, windows.context).contiguous(), own.slice(1, 1, width).reshape({-1})};
}

// a @ b with an fp32 result. In bf16 the factors are rounded first; only CUDA has that as one operation.
at::Tensor product(const at::Tensor& a, const at::Tensor& b, bool is_bf16) {
    if (!is_bf16) return at::mm(a, b);
    const at::Tensor left = a.to(at::kBFloat16), right = b.to(at::kBFloat16);
    return a.is_cuda() ? at::mm(left, right, at::kFloat) : at::mm(left.to(at::kFloat), right.to(at::kFloat));
}

struct HeadGradients {
    at::Tensor states;  // (N, D)
    at::Tensor weight;  // (V, D)
};

// The sum of −log p over the targets of (N, D) states. With z the logits, ∂(−log p(y))/∂z = softmax(z) − onehot(y), so
// both gradients are computed chunk by chunk beside the loss, and the logits of all rows are never in memory together.
double head_loss(const at::Tensor& states, const at::Tensor& weight, const at::Tensor& targets, bool is_bf16,
                 double scale, HeadGradients* gradients) {
    const c10::NoGradGuard guard;
    const int64_t most = (states.is_cuda() ? kCudaLogits : kCpuLogits) / weight.size(0);
    const int64_t size = std::max(kLeastRows, most);
    at::Tensor total = at::zeros({}, states.options().dtype(at::kDouble));
    for (int64_t first = 0; first < states.size(0); first += size) {
        const int64_t past = std::min(first + size, states.size(0));
        const at::Tensor some = states.slice(0, first, past), wanted = targets.slice(0, first, past).unsqueeze(1);
        at::Tensor logprobs = at::log_softmax(product(some, weight.t(), is_bf16), 1);
        total -= logprobs.gather(1, wanted).sum(at::kDouble);
        if (gradients == nullptr) continue;
        at::Tensor slope = logprobs.exp_();
        slope.scatter_add_(1, wanted, at::full_like(wanted, -1, slope.options()));
        slope.mul_(scale);
        gradients->states.slice(0, first, past).copy_(product(slope, weight, is_bf16));
        if (is_bf16) {
            gradients->weight.add_(product(slope.t(), some, is_bf16));
        } else {
            gradients->weight.addmm_(slope.t(), some);
        }
    }
    return total.item<double>();
}

at::Tensor states_of(const Model& model, const MicroBatch& batch, const Compute& compute) {
    const Autocast autocast(compute);
    return model.states(batch.inputs).to(at::kFloat);
}

}  // namespace

double summed_loss(const Model& model, const Windows& windows, int64_t micro_batch, const Compute& compute) {
    const c10::NoGradGuard guard;
    double total = 0;
    for (int64_t first = 0; first < windows.rows(); first += micro_batch) {
        const int64_t rows = std::min(micro_batch, windows.rows() - first);
        const MicroBatch batch = micro_batch_at(windows, first, rows, compute.device);
        total += head_loss(states_of(model, batch, compute), model.head_weight(), batch.targets, compute.is_bf16, 0,
                           nullptr);
    }
    return total;
}

double summed_loss_with_gradient(const Model& model, const Windows& windows, int64_t micro_batch,
                                 const Compute& compute) {
    const double scale = 1.0 / static_cast<double>(windows.targets());
    double total = 0;
    for (int64_t first = 0; first < windows.rows(); first += micro_batch) {
        const int64_t rows = std::min(micro_batch, windows.rows() - first);
        const MicroBatch batch = micro_batch_at(windows, first, rows, compute.device);
        const at::Tensor states = states_of(model, batch, compute);
        const at::Tensor& head = model.head_weight();
        HeadGradients gradients{at::empty_like(states).detach(), at::zeros_like(head).detach()};
        total += head_loss(states.detach(), head.detach(), batch.targets, compute.is_bf16, scale, &gradients);
        states.backward(gradients.states);
        at::Tensor& kept = head.mutable_grad();
        kept = kept.defined() ? kept.add_(gradients.weight) : gradients.weight;
    }
    return total;
}

}  // namespace whet
