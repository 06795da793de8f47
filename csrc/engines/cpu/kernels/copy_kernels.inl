// Copies between tensors of any storage type and strides, and dense scratch memory in Acc.

// Borders are short. The empty asm statement keeps the compiler from calling memset for them.
template <typename Acc>
inline void fill_zero(Acc* out, int64_t count) {
  for (int64_t j = 0; j < count; ++j) {
    out[j] = 0;
    asm volatile("");
  }
}

// Copies the first and the last kCount elements, which together cover all of them.
template <int kCount, typename Acc>
inline void copy_both_ends(const Acc* in, Acc* out, int64_t count) {
  Acc first[kCount], last[kCount];
  std::memcpy(first, in, sizeof first);
  std::memcpy(last, in + count - kCount, sizeof last);
  std::memcpy(out, first, sizeof first);
  std::memcpy(out + count - kCount, last, sizeof last);
}

// Copies whole vectors, the last of which overlaps the one before. A scalar remainder is slower.
template <typename Acc>
inline void copy_run(const Acc* in, Acc* out, int64_t count) {
  using Loose = typename VectorTypes<Acc>::Loose;
  constexpr int lanes = kLanes<Acc>;
  if (count >= lanes) {
    for (int64_t j = 0; j < count - lanes; j += lanes) {
      *reinterpret_cast<Loose*>(out + j) = *reinterpret_cast<const Loose*>(in + j);
    }
    *reinterpret_cast<Loose*>(out + count - lanes) =
        *reinterpret_cast<const Loose*>(in + count - lanes);
  } else if (count >= 8) {
    copy_both_ends<8>(in, out, count);
  } else if (count >= 4) {
    copy_both_ends<4>(in, out, count);
  } else {
    for (int64_t j = 0; j < count; ++j) {
      out[j] = in[j];
      asm volatile("");
    }
  }
}

template <typename T, typename Acc>
void load_run(const T* in, int64_t stride, Acc* out, int64_t count) {
  if (stride == 1) {
    if constexpr (std::is_same_v<T, Acc>) {
      copy_run(in, out, count);
    } else {
      for (int64_t j = 0; j < count; ++j) out[j] = in[j];
    }
  } else if (stride == 2) {  // a constant stride, which the compiler can vectorise
    for (int64_t j = 0; j < count; ++j) out[j] = in[2 * j];
  } else {
    for (int64_t j = 0; j < count; ++j) out[j] = in[j * stride];
  }
}

// Transposes the first rows of load_transposed, as many as whole vectors hold, in registers, and
// returns their number. Vectors overlap the start of the next row, which is written later.
template <typename Acc>
int64_t load_transposed_squares(const RowCopy& copy, const Acc* in, Acc* out) {
  using Vec = typename VectorTypes<Acc>::Vec;
  using Loose = typename VectorTypes<Acc>::Loose;
  constexpr int lanes = kLanes<Acc>;
  if (copy.row_stride != 1) return 0;
  // The last square leaves rows behind it, into which the vectors may spill.
  const int64_t spill = (lanes - 1) / copy.pitch + 1;
  int64_t row = 0;
  for (; row + lanes + spill <= copy.rows; row += lanes) {
    Vec square[lanes];
    CONVX_UNROLL
    for (int l = 0; l < lanes; ++l) {
      const int64_t column = l < copy.columns ? l : 0;
      square[l] = *reinterpret_cast<const Loose*>(in + column * copy.column_stride + row);
    }
    transpose_square<Acc>(square);
    CONVX_UNROLL
    for (int l = 0; l < lanes; ++l) {
      *reinterpret_cast<Loose*>(out + (row + l) * copy.pitch) = square[l];
    }
  }
  return row;
}

// Copies column by column, for sources whose columns are contiguous in memory. The last columns are
// copied first, because their squares spill into the first columns of the next row.
template <typename T>
void load_transposed(const RowCopy& copy, accumulate_t<T>* out) {
  constexpr int lanes = kLanes<accumulate_t<T>>;
  RowCopy block = copy;
  for (int64_t end = copy.columns; end > 0; end -= block.columns) {
    block.columns = end % lanes > 0 ? end % lanes : lanes;
    const int64_t column = end - block.columns;
    const T* in = static_cast<const T*>(copy.source) + column * copy.column_stride;
    int64_t first = 0;
    if constexpr (std::is_same_v<T, accumulate_t<T>>) {
      first = load_transposed_squares<T>(block, in, out + column);
    }
    const int64_t columns = block.columns, row_step = copy.row_stride, step = copy.column_stride;
    for (int64_t i = first; i < copy.rows; ++i) {
      const T* const from = in + i * row_step;
      accumulate_t<T>* const to = out + i * copy.pitch + column;
      for (int64_t j = 0; j < columns; ++j) to[j] = from[j * step];
    }
  }
}

