// Where and how precisely tensors are computed.
#pragma once

#include <string>

#include "torch_headers.hpp"

namespace whet {

struct Compute {
    at::Device device;
    bool is_bf16;  // products in bf16 with fp32 weights; else everything in fp32
};

// `device` is cpu, cuda or auto (cuda if there is one); `precision` fp32, bf16 or auto (bf16 on cuda).
Compute choose_compute(const std::string& device, const std::string& precision);

// Sets the threads of operators, 0: as torch likes; returns how many there are.
int64_t use_threads(int64_t threads);

// Autocast to bf16 while it lives. Its cache of cast weights ends with it: the optimizer changes them.
class Autocast {
   public:
    explicit Autocast(const Compute& compute);
    ~Autocast();
    Autocast(const Autocast&) = delete;
    Autocast& operator=(const Autocast&) = delete;

   private:
    at::DeviceType device_;
    bool is_on_;
};

}  // namespace whet
