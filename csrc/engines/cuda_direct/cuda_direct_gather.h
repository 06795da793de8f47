// The gather kernel for each dtype; float32 and the others are compiled in files of their own.
#pragma once

#include "core/buffers.h"
#include "cuda/check.h"
#include "engines/cuda_direct/gather_shape.h"

namespace convx {

// packed: the workspace has room for shape.packed_bytes of weights.
void launch_gather_float32(const LaunchSite& site, const GatherShape& shape, const Buffers& buffers,
                           bool packed);
void launch_gather_other(const LaunchSite& site, const GatherShape& shape, const Buffers& buffers,
                         bool packed);

}  // namespace convx
