// The workspace of launches on the host, which bulk copies may read.
#pragma once

#include <cstdint>
#include <vector>

#include "core/plan.h"
#include "core/problem.h"
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
    copied = {{reinterpret_cast<char*>(start_), reinterpret_cast<char*>(end_)}};
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

// The source as well.
inline void let_copies_read_source(const convx::ConvProblem& problem,
                                   const convx::Buffers& buffers) {
  const bool forward = problem.pass == convx::Pass::kForward;
  const auto* begin = static_cast<const char*>(forward ? buffers.x : buffers.y);
  const convx::Strides& s = forward ? problem.x_strides : problem.y_strides;
  const int64_t channels = forward ? problem.C : problem.K;
  const int64_t rows = forward ? problem.H : problem.P, columns = forward ? problem.W : problem.Q;
  const int64_t elements = (problem.N - 1) * s.n + (channels - 1) * s.c + (rows - 1) * s.h +
                           (columns - 1) * s.w + 1;
  copied.push_back({begin, begin + elements * convx::size_of(problem.dtype)});
}

}  // namespace emulator
