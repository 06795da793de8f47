// A plan: the engine that runs a problem, and the parameters that it runs with. Buffers are the
// addresses that one launch of it receives.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>

namespace convx {

class Text;

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

// What an engine computed for a problem beyond the numbers that engines are compared by: tiles,
// stages, kernel parameters. Only the engine's own launch reads it. It holds nothing that belongs
// to one call: no pointer, no stream.
struct Geometry {
  virtual ~Geometry() = default;
  // One line for explain(), such as "tile 64 filters x 256 positions, 3 stages, split-K 2". It is
  // written when somebody asks for it, and never while planning.
  virtual void describe(Text& out) const = 0;
};

struct Plan {
  EngineId engine = EngineId::kCpuDirect;
  Tile tile;
  int64_t split = 1;    // split-K slices, which are added afterwards in a fixed order
  bool halves = false;  // float32 is multiplied as scaled fp16 if its values are suitable
  // A pass of its own adds the residual and applies the activation; the engine does not.
  bool finishes_separately = false;
  int64_t workspace_bytes = 0;  // scratch memory the launch needs, whatever the addresses
  // What a launch needs where x and y begin at multiples of kAlignedBytes, as PyTorch allocates
  // them; not set if that is no less.
  std::optional<int64_t> aligned_workspace_bytes;
  double predicted_us = 0;  // the cost model's estimate; engines are compared by it

  // Computing it takes microseconds, which small problems would notice, so the plan cache keeps it.
  std::shared_ptr<const Geometry> geometry;
};

// The geometry of the engines T::kEngines: a plain struct with a member describe(Text&).
template <typename T>
struct GeometryOf final : Geometry {
  explicit GeometryOf(T&& made) : value(std::move(made)) {}
  void describe(Text& out) const override { value.describe(out); }

  T value;
};

template <typename T>
std::shared_ptr<const Geometry> make_geometry(T value) {
  return std::make_shared<const GeometryOf<T>>(std::move(value));
}

// The geometry as its engine's own type. Nobody else casts it. All geometries of an engine have one
// type, so comparing the engine is enough, and costs less than asking for the type.
template <typename T>
const T& geometry_of(const Plan& plan) {
  const auto is_engine = [&](EngineId engine) { return engine == plan.engine; };
  if (!std::any_of(std::begin(T::kEngines), std::end(T::kEngines), is_engine)) {
    throw std::logic_error("a plan was read as another engine's plan");
  }
  return static_cast<const GeometryOf<T>&>(*plan.geometry).value;
}

// Addresses of a launch's operands, not owned. The problem has their layouts and extents.
struct Buffers {
  void* x = nullptr;     // read; written by the input-gradient pass
  void* w = nullptr;     // read; written by the weight-gradient pass
  void* y = nullptr;     // written by the forward pass; read as the output gradient by the others
  void* bias = nullptr;  // [K], forward pass only, may be null
  void* residual = nullptr;   // read; forward pass only, may be null
  void* workspace = nullptr;  // find_workspace_bytes() bytes, aligned to 64
};

inline constexpr uintptr_t kAlignedBytes = 16;

// Scratch memory that a launch with these operands needs.
inline int64_t find_workspace_bytes(const Plan& plan, const Buffers& buffers) {
  const auto is_aligned = [](const void* tensor) {
    return reinterpret_cast<uintptr_t>(tensor) % kAlignedBytes == 0;
  };
  const bool aligned = is_aligned(buffers.x) && is_aligned(buffers.y);
  return aligned ? plan.aligned_workspace_bytes.value_or(plan.workspace_bytes)
                 : plan.workspace_bytes;
}

}  // namespace convx
