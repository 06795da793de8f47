// The machine in plain numbers. The core never queries hardware; the caller fills this in.
#pragma once

#include <cstdint>

namespace convx {

struct DeviceCaps {
  // CPU
  int threads = 1;
  int simd_bytes = 16;  // width of the vector registers that the CPU engines use

  // CUDA
  int sm_count = 0;
  int compute_major = 0;
  int compute_minor = 0;
  // Architecture, as 10 * major + minor, that the library's code for this GPU was compiled for.
  int code_arch = 0;
  bool wgmma = false;  // the library has sm_90a code (wgmma, TMA) for this GPU
  int64_t shared_bytes_per_block = 0;
  int64_t workspace_limit = int64_t{256} << 20;  // upper bound of an engine's workspace

  // How many thread blocks with `bytes` of shared memory fit on a multiprocessor. The system
  // reserves 1 KiB more for each.
  int64_t count_blocks_by_shared(int64_t bytes) const {
    return (shared_bytes_per_block + 1024) / (bytes + 1024);
  }

  bool operator==(const DeviceCaps&) const = default;
};

}  // namespace convx
