// The shared memory of the block that runs on the host, by the names that
// kernels declare.
#include "emulated_cuda/run_grid.h"

alignas(128) unsigned char emulated_shared_memory[emulator::kSharedBytes +
                                                  emulator::kMargin];

#define EMULATED_ALIAS __attribute__((alias("emulated_shared_memory")))

namespace convx {

extern unsigned char shared_bytes[] EMULATED_ALIAS;
extern char unaligned[] EMULATED_ALIAS;
extern char memory[] EMULATED_ALIAS;
extern float staged[] EMULATED_ALIAS;

} // namespace convx
