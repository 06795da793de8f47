// Outer-product register tiles. Vectors run over columns (pixels); rows (channels) are broadcast.

template <typename Acc, int kRows, int kVectors>
void multiply_fixed_tile(int64_t depth, const Acc* a, const Acc* const* b, const int32_t* offsets,
                         bool accumulate, Acc* tile) {
  using Vec = typename VectorTypes<Acc>::Vec;
  using Loose = typename VectorTypes<Acc>::Loose;
  constexpr int lanes = kLanes<Acc>;
  const Acc* column[kVectors];
  CONVX_UNROLL
  for (int v = 0; v < kVectors; ++v) column[v] = b[v];
  Vec sums[kRows][kVectors] = {};
  for (int64_t k = 0; k < depth; ++k, a += kRows) {
    const int64_t offset = offsets[k];
    Vec values[kVectors];
    CONVX_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      values[v] = *reinterpret_cast<const Loose*>(column[v] + offset);
    }
    CONVX_UNROLL
    for (int i = 0; i < kRows; ++i) {
      CONVX_UNROLL
      for (int v = 0; v < kVectors; ++v) sums[i][v] += values[v] * a[i];
    }
  }
  CONVX_UNROLL
  for (int i = 0; i < kRows; ++i) {
    CONVX_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      Loose* out = reinterpret_cast<Loose*>(tile + (i * kVectors + v) * lanes);
      *out = accumulate ? *out + sums[i][v] : sums[i][v];
    }
  }
}

template <typename Acc, int kRows>
void multiply_tile_of_two(int rows, int64_t depth, const Acc* a, const Acc* const* b,
                          const int32_t* offsets, bool accumulate, Acc* tile) {
  if constexpr (kRows > 0) {
    if (rows != kRows) {
      return multiply_tile_of_two<Acc, kRows - 1>(rows, depth, a, b, offsets, accumulate, tile);
    }
    multiply_fixed_tile<Acc, kRows, 2>(depth, a, b, offsets, accumulate, tile);
  }
}

template <typename Acc, int kRows>
void multiply_tile_of_four(int rows, int64_t depth, const Acc* a, const Acc* const* b,
                           const int32_t* offsets, bool accumulate, Acc* tile) {
  if constexpr (kRows > 0) {
    if (rows != kRows) {
      return multiply_tile_of_four<Acc, kRows - 1>(rows, depth, a, b, offsets, accumulate, tile);
    }
    multiply_fixed_tile<Acc, kRows, 4>(depth, a, b, offsets, accumulate, tile);
  }
}

template <typename Acc>
void multiply_tile(int rows, int vectors, int64_t depth, const Acc* a, const Acc* const* b,
                   const int32_t* offsets, bool accumulate, Acc* tile) {
  if (vectors == 2) {
    multiply_tile_of_two<Acc, kRowsOfTwo>(rows, depth, a, b, offsets, accumulate, tile);
  } else {
    multiply_tile_of_four<Acc, kRowsOfFour>(rows, depth, a, b, offsets, accumulate, tile);
  }
}
