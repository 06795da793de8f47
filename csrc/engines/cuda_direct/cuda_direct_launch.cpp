#include "engines/cuda_direct/cuda_direct_launch.h"

#include <unordered_map>

#include "cuda/device_query.h"
#include "engines/cuda_direct/cuda_direct_gather.h"
#include "engines/cuda_direct/cuda_direct_weight_grad.h"

namespace convx {
namespace {

// Fitting a tile takes microseconds, which small problems would feel, so each thread remembers the
// shapes it has launched.
const GatherShape& find_gather_shape(const ConvProblem& problem, const DeviceCaps& caps, int device,
                                     int config) {
  struct Entry {
    ConvProblem problem;
    int device;
    int config;
    GatherShape shape;
  };
  constexpr size_t kCapacity = 1024;
  thread_local std::unordered_map<size_t, Entry> entries;
  if (entries.size() >= kCapacity) entries.clear();
  Entry& entry = entries[hash_value(problem)];
  const bool known = entry.shape.config >= 0 && entry.problem == problem &&
                     entry.device == device && entry.config == config;
  if (!known) entry = {problem, device, config, fit_gather_shape(problem, caps, config)};
  return entry.shape;
}

}  // namespace

void launch_cuda_direct(const LaunchSite& site, const Plan& plan, const Buffers& buffers) {
  const ConvProblem& problem = *site.problem;
  int device = 0;
  check_cuda(site, cudaGetDevice(&device), "reading the current device");
  // The shape is a function of the problem, the tile and the workspace: the plan need not carry it.
  DeviceCaps caps = query_cuda_caps(device);
  caps.workspace_limit = plan.workspace_bytes;
  const int config = static_cast<int>(plan.tile.k);
  if (problem.pass == Pass::kWeightGrad) {
    const WeightGradShape shape = fit_weight_grad_shape(problem, caps, config);
    return launch_direct_weight_grad(site, shape, buffers);
  }
  if (problem.N == 0) return;
  const GatherShape& shape = find_gather_shape(problem, caps, device, config);
  const bool packed = plan.workspace_bytes >= shape.packed_bytes;
  if (problem.dtype == DType::kFloat32) {
    launch_gather_float32(site, shape, buffers, packed);
  } else {
    launch_gather_other(site, shape, buffers, packed);
  }
}

}  // namespace convx
