// The workspace of launches on the host, the only memory that bulk copies may read.
#pragma once

#include <cstdint>
#include <vector>

#include "device/mbarrier.cuh"
#include "run_grid.h"

namespace emulator {

class Workspace {
  static constexpr int64_t kAlignment = 64;

 public:
  explicit Workspace(int64_t bytes)
      : memory_(static_cast<size_t>(bytes + kAlignment + kMargin), kPoison) {
    const auto misplaced = static_cast<int64_t>(reinterpret_cast<uintptr_t>(memory_.data()));
    start_ = memory_.data() + (-misplaced & (kAlignment - 1));
    end_ = start_ + bytes;
    copied_begin = reinterpret_cast<char*>(start_);
    copied_end = reinterpret_cast<char*>(end_);
  }

  void* data() const { return start_; }
  // Whether nobody wrote behind it.
  bool is_whole() const {
    return std::all_of(end_, end_ + kMargin, [](unsigned char byte) { return byte == kPoison; });
  }

 private:
  std::vector<unsigned char> memory_;
  unsigned char *start_, *end_;
};

}  // namespace emulator
