// What the heuristic decides: which engine runs a problem, and with which parameters.
#pragma once

#include <cstdint>
#include <memory>

namespace convx {

// One value per engine. The launch side switches over it, so that the compiler names every place a
// new engine has to be added.
enum class EngineId : uint8_t {
  kCpuGemm,
  kCpuDirect,
  kCudaGemm,
  kCudaDirect,
  kCudaPixels,
  kCudaLines,
  kCudaMma,
  kCudaDepthwise,
  kCudaPointwise,
  kCudaGrouped,
  kCudaBoxes,
  kCudaBands,
  kCudaDiagonal,
  kCudaWeightGrad,
};

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
  bool halves = false;          // float32 values are multiplied as float16, where they allow it
  int64_t workspace_bytes = 0;  // scratch memory the launch needs
  double predicted_us = 0;      // the cost model's estimate; engines are compared by it

  // The geometry the engine fitted to the problem: made by its plan(), read by its launch, opaque
  // to everyone else. Fitting takes microseconds that small problems would feel, so it is part of
  // what the plan cache remembers. It holds nothing of the call: no pointer, no stream.
  std::shared_ptr<const void> shape;
};

}  // namespace convx
