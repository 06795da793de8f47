// Products with a single target channel, as in depthwise convolutions: vectors run over the pixels
// of a row, and there is nothing to share but the loads of the weights.

template <typename Acc, int kRows, int kVectors>
void multiply_fixed_plane(const PixelRange& range, int64_t depth, const Acc* weights,
                          const Acc* source, const int32_t* offsets, Acc* sums) {
  using Vec = typename VectorTypes<Acc>::Vec;
  using Loose = typename VectorTypes<Acc>::Loose;
  constexpr int lanes = kLanes<Acc>;
  Vec tile[kRows][kVectors] = {};
  for (int64_t k = 0; k < depth; ++k) {
    const Acc* in = source + offsets[k];
    CONVX_UNROLL
    for (int i = 0; i < kRows; ++i) {
      CONVX_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        const Vec value = *reinterpret_cast<const Loose*>(in + i * range.pitch + v * lanes);
        tile[i][v] += value * weights[k];
      }
    }
  }
  // Ascending, because a row's vectors spill into the next row.
  CONVX_UNROLL
  for (int i = 0; i < kRows; ++i) {
    CONVX_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      *reinterpret_cast<Loose*>(sums + i * range.columns + v * lanes) = tile[i][v];
    }
  }
}

template <typename Acc>
void multiply_plane(const PixelRange& range, int64_t depth, const Acc* weights, const Acc* source,
                    const int32_t* offsets, Acc* sums) {
  constexpr int lanes = kLanes<Acc>;
  int64_t row = 0;
  if (range.columns <= lanes) {  // four rows at a time hide the latency of the additions
    for (; row + 4 <= range.rows; row += 4) {
      multiply_fixed_plane<Acc, 4, 1>(range, depth, weights, source + row * range.pitch, offsets,
                                      sums + row * range.columns);
    }
  }
  for (; row < range.rows; ++row) {
    for (int64_t column = 0; column < range.columns; column += 4 * lanes) {
      const Acc* in = source + row * range.pitch + column;
      Acc* out = sums + row * range.columns + column;
      const int64_t left = range.columns - column;
      if (left > 3 * lanes) {
        multiply_fixed_plane<Acc, 1, 4>(range, depth, weights, in, offsets, out);
      } else if (left > 2 * lanes) {
        multiply_fixed_plane<Acc, 1, 3>(range, depth, weights, in, offsets, out);
      } else if (left > lanes) {
        multiply_fixed_plane<Acc, 1, 2>(range, depth, weights, in, offsets, out);
      } else {
        multiply_fixed_plane<Acc, 1, 1>(range, depth, weights, in, offsets, out);
      }
    }
  }
}
