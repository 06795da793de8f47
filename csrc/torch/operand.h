// A tensor of a call, with its properties read once. Every query is a call into PyTorch, and dozens
// of them are noticeable in small problems.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/tensor.h>

#include <array>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "core/problem.h"

namespace convx {

using torch::stable::Tensor;

// Throws an error that reaches the caller of the operator.
[[noreturn]] void fail(const std::string& message);

struct Operand {
  // The tensor and the name must outlive the operand.
  Operand(const Tensor& tensor, const char* name);

  const Tensor& tensor;
  const char* name;  // used in error messages
  int64_t rank;
  const int64_t* sizes;  // points into the tensor
  const int64_t* steps;  // strides; points into the tensor
  int32_t dtype;         // PyTorch's code
  int32_t device_type;   // PyTorch's code
  int32_t device;

  Strides strides() const { return {steps[0], steps[1], steps[2], steps[3]}; }
  bool is_channels_last() const {
    return convx::is_channels_last(sizes[0], sizes[1], sizes[2], sizes[3], strides());
  }
  std::string sizes_text() const;  // such as "[2, 3, 4, 4]"
};

// The checks call fail() with a message that names the tensor.
void check_rank(const Operand& operand, int64_t rank);
// Requires a batch of images. The public operators have already added the batch axis to a single
// image.
void check_image_rank(const Operand& operand);
DType check_dtype(const Operand& operand);
// Requires the type of device on which this library computes.
void check_device(const Operand& operand);
// Requires the dtype and device of the call's first tensor.
void check_like(const Operand& operand, const Operand& first);

// Allocates uninitialised memory with PyTorch's allocator, on the device of `like`.
Tensor allocate_4d(const Operand& like, const std::array<int64_t, 4>& sizes,
                   const Strides& strides);
Tensor allocate_1d(const Operand& like, int64_t size);
Tensor allocate_bytes(const Operand& like, int64_t bytes);

// Turns the error codes of PyTorch's C shims into exceptions.
inline void check_shim(AOTITorchError code, const char* what) {
  if (code != AOTI_TORCH_SUCCESS) {
    throw std::runtime_error(std::string("convx: PyTorch could not ") + what);
  }
}

}  // namespace convx
