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
