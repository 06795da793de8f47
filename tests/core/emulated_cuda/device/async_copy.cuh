// In place of csrc's: copies of a few bytes are done at once, others when they have to be.
#pragma once

#include <map>

#include "device/mbarrier.cuh"
#include "device/shared_memory.cuh"

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

}  // namespace convx
