// The convolution problem: one convolution in plain numbers, without pointers.
//
// Letters, everywhere in convx:
//   x  [N][C][H][W]          input          (channels of group g: C/groups consecutive ones)
//   w  [K][C/groups][R][S]   filters        (filters of group g:  K/groups consecutive ones)
//   y  [N][K][P][Q]          output
// x, w and y keep these names in all three passes: the input gradient is written to x, the weight
// gradient to w, and the output gradient is read from y.
//
//   y[n][k][p][q] = bias[k] + sum over c, r, s of
//       w[k][c][r][s] * x[n][group(k)*C/groups + c][p*stride.h - pad.top  + r*dilation.h]
//                                                  [q*stride.w - pad.left + s*dilation.w]
// where x outside the image counts as zero. A forward pass may also add a residual and apply an
// activation (core/epilogue.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/epilogue.h"

namespace convx {

enum class DType : uint8_t { kFloat32, kFloat64, kFloat16, kBFloat16 };

// The precision of float32 operands; other dtypes ignore it. kIeee: results as accurate as float32
// arithmetic. kTf32: operands may be rounded to TF32.
enum class Precision : uint8_t { kIeee, kTf32 };

enum class Pass : uint8_t { kForward, kInputGrad, kWeightGrad };

struct Hw {
  int64_t h = 1;
  int64_t w = 1;
  bool operator==(const Hw&) const = default;
};

struct Padding {
  int64_t top = 0;
  int64_t bottom = 0;
  int64_t left = 0;
  int64_t right = 0;
  bool operator==(const Padding&) const = default;
};

// Memory strides of a 4-D tensor, in elements. For w the axes are (K, C/groups, R, S).
struct Strides {
  int64_t n = 0;
  int64_t c = 0;
  int64_t h = 0;
  int64_t w = 0;
  bool operator==(const Strides&) const = default;
};

struct ConvProblem {
  Pass pass = Pass::kForward;
  DType dtype = DType::kFloat32;
  Precision precision = Precision::kIeee;
  Epilogue epilogue;  // of the forward pass

  int64_t N = 0, C = 0, H = 0, W = 0;
  int64_t K = 0, R = 0, S = 0;
  int64_t P = 0, Q = 0;  // filled by validate(), which owns the formula
  int64_t groups = 1;

  Hw stride;
  Hw dilation;
  Padding pad;

  Strides x_strides;
  Strides w_strides;
  Strides y_strides;

  // As in PyTorch, an input without channels gives an output without channels. No engine computes
  // it, nor anything else that is empty.
  int64_t output_channels() const { return C == 0 ? 0 : K; }
  int64_t channels_per_group() const { return C / groups; }
  int64_t filters_per_group() const { return K / groups; }
  int64_t taps() const { return R * S; }

  bool operator==(const ConvProblem&) const = default;
};

// The extent of the output along one axis; zero or negative if the kernel does not fit.
int64_t output_extent(int64_t input, int64_t pad_before, int64_t pad_after, int64_t kernel,
                      int64_t stride, int64_t dilation);

// Checks the arguments of a convolution and fills P and Q; weight_channels is w's second extent.
// Returns an empty string, or one sentence that names the argument at fault and its value.
std::string validate(ConvProblem& problem, int64_t weight_channels);

// Multiply-add pairs counted as two operations, padding included, as every library counts them.
double count_flops(const ConvProblem& problem);

// The fewest bytes a pass can move: each tensor it reads or writes, once.
double count_bytes(const ConvProblem& problem);

size_t hash_value(const ConvProblem& problem);

// The problem with stride 0 along axes of one element. Such strides have no meaning, and
// tensors with the same layout may differ in them.
ConvProblem drop_unused_strides(ConvProblem problem);

int64_t size_of(DType dtype);
// Bytes of the accumulation type: float64 for float64, float32 for the others.
int64_t accumulate_bytes(DType dtype);
const char* name_of(DType dtype);
const char* name_of(Precision precision);
const char* name_of(Pass pass);

// The problem with no more than a bias behind the sum.
inline ConvProblem drop_fusion(ConvProblem problem) {
  problem.epilogue = {.has_bias = problem.epilogue.has_bias};
  return problem;
}

// Strides of a densely packed tensor of sizes (n, c, h, w).
Strides contiguous_strides(int64_t c, int64_t h, int64_t w);
Strides channels_last_strides(int64_t c, int64_t h, int64_t w);

// Whether PyTorch would call this tensor channels_last. It calls ambiguous ones (one channel, or
// one pixel, in packed order) contiguous; this is the same rule as suggest_memory_format.
bool is_channels_last(int64_t n, int64_t c, int64_t h, int64_t w, const Strides& strides);

// "n8c32h512w512 k64r5s9 stride1x1 pad2,2,4,4 dilation2x3 groups1 float32": one line that log
// messages, errors and explanations share.
std::string to_text(const ConvProblem& problem);

// The whole problem as JSON, with the names that Python's explain() uses.
std::string describe(const ConvProblem& problem);

}  // namespace convx
