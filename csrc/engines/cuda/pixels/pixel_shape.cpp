#include "engines/cuda/pixels/pixel_fit.h"

#include <algorithm>
#include <limits>

#include "core/arithmetic.h"

namespace convx {
namespace {

constexpr int64_t kMaxEntries = 12288;

class Fitter {
 public:
  Fitter(const ConvProblem& problem, const DeviceCaps& caps, const GatherAxis& rows,
         const GatherAxis& columns, const PixelTiling& tiling)
      : problem_(problem),
        caps_(caps),
        tiling_(tiling),
        rows_(rows),
        columns_(columns),
        math_(tiling.math),
        element_(size_of(problem.dtype)) {
    const GatherTensors view = make_gather_tensors(problem);
    source_ = view.source_strides;
    target_ = view.target_strides;
    sources_ = view.source_channels;
    targets_ = view.target_channels;
    source_w_ = view.source_w;
    plane_ = rows.count * columns.count;
  }

  PixelShape fit() {
    PixelShape best{};
    for (const PixelTileSize& tile : tiling_.tiles) {
      // Half or more of such a tile would be zeros.
      if (tile.filters > 64 && targets_ <= tile.filters / 2) continue;
      // Channels of a chunk if k is folded; 0: it is not.
      for (const int64_t folded : {int64_t{0}, int64_t{1}, sources_}) {
        if (tile.folded != (folded > 0)) continue;
        const bool may_fold = rows_.taps * columns_.taps > 1 && sources_ <= kMostFoldedChannels;
        if (folded > 0 && !may_fold) continue;
        for (const bool bands : {false, true}) consider(tile, folded, bands, best);
      }
    }
    best.depends_on_workspace = depends_on_workspace_;
    if (best.filters == 0) return best;
    const int64_t tiles_all = count_tiles(best);
    best.grid = static_cast<int>(std::clamp<int64_t>(tiles_all, 1, caps_.sm_count));
    return best;
  }

 private:
  int64_t count_tiles(const PixelShape& shape) const {
    return shape.pixel_tiles * shape.filter_tiles * problem_.groups * shape.splits;
  }

  void consider(const PixelTileSize& tile, int64_t folded, bool bands, PixelShape& best) {
    PixelShape shape{};
    shape.math = math_;
    shape.rows_axis = rows_;
    shape.columns_axis = columns_;
    shape.filters = tile.filters;
    shape.blocks = tile.blocks;
    shape.folded = folded > 0;
    shape.paired = tile.paired;
    shape.bands = bands;
    shape.filter_tiles = static_cast<int>(ceil_div(targets_, tile.filters));
    if (!lay_out_channels(shape, folded)) return;
    if (math_ == TensorMath::kHalfIeee && !has_half_totals(tile.filters, tile.blocks) &&
        int64_t{shape.steps} * shape.chunks > kMaxPixelHalfChain) {
      return;
    }
    lay_out_windows(shape);
    if (!lay_out_positions(shape)) return;
    shape.source_stage_bytes = static_cast<int>(count_stage_bytes(shape));
    const bool fits = tiling_.fit_shared_memory(problem_, caps_, shape);
    if (!has_room(shape.packed_bytes) || !fits) return;
    const int64_t most = shape.resident ? 1 : std::min<int64_t>(shape.chunks, 8);
    for (int splits = 1; splits <= most; ++splits) {
      shape.splits = splits;
      shape.partial_bytes =
          splits == 1 ? 0 : splits * problem_.N * problem_.groups * targets_ * plane_ * 4;
      if (!has_room(shape.packed_bytes + shape.partial_bytes)) break;
      shape.microseconds = tiling_.predict_microseconds(problem_, caps_, shape);
      if (best.filters == 0 || shape.microseconds < best.microseconds) best = shape;
      if (count_tiles(shape) / splits >= 2 * caps_.sm_count) break;
    }
  }

  // Whether the workspace has so many bytes; remembers if it has not.
  bool has_room(int64_t bytes) {
    if (bytes <= caps_.workspace_limit) return true;
    depends_on_workspace_ = true;
    return false;
  }

  // Chooses the channels of a chunk, and the steps that they make.
  bool lay_out_channels(PixelShape& shape, int64_t folded) const {
    const int depth = step_depth(math_);
    const int64_t taps = rows_.taps * columns_.taps;
    shape.channels = static_cast<int>(sources_);
    // Folded channels are few, and are staged plane by plane in any layout.
    shape.channels_last = source_.c == 1 && sources_ * problem_.groups > 1 && !shape.folded;
    if (shape.folded) {
      shape.chunk_channels = static_cast<int>(folded);
      int64_t lanes = taps;
      if (shape.paired) {
        if (!can_pair(shape)) return false;
        shape.row_pairs =
            static_cast<int>(ceil_div(floor_mod(columns_.offset0, 2) + columns_.taps, 2));
        lanes = rows_.taps * shape.row_pairs * 2;
      }
      shape.steps = static_cast<int>(ceil_div(shape.chunk_channels * lanes, depth));
    } else {
      shape.chunk_channels = depth;
      shape.steps = static_cast<int>(taps);
    }
    shape.chunks = static_cast<int>(ceil_div(sources_, shape.chunk_channels));
    shape.step_bytes = shape.filters * count_planes(math_) * kStepBytes;
    return shape.steps <= 1024 && shape.chunks <= kMaxTensorChunks;
  }

