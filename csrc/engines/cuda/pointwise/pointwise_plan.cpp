// Plans of cuda_pointwise: the fastest tile by a cost model, and what the engine refuses.
#include "engines/cuda/pointwise/pointwise_fit.h"

#include <algorithm>
#include <utility>

#include "core/arithmetic.h"
#include "engines/cuda/cuda_engines.h"
#include "planning/dense_pixels.h"
#include "planning/refusals.h"
#include "planning/separate_pass.h"
#include "planning/staged_rows.h"

namespace convx {
namespace {

// Cycles of one multiprocessor. They come from instruction counts, except where a line says
// measured.
constexpr double kPointwiseClockGhz = 1.7;
constexpr double kProductCycles = 72;        // 64 filters by 128 pixels by 16 channels
constexpr double kNarrowProductCycles = 95;  // an MMA in 16 bits
constexpr double kProductsCycles = 300;      // starting and draining the MMAs of 64 filters
constexpr double kStoreCycles = 1100;        // one warpgroup, 64 filters by 128 pixels
constexpr double kNarrowStoreCycles = 800;   // in 16 bits
constexpr double kUnalignedStores = 6.5;     // factor for targets that are not aligned
constexpr double kScatteredStores = 16;      // factor for neighbours in different sectors
// The four producer warps: per 16-byte unit of each thread, and per chunk.
constexpr double kNarrowUnitCycles = 40;
constexpr double kTf32UnitCycles = 110;
constexpr double kIeeeUnitCycles = 150;
constexpr double kHalfTf32UnitCycles = 90;
constexpr double kHalfIeeeUnitCycles = 120;
constexpr double kElementCycles = 30;      // added for each value that is loaded alone
constexpr double kScatteredElements = 10;  // factor for neighbours in different sectors
constexpr double kChunkCycles = 400;
// Device memory, bytes per cycle, measured with 64 channels of 1024 x 1024 pixels.
constexpr double kMemoryBytes = 15.2;
constexpr double kRowMemoryBytes = 17;         // where the epilogue stores whole rows
constexpr double kHalfTf32MemoryBytes = 17.5;  // scaled fp16 with whole rows; estimated
constexpr double kNarrowMemoryBytes = 17.4;    // 16-bit tensors
constexpr double kFewFilters = 32;             // 16 bits: with fewer filters, memory is slower
// Factor on memory time with fewer than kFewFilters filters.
constexpr double kFewFilterLoads = 1.45;
constexpr double kIeeeMemoryBytes = 13.2;  // "ieee" in bfloat16 components
constexpr double kCacheBytes = 40;  // from L2, for source values that other filter tiles have read
constexpr double kFilterCycles = 0.3;  // splitting and placing the block's filters, per value
constexpr double kLaunchCycles = 5000;
// 16 bits: a factor on the whole prediction that depends on the number of chunks of channels.
constexpr double kFewNarrowChunks = 0.9, kNarrowChunk = 0.1, kMostNarrowChunks = 1.5;
// 16 bits: another factor where the only chunk is mostly empty.
constexpr int64_t kFewNarrowChannels = 32;
constexpr double kEmptyChunks = 1.3;

// Adding a bias in 16 bits with more than 64 filters, bytes per cycle. Reductions of more chunks
// hide it.
constexpr double kNarrowBiasBytes = 56;
constexpr int kMostBiasChunks = 3;

constexpr int kTileAlignment = 1024;

class Fitter {
 public:
  Fitter(const ConvProblem& problem, const DeviceCaps& caps, TensorMath math)
      : problem_(problem), caps_(caps), view_(make_gather_view(problem)) {
    shape_.math = math;
    shape_.rows_axis = make_gather_axis(view_.rows[0], false);
    shape_.columns_axis = make_gather_axis(view_.columns[0], false);
    plane_ = view_.target_h * view_.target_w;
    shape_.tiles = static_cast<int>(ceil_div(problem.N * plane_, kPointwisePixels));
    const int chain = chain_chunks(shape_.math);
    shape_.chunks = static_cast<int>(
        chain * ceil_div(view_.source_channels, chain * pointwise_chunk(shape_.math)));
    shape_.channel_rows = static_cast<int>(ceil_div(view_.source_channels, kFilterChannels));
    find_alignment();
  }

