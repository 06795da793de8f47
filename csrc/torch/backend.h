// The functions that differ between the CPU and the CUDA library. Each library defines backend()
// once.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <span>

#include "core/engine.h"
#include "core/plan.h"

namespace convx {

struct Backend {
  const char* device_name;
  int32_t device_type;  // PyTorch's code
  std::span<const Engine> (*engines)();
  DeviceCaps (*query_caps)(int device);
  // Returns whether PyTorch's settings now allow TF32 in float32 convolutions (precision="torch").
  bool (*torch_allows_tf32)();
  void (*launch)(const ConvProblem&, const Plan&, const Buffers&, int device);
  int64_t (*bias_grad_workspace_bytes)(const ConvProblem&);
  void (*bias_grad)(const ConvProblem&, const void* y, void* grad_bias, void* workspace,
                    int device);
};

const Backend& backend();

// CUDA library only: sets the workspace limit of later calls and returns the previous one.
int64_t set_workspace_limit(int64_t bytes);

}  // namespace convx
