// What the copy engine must know of a tensor to read boxes of it (sm_90).
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstring>

#include "cuda/boxed_tensor.h"
#include "cuda/check.h"

namespace convx {

inline TensorMap make_tensor_map(const LaunchSite& site, const BoxedTensor& tensor) {
  static_assert(sizeof(TensorMap) == sizeof(CUtensorMap));
  using Encode = decltype(&cuTensorMapEncodeTiled);
  static const Encode encode = [&] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult status{};
    check_cuda(site,
               cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                                cudaEnableDefault, &status),
               "looking for cuTensorMapEncodeTiled");
    if (found == nullptr) throw_launch_error(site, "cuTensorMapEncodeTiled", "not in this driver");
    return reinterpret_cast<Encode>(found);
  }();
  cuuint64_t extent[4], strides[3];
  cuuint32_t box[4], steps[4];
  for (int i = 0; i < 4; ++i) {
    extent[i] = static_cast<cuuint64_t>(tensor.extent[i]);
    steps[i] = static_cast<cuuint32_t>(tensor.step[i]);
    box[i] = static_cast<cuuint32_t>((tensor.box[i] - 1) * tensor.step[i] + 1);
    if (i < 3) strides[i] = static_cast<cuuint64_t>(tensor.stride_bytes[i]);
  }
  const CUtensorMapSwizzle swizzle = tensor.swizzle_bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                     : tensor.swizzle_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                                  : CU_TENSOR_MAP_SWIZZLE_32B;
  const CUtensorMapDataType type =
      tensor.value == BoxValue::kTf32        ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32
      : tensor.value == BoxValue::kFourBytes ? CU_TENSOR_MAP_DATA_TYPE_UINT32
                                             : CU_TENSOR_MAP_DATA_TYPE_UINT16;
  CUtensorMap encoded;
  const CUresult result =
      encode(&encoded, type, 4, const_cast<void*>(tensor.base), extent, strides, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw_launch_error(site, "encoding a tensor map",
                       "CUresult " + std::to_string(static_cast<int>(result)));
  }
  TensorMap map;
  std::memcpy(&map, &encoded, sizeof(map));
  return map;
}

}  // namespace convx
