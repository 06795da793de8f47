// Plans and launches the problems of standard input by recording_runtime.cpp, and prints how often
// each compiled kernel was launched: "count mangled_name". A line of input is
//   pass dtype precision N C H W K R S stride dilation padding groups channels_last bias odd
//   algorithm
// with two numbers for stride and dilation, and four for padding. The tensors' addresses are made
// up, `odd` elements behind an aligned one, since nothing reads or writes there.
#include <cstdint>
#include <cstdio>
#include <exception>
#include <iostream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>

#include "core/choose_engine.h"
#include "engines/engines.h"
#include "recording_runtime.h"

using namespace convx;

namespace {

DeviceCaps h200() {
  DeviceCaps caps;
  caps.sm_count = 132;
  caps.compute_major = 9;
  caps.code_arch = 90;
  caps.wgmma = true;
  caps.shared_bytes_per_block = 232448;
  return caps;
}

void* address(int64_t tensor, int64_t offset) {
  return reinterpret_cast<void*>((tensor << 40) + offset);
}

// Plans and launches a problem, unless the engine refuses it.
void launch(const ConvProblem& p, const Buffers& buffers, const std::string& algorithm) {
  const Choice choice = choose_engine(cuda_engines(), p, h200(), algorithm, Listed::kEligible);
  if (!choice.error.empty()) {
    if (algorithm == "auto") throw std::runtime_error(choice.error);
    return;
  }
  CudaContext context;
  context.get_blas = [] { return address(6, 0); };
  launch_cuda(p, choice.candidates[choice.chosen].plan, buffers, context);
  if (p.pass != Pass::kWeightGrad) return;
  cuda_bias_grad(p, buffers.y, address(4, 0), buffers.workspace, context);
}

void launch_line(const std::string& line) {
  std::istringstream in(line);
  int pass = 0, dtype = 0, precision = 0;
  bool channels_last = false, bias = false;
  int64_t odd = 0;
  std::string algorithm;
  ConvProblem p;
  in >> pass >> dtype >> precision >> p.N >> p.C >> p.H >> p.W >> p.K >> p.R >> p.S;
  in >> p.stride.h >> p.stride.w >> p.dilation.h >> p.dilation.w;
  in >> p.pad.top >> p.pad.bottom >> p.pad.left >> p.pad.right >> p.groups;
  in >> channels_last >> bias >> odd >> algorithm;
  if (!in) throw std::runtime_error("cannot read it");
  p.pass = Pass(pass), p.dtype = DType(dtype), p.precision = Precision(precision);
  p.epilogue.has_bias = bias;
  if (std::string error = validate(p, p.channels_per_group()); !error.empty()) {
    throw std::runtime_error(error);
  }
  const auto strides = channels_last ? channels_last_strides : contiguous_strides;
  p.x_strides = strides(p.C, p.H, p.W);
  p.w_strides = strides(p.channels_per_group(), p.R, p.S);
  p.y_strides = strides(p.K, p.P, p.Q);

  const int64_t offset = odd * size_of(p.dtype);
  Buffers buffers{address(1, offset), address(2, offset), address(3, offset),
                  bias ? address(4, offset) : nullptr};
  buffers.workspace = address(5, 0);
  launch(p, buffers, algorithm);
  if (!bias) return;
  p.epilogue = {.has_bias = true, .has_residual = true, .activation = Activation::kSilu};
  buffers.residual = address(7, offset);
  launch(p, buffers, algorithm);
}

}  // namespace

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    try {
      launch_line(line);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s: %s\n", line.c_str(), error.what());
      return 1;
    }
  }
  std::map<std::string, int64_t> counts;
  for (const std::string& name : list_kernels()) counts[name] = 0;
  for (const std::string& name : launched) ++counts[name];
  for (const auto& [name, count] : counts) {
    std::printf("%lld %s\n", static_cast<long long>(count), name.c_str());
  }
}
