// The strip kernels that are compiled. The plan chooses from this list, and the launch instantiates
// it. Plain host code.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>

namespace convx {

// A depthwise kernel without dilation, with the same stride along both axes.
struct StripShape {
  int row_taps, column_taps;
  int stride;
  int left;      // source columns left of the one under an output: the padding
  bool shifted;  // rows of outputs may begin anywhere within 16 bytes
};

inline constexpr StripShape kStripShapes[] = {
    {3, 3, 1, 1, false}, {3, 3, 2, 1, false}, {5, 5, 1, 2, false},
    {5, 5, 2, 2, false}, {7, 7, 1, 3, false}, {3, 3, 1, 0, true},
    {3, 7, 1, 0, true},  {3, 1, 1, 0, false}, {1, 3, 1, 1, false},
};
inline constexpr int kStripShapeCount = sizeof(kStripShapes) / sizeof(StripShape);

// Output columns of a thread, widest first. With one column, rows and tensors need no alignment.
inline constexpr int kStripColumns[] = {8, 4, 2, 1};

inline constexpr int kMostStripColumnTaps = [] {
  int most = 0;
  for (const StripShape& shape : kStripShapes) most = std::max(most, shape.column_taps);
  return most;
}();

struct StripKernel {
  int shape;    // index in kStripShapes
  int columns;  // one of kStripColumns

  bool operator==(const StripKernel&) const = default;
};
// All pairs; has_strip_kernel says which of them are compiled.
inline constexpr auto kStripKernels = [] {
  constexpr size_t kWidths = std::size(kStripColumns);
  std::array<StripKernel, kStripShapeCount * kWidths> kernels{};
  for (size_t i = 0; i < kernels.size(); ++i) {
    kernels[i] = {static_cast<int>(i / kWidths), kStripColumns[i % kWidths]};
  }
  return kernels;
}();

// 8 columns pay off if few multiply-adds are there to hide loads and stores; only in 16 bits.
constexpr bool has_strip_kernel(const StripShape& shape, int64_t element_bytes, int columns) {
  if (shape.row_taps == 1 || shape.column_taps == 1) return false;  // tiles are as fast
  if (shape.shifted) return element_bytes == 2 && (columns == 8 || columns == 1);
  return columns < 8 || (element_bytes == 2 && shape.row_taps == 3 && shape.stride == 1);
}
// Returns whether lanes exchange words to store aligned vectors.
constexpr bool shifts_rows(const StripShape& shape, int columns) {
  return shape.shifted && columns == 8;
}

// Resident blocks per multiprocessor, limited by registers.
constexpr int strip_blocks_per_sm(const StripShape& shape, int64_t element_bytes, int columns) {
  const int taps = shape.row_taps * shape.column_taps;
  if (taps > 25 || taps * columns > 120) return 4;
  if (taps > 9) return shape.stride == 2 && element_bytes == 4 ? 4 : 5;
  if (shape.stride == 2) return element_bytes == 4 ? 6 : 7;
  return columns == 8 ? 6 : 8;
}

// The weight gradient's kernels. Rows without padding have any even length, hence two columns.
constexpr bool has_weight_grad_kernel(const StripShape& shape, int columns) {
  return columns <= 2 || (columns == 4 && !shape.shifted);
}
constexpr int weight_grad_blocks_per_sm(const StripShape& shape, int64_t element_bytes,
                                        int columns) {
  const int taps = shape.row_taps * shape.column_taps;
  if (taps > 25) return 3;
  if (taps > 9) return shape.row_taps == 3 && element_bytes == 2 ? 5 : 4;
  if (element_bytes == 2) return columns <= 2 ? 6 : 5;
  return columns == 4 && shape.stride == 2 ? 4 : 5;
}

// Prefetch distance in steps (of `stride` source rows). The fewer bytes and multiply-adds a step
// has, the larger it is.
constexpr int strip_steps_ahead(const StripShape& shape, int columns) {
  const int taps = shape.row_taps * shape.column_taps;
  if (shape.stride == 2) return columns <= 2 ? 3 : 2;
  if (columns <= 2) return shape.row_taps == 3 ? 4 : 3;
  return taps <= 9 ? 3 : 2;
}

// How a thread reads a source row: its own columns and the columns beside them that its outputs
// see, in loads of at most 16 bytes that lie entirely inside or outside the image. A single column
// is read element by element.
struct StripReads {
  int span;         // source columns between threads
  int vector;       // elements per load
  int word;         // elements per register
  int left, right;  // elements loaded beside the span: whole words, powers of two

  constexpr StripReads(const StripShape& shape, int64_t element_bytes, int columns)
      : span(columns * shape.stride),
        vector(columns == 1                 ? 1
               : span * element_bytes <= 16 ? span
                                            : static_cast<int>(16 / element_bytes)),
        word(columns == 1 ? 1 : static_cast<int>(4 / element_bytes)),
        left(round_to_load(shape.left)),
        right(round_to_load(shape.column_taps - shape.left - shape.stride)) {}

  constexpr int elements() const { return left + span + right; }
  constexpr int loads() const { return count_loads(left) + count_loads(span) + count_loads(right); }
  // Elements per load, to read `count` neighbours.
  constexpr int load_size(int count) const { return count < vector ? count : vector; }
  constexpr int count_loads(int count) const { return count == 0 ? 0 : count / load_size(count); }

 private:
  constexpr int round_to_load(int count) const {
    if (count <= 0) return 0;
    if (vector == 1) return count;
    int size = word;
    while (size < count) size *= 2;
    return size;
  }
};

}  // namespace convx
