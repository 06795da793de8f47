// Plans of cuda_col2im (col2im_geometry.h). Plain host code.
#pragma once

#include <optional>

#include "core/device_caps.h"
#include "core/plan.h"
#include "engines/cuda/input_grad/col2im_geometry.h"
#include "planning/half_plan.h"
#include "planning/tensor_math.h"

namespace convx {

struct Col2imShape {
  TensorMath math{};
  int64_t packed_bytes = 0;
  double microseconds = 0;
  Col2imGeometry geometry{};

  void describe(Text& out) const;
};

struct Col2imFit {
  Col2imShape shape;
  Col2imParams params{};
};

struct Col2imPlan {
  static constexpr EngineId kEngines[] = {EngineId::kCudaCol2im};

  ConvProblem problem;
  HalvedPlan<Col2imFit> fits;

  void describe(Text& out) const { describe_halves(out, fits); }
};

// The fastest shape by prediction. Empty if the filters of a single channel do not fit in shared
// memory, or the packed filters in the workspace. kTf32 has kIeee's shape, because wgmma takes no
// MN-major TF32.
std::optional<Col2imShape> fit_col2im(const ConvProblem& problem, const DeviceCaps& caps,
                                      TensorMath math);

// The fewest taps that an element of dX with any taps has, borders aside.
int64_t count_fewest_taps(const ConvProblem& problem);

Col2imFit make_col2im_fit(const ConvProblem& problem, Col2imShape shape);

// The parameters of a call whose workspace starts at offset.
Col2imParams make_col2im_params(const ConvProblem& problem, const Col2imFit& fit, Buffers buffers,
                                int64_t offset);

}  // namespace convx
