#include "torch/operand.h"

#include <span>
#include <stdexcept>

#include "core/text.h"
#include "torch/backend.h"

namespace convx {
namespace {

std::string device_text(const Operand& operand) {
  if (operand.device_type == aoti_torch_device_type_cpu()) return "cpu";
  const bool cuda = operand.device_type == aoti_torch_device_type_cuda();
  return (cuda ? "cuda:" : "another kind of device, index ") + std::to_string(operand.device);
}

std::string dtype_text(const Operand& operand) {
  return torch::headeronly::toString(operand.tensor.scalar_type());
}

Tensor allocate(const Operand& like, std::span<const int64_t> sizes,
                std::span<const int64_t> strides, int32_t dtype) {
  AtenTensorHandle handle;
  check_shim(
      aoti_torch_empty_strided(static_cast<int64_t>(sizes.size()), sizes.data(), strides.data(),
                               dtype, like.device_type, like.device, &handle),
      "allocate memory for a convolution");
  return Tensor(handle);
}

}  // namespace

void fail(const std::string& message) { throw std::runtime_error("convx.conv2d: " + message); }

Operand::Operand(const Tensor& of, const char* called) : tensor(of), name(called) {
  const AtenTensorHandle handle = tensor.get();
  int64_t* borrowed_sizes;
  int64_t* borrowed_strides;
  // One error message for all: none of these calls fails for a tensor that reaches a kernel.
  const bool known = aoti_torch_get_dim(handle, &rank) == AOTI_TORCH_SUCCESS &&
                     aoti_torch_get_sizes(handle, &borrowed_sizes) == AOTI_TORCH_SUCCESS &&
                     aoti_torch_get_strides(handle, &borrowed_strides) == AOTI_TORCH_SUCCESS &&
                     aoti_torch_get_dtype(handle, &dtype) == AOTI_TORCH_SUCCESS &&
                     aoti_torch_get_device_type(handle, &device_type) == AOTI_TORCH_SUCCESS &&
                     aoti_torch_get_device_index(handle, &device) == AOTI_TORCH_SUCCESS;
  if (!known) fail(std::string("PyTorch could not describe ") + name);
  sizes = borrowed_sizes;
  steps = borrowed_strides;
}

std::string Operand::sizes_text() const {
  return list_text(std::span(sizes, static_cast<size_t>(rank)));
}

void check_rank(const Operand& operand, int64_t expected) {
  if (operand.rank != expected) {
    fail(std::string("expected ") + operand.name + " to have " + std::to_string(expected) +
         " dimensions, but got " + operand.name + " of size " + operand.sizes_text());
  }
}

void check_image_rank(const Operand& operand) {
  if (operand.rank != 4) {
    fail(std::string("expected ") + operand.name +
         " to have 4 dimensions, or 3 without a batch, but got " + operand.name + " of size " +
         operand.sizes_text());
  }
}

DType check_dtype(const Operand& operand) {
  static const int32_t float32 = aoti_torch_dtype_float32();
  static const int32_t float64 = aoti_torch_dtype_float64();
  static const int32_t float16 = aoti_torch_dtype_float16();
  static const int32_t bfloat16 = aoti_torch_dtype_bfloat16();
  if (operand.dtype == float32) return DType::kFloat32;
  if (operand.dtype == float64) return DType::kFloat64;
  if (operand.dtype == float16) return DType::kFloat16;
  if (operand.dtype == bfloat16) return DType::kBFloat16;
  fail(std::string(operand.name) +
       ".dtype must be float32, float64, float16 or bfloat16, but got " + dtype_text(operand));
}

void check_device(const Operand& operand) {
  if (operand.device_type != backend().device_type) {
    fail(std::string("expected ") + operand.name + " to be on a " + backend().device_name +
         " device, but it is on " + device_text(operand));
  }
}

void check_like(const Operand& operand, const Operand& first) {
  if (operand.dtype != first.dtype) {
    fail(std::string("expected ") + operand.name + " to have the dtype of " + first.name + " (" +
         dtype_text(first) + "), but got " + operand.name + ".dtype=" + dtype_text(operand));
  }
  if (operand.device_type != first.device_type || operand.device != first.device) {
    fail(std::string("expected ") + operand.name + " and " + first.name +
         " to be on the same device, but " + operand.name + " is on " + device_text(operand) +
         " and " + first.name + " is on " + device_text(first));
  }
}

Tensor allocate_4d(const Operand& like, const std::array<int64_t, 4>& sizes,
                   const Strides& strides) {
  const std::array<int64_t, 4> steps{strides.n, strides.c, strides.h, strides.w};
  return allocate(like, sizes, steps, like.dtype);
}

Tensor allocate_1d(const Operand& like, int64_t size) {
  const int64_t step = 1;
  return allocate(like, {&size, 1}, {&step, 1}, like.dtype);
}

Tensor allocate_bytes(const Operand& like, int64_t bytes) {
  const int64_t step = 1;
  return allocate(like, {&bytes, 1}, {&step, 1}, aoti_torch_dtype_uint8());
}

}  // namespace convx
