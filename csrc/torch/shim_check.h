// Turns the error codes of PyTorch's C shims into exceptions.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <stdexcept>
#include <string>

namespace convx {

inline void check_shim(AOTITorchError code, const char* what) {
  if (code != AOTI_TORCH_SUCCESS) {
    throw std::runtime_error(std::string("convx: PyTorch could not ") + what);
  }
}

}  // namespace convx
