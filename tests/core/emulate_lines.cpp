// cuda_lines, launches and kernels, run on the host from its own source.
#include "emulated_cuda/run_grid.h"
//
#include "device/async_copy.cuh"
#include "device/mbarrier.cuh"
#include "emulate_lines.h"
#include "engines/cuda_lines/cuda_lines_launch.cpp"
#include "engines/cuda_lines/lines_bfloat16.cu"
#include "engines/cuda_lines/lines_float16.cu"
#include "engines/cuda_lines/lines_half_ieee.cu"
#include "engines/cuda_lines/lines_half_tf32.cu"
#include "engines/cuda_lines/lines_ieee.cu"
#include "engines/cuda_lines/lines_tf32.cu"

namespace convx {

const char *emulate_lines(const ConvProblem &problem, const Plan &plan,
                          Buffers buffers, bool descending, bool &unfit) {
  constexpr int64_t kAlignment = 64;
  const int64_t bytes = plan.workspace_bytes;
  std::vector<unsigned char> memory(
      static_cast<size_t>(bytes + kAlignment + emulator::kMargin),
      emulator::kPoison);
  const auto misplaced =
      static_cast<int64_t>(reinterpret_cast<uintptr_t>(memory.data()));
  unsigned char *const workspace =
      memory.data() + (-misplaced & (kAlignment - 1));
  buffers.workspace = workspace;
  emulator::copied_begin = reinterpret_cast<char *>(workspace);
  emulator::copied_end = emulator::copied_begin + bytes;
  emulator::fault = nullptr;
  emulator::descending = descending;
  launch_cuda_lines({"cuda_lines", &problem}, plan, buffers);
  emulator::descending = false;
  unfit = reinterpret_cast<const HalfScales *>(workspace)->unfit != 0;
  if (!end_bulk_stores())
    return "a block ended before its copies";
  const auto written = [](unsigned char byte) {
    return byte != emulator::kPoison;
  };
  if (std::any_of(workspace + bytes, workspace + bytes + emulator::kMargin,
                  written)) {
    return "the workspace was overrun";
  }
  return emulator::fault;
}

} // namespace convx
