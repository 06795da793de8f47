// Facts about the CUDA devices.
#pragma once

#include "core/device_caps.h"

namespace convx {

// Read once per device and process.
DeviceCaps query_cuda_caps(int device);

int current_cuda_device();

// Makes the device's context current in the calling thread.
void bind_cuda_context(int device);

}  // namespace convx
