// Depthwise convolutions, with vectors of pixels and with vectors of channels.

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

// Depthwise convolutions of channels_last tensors. Vectors run over channels, and nothing has to be
// rearranged.

template <typename T, typename Acc>
inline __attribute__((always_inline)) void load_lanes(const T* in,
                                                      typename VectorTypes<Acc>::Vec& out) {
  if constexpr (std::is_same_v<T, Acc>) {
    out = *reinterpret_cast<const typename VectorTypes<Acc>::Loose*>(in);
  } else {
    for (int l = 0; l < kLanes<Acc>; ++l) out[l] = in[l];
  }
}

// Finishes and stores `count` neighbouring channels of a pixel.
template <typename T>
void store_finished_channels(const ChannelGather& g, T* target, accumulate_t<T>* sums, int count) {
  if (g.residual) {
    const T* more = static_cast<const T*>(g.residual) + (target - static_cast<T*>(g.target));
    for (int l = 0; l < count; ++l) sums[l] += static_cast<accumulate_t<T>>(more[l]);
  }
  activate_run(g.epilogue, sums, count);
  for (int l = 0; l < count; ++l) target[l] = convert_to<T>(sums[l]);
}

template <int kPixels, typename T>
void gather_fixed_pixels(const ChannelGather& g, const T* source, T* target) {
  using Acc = accumulate_t<T>;
  using Vec = typename VectorTypes<Acc>::Vec;
  using Loose = typename VectorTypes<Acc>::Loose;
  constexpr int lanes = kLanes<Acc>;
  const Acc* weights = static_cast<const Acc*>(g.weights);
  const T* bias = static_cast<const T*>(g.bias);
  int64_t c = 0;
  for (; c + lanes <= g.channels; c += lanes) {
    Vec sums[kPixels] = {};
    for (int64_t t = 0; t < g.taps; ++t) {
      const Vec weight = *reinterpret_cast<const Loose*>(weights + g.weight_offsets[t] + c);
      const T* in = source + g.source_offsets[t] + c;
      CONVX_UNROLL
      for (int p = 0; p < kPixels; ++p) {
        Vec value;
        load_lanes<T, Acc>(in + p * g.source_stride, value);
        sums[p] += value * weight;
      }
    }
    Vec shift = {};
    if (bias) load_lanes<T, Acc>(bias + c, shift);
    CONVX_UNROLL
    for (int p = 0; p < kPixels; ++p) {
      const Vec sum = sums[p] + shift;
      T* const to = target + p * g.target_stride + c;
      if (g.epilogue.is_fused()) {
        Acc run[lanes];
        *reinterpret_cast<Loose*>(run) = sum;
        store_finished_channels(g, to, run, lanes);
      } else {
        for (int l = 0; l < lanes; ++l) to[l] = convert_to<T>(sum[l]);
      }
    }
  }
  for (; c < g.channels; ++c) {
    for (int p = 0; p < kPixels; ++p) {
      Acc sum = 0;
      for (int64_t t = 0; t < g.taps; ++t) {
        const T value = source[g.source_offsets[t] + c + p * g.source_stride];
        sum += static_cast<Acc>(value) * weights[g.weight_offsets[t] + c];
      }
      sum += bias ? static_cast<Acc>(bias[c]) : Acc{0};
      store_finished_channels(g, target + p * g.target_stride + c, &sum, 1);
    }
  }
}

template <typename T>
void gather_channels(const ChannelGather& g) {
  const T* source = static_cast<const T*>(g.source);
  T* target = static_cast<T*>(g.target);
  int64_t pixel = 0;
  for (; pixel + 4 <= g.pixels; pixel += 4) {
    gather_fixed_pixels<4>(g, source + pixel * g.source_stride, target + pixel * g.target_stride);
  }
  for (; pixel < g.pixels; ++pixel) {
    gather_fixed_pixels<1>(g, source + pixel * g.source_stride, target + pixel * g.target_stride);
  }
}

// Adds one kernel row of kTaps taps over a run of pixels that all of them reach.
template <int kTaps, typename T>
void add_fixed_taps(const ChannelDots& d, accumulate_t<T>* sums) {
  using Acc = accumulate_t<T>;
  using Vec = typename VectorTypes<Acc>::Vec;
  using Loose = typename VectorTypes<Acc>::Loose;
  constexpr int lanes = kLanes<Acc>;
  int64_t c = 0;
  for (; c + lanes <= d.channels; c += lanes) {
    const T* x = static_cast<const T*>(d.x) + c;
    const T* y = static_cast<const T*>(d.y) + c;
    Vec tile[kTaps] = {};
    for (int64_t pixel = 0; pixel < d.pixels; ++pixel, x += d.x_stride, y += d.y_stride) {
      Vec weight;
      load_lanes<T, Acc>(y, weight);
      CONVX_UNROLL
      for (int t = 0; t < kTaps; ++t) {
        Vec value;
        load_lanes<T, Acc>(x + t * d.tap_stride, value);
        tile[t] += value * weight;
      }
    }
    CONVX_UNROLL
    for (int t = 0; t < kTaps; ++t) {
      *reinterpret_cast<Loose*>(sums + t * d.sums_pitch + c) += tile[t];
    }
  }
  for (; c < d.channels; ++c) {
    for (int t = 0; t < kTaps; ++t) {
      const T* x = static_cast<const T*>(d.x) + c + t * d.tap_stride;
      const T* y = static_cast<const T*>(d.y) + c;
      Acc sum = 0;
      for (int64_t pixel = 0; pixel < d.pixels; ++pixel) {
        sum += static_cast<Acc>(x[pixel * d.x_stride]) * static_cast<Acc>(y[pixel * d.y_stride]);
      }
      sums[t * d.sums_pitch + c] += sum;
    }
  }
}

template <int kTaps, typename T>
void add_taps(const ChannelDots& d, accumulate_t<T>* sums) {
  if constexpr (kTaps > 0) {
    if (d.taps != kTaps) return add_taps<kTaps - 1, T>(d, sums);
    add_fixed_taps<kTaps, T>(d, sums);
  }
}

template <typename T>
void dot_channels(const ChannelDots& d, accumulate_t<T>* sums) {
  add_taps<kMaxChannelTaps, T>(d, sums);
}
