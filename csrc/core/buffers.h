// Addresses of a launch's operands, not owned. The problem has their layouts and extents.
#pragma once

#include <cstdint>

namespace convx {

struct Buffers {
  void* x = nullptr;     // read; written by the input-gradient pass
  void* w = nullptr;     // read; written by the weight-gradient pass
  void* y = nullptr;     // written by the forward pass; read as the output gradient by the others
  void* bias = nullptr;  // [K], forward pass only, may be null
  void* workspace = nullptr;  // Plan::workspace_bytes bytes, aligned to 64
};

}  // namespace convx
