// In place of csrc/device, on the host.
#pragma once

#include "emulated_cuda/warps.h"

namespace convx {

template <int kId, int kThreads>
void wait_at_barrier() {
  static emulator::Meeting meeting;
  meeting.join(kThreads);
}

}  // namespace convx
