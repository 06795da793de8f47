// What the heuristic decides: which engine runs a problem, and with which parameters.
#pragma once

#include <cstdint>

namespace convx {

// One value per engine. The launch side switches over it, so that the compiler names every place a
// new engine has to be added.
enum class EngineId : uint8_t { kCpuGemm, kCpuDirect, kCudaGemm, kCudaDirect };

// Extents of the piece of work one task, thread block or GEMM call takes. Each engine says in its
// plan file what the three mean for it.
struct Tile {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
};

struct Plan {
  EngineId engine = EngineId::kCpuDirect;
  Tile tile;
  int64_t split = 1;            // parts of the reduction summed afterwards, in a fixed order
  int64_t workspace_bytes = 0;  // scratch memory the launch needs
  double predicted_us = 0;      // the cost model's estimate; engines are compared by it
};

}  // namespace convx
