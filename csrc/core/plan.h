// A plan: the engine that runs a problem, and the parameters that it runs with.
#pragma once

#include <cstdint>
#include <memory>

namespace convx {

// One value per engine. The launch side switches over it, so the compiler names every place that
// a new engine must be added to.
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
  kCudaPhases,
  kCudaCol2im,
  kCudaWeightGrad,
};

// The extents of the tile that one task, thread block or GEMM call computes. Each engine's plan
// file defines m, n and k.
struct Tile {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
};

struct Plan {
  EngineId engine = EngineId::kCpuDirect;
  Tile tile;
  int64_t split = 1;            // split-K slices, which are added afterwards in a fixed order
  bool halves = false;          // float32 is multiplied as scaled fp16 if its values are suitable
  int64_t workspace_bytes = 0;  // scratch memory the launch needs
  double predicted_us = 0;      // the cost model's estimate; engines are compared by it

  // The geometry that the engine's plan() computed and its launch reads; opaque to everyone else.
  // Computing it takes microseconds, which small problems would notice, so the plan cache keeps
  // it. It holds nothing that belongs to one call: no pointer, no stream.
  std::shared_ptr<const void> shape;
};

}  // namespace convx
