// In place of csrc's: the host has no shared memory to divide.
#pragma once

#include "cuda/check.h"

namespace convx {

template <auto kKernel>
void prefer_shared_memory(const LaunchSite&) {}

}  // namespace convx
