#include "device.hpp"

#include "errors.hpp"

namespace whet {

Compute choose_compute(const std::string& device, const std::string& precision) {
    const bool has_cuda = torch::cuda::is_available();
    if (device == "cuda" && !has_cuda) {
        throw InputError("--device cuda: this torch finds no CUDA device; use --device cpu");
    }
    const bool is_cuda = device != "cpu" && has_cuda;
    const bool is_bf16 = precision == "bf16" || (precision == "auto" && is_cuda);
    return {at::Device(is_cuda ? at::kCUDA : at::kCPU), is_bf16};
}

int64_t use_threads(int64_t threads) {
    if (threads > 0) at::set_num_threads(static_cast<int>(threads));
    return at::get_num_threads();
}

Autocast::Autocast(const Compute& compute) : device_(compute.device.type()), is_on_(compute.is_bf16) {
    if (!is_on_) return;
    at::autocast::set_autocast_enabled(device_, true);
    at::autocast::set_autocast_dtype(device_, at::kBFloat16);
    at::autocast::increment_nesting();
}

Autocast::~Autocast() {
    if (!is_on_) return;
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device_, false);
}

}  // namespace whet
