#include "engines/cpu/driver/staging.h"

#include <algorithm>
#include <cstring>

#include "engines/cpu/driver/drivers.h"

namespace convx {
namespace {

// Elements of a segment that lie inside the image: [first, last).
struct InsideRange {
  int64_t first, last;
};

InsideRange find_inside(int64_t origin, int64_t step, int64_t length, int64_t source_extent) {
  const int64_t first = std::clamp<int64_t>(ceil_div(-origin, step), 0, length);
  const int64_t last = std::clamp<int64_t>(ceil_div(source_extent - origin, step), first, length);
  return {first, last};
}

// Planes at a distance of a large power of two would all map to the same few cache sets, so large
// planes are padded to an odd number of cache lines.
int64_t spread_plane(int64_t plane) { return plane < 256 ? plane : (ceil_div(plane, 16) | 1) * 16; }

}  // namespace

AxisLayout lay_out_axis(const AxisPhase& phase, int64_t first_tap, int64_t tap_count,
                        int64_t extent) {
  AxisLayout layout;
  layout.extent = extent;
  layout.step = phase.source_step;
  layout.taps.resize(tap_count);
  std::vector<int64_t> order(tap_count);
  for (int64_t t = 0; t < tap_count; ++t) order[t] = t;
  auto offset_of = [&](int64_t t) { return phase.taps[first_tap + t].offset; };
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    const int64_t residue_a = floor_mod(offset_of(a), layout.step);
    const int64_t residue_b = floor_mod(offset_of(b), layout.step);
    return residue_a != residue_b ? residue_a < residue_b : offset_of(a) < offset_of(b);
  });
  for (int64_t t : order) {
    const int64_t offset = offset_of(t);
    bool joins = false;
    if (!layout.segments.empty()) {
      const AxisSegment& last = layout.segments.back();
      // If taps are further apart than the lattice is long, a joint segment would stage values that
      // nothing reads.
      joins = floor_mod(offset - last.origin, layout.step) == 0 &&
              (offset - last.origin) / layout.step <= last.length;
    }
    if (!joins) layout.segments.push_back({layout.length, offset, 0});
    AxisSegment& segment = layout.segments.back();
    const int64_t shift = (offset - segment.origin) / layout.step;
    layout.taps[t] = {static_cast<int64_t>(layout.segments.size()) - 1, shift};
    segment.length = shift + extent;
    layout.length = segment.start + segment.length;
    layout.longest = std::max(layout.longest, segment.length);
  }
  return layout;
}

DepthBox fit_depth_box(int64_t channels, int64_t rows, int64_t columns, int64_t max_depth) {
  auto balance = [](int64_t total, int64_t most) {
    const int64_t parts = ceil_div(total, std::max<int64_t>(most, 1));
    return parts > 0 ? ceil_div(total, parts) : 1;
  };
  const int64_t taps = rows * columns;
  if (taps == 0) return {};  // nothing to reduce
  if (taps <= max_depth) {
    return {balance(channels, max_depth / taps), rows, columns};
  }
  if (columns <= max_depth) return {1, balance(rows, max_depth / columns), columns};
  return {1, 1, balance(columns, max_depth)};
}

AxisLayouts lay_out_phases(const std::vector<AxisPhase>& phases, int64_t taps_per_block,
                           int64_t extent) {
  AxisLayouts layouts;
  for (const AxisPhase& phase : phases) {
    const int64_t taps = static_cast<int64_t>(phase.taps.size());
    std::vector<AxisLayout>& blocks = layouts.emplace_back();
    for (int64_t t = 0; t < taps; t += taps_per_block) {
      blocks.push_back(lay_out_axis(phase, t, std::min(taps_per_block, taps - t), extent));
    }
  }
  return layouts;
}

StagedShape make_staged_shape(const AxisLayout& rows, const AxisLayout& columns, int64_t pitch) {
  pitch = std::max(pitch, columns.longest);
  const int64_t plane = static_cast<int64_t>(columns.segments.size()) * rows.length * pitch;
  return {&rows, &columns, pitch, spread_plane(plane)};
}

int64_t count_staged(const AxisLayouts& rows, const AxisLayouts& columns, int64_t channels,
                     int64_t pitch) {
  int64_t most_rows = 0;
  for (const auto& blocks : rows) {
    for (const AxisLayout& block : blocks) most_rows = std::max(most_rows, block.length);
  }
  int64_t most_columns = 0;
  for (const auto& blocks : columns) {
    for (const AxisLayout& block : blocks) {
      most_columns = std::max(most_columns, static_cast<int64_t>(block.segments.size()) *
                                                std::max(pitch, block.longest));
    }
  }
  return channels * spread_plane(most_rows * most_columns) + kStagingSlack;
}

template <typename Acc>
void stage_channels(const CpuKernels<Acc>& kernels, const SourcePlanes& source,
                    const StagedShape& shape, const LatticeChunk& chunk, int64_t channels,
                    Acc* staged) {
  const AxisLayout& rows = *shape.row_layout;
  const AxisLayout& columns = *shape.column_layout;
  RowCopy copy;
  copy.row_stride = source.row_stride * rows.step;
  copy.column_stride = source.column_stride * columns.step;
  copy.pitch = shape.pitch;
  for (int64_t c = 0; c < channels; ++c) {
    Acc* column_base = staged + c * shape.plane;
    for (const AxisSegment& across : columns.segments) {
      const int64_t x = across.origin + chunk.column * columns.step;
      const int64_t width = across.length - (columns.extent - chunk.columns);
      const InsideRange inside_x = find_inside(x, columns.step, width, source.width);
      copy.columns = inside_x.last - inside_x.first;
      copy.columns_before = inside_x.first;
      copy.columns_after = width - inside_x.last;
      for (const AxisSegment& down : rows.segments) {
        const int64_t y = down.origin + chunk.row * rows.step;
        const int64_t height = down.length - (rows.extent - chunk.rows);
        const InsideRange inside_y = find_inside(y, rows.step, height, source.height);
        copy.rows = inside_y.last - inside_y.first;
        copy.rows_before = inside_y.first;
        copy.rows_after = height - inside_y.last;
        if (copy.rows > 0 && copy.columns > 0) {
          copy.source =
              source.data +
              source.element_bytes * (c * source.channel_stride +
                                      (y + inside_y.first * rows.step) * source.row_stride +
                                      (x + inside_x.first * columns.step) * source.column_stride);
        }
        kernels.load_rows(copy, column_base + down.start * shape.pitch);
      }
      column_base += rows.length * shape.pitch;
    }
  }
  std::memset(staged + channels * shape.plane, 0, kStagingSlack * sizeof(Acc));
}

template void stage_channels<float>(const CpuKernels<float>&, const SourcePlanes&,
                                    const StagedShape&, const LatticeChunk&, int64_t, float*);
template void stage_channels<double>(const CpuKernels<double>&, const SourcePlanes&,
                                     const StagedShape&, const LatticeChunk&, int64_t, double*);

void fill_tap_offsets(const StagedShape& shape, int64_t channels, int32_t* offsets) {
  const AxisLayout& rows = *shape.row_layout;
  const AxisLayout& columns = *shape.column_layout;
  for (int64_t c = 0; c < channels; ++c) {
    for (const AxisTapPlace& down : rows.taps) {
      const int64_t row = rows.segments[down.segment].start + down.shift;
      for (const AxisTapPlace& across : columns.taps) {
        *offsets++ = static_cast<int32_t>(
            c * shape.plane + (across.segment * rows.length + row) * shape.pitch + across.shift);
      }
    }
  }
}

}  // namespace convx
