// In place of csrc's: the tensor itself, for device/box_copy.cuh. What the driver would refuse is a
// fault.
#pragma once

#include <cstring>

#include "planning/boxed_tensor.h"
#include "cuda/check.h"
#include "emulator.h"

namespace convx {

static_assert(sizeof(BoxedTensor) <= sizeof(TensorMap));

inline TensorMap make_tensor_map(const LaunchSite&, const BoxedTensor& tensor) {
  const int row_bytes = tensor.box[0] * value_bytes(tensor.value);
  bool refused = reinterpret_cast<uintptr_t>(tensor.base) % 16 != 0 || row_bytes % 16 != 0 ||
                 (tensor.swizzle_bytes != 0 && tensor.swizzle_bytes != row_bytes) ||
                 tensor.step[0] != 1;
  for (int i = 0; i < 4; ++i) {
    refused |= tensor.extent[i] < 1 || tensor.box[i] < 1 || tensor.step[i] < 1 ||
               tensor.step[i] > 8 || (tensor.box[i] - 1) * tensor.step[i] + 1 > 256;
    refused |= i < 3 && (tensor.stride_bytes[i] % 16 != 0 || tensor.stride_bytes[i] < 16);
  }
  if (refused) emulator::fault = "a tensor that has no map";
  TensorMap map{};
  std::memcpy(&map, &tensor, sizeof(tensor));
  return map;
}

static_assert(sizeof(PixelTensor) <= sizeof(TensorMap));

inline TensorMap make_tensor_map(const LaunchSite&, const PixelTensor& tensor) {
  bool refused = reinterpret_cast<uintptr_t>(tensor.base) % 16 != 0 || tensor.pixels > 1024 ||
                 tensor.channels > 64;
  for (int i = 0; i < 2; ++i) {
    refused |= tensor.step[i] < 1 || tensor.step[i] > 8 || tensor.count[i] < 1 ||
               tensor.first[i] < kMinPixelCorner || tensor.first[i] > kMaxPixelCorner ||
               tensor.upper_corner(i) < kMinPixelCorner || tensor.upper_corner(i) > kMaxPixelCorner;
  }
  for (const int64_t stride : tensor.stride_bytes) refused |= stride % 16 != 0 || stride < 16;
  for (const int64_t extent : tensor.extent) refused |= extent < 1;
  if (refused) emulator::fault = "a tensor that has no map";
  TensorMap map{};
  std::memcpy(&map, &tensor, sizeof(tensor));
  return map;
}

}  // namespace convx
