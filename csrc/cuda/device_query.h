// Facts about a CUDA device, read once per device and process.
#pragma once

#include "core/device_caps.h"

namespace convx {

DeviceCaps query_cuda_caps(int device);

}  // namespace convx
