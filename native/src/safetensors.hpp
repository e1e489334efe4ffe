// Reading and writing of safetensors files. Nothing in a file is believed before it is checked.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "config.hpp"
#include "files.hpp"
#include "torch_headers.hpp"

namespace whet {

using NamedTensors = std::map<std::string, at::Tensor>;

struct StoredTensor {
    std::string dtype;  // as safetensors spells it: "BF16"
    Shape shape;
    int64_t begin, end;  // bytes, counted from the end of the header
};

class SafetensorsFile {
   public:
    // Reads the header and checks that the tensors fill the file without gaps and overlaps.
    explicit SafetensorsFile(const std::string& path);

    const std::string& path() const { return file_.path(); }
    const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }

    // One tensor on the CPU in fp32; only F32, F16 and BF16 are read.
    at::Tensor read(const std::string& name) const;

   private:
    File file_;
    int64_t data_start_ = 0;
    std::map<std::string, StoredTensor> tensors_;
};

// Writes fp32 tensors, sorted by name, with the metadata that transformers expects; on the disk when it returns.
void write_safetensors(const std::string& path, const NamedTensors& tensors);

}  // namespace whet