  PointwiseShape fit() const {
    PointwiseShape best{};
    if (shape_.math == TensorMath::kHalfIeee &&
        view_.source_channels > kMaxHalfIeeeProducts * kProductDepth) {
      return best;
    }
    const int64_t blocks = ceil_div(view_.target_channels, kPointwiseFilters);
    const int64_t block_bytes = pointwise_parts(shape_.math) * shape_.channel_rows *
                                int64_t{kPointwiseFilters} * 2 * kFilterChannels;
    for (int64_t some = std::min(blocks, caps_.shared_bytes_per_block / block_bytes); some > 0;
         --some) {
      PointwiseShape shape = shape_;
      shape.filter_tiles = static_cast<int>(ceil_div(blocks, some));
      // Fewer filters per block need as many blocks.
      if (ceil_div(blocks, shape.filter_tiles) != some) continue;
      shape.filters = shape.tile_filters = static_cast<int>(some * kPointwiseFilters);
      shape.filter_part_bytes = shape.channel_rows * shape.filters * 2 * kFilterChannels;
      if (!fit_shared_memory(shape)) continue;
      const int64_t filter_tiles = problem_.groups * shape.filter_tiles;
      const int64_t blocks_of_one =
          std::clamp<int64_t>(caps_.sm_count / filter_tiles, 1, std::max(1, shape.tiles));
      shape.grid = static_cast<int>(filter_tiles * blocks_of_one);
      shape.microseconds = predict_microseconds(shape, blocks_of_one);
      if (best.filters == 0 || shape.microseconds < best.microseconds) best = shape;
    }
    return best;
  }

 private:
  void find_alignment() {
    const int64_t unit = 16 / size_of(problem_.dtype);  // elements
    const GatherAxis& rows = shape_.rows_axis;
    const GatherAxis& columns = shape_.columns_axis;
    const bool same_place = view_.source_h == view_.target_h && view_.source_w == view_.target_w &&
                            rows.source_step == 1 && columns.source_step == 1 &&
                            rows.offset0 == 0 && columns.offset0 == 0;
    shape_.aligned_source =
        same_place && has_plane_units(view_.source_strides, view_.source_h, view_.source_w, unit);
    shape_.aligned_target =
        has_plane_units(view_.target_strides, view_.target_h, view_.target_w, unit);
    shape_.aligned_filters = view_.weight_source_stride == 1 && view_.source_channels % 8 == 0 &&
                             view_.weight_target_stride % 8 == 0;
  }

  // Tries the largest ring first: with room for two tiles, both warpgroups have one. Then come raw
  // stages, then whole rows.
  bool fit_shared_memory(PointwiseShape& shape) const {
    // With more than 64 filters all chunks of a tile must be in the ring at once; otherwise chunks
    // can pass through.
    const int least =
        shape.filters > kPointwiseFilters ? shape.chunks : 2 * chain_chunks(shape.math);
    // Then a tile has pixels of at most two images.
    const bool can_copy = shape.filter_tiles == 1 && plane_ >= kPointwisePixels;
    const bool few_filters = shape.filters <= kMaxCopyFilters;
    const int wanted =
        can_copy && few_filters && shape.aligned_source ? wanted_raw_stages(shape.math) : 0;
    const bool can_store_rows = can_copy && (few_filters || shape.math == TensorMath::kTf32) &&
                                wants_whole_rows(shape.math) && shape.aligned_target &&
                                has_target_sectors();
    for (const int stages : {std::max(least, 2 * shape.chunks), least}) {
      for (int raw = wanted;; raw = raw > 2 ? raw - 1 : 0) {
        for (const bool whole_rows : {true, false}) {
          if (whole_rows && !can_store_rows) continue;
          shape.raw_stages = raw;
          shape.whole_rows = whole_rows;
          shape.staging_pitch = staging_pitch(shape.math, whole_rows);
          if (place_in_shared_memory(shape, stages)) return true;
        }
        if (raw == 0) break;
      }
    }
    return false;
  }

  // True if the rows of tiles start and end at sector boundaries. Bulk copies of partial sectors
  // take twice as long.
  bool has_target_sectors() const {
    const int64_t sector = 32 / size_of(problem_.dtype);
    const Strides& strides = view_.target_strides;
    return plane_ % sector == 0 && strides.n % sector == 0 && strides.c % sector == 0;
  }

  // Returns false if fewer than least_stages fit.
  bool place_in_shared_memory(PointwiseShape& shape, int least_stages) const {
    const int64_t staging = int64_t{kPointwiseWarps} * 16 * shape.staging_pitch;
    const int64_t filters = pointwise_parts(shape.math) * int64_t{shape.filter_part_bytes};
    const int64_t raw = int64_t{shape.raw_stages} * kRawStageBytes;
    const int64_t offset = round_up(kPointwiseBarrierBytes + staging, kTileAlignment);
    // Dynamic shared memory is aligned to 16 bytes only.
    const int64_t room = caps_.shared_bytes_per_block - kTileAlignment - offset - filters - raw;
    const int64_t stages = std::min<int64_t>(kMaxPointwiseStages, room / chunk_bytes(shape.math));
    if (room < 0 || stages < least_stages) return false;
    shape.filter_offset = static_cast<int>(offset);
    shape.ring_offset = static_cast<int>(offset + filters);
    shape.stages = static_cast<int>(stages);
    shape.raw_offset = static_cast<int>(shape.ring_offset + stages * chunk_bytes(shape.math));
    shape.shared_bytes = static_cast<int>(shape.raw_offset + raw + kTileAlignment);
    return true;
  }

