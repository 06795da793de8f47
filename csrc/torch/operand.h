// A tensor of a call, with what the call asks of it read once: every question to a tensor is a call
// into PyTorch, and small problems feel dozens of them.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <array>
#include <cstdint>
#include <string>

#include "core/problem.h"

namespace convx {

using torch::stable::Tensor;

// Reports an error to whoever called the operator.
[[noreturn]] void fail(const std::string& message);

struct Operand {
  // The tensor must outlive the operand, and so must the name.
  Operand(const Tensor& tensor, const char* name);

  const Tensor& tensor;
  const char* name;  // in messages
  int64_t rank;
  const int64_t* sizes;  // the tensor's own
  const int64_t* steps;  // its strides
  int32_t dtype;         // PyTorch's code
  int32_t device_type;   // likewise
  int32_t device;

  Strides strides() const { return {steps[0], steps[1], steps[2], steps[3]}; }
  bool is_channels_last() const {
    return convx::is_channels_last(sizes[0], sizes[1], sizes[2], sizes[3], strides());
  }
  std::string sizes_text() const;  // "[2, 3, 4, 4]"
};

// Checks fail() with a sentence that names the tensor.
void check_rank(const Operand& operand, int64_t rank);
// It is a batch of images. The public operators have given a single image its batch by then.
void check_image_rank(const Operand& operand);
DType check_dtype(const Operand& operand);
// It is on the kind of device this library computes on.
void check_device(const Operand& operand);
// Every tensor of a call has the first one's dtype and device.
void check_like(const Operand& operand, const Operand& first);

// Uninitialised memory from PyTorch's allocator, on the device of `like`.
Tensor allocate_4d(const Operand& like, const std::array<int64_t, 4>& sizes,
                   const Strides& strides);
Tensor allocate_1d(const Operand& like, int64_t size);
Tensor allocate_bytes(const Operand& like, int64_t bytes);

}  // namespace convx
