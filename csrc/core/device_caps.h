// The machine, in plain numbers. The core never asks hardware: whoever launches fills this in.
#pragma once

#include <cstdint>

namespace convx {

struct DeviceCaps {
  // CPU
  int threads = 1;
  int simd_bytes = 16;  // width of the vector registers the CPU engines were dispatched to

  // CUDA
  int sm_count = 0;
  int compute_major = 0;
  int compute_minor = 0;
  int code_arch = 0;   // 10 * major + minor that the library's code for this GPU was written for
  bool wgmma = false;  // the library has code for this GPU's warpgroup tensor instructions
  int64_t shared_bytes_per_block = 0;
  int64_t workspace_limit = int64_t{256} << 20;  // an engine's scratch memory stays below this

  // Thread blocks with so many bytes of shared memory that a multiprocessor has room for: each
  // takes a KiB besides.
  int64_t count_blocks_by_shared(int64_t bytes) const {
    return (shared_bytes_per_block + 1024) / (bytes + 1024);
  }

  bool operator==(const DeviceCaps&) const = default;
};

}  // namespace convx
