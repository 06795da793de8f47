// Tensor maps, the descriptors with which TMA addresses a tensor (sm_90).
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstring>

#include "cuda/check.h"
#include "planning/boxed_tensor.h"

namespace convx {

// Looks up a driver function by name.
template <typename Function>
Function find_driver_function(const LaunchSite& site, const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult status{};
  check_cuda(site,
             cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &status),
             "looking for a function of the driver");
  if (found == nullptr) throw_launch_error(site, name, "not in this driver");
  return reinterpret_cast<Function>(found);
}

// The swizzle mode for rows of 32, 64 or 128 bytes; 0 for none.
inline CUtensorMapSwizzle find_swizzle(int row_bytes) {
  return row_bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
         : row_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
         : row_bytes == 32 ? CU_TENSOR_MAP_SWIZZLE_32B
                           : CU_TENSOR_MAP_SWIZZLE_NONE;
}

inline CUtensorMapDataType find_data_type(BoxValue value) {
  return value == BoxValue::kTf32        ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32
         : value == BoxValue::kFourBytes ? CU_TENSOR_MAP_DATA_TYPE_UINT32
                                         : CU_TENSOR_MAP_DATA_TYPE_UINT16;
}

inline TensorMap finish_tensor_map(const LaunchSite& site, const CUtensorMap& encoded,
                                   CUresult result) {
  static_assert(sizeof(TensorMap) == sizeof(CUtensorMap));
  if (result != CUDA_SUCCESS) {
    throw_launch_error(site, "encoding a tensor map",
                       "CUresult " + std::to_string(static_cast<int>(result)));
  }
  TensorMap map;
  std::memcpy(&map, &encoded, sizeof(map));
  return map;
}

inline TensorMap make_tensor_map(const LaunchSite& site, const BoxedTensor& tensor) {
  using Encode = decltype(&cuTensorMapEncodeTiled);
  static const auto encode = find_driver_function<Encode>(site, "cuTensorMapEncodeTiled");
  cuuint64_t extent[4], strides[3];
  cuuint32_t box[4], steps[4];
  for (int i = 0; i < 4; ++i) {
    extent[i] = static_cast<cuuint64_t>(tensor.extent[i]);
    steps[i] = static_cast<cuuint32_t>(tensor.step[i]);
    box[i] = static_cast<cuuint32_t>((tensor.box[i] - 1) * tensor.step[i] + 1);
    if (i < 3) strides[i] = static_cast<cuuint64_t>(tensor.stride_bytes[i]);
  }
  CUtensorMap encoded;
  const CUresult result =
      encode(&encoded, find_data_type(tensor.value), 4, const_cast<void*>(tensor.base), extent,
             strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, find_swizzle(tensor.swizzle_bytes),
             CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return finish_tensor_map(site, encoded, result);
}

inline TensorMap make_tensor_map(const LaunchSite& site, const PixelTensor& tensor) {
  using Encode = decltype(&cuTensorMapEncodeIm2col);
  static const auto encode = find_driver_function<Encode>(site, "cuTensorMapEncodeIm2col");
  cuuint64_t extent[4], strides[3];
  for (int i = 0; i < 4; ++i) extent[i] = static_cast<cuuint64_t>(tensor.extent[i]);
  for (int i = 0; i < 3; ++i) strides[i] = static_cast<cuuint64_t>(tensor.stride_bytes[i]);
  const int lower[2] = {tensor.first[0], tensor.first[1]};
  const int upper[2] = {static_cast<int>(tensor.upper_corner(0)),
                        static_cast<int>(tensor.upper_corner(1))};
  const cuuint32_t steps[4] = {1, static_cast<cuuint32_t>(tensor.step[0]),
                               static_cast<cuuint32_t>(tensor.step[1]), 1};
  CUtensorMap encoded;
  const CUresult result =
      encode(&encoded, find_data_type(tensor.value), 4, const_cast<void*>(tensor.base), extent,
             strides, lower, upper, static_cast<cuuint32_t>(tensor.channels),
             static_cast<cuuint32_t>(tensor.pixels), steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             find_swizzle(tensor.swizzle_bytes()), CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return finish_tensor_map(site, encoded, result);
}

}  // namespace convx
