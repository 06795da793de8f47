// Register tiles of the weight gradient, which sum over pixels: dot products and outer products.

// Dot-product register tiles. Vectors run over the reduction (pixels), and the lanes of each
// accumulator are added at the end.

template <typename Acc>
Acc add_lanes(typename VectorTypes<Acc>::Vec* sum) {
  Acc* lane = reinterpret_cast<Acc*>(sum);
  CONVX_UNROLL
  for (int half = kLanes<Acc> / 2; half > 0; half /= 2) {
    CONVX_UNROLL
    for (int l = 0; l < half; ++l) lane[l] += lane[l + half];
  }
  return lane[0];
}

template <typename Acc, int kRows, int kColumns>
void dot_fixed_tile(const DotRange& range, const Acc* y, int64_t y_stride, const Acc* x,
                    const int32_t* offsets, Acc* out, int64_t out_pitch) {
  using Vec = typename VectorTypes<Acc>::Vec;
  using Loose = typename VectorTypes<Acc>::Loose;
  using Mask = typename VectorTypes<Acc>::Mask;
  constexpr int lanes = kLanes<Acc>;
  const Acc* column[kColumns];
  CONVX_UNROLL
  for (int j = 0; j < kColumns; ++j) column[j] = x + offsets[j];
  Mask tail_mask;
  for (int l = 0; l < lanes; ++l) tail_mask[l] = l < range.tail ? -1 : 0;

  Vec sums[kRows][kColumns] = {};
  for (int64_t row = 0; row < range.rows; ++row) {
    int64_t at = row * range.pitch;
    for (const int64_t end = at + range.vectors * lanes; at < end; at += lanes) {
      Vec values[kRows];
      CONVX_UNROLL
      for (int i = 0; i < kRows; ++i) {
        values[i] = *reinterpret_cast<const Loose*>(y + i * y_stride + at);
      }
      CONVX_UNROLL
      for (int j = 0; j < kColumns; ++j) {
        const Vec other = *reinterpret_cast<const Loose*>(column[j] + at);
        CONVX_UNROLL
        for (int i = 0; i < kRows; ++i) sums[i][j] += values[i] * other;
      }
    }
    if (range.tail == 0) continue;
    // Other data follows the tail. Both operands are masked, because 0 * Inf is not 0.
    Vec values[kRows];
    CONVX_UNROLL
    for (int i = 0; i < kRows; ++i) {
      const Vec value = *reinterpret_cast<const Loose*>(y + i * y_stride + at);
      values[i] = reinterpret_cast<Vec>(reinterpret_cast<Mask>(value) & tail_mask);
    }
    CONVX_UNROLL
    for (int j = 0; j < kColumns; ++j) {
      const Vec value = *reinterpret_cast<const Loose*>(column[j] + at);
      const Vec other = reinterpret_cast<Vec>(reinterpret_cast<Mask>(value) & tail_mask);
      CONVX_UNROLL
      for (int i = 0; i < kRows; ++i) sums[i][j] += values[i] * other;
    }
  }
  CONVX_UNROLL
  for (int i = 0; i < kRows; ++i) {
    CONVX_UNROLL
    for (int j = 0; j < kColumns; ++j) {
      alignas(kVectorBytes) Vec sum = sums[i][j];
      out[i * out_pitch + j] += add_lanes<Acc>(&sum);
    }
  }
}

template <typename Acc, int kRows, int kColumns>
void dot_tile_of_rows(int columns, const DotRange& range, const Acc* y, int64_t y_stride,
                      const Acc* x, const int32_t* offsets, Acc* sums, int64_t sums_pitch) {
  if constexpr (kColumns > 0) {
    if (columns != kColumns) {
      return dot_tile_of_rows<Acc, kRows, kColumns - 1>(columns, range, y, y_stride, x, offsets,
                                                        sums, sums_pitch);
    }
    dot_fixed_tile<Acc, kRows, kColumns>(range, y, y_stride, x, offsets, sums, sums_pitch);
  }
}

