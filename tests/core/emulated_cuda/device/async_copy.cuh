// In place of csrc's: copies of a few bytes are done at once, others when they have to be. A box is
// put together, with zeros for what lies outside, and delivered as other copies are.
#pragma once

#include <map>

#include "cuda/tensor_map.h"
#include "device/mbarrier.cuh"
#include "device/memory.cuh"

namespace convx {

template <int kBytes>
void copy_async(uint32_t destination, const void* source, bool valid) {
  char* const to = shared_pointer<char>(destination, kBytes);
  if (!valid) {
    std::memset(to, 0, kBytes);
    return;
  }
  if (reinterpret_cast<uintptr_t>(source) % kBytes != 0) emulator::fault = "misaligned copy";
  std::memcpy(to, source, kBytes);
}

inline void arrive_after_copies(uint32_t barrier) { arrive(barrier); }

// A copy out of shared memory. The hardware may read its source at any time until that is waited
// for, so it must stay what it was; and it may write as late as it must.
struct EmulatedBulkStore {
  char* to;
  const char* from;
  std::vector<char> bytes;
  int block = blockIdx.x;
  int group = 0;  // when it was committed
  bool read = false;
};
inline std::map<int, std::vector<EmulatedBulkStore>> emulated_bulk_stores;  // of every thread

inline void bulk_store(void* destination, uint32_t source, uint32_t bytes) {
  const char* const from = shared_pointer<char>(source, 16);
  if (reinterpret_cast<uintptr_t>(destination) % 16 != 0 || bytes % 16 != 0 || bytes == 0) {
    emulator::fault = "misaligned copy";
  }
  emulated_bulk_stores[threadIdx.x].push_back(
      {static_cast<char*>(destination), from, {from, from + bytes}});
}
inline int emulated_bulk_groups[1024];  // that a thread has committed
inline void commit_bulk_stores() {
  const int group = ++emulated_bulk_groups[threadIdx.x];
  for (EmulatedBulkStore& copy : emulated_bulk_stores[threadIdx.x]) {
    if (copy.group == 0) copy.group = group;
  }
}
template <int kPending = 0>
void wait_bulk_reads() {
  const int last = emulated_bulk_groups[threadIdx.x] - kPending;
  for (EmulatedBulkStore& copy : emulated_bulk_stores[threadIdx.x]) {
    if (copy.block != blockIdx.x) emulator::fault = "a block ended before its copies";
    if (copy.group == 0 || copy.group > last || copy.read) continue;
    copy.read = true;
    if (std::memcmp(copy.from, copy.bytes.data(), copy.bytes.size()) != 0) {
      emulator::fault = "the source of a copy was written over";
    }
  }
}
inline void wait_bulk_stores() {
  wait_bulk_reads();
  auto& copies = emulated_bulk_stores[threadIdx.x];
  for (const EmulatedBulkStore& copy : copies) {
    if (copy.group > 0) std::memcpy(copy.to, copy.bytes.data(), copy.bytes.size());
  }
  std::erase_if(copies, [](const EmulatedBulkStore& copy) { return copy.group > 0; });
}

// Called where a kernel has ended: whether it has waited for its copies. Forgets them.
inline bool end_bulk_stores() {
  bool ended = true;
  for (const auto& [thread, copies] : emulated_bulk_stores) ended &= copies.empty();
  emulated_bulk_stores.clear();
  return ended;
}

inline BoxedTensor read_map(const void* map) {
  BoxedTensor tensor;
  std::memcpy(&tensor, map, sizeof(tensor));
  return tensor;
}

// Calls visit with each unit of 16 bytes of a box: where it is in shared memory and in the tensor,
// and how many of its bytes the tensor has.
template <typename Visit>
void visit_box(uint32_t shared, const void* map, const int (&first)[4], const Visit& visit) {
  const BoxedTensor tensor = read_map(map);
  char* const start = shared_pointer<char>(shared, 128);
  const int value = value_bytes(tensor.value), unit = 16 / value;
  const auto swizzle_bits = static_cast<uint32_t>(std::max(tensor.swizzle_bytes / 16 - 1, 0));
  uint32_t address = shared;
  for (int i3 = 0; i3 < tensor.box[3]; ++i3) {
    for (int i2 = 0; i2 < tensor.box[2]; ++i2) {
      for (int i1 = 0; i1 < tensor.box[1]; ++i1) {
        for (int i0 = 0; i0 < tensor.box[0]; i0 += unit, address += 16) {
          const int at[4] = {first[0] + i0, first[1] + i1 * tensor.step[1],
                             first[2] + i2 * tensor.step[2], first[3] + i3 * tensor.step[3]};
          bool inside = true;
          for (int axis = 1; axis < 4; ++axis) {
            inside &= at[axis] >= 0 && at[axis] < tensor.extent[axis];
          }
          const auto left = inside ? std::clamp<int64_t>(tensor.extent[0] - at[0], 0, unit) : 0;
          const int64_t offset = value * at[0] + at[1] * tensor.stride_bytes[0] +
                                 at[2] * tensor.stride_bytes[1] + at[3] * tensor.stride_bytes[2];
          // The hardware swizzles addresses.
          const uint32_t swizzled = address ^ ((address >> 7 & swizzle_bits) << 4);
          visit(start + (static_cast<int64_t>(swizzled) - shared),
                static_cast<char*>(const_cast<void*>(tensor.base)) + offset,
                static_cast<uint32_t>(value * left));
        }
      }
    }
  }
}

inline void box_copy(uint32_t destination, const void* map, int x0, int x1, int x2, int x3,
                     uint32_t barrier) {
  EmulatedBarrier& counted = find_barrier(barrier);
  const bool rounds = read_map(map).value == BoxValue::kTf32;
  visit_box(destination, map, {x0, x1, x2, x3}, [&](char* to, const char* from, uint32_t bytes) {
    std::memset(to, emulator::kPoison, 16);
    counted.copies.push_back({to, from, bytes, 16 - bytes, rounds});
  });
}

inline void pixel_copy(uint32_t destination, const void* map, int channel, int column, int row,
                       int image, int column_offset, int row_offset, uint32_t barrier) {
  PixelTensor tensor;
  std::memcpy(&tensor, map, sizeof(tensor));
  EmulatedBarrier& counted = find_barrier(barrier);
  char* const start = shared_pointer<char>(destination, 128);
  const int value = value_bytes(tensor.value), unit = 16 / value;
  const auto swizzle_bits = static_cast<uint32_t>(std::max(tensor.swizzle_bytes() / 16 - 1, 0));
  const bool rounds = tensor.value == BoxValue::kTf32;
  // The rectangle's last column and row.
  const int last[2] = {tensor.first[0] + (tensor.count[0] - 1) * tensor.step[0],
                       tensor.first[1] + (tensor.count[1] - 1) * tensor.step[1]};
  if (column < tensor.first[0] || column > last[0] || row < tensor.first[1] || row > last[1] ||
      (column - tensor.first[0]) % tensor.step[0] != 0 ||
      (row - tensor.first[1]) % tensor.step[1] != 0) {
    emulator::fault = "a copy begins outside of its rectangle";
  }
  for (const int offset : {column_offset, row_offset}) {
    if (offset < 0 || offset > kMaxPixelOffset) emulator::fault = "pixels are read too far away";
  }
  uint32_t address = destination;
  for (int pixel = 0; pixel < tensor.pixels; ++pixel) {
    const int64_t at[3] = {column + column_offset, row + row_offset, image};
    bool inside = true;
    for (int i = 0; i < 3; ++i) inside &= at[i] >= 0 && at[i] < tensor.extent[i + 1];
    for (int i = 0; i < tensor.channels; i += unit, address += 16) {
      const auto left =
          inside ? std::clamp<int64_t>(tensor.extent[0] - channel - i, 0, unit) : int64_t{0};
      const int64_t offset = value * (channel + i) + at[0] * tensor.stride_bytes[0] +
                             at[1] * tensor.stride_bytes[1] + at[2] * tensor.stride_bytes[2];
      const uint32_t swizzled = address ^ ((address >> 7 & swizzle_bits) << 4);
      char* const to = start + (static_cast<int64_t>(swizzled) - destination);
      const auto bytes = static_cast<uint32_t>(value * left);
      std::memset(to, emulator::kPoison, 16);
      counted.copies.push_back(
          {to, static_cast<const char*>(tensor.base) + offset, bytes, 16 - bytes, rounds});
    }
    column += tensor.step[0];
    if (column <= last[0]) continue;
    column = tensor.first[0], row += tensor.step[1];
    if (row <= last[1]) continue;
    row = tensor.first[1], ++image;
  }
}

inline void box_store(const void* map, int x0, int x1, int x2, int x3, uint32_t source) {
  visit_box(source, map, {x0, x1, x2, x3}, [&](const char* from, char* to, uint32_t bytes) {
    if (bytes > 0) {
      emulated_bulk_stores[threadIdx.x].push_back({to, from, {from, from + bytes}});
    }
  });
}

}  // namespace convx