  // True if all pixels see their taps in the same pairs of columns, and a pair is one load.
  bool can_pair(const PixelShape& shape) const {
    return can_be_paired(math_) && columns_.taps > 1 && columns_.offset_step == 1 &&
           columns_.source_step % 2 == 0 && !shape.channels_last && fit_vector(shape) >= 2;
  }

  void lay_out_windows(PixelShape& shape) const {
    const int64_t window = shape.window_pixels();
    const int64_t sector = 32 / element_;
    shape.window_step = static_cast<int>(window);
    shape.per_image = plane_ >= 16 * window;
    // Where planes start in the middle of a sector, windows overlap and each stores whole sectors.
    // Pairs are excluded: their MMAs take longer than storing partial sectors.
    if (shape.per_image && !shape.paired && target_.c % sector != 0 && target_.c != 1 &&
        target_.h * rows_.target_step == columns_.count && columns_.target_step == 1) {
      shape.window_step -= static_cast<int>(sector);
    }
    const int64_t tile = 2 * shape.window_step;
    shape.pixel_tiles =
        shape.per_image ? problem_.N * ceil_div(plane_, tile) : ceil_div(problem_.N * plane_, tile);
  }

  // Elements per copy.
  int fit_vector(const PixelShape& shape) const {
    int64_t vector = 16 / element_;
    const auto divides = [&](int64_t value) { return value % vector == 0; };
    if (shape.channels_last) {
      while (vector > 1 && !(divides(source_.n) && divides(source_.h) && divides(source_.w) &&
                             divides(sources_) && shape.chunk_channels % vector == 0)) {
        vector /= 2;
      }
    } else if (source_.w != 1) {
      vector = 1;
    } else {
      while (vector > 1 && !(divides(source_.n) && divides(source_.c) && divides(source_.h) &&
                             divides(source_w_))) {
        vector /= 2;
      }
    }
    return static_cast<int>(vector);
  }

  bool lay_out_positions(PixelShape& shape) const {
    shape.run = fit_vector(shape);
    shape.vector = shape.channels_last ? 1 : shape.run;
    const int64_t align = shape.vector;
    const int64_t lead = floor_mod(columns_.offset0, align);
    const int64_t step = columns_.source_step;
    const int64_t span = (columns_.taps - 1) * columns_.offset_step;
    const int64_t segment = round_up(lead + (columns_.count - 1) * step + span + 1, align);

    // The most target rows, and images, that a tile touches.
    const int64_t tile = shape.window_step + shape.window_pixels();
    const int64_t lines = std::max<int64_t>(
        1, std::min((tile + columns_.count - 2) / columns_.count + 1, problem_.N * rows_.count));
    const int64_t images = shape.per_image
                               ? 1
                               : std::clamp<int64_t>((tile + plane_ - 2) / plane_ + 1, 1,
                                                     std::max<int64_t>(1, problem_.N));
    // Offset from a tile's first image.
    constexpr int64_t kMaxOffset = std::numeric_limits<int>::max();
    if (images * std::max(source_.n, target_.n) > kMaxOffset) return false;
    const int64_t halo = (rows_.taps - 1) * rows_.offset_step + 1;
    const int64_t image_rows = (rows_.count - 1) * rows_.source_step + halo;
    int64_t row_pitch, staged_rows;
    if (shape.bands) {
      const auto rows_of = [&](int64_t n) { return (lines - n) * rows_.source_step + n * halo; };
      staged_rows =
          std::min(std::max(rows_of(1), rows_of(std::min(images, lines))), images * image_rows);
      row_pitch = segment;
    } else {
      staged_rows = rows_.taps;
      row_pitch =
          std::min(round_up(tile * step + lines * (span + 1 + 2 * align), align), lines * segment);
    }
    const int64_t positions = row_pitch * staged_rows;
    if (positions / align > kMaxEntries) return false;
    shape.span = static_cast<int>(span);
    shape.row_pitch = static_cast<int>(row_pitch);
    shape.staged_rows = static_cast<int>(staged_rows);
    shape.entries = static_cast<int>(positions / align);
    shape.image_rows = static_cast<int>(image_rows);
    shape.segment = static_cast<int>(segment);

    // In elements. The pitches spread the values that a warp gathers over all banks.
    const int64_t word = 4 / element_;  // elements per 32-bit word
    if (shape.channels_last) {
      shape.channel_pitch = 1;
      shape.position_pitch = static_cast<int>(round_up(shape.chunk_channels, 4 * word) + 4 * word);
    } else {
      shape.position_pitch = 1;
      // Distance, in channels, between the values that the four threads of a quad gather.
      const int64_t apart = math_ == TensorMath::kTf32 ? 1 : 2;
      int64_t pitch = round_up(positions, 4 * word);
      while (!shape.folded && pitch * apart / word % 32 != 8 && pitch * apart / word % 32 != 24) {
        pitch += 4 * word;
      }
      shape.channel_pitch = static_cast<int>(pitch);
    }
    return true;
  }