template <typename Acc>
void dot_tile(int rows, int columns, const DotRange& range, const Acc* y, int64_t y_stride,
              const Acc* x, const int32_t* offsets, Acc* sums, int64_t sums_pitch) {
  if (rows == 4) {
    dot_tile_of_rows<Acc, 4, kDotColumnsOfFour>(columns, range, y, y_stride, x, offsets, sums,
                                                sums_pitch);
  } else if (rows == 2) {
    dot_tile_of_rows<Acc, 2, kDotColumnsOfTwo>(columns, range, y, y_stride, x, offsets, sums,
                                               sums_pitch);
  } else {
    dot_tile_of_rows<Acc, 1, kDotColumnsOfOne>(columns, range, y, y_stride, x, offsets, sums,
                                               sums_pitch);
  }
}

// Outer-product register tiles that sum over pixels. Vectors run over filters; x is broadcast.

template <typename Acc>
void transpose(const Acc* in, int64_t in_pitch, int64_t rows, int64_t columns, Acc* out,
               int64_t out_pitch) {
  using Vec = typename VectorTypes<Acc>::Vec;
  using Loose = typename VectorTypes<Acc>::Loose;
  constexpr int lanes = kLanes<Acc>;
  for (int64_t i = 0; i < rows; i += lanes) {
    for (int64_t j = 0; j < columns; j += lanes) {
      Vec square[lanes];
      CONVX_UNROLL
      for (int l = 0; l < lanes; ++l) {
        square[l] = *reinterpret_cast<const Loose*>(in + (i + l) * in_pitch + j);
      }
      transpose_square<Acc>(square);
      CONVX_UNROLL
      for (int l = 0; l < lanes; ++l) {
        *reinterpret_cast<Loose*>(out + (j + l) * out_pitch + i) = square[l];
      }
    }
  }
}

template <typename Acc, int kRows, int kVectors>
void multiply_fixed_pixels(const PixelRange& range, const Acc* x, const int32_t* offsets,
                           const Acc* y, int64_t pitch, Acc* sums) {
  using Vec = typename VectorTypes<Acc>::Vec;
  using Loose = typename VectorTypes<Acc>::Loose;
  constexpr int lanes = kLanes<Acc>;
  const Acc* row_start[kRows];
  CONVX_UNROLL
  for (int j = 0; j < kRows; ++j) row_start[j] = x + offsets[j];
  Vec tile[kRows][kVectors] = {};
  for (int64_t row = 0; row < range.rows; ++row) {
    int64_t at = row * range.pitch;
    for (const int64_t end = at + range.columns; at < end; ++at, y += pitch) {
      Vec values[kVectors];
      CONVX_UNROLL
      for (int v = 0; v < kVectors; ++v) values[v] = *reinterpret_cast<const Loose*>(y + v * lanes);
      CONVX_UNROLL
      for (int j = 0; j < kRows; ++j) {
        CONVX_UNROLL
        for (int v = 0; v < kVectors; ++v) tile[j][v] += values[v] * row_start[j][at];
      }
    }
  }
  CONVX_UNROLL
  for (int j = 0; j < kRows; ++j) {
    CONVX_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      *reinterpret_cast<Loose*>(sums + j * pitch + v * lanes) += tile[j][v];
    }
  }
}

template <typename Acc, int kRows, int kVectors>
void multiply_pixels_of_vectors(int rows, const PixelRange& range, const Acc* x,
                                const int32_t* offsets, const Acc* y, int64_t pitch, Acc* sums) {
  if constexpr (kRows > 0) {
    if (rows != kRows) {
      return multiply_pixels_of_vectors<Acc, kRows - 1, kVectors>(rows, range, x, offsets, y, pitch,
                                                                  sums);
    }
    multiply_fixed_pixels<Acc, kRows, kVectors>(range, x, offsets, y, pitch, sums);
  }
}

template <typename Acc>
void multiply_pixels(int rows, int vectors, const PixelRange& range, const Acc* x,
                     const int32_t* offsets, const Acc* y, int64_t pitch, Acc* sums) {
  if (vectors == 1) {
    multiply_pixels_of_vectors<Acc, kPixelRowsOfOne, 1>(rows, range, x, offsets, y, pitch, sums);
  } else if (vectors == 2) {
    multiply_pixels_of_vectors<Acc, kPixelRowsOfTwo, 2>(rows, range, x, offsets, y, pitch, sums);
  } else if constexpr (kPanelVectors > 2) {
    multiply_pixels_of_vectors<Acc, kPixelRowsOfPanel, kPanelVectors>(rows, range, x, offsets, y,
                                                                      pitch, sums);
  }
}
