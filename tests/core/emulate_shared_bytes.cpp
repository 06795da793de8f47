// The shared memory of the block that runs on the host.
#include "emulated_cuda/run_grid.h"

namespace convx {

alignas(16) unsigned char shared_bytes[emulator::kSharedBytes + emulator::kMargin];

}  // namespace convx