  int64_t count_stage_bytes(const PixelShape& shape) const {
    const int64_t elements = shape.channels_last
                                 ? int64_t{shape.positions()} * shape.position_pitch
                                 : int64_t{shape.channel_pitch} * shape.chunk_channels;
    return round_up(shape.paired ? elements / 2 * pair_bytes(math_) : elements * element_, 128);
  }

  const ConvProblem& problem_;
  const DeviceCaps& caps_;
  const PixelTiling& tiling_;
  const GatherAxis rows_, columns_;
  const TensorMath math_;
  const int64_t element_;
  Strides source_, target_;
  int64_t sources_ = 0, targets_ = 0, source_w_ = 0, plane_ = 0;
  bool depends_on_workspace_ = false;
};

}  // namespace

PixelShape fit_pixel_shape(const ConvProblem& problem, const DeviceCaps& caps,
                           const GatherAxis& rows, const GatherAxis& columns,
                           const PixelTiling& tiling) {
  return Fitter(problem, caps, rows, columns, tiling).fit();
}

PixelFit make_pixel_fit(const ConvProblem& problem, PixelShape shape) {
  const GatherAxis& rows = shape.rows_axis;
  const GatherAxis& columns = shape.columns_axis;
  PixelParams p = shape;
  static_cast<TensorParams&>(p) = make_tensor_params(problem, rows, columns);
  p.plane = narrow(rows.count * columns.count);
  p.pixels = narrow(problem.N * p.plane);

  const int64_t filter_tiles = problem.groups * shape.filter_tiles;
  p.tiles = narrow(shape.pixel_tiles * filter_tiles * shape.splits);
  p.tile_filters = shape.filters;
  p.partial_image = problem.groups * p.group_targets * int64_t{p.plane};
  p.copy_elements = p.run;
  if (p.channels_last) {
    p.entry_elements = p.position_pitch;
    p.entry_copies = p.chunk_channels / p.run;
    p.copy_channels = p.copy_shared = p.run;
    p.copy_source = p.run * p.source_c;
  } else {
    p.entry_elements = p.run;
    p.entry_copies = p.chunk_channels;
    p.copy_channels = 1;
    p.copy_shared = p.channel_pitch;
    p.copy_source = p.source_c;
  }
  p.pair_lead = narrow(floor_mod(columns.offset0, 2));
  p.filter_stage_bytes = p.stage_steps * p.step_bytes;

  p.by_target_width = FastDivmod(columns.count), p.by_target_height = FastDivmod(rows.count);
  p.by_plane = FastDivmod(p.plane);
  p.by_row_pitch = FastDivmod(shape.row_pitch);
  p.by_image_rows = FastDivmod(shape.image_rows);
  p.by_segment = FastDivmod(shape.segment);
  p.by_splits = FastDivmod(shape.splits);
  p.by_filter_tiles_all = FastDivmod(filter_tiles);
  p.by_filter_tiles = FastDivmod(shape.filter_tiles);
  p.by_image_tiles =
      FastDivmod(std::max<int64_t>(1, problem.N == 0 ? 1 : shape.pixel_tiles / problem.N));
  return {std::move(shape), p};
}

PixelParams make_pixel_params(const ConvProblem& problem, const PixelFit& fit, Buffers buffers,
                              int64_t offset) {
  PixelParams p = fit.params;
  buffers.workspace = static_cast<char*>(buffers.workspace) + offset;
  const int64_t element = size_of(problem.dtype);
  set_tensors(p, problem, fit.shape.rows_axis, fit.shape.columns_axis, buffers,
              fit.shape.packed_bytes, fit.shape.splits > 1);
  // The caller's tensors may start at any address.
  while (reinterpret_cast<uintptr_t>(p.source) %
         static_cast<uintptr_t>(p.copy_elements * element)) {
    p.copy_elements /= 2;
  }
  return p;
}

}  // namespace convx