template <typename T>
void load_rows(const RowCopy& copy, accumulate_t<T>* out) {
  const bool bordered =
      copy.rows_before + copy.rows_after + copy.columns_before + copy.columns_after > 0;
  if (!bordered && copy.row_stride < copy.column_stride && copy.rows > 2) {
    return load_transposed<T>(copy, out);
  }
  const int64_t width = copy.columns_before + copy.columns + copy.columns_after;
  const T* in = static_cast<const T*>(copy.source);
  for (int64_t i = 0; i < copy.rows_before; ++i, out += copy.pitch) fill_zero(out, width);
  for (int64_t i = 0; i < copy.rows; ++i, out += copy.pitch, in += copy.row_stride) {
    fill_zero(out, copy.columns_before);
    load_run(in, copy.column_stride, out + copy.columns_before, copy.columns);
    fill_zero(out + copy.columns_before + copy.columns, copy.columns_after);
  }
  for (int64_t i = 0; i < copy.rows_after; ++i, out += copy.pitch) fill_zero(out, width);
}

// out = in + shift. Whole vectors, the last of which overlaps the one before.
template <typename T, typename Acc>
inline void store_run(const Acc* in, Acc shift, T* out, int64_t count) {
  if constexpr (std::is_same_v<T, Acc>) {
    using Loose = typename VectorTypes<Acc>::Loose;
    constexpr int lanes = kLanes<Acc>;
    if (count >= lanes) {
      for (int64_t j = 0; j < count; j += lanes) {
        const int64_t at = j < count - lanes ? j : count - lanes;
        *reinterpret_cast<Loose*>(out + at) = *reinterpret_cast<const Loose*>(in + at) + shift;
      }
      return;
    }
  }
  for (int64_t j = 0; j < count; ++j) out[j] = convert_to<T>(in[j] + shift);
}

template <typename T, typename Acc>
void store_segment(const Acc* tile, const TileStore& store, T* out, int64_t count) {
  const T* bias = static_cast<const T*>(store.bias);
  if (store.rows_are_contiguous) {
    for (int64_t j = 0; j < count; ++j, tile += store.pitch, out += store.column_stride) {
      for (int64_t i = 0; i < store.rows; ++i) {
        const Acc shift = bias ? static_cast<Acc>(bias[i]) : Acc{0};
        out[i * store.row_stride] = convert_to<T>(tile[i] + shift);
      }
    }
    return;
  }
  if (store.row_stride == 1 && store.column_stride != 1) {  // channels_last: rows are contiguous
    for (int64_t j = 0; j < count; ++j, out += store.column_stride) {
      for (int64_t i = 0; i < store.rows; ++i) {
        const Acc shift = bias ? static_cast<Acc>(bias[i]) : Acc{0};
        out[i] = convert_to<T>(tile[i * store.pitch + j] + shift);
      }
    }
    return;
  }
  for (int64_t i = 0; i < store.rows; ++i, tile += store.pitch, out += store.row_stride) {
    const Acc shift = bias ? static_cast<Acc>(bias[i]) : Acc{0};
    if (store.column_stride == 1) {
      store_run(tile, shift, out, count);
    } else {
      for (int64_t j = 0; j < count; ++j) {
        out[j * store.column_stride] = convert_to<T>(tile[j] + shift);
      }
    }
  }
}

template <typename T>
void store_tile(accumulate_t<T>* tile, const TileStore& store) {
  TileStore rest = store;
  if (store.epilogue.is_fused()) {
    finish_tile<T>(tile, store);
    rest.bias = nullptr;
  }
  for (int64_t s = 0; s < store.segment_count; ++s) {
    const TileSegment& segment = store.segments[s];
    const int64_t step = store.rows_are_contiguous ? store.pitch : 1;
    store_segment(tile + segment.position * step, rest,
                  static_cast<T*>(store.target) + segment.target, segment.count);
  }
}

template <typename Acc>
void pack_panel(const Acc* source, const int32_t* offsets, int64_t depth,
                const TileSegment* segments, int64_t segment_count, int64_t width, Acc* panel) {
  using Loose = typename VectorTypes<Acc>::Loose;
  constexpr int lanes = kLanes<Acc>;
  const int64_t end =
      segments[segment_count - 1].position + int64_t{segments[segment_count - 1].count};
  for (int64_t k = 0; k < depth; ++k, panel += width) {
    const Acc* in = source + offsets[k];
    // Positions are ascending, so each segment overwrites the spill of the one before.
    for (int64_t s = 0; s < segment_count; ++s) {
      const Acc* from = in + segments[s].source;
      Acc* to = panel + segments[s].position;
      for (int64_t j = 0; j < segments[s].count; j += lanes) {
        *reinterpret_cast<Loose*>(to + j) = *reinterpret_cast<const Loose*>(from + j);
      }
    }
    fill_zero(panel + end, width - end);
  }
}
