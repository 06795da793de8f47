// In place of csrc's: copies are done at once, bulk stores as late as the
// hardware may.
#pragma once

#include <deque>

#include "device/shared_memory.cuh"

namespace convx {

template <int kBytes>
void copy_async(uint32_t destination, const void *source, bool valid) {
  char *const to = shared_pointer<char>(destination, kBytes);
  if (!valid) {
    std::memset(to, 0, kBytes);
    return;
  }
  if (reinterpret_cast<uintptr_t>(source) % kBytes != 0)
    emulator::fault = "misaligned copy";
  std::memcpy(to, source, kBytes);
}

// A thread's bulk stores: groups that are committed, and the one that is being
// made. They read shared memory when the thread waits for that, and a thread
// must wait before it ends.
struct EmulatedBulkStores {
  struct Row {
    void *to;
    uint32_t from, bytes;
  };
  std::deque<std::vector<Row>> groups{1};

  void wait(size_t pending) {
    while (groups.size() - 1 > pending) {
      for (const Row &row : groups.front()) {
        std::memcpy(row.to, shared_pointer<char>(row.from, 16), row.bytes);
      }
      groups.pop_front();
    }
  }
};
inline EmulatedBulkStores emulated_bulk_stores[1024];

inline void bulk_store(void *global, uint32_t shared_address, uint32_t bytes) {
  if (reinterpret_cast<uintptr_t>(global) % 16 != 0 ||
      shared_address % 16 != 0 || bytes % 16 != 0 || bytes == 0) {
    emulator::fault = "misaligned copy";
    return;
  }
  emulated_bulk_stores[threadIdx.x].groups.back().push_back(
      {global, shared_address, bytes});
}
inline void commit_bulk() {
  emulated_bulk_stores[threadIdx.x].groups.emplace_back();
}
template <int kPending> void wait_bulk_read() {
  emulated_bulk_stores[threadIdx.x].wait(kPending);
}
template <int kPending> void wait_bulk() { wait_bulk_read<kPending>(); }

} // namespace convx
