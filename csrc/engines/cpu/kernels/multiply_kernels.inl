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

// The product with vectors over target channels; the pixels of the source are broadcast.
template <typename Acc, int kPixels, int kVectors>
void multiply_fixed_run(const TermBlocks& terms, const Acc* weights, const Acc* source,
                        const int32_t* offsets, bool accumulate, Acc* sums) {
  using Vec = typename VectorTypes<Acc>::Vec;
  using Loose = typename VectorTypes<Acc>::Loose;
  constexpr int lanes = kLanes<Acc>;
  Vec tile[kPixels][kVectors] = {};
  for (int64_t block = 0; block < terms.blocks; ++block) {
    const Acc* factors = weights + block * terms.step * kVectors * lanes;
    const int32_t* const begin = offsets + block * terms.step;
    const int32_t* const end = begin + terms.length;
    for (const int32_t* at = begin; at < end; ++at, factors += kVectors * lanes) {
      const Acc* pixel = source + *at;
      __builtin_prefetch(pixel + kPixelsAhead);
      Vec values[kVectors];
      CONVX_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        values[v] = *reinterpret_cast<const Loose*>(factors + v * lanes);
      }
      CONVX_UNROLL
      for (int i = 0; i < kPixels; ++i) {
        CONVX_UNROLL
        for (int v = 0; v < kVectors; ++v) tile[i][v] += values[v] * pixel[i];
      }
    }
  }
  CONVX_UNROLL
  for (int i = 0; i < kPixels; ++i) {
    CONVX_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      Loose* out = reinterpret_cast<Loose*>(sums + (i * kVectors + v) * lanes);
      *out = accumulate ? *out + tile[i][v] : tile[i][v];
    }
  }
}

template <typename Acc, int kPixels, int kVectors>
void multiply_run_of_vectors(int pixels, const TermBlocks& terms, const Acc* weights,
                             const Acc* source, const int32_t* offsets, bool accumulate,
                             Acc* sums) {
  if constexpr (kPixels > 0) {
    if (pixels != kPixels) {
      return multiply_run_of_vectors<Acc, kPixels - 1, kVectors>(pixels, terms, weights, source,
                                                                 offsets, accumulate, sums);
    }
    multiply_fixed_run<Acc, kPixels, kVectors>(terms, weights, source, offsets, accumulate, sums);
  }
}

template <typename Acc>
void multiply_run(int pixels, int vectors, const TermBlocks& terms, const Acc* weights,
                  const Acc* source, const int32_t* offsets, bool accumulate, Acc* sums) {
  if (vectors == 1) {
    multiply_run_of_vectors<Acc, kRunPixelsOfOne, 1>(pixels, terms, weights, source, offsets,
                                                     accumulate, sums);
  } else if (vectors == 2) {
    multiply_run_of_vectors<Acc, kRunPixelsOfTwo, 2>(pixels, terms, weights, source, offsets,
                                                     accumulate, sums);
  } else if constexpr (kPanelVectors > 2) {
    multiply_run_of_vectors<Acc, kRunPixelsOfPanel, kPanelVectors>(pixels, terms, weights, source,
                                                                   offsets, accumulate, sums);
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