  // True if neighbouring pixels of a row, `step` apart, lie in different sectors.
  bool is_scattered(const Strides& strides, int64_t step) const {
    return strides.w * step * size_of(problem_.dtype) >= 32;
  }

  double count_load_cycles(const PointwiseShape& shape) const {
    double unit = shape.math == TensorMath::kIeee       ? kIeeeUnitCycles
                  : shape.math == TensorMath::kTf32     ? kTf32UnitCycles
                  : shape.math == TensorMath::kHalfIeee ? kHalfIeeeUnitCycles
                  : shape.math == TensorMath::kHalfTf32 ? kHalfTf32UnitCycles
                                                        : kNarrowUnitCycles;
    const int64_t element = size_of(problem_.dtype);
    if (!shape.aligned_source) {
      const bool scattered = is_scattered(view_.source_strides, shape.columns_axis.source_step);
      const double one = kElementCycles * (scattered ? kScatteredElements : 1);
      unit += static_cast<double>(16 / element) * one;
    }
    return shape.chunks * (kChunkCycles + 8 * unit);
  }

  double find_memory_rate(const PointwiseShape& shape) const {
    if (!is_float32(shape.math)) {
      return kNarrowMemoryBytes / (view_.target_channels < kFewFilters ? kFewFilterLoads : 1);
    }
    if (shape.math == TensorMath::kIeee) return kIeeeMemoryBytes;
    if (!shape.whole_rows) return kMemoryBytes;
    return shape.math == TensorMath::kHalfTf32 ? kHalfTf32MemoryBytes : kRowMemoryBytes;
  }

  double count_bias_cycles(const PointwiseShape& shape) const {
    const bool adds = problem_.pass == Pass::kForward && problem_.epilogue.has_bias;
    if (!adds || is_float32(shape.math) || view_.target_channels <= kPointwiseFilters ||
        shape.chunks > kMostBiasChunks) {
      return 0;
    }
    const auto results =
        static_cast<double>(problem_.N * problem_.K * plane_ * size_of(problem_.dtype));
    return results / std::max(1, caps_.sm_count) / kNarrowBiasBytes;
  }

  double predict_microseconds(const PointwiseShape& shape, int64_t blocks_of_one) const {
    const double filter_blocks = static_cast<double>(shape.filters) / kPointwiseFilters;
    const double depth = pointwise_chunk(shape.math) / kProductDepth;
    const double products = filter_blocks * shape.chunks * depth * pointwise_products(shape.math) *
                            (is_float32(shape.math) ? kProductCycles : kNarrowProductCycles);
    const double store = filter_blocks *
                         (is_float32(shape.math) ? kStoreCycles : kNarrowStoreCycles) *
                         (shape.aligned_target                    ? 1
                          : is_scattered(view_.target_strides, 1) ? kScatteredStores
                                                                  : kUnalignedStores);
    const double alone = products + filter_blocks * kProductsCycles + store;
    const double load = count_load_cycles(shape);
    // Two warpgroups have a tile each. Without room for two tiles, the chunks of one are loaded
    // only after those of the other have been multiplied by all filters, or, with 64 filters, as
    // they pass through.
    const bool both = shape.stages >= 2 * shape.chunks;
    const double tile = both ? std::max({alone / 2, products, load})
                        : filter_blocks > 1.5
                            ? alone + load
                            : std::max({alone / 2, products + kProductsCycles, load});
    const int64_t waves = ceil_div(shape.grid, std::max(1, caps_.sm_count));
    const double filters = kFilterCycles * shape.filters * kFilterChannels * shape.channel_rows;
    const double source_bytes = static_cast<double>(
        problem_.N * problem_.groups * plane_ * view_.source_channels * size_of(problem_.dtype));
    const double sms = std::max(1, caps_.sm_count);
    const double memory = count_bytes(problem_) / sms / find_memory_rate(shape) +
                          (shape.filter_tiles - 1) * source_bytes / sms / kCacheBytes;
    const double work =
        static_cast<double>(waves) *
        (filters + static_cast<double>(ceil_div(int64_t{shape.tiles}, blocks_of_one)) * tile);
    double chunks = 1;
    if (!is_float32(shape.math)) {
      chunks = std::min(kMostNarrowChunks, kFewNarrowChunks + kNarrowChunk * shape.chunks);
      if (view_.source_channels < kFewNarrowChannels) chunks *= kEmptyChunks;
    }
    const double cycles =
        chunks * (kLaunchCycles + std::max(work, memory + filters)) + count_bias_cycles(shape);
    return cycles / (kPointwiseClockGhz * 1e3);
  }

  const ConvProblem& problem_;
  const DeviceCaps& caps_;
  const GatherView view_;
  PointwiseShape shape_{};  // the fields that all candidates share
  int64_t plane_ = 0;
};

std::optional<PointwiseShape> fit_shape(const ConvProblem& problem, const DeviceCaps& caps,
                                        TensorMath math) {
  PointwiseShape shape = fit_pointwise_shape(problem, caps, math);
  if (shape.filters == 0) return {};
  return shape;
}

// All but whether the filters fit.
std::string refuse(const ConvProblem& p, const DeviceCaps& caps) {
  if (p.taps() != 1) return "it computes 1x1 kernels only";
  if (p.pass == Pass::kWeightGrad) return "it computes no weight gradient";
  if (p.pass == Pass::kInputGrad && p.stride != Hw{1, 1}) {
    return "it computes the input gradient for stride 1 only";
  }
  if (std::string refusal = refuse_tensor_cores(p, caps); !refusal.empty()) return refusal;
  if (std::string large = refuse_large_extents(p); !large.empty()) return large;
  return refuse_many_pixels(p);
}

Consideration consider(const ConvProblem& problem, const DeviceCaps& caps, const SearchLimits&) {
  if (std::string why = refuse(problem, caps); !why.empty()) return Refusal{why};
  Plan plan;
  plan.engine = EngineId::kCudaPointwise;
  PointwisePlan made;
  std::optional<HalvedPlan<PointwiseFit>> products = plan_halves<PointwiseFit>(
      plan, problem, caps, 1,
      [&](const DeviceCaps& some, TensorMath math, double) {
        return fit_shape(problem, some, math);
      },
      [&](PointwiseShape shape, int64_t before) {
        plan.tile = {kPointwisePixels, shape.filters, pointwise_chunk(shape.math)};
        plan.workspace_bytes = before;
        return make_pointwise_fit(problem, std::move(shape));
      });
  if (!products) return Refusal{"64 filters of so many channels do not fit in shared memory"};
  made.products = std::move(*products);
  // If a tensor turns out not to be aligned, `products` runs instead.
  made.few = fit_few_filters(problem, caps);
  if (made.few && made.few->microseconds < plan.predicted_us) {
    plan.predicted_us = made.few->microseconds;
    plan.tile = {kFewUnits * 16 / size_of(problem.dtype), made.few->params.group_filters, 1};
  } else {
    made.few.reset();
  }
  plan.geometry = make_geometry(std::move(made));
  return plan;
}

}  // namespace

PointwiseShape fit_pointwise_shape(const ConvProblem& problem, const DeviceCaps& caps,
                                   TensorMath math) {
  return Fitter(problem, caps, math).fit();
}

PointwiseFit make_pointwise_fit(const ConvProblem& problem, PointwiseShape shape) {
  PointwiseParams p = shape;
  static_cast<TensorParams&>(p) = make_tensor_params(problem, shape.rows_axis, shape.columns_axis);
  p.plane = narrow(shape.rows_axis.count * shape.columns_axis.count);
  p.pixels = narrow(problem.N * p.plane);
  p.all_filter_tiles = narrow(problem.groups * shape.filter_tiles);
  p.by_plane = FastDivmod(p.plane);
  p.by_target_width = FastDivmod(p.target_width);
  return {std::move(shape), p};
}

PointwiseParams make_pointwise_params(const ConvProblem& problem, const PointwiseFit& fit,
                                      const Buffers& buffers) {
  const PointwiseShape& shape = fit.shape;
  PointwiseParams p = fit.params;
  set_tensors(p, problem, shape.rows_axis, shape.columns_axis, buffers, 0, false);
  // The caller's tensors may start at any address.
  p.aligned_source = shape.aligned_source && is_unit_aligned(p.source);
  p.aligned_target = shape.aligned_target && is_unit_aligned(p.target);
  p.aligned_filters = shape.aligned_filters && is_unit_aligned(p.filters);
  return p;
}

void PointwiseShape::describe(Text& out) const {
  out << "tile " << kPointwisePixels << " pixels x " << filters << " filters";
  describe_stages(out, stages);
  if (raw_stages > 0) out << ", " << raw_stages << " bulk copies ahead";
  out << ", " << (math == TensorMath::kTf32 ? "2 x bfloat16" : name_of(math));
}

void PointwisePlan::describe(Text& out) const {
  if (few) {
    out << "tile " << kFewUnits << " 16-byte units x "
        << count_text(few->params.group_filters, "filter") << ", if aligned, else ";
  }
  describe_halves(out, products);
}

Engine cuda_pointwise_engine() {
  return {.id = EngineId::kCudaPointwise,
          .name = "cuda_pointwise",
          .consider = consider,
          .separate_pass_us = pass_us_unless_relu};
}

}  // namespace convx
