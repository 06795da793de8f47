#include "engines/cuda/gemm/gemm_in_place.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "core/arithmetic.h"
#include "engines/cuda/gemm/gemm_shape.h"
#include "planning/dense_pixels.h"

namespace convx {
namespace {

// Largest workspace for cuBLASLt; PyTorch gives cuBLAS as much.
constexpr int64_t kBlasBytes = int64_t{32} << 20;
// Bias values stay in L2: those of one image, or of a piece of it if they are more than this.
constexpr int64_t kBiasBytes = int64_t{4} << 20;
// Pixels that are copied together stay in L2 until they are multiplied.
constexpr int64_t kChunkBytes = int64_t{32} << 20;
constexpr int64_t kFewestPixels = 16;
// Planes side by side, with their results.
constexpr int64_t kSideBySideBytes = int64_t{96} << 20;

// True for 1x1 layers without padding whose x has the channels of a pixel together.
bool reads_whole_pixels(const ConvProblem& p) {
  return p.R == 1 && p.S == 1 && p.pad.top == 0 && p.pad.left == 0 &&
         (p.P - 1) * p.stride.h < p.H && (p.Q - 1) * p.stride.w < p.W &&
         (p.C == 1 || p.x_strides.c == 1);
}

bool can_lie_side_by_side(const ConvProblem& p) {
  return p.pass != Pass::kWeightGrad && uses_tensor_cores(p) &&
         p.H * p.W * size_of(p.dtype) % 8 != 0;
}

// The workspace that cuBLASLt is offered decides which algorithms it proposes. Measured on an H200
// (cuBLAS 13, 2,576 products):
//
// - 16 bits: kernels that use a workspace have another kernel clear it first, 2 us. Without a
//   workspace, the choice is 4% faster on average, and slower only for very large tensors and for
//   rows that are not aligned.
// - TF32 pixels: the kernels made for Hopper need some workspace. Small products with a short
//   reduction are up to 1.9 times as fast with the older kernels, which need none. For the others,
//   1 MiB gives a better choice than 32 MiB (cuBLAS's), unless the pixels are so few that a long
//   reduction should be split. Overall these rules are 2% slower than the best of these choices;
//   cuBLAS's own choice is 8% slower.
// - TF32 planes: split-K does not help, but Hopper's tiles are large. The older kernels are faster
//   where much of a tile would be empty, and for few pixels with a short reduction. The rules are
//   3% slower than the best choice; cuBLAS's own choice is 5% slower.
// - TF32 with rows that are not aligned: no kernel needs a workspace. Without one the choice is up
//   to 15% better, except for few filters.
constexpr int64_t kLittleMemory = int64_t{1} << 20;
constexpr double kVeryManyBytes = 200e6;
constexpr int64_t kFewestHalfFilters = 8;  // with two, cuBLAS has better kernels
constexpr int64_t kShortReduction = 224;
constexpr double kFewProducts = 400e6;  // multiply-adds
constexpr int64_t kFewPixels = 512, kFewPlanePixels = 5000;
constexpr double kMuchEmpty = 0.3;
constexpr int64_t kFewFilters = 64;

// The share of large tiles that holds neither filters nor pixels, for planes.
double find_empty_share(int64_t filters, int64_t pixels) {
  const int64_t tiles = ceil_div(filters, kBlasTile) * ceil_div(pixels, kBlasTile);
  return 1 -
         static_cast<double>(filters * pixels) / static_cast<double>(tiles * kBlasTile * kBlasTile);
}

// The workspace to offer cuBLASLt. Empty: cuBLAS chooses the algorithm, unless there is a bias.
std::optional<int64_t> choose_blas_bytes(const ConvProblem& p, const GatherTensors& view,
                                         const InPlaceShape& shape) {
  const InPlaceForm form = shape.form;
  const int64_t sources = view.source_channels, targets = view.target_channels;
  if (!uses_tensor_cores(p)) return std::nullopt;
  if (!shape.has_aligned_lines(p.dtype)) {
    const bool wide = form == InPlaceForm::kPixels && targets > kFewFilters;
    return wide && size_of(p.dtype) == 4 ? std::optional<int64_t>(0) : std::nullopt;
  }
  if (form == InPlaceForm::kSideBySide) return size_of(p.dtype) == 2 ? 0 : kLittleMemory;
  if (size_of(p.dtype) == 2) {
    if (targets < kFewestHalfFilters) return std::nullopt;
    if (count_bytes(p) < kVeryManyBytes) return 0;
    return form == InPlaceForm::kPixels ? std::optional(kBlasBytes) : std::nullopt;
  }
  const int64_t pixels = target_pixels(p);
  const bool is_short = sources <= kShortReduction;
  if (form == InPlaceForm::kPlanes) {
    const bool older = pixels <= kFewPlanePixels
                           ? is_short
                           : find_empty_share(targets, pixels / p.N) >= kMuchEmpty;
    return older ? std::optional<int64_t>(0) : std::nullopt;
  }
  if (!is_short) return pixels <= kFewPixels ? kBlasBytes : kLittleMemory;
  const double products = static_cast<double>(sources * targets) * static_cast<double>(pixels);
  return products <= kFewProducts ? 0 : kLittleMemory;
}

// 16-bit planes with up to this many channels are limited by storing results, and take a proposal
// with few tiles. For pixels as much would be lost as gained, and in TF32 more.
constexpr int64_t kStoreBoundChannels = 192;

bool wants_few_tiles(const ConvProblem& p, const GatherTensors& view, const InPlaceShape& shape) {
  return shape.form == InPlaceForm::kPlanes && size_of(p.dtype) == 2 && shape.blas_bytes == 0 &&
         view.source_channels <= kStoreBoundChannels;
}

using Algorithm = InPlaceWish::Algorithm;

// Most pixels that one product of a weight gradient reduces over: the tensor cores' accumulators
// lose digits on longer chains. On an H200 one product is faster than segments on all of 24 layers,
// 1.9 times in the median: cuBLAS splits the reduction well. In channels_last it does so for more
// pixels where the product has few tiles: n32c256h130w130 k64 takes 168 us, and 177 in segments.
// It does not split the products of groups: n16c8h200w200 k96 with 2 groups would take 6,340 us,
// and takes 142 in segments (2026-11-19).
constexpr int64_t kMostWholePixels = int64_t{1} << 18;
constexpr int64_t kMostPixelsOfFewTiles = int64_t{1} << 20, kFewTilesOfProduct = 2;

int64_t find_most_whole_pixels(const ConvProblem& p, InPlaceForm form) {
  const bool splits = form == InPlaceForm::kPixels && p.groups == 1 &&
                      count_gradient_tiles(p) <= kFewTilesOfProduct;
  return splits ? kMostPixelsOfFewTiles : kMostWholePixels;
}

// True if all pixels are one matrix, or are copied to one, and the filters are, too.
bool can_be_whole(const ConvProblem& p, InPlaceForm form, const FilterMatrix& filters) {
  const bool is_matrix = form == InPlaceForm::kPixels || form == InPlaceForm::kStridedPixels ||
                         (form == InPlaceForm::kPlanes && p.N == 1);
  return is_matrix && uses_tensor_cores(p) && !filters.packed && !filters.transposed &&
         target_pixels(p) <= find_most_whole_pixels(p, form);
}

struct NamedWish {
  std::string name;
  InPlaceWish wish;
};

std::vector<NamedWish> make_wishes() {
  std::vector<NamedWish> wishes = {
      {"planes", {.form = InPlaceForm::kPlanes}},
      {"side_by_side", {.form = InPlaceForm::kSideBySide}},
      {"segments", {.algorithm = Algorithm::kSegments}},
      {"cublas", {.algorithm = Algorithm::kCublas}},
  };
  for (const int64_t bytes : {int64_t{0}, kLittleMemory, kBlasBytes}) {
    const std::string name = "lt_" + std::to_string(bytes >> 20);
    for (int rank = 0; rank < kMostLtProposals; ++rank) {
      wishes.push_back({rank == 0 ? name : name + "_" + std::to_string(rank + 1),
                        {.algorithm = Algorithm::kLt, .blas_bytes = bytes, .lt_rank = rank}});
    }
  }
  return wishes;
}

const std::vector<NamedWish>& all_wishes() {
  static const std::vector<NamedWish> wishes = make_wishes();
  return wishes;
}

bool can_be_wished(const ConvProblem& p, const InPlaceWish& wish) {
  const InPlaceForm form = find_in_place_form(p);
  if (form == InPlaceForm::kNone) return false;
  const bool asks_for_segments = wish.algorithm == Algorithm::kSegments;
  if (p.pass == Pass::kWeightGrad) {
    if (wish.form != InPlaceForm::kNone) return false;
    if (asks_for_segments) return form != InPlaceForm::kStridedPixels;
    ConvProblem viewed = p;
    viewed.pass = Pass::kForward;
    return can_be_whole(p, form, find_filter_matrix(p, make_gather_tensors(viewed)));
  }
  if (asks_for_segments) return false;
  if (wish.form != InPlaceForm::kNone) {
    return form == InPlaceForm::kPlanes && can_lie_side_by_side(p);
  }
  // Only cuBLASLt can add a bias.
  if (wish.algorithm == Algorithm::kCublas) return !adds_bias(p);
  // In 16 bits, further proposals with a workspace are the same, or must clear it first.
  return wish.lt_rank == 0 || wish.blas_bytes == 0 || size_of(p.dtype) != 2;
}

// The algorithm of a weight gradient that is one product.
void fit_whole_product(const ConvProblem& p, InPlaceShape& shape, int64_t workspace_limit,
                       const InPlaceWish& wish) {
  shape.is_whole =
      wish.algorithm != Algorithm::kSegments && can_be_whole(p, shape.form, shape.filters);
  shape.asks_lt = shape.is_whole && wish.algorithm == Algorithm::kLt;
  if (!shape.asks_lt) return;
  const int64_t left = std::max<int64_t>(workspace_limit - shape.chunk_bytes, 0);
  shape.blas_bytes = std::min(wish.blas_bytes, left / kGemmAlignment * kGemmAlignment);
  shape.lt_rank = wish.lt_rank;
}

InPlaceShape fit_form(const ConvProblem& p, const GatherTensors& view, InPlaceForm form,
                      int64_t workspace_limit, const InPlaceWish& wish) {
  InPlaceShape shape;
  shape.form = form;
  if (form == InPlaceForm::kNone) return shape;
  const int64_t size = size_of(p.dtype);
  const int64_t sources = p.groups * view.source_channels;
  const int64_t targets = p.groups * view.target_channels;
  if (shape.form == InPlaceForm::kPlanes) {
    shape.source_pitch = view.source_strides.c;
    shape.target_pitch = view.target_strides.c;
  } else if (shape.form == InPlaceForm::kSideBySide) {
    shape.wide_results = adds_bias(p) && size == 2;
    const int64_t result_size = shape.wide_results ? accumulate_bytes(p.dtype) : size;
    const int64_t pixel_bytes = sources * size + targets * result_size;
    const int64_t most = std::min(kSideBySideBytes, workspace_limit / 2) / pixel_bytes;
    const int64_t images = std::clamp<int64_t>(most / (p.H * p.W), 1, p.N);
    shape.chunk_pixels = images * p.H * p.W;
    shape.source_pitch = shape.target_pitch = pad_pixels(shape.chunk_pixels);
    shape.chunk_bytes = align_bytes(sources * shape.source_pitch * size);
    shape.result_bytes = align_bytes(targets * shape.target_pitch * result_size);
  } else {
    const bool copied = shape.form == InPlaceForm::kStridedPixels;
    const bool forward = p.pass != Pass::kInputGrad;
    shape.source_pitch = copied    ? round_up(p.C * size, 16) / size
                         : forward ? find_x_pitch(p)
                                   : find_y_pitch(p);
    shape.target_pitch = forward ? find_y_pitch(p) : find_x_pitch(p);
  }
  shape.filters = find_filter_matrix(p, view);
  if (shape.filters.packed) shape.filter_bytes = align_bytes(p.K * p.channels_per_group() * size);
  // The most pixels that fit in `bytes` bytes, and in a quarter of the workspace.
  const auto fit_pixels = [&](int64_t pixels, int64_t channels, int64_t bytes) {
    const int64_t most = std::min(bytes, workspace_limit / 4) / (channels * size);
    return std::min(pixels, std::max(most / kFewestPixels, int64_t{1}) * kFewestPixels);
  };
  if (adds_bias(p) && shape.form == InPlaceForm::kPlanes) {
    shape.bias_pixels = fit_pixels(p.H * p.W, p.K, kBiasBytes);
    shape.bias_bytes = align_bytes(shape.bias_pixels * p.K * size);
  }
  if (shape.form == InPlaceForm::kStridedPixels) {
    // A weight gradient is one product over all pixels.
    shape.chunk_pixels = p.pass == Pass::kWeightGrad
                             ? target_pixels(p)
                             : fit_pixels(target_pixels(p), shape.source_pitch, kChunkBytes);
    shape.chunk_bytes = align_bytes(shape.chunk_pixels * shape.source_pitch * size);
  }
  if (p.pass == Pass::kWeightGrad) {
    fit_whole_product(p, shape, workspace_limit, wish);
    // Pixels that are not dense need columns where one product does not do.
    const bool can_copy = shape.is_whole && shape.chunk_bytes <= workspace_limit;
    if (form == InPlaceForm::kStridedPixels && !can_copy) return {};
    return shape;
  }
  if (shape.wide_results) return shape;
  const std::optional<int64_t> chosen =
      wish.algorithm == Algorithm::kLt       ? std::optional(wish.blas_bytes)
      : wish.algorithm == Algorithm::kCublas ? std::nullopt
                                             : choose_blas_bytes(p, view, shape);
  shape.asks_lt = chosen.has_value() || (adds_bias(p) && form != InPlaceForm::kSideBySide);
  if (shape.asks_lt) {
    const int64_t left = std::max<int64_t>(workspace_limit - shape.workspace_bytes(), 0);
    shape.blas_bytes =
        std::min(chosen.value_or(kBlasBytes), left / kGemmAlignment * kGemmAlignment);
    shape.lt_rank = wish.algorithm == Algorithm::kFitted && wants_few_tiles(p, view, shape)
                        ? kFewTiles
                        : wish.lt_rank;
  }
  return shape;
}

}  // namespace

bool uses_tensor_cores(const ConvProblem& p) {
  if (p.dtype == DType::kFloat32) return p.precision == Precision::kTf32;
  return p.dtype != DType::kFloat64;
}

bool adds_bias(const ConvProblem& p) { return p.pass == Pass::kForward && p.epilogue.has_bias; }

int64_t count_gradient_tiles(const ConvProblem& p) {
  return p.groups * ceil_div(p.channels_per_group(), kBlasTile) *
         ceil_div(p.filters_per_group(), kBlasTile);
}

int64_t target_pixels(const ConvProblem& p) {
  return p.N * (p.pass == Pass::kInputGrad ? p.H * p.W : p.P * p.Q);
}

const char* name_of(InPlaceForm form) {
  switch (form) {
    case InPlaceForm::kPlanes:
      return "planes";
    case InPlaceForm::kPixels:
      return "pixels";
    case InPlaceForm::kStridedPixels:
      return "strided pixels";
    case InPlaceForm::kSideBySide:
      return "side by side";
    case InPlaceForm::kNone:
      break;
  }
  return "";
}

InPlaceForm find_in_place_form(const ConvProblem& p) {
  if (p.N == 0) return InPlaceForm::kNone;
  // If an image is one pixel, a GEMM per image would have a single column.
  if (is_pointwise(p) && p.H * p.W > 1) return InPlaceForm::kPlanes;
  if (has_dense_pixels(p)) return InPlaceForm::kPixels;
  if (is_pointwise(p)) return InPlaceForm::kPlanes;
  const bool strided = p.pass != Pass::kInputGrad && reads_whole_pixels(p) && find_y_pitch(p) > 0 &&
                       refuse_many_pixels(p).empty();
  return strided ? InPlaceForm::kStridedPixels : InPlaceForm::kNone;
}

FilterMatrix find_filter_matrix(const ConvProblem& p, const GatherTensors& view) {
  // Rows of one element may lie anywhere, and a single row has no pitch.
  const auto lies = [](int64_t line_stride, int64_t lines, int64_t stride, int64_t elements) {
    return (elements == 1 || stride == 1) && (lines == 1 || line_stride >= elements);
  };
  const int64_t targets = view.target_channels, sources = view.source_channels;
  const int64_t group_stride = p.filters_per_group() * p.w_strides.n;
  if (lies(view.weight_target_stride, targets, view.weight_source_stride, sources)) {
    return {false, false, targets == 1 ? sources : view.weight_target_stride, group_stride};
  }
  if (lies(view.weight_source_stride, sources, view.weight_target_stride, targets)) {
    return {false, true, sources == 1 ? targets : view.weight_source_stride, group_stride};
  }
  return {true, false, sources, targets * sources};
}

std::vector<const char*> list_wishes(const ConvProblem& p) {
  std::vector<const char*> names;
  for (const NamedWish& known : all_wishes()) {
    if (can_be_wished(p, known.wish)) names.push_back(known.name.c_str());
  }
  return names;
}

std::optional<InPlaceWish> find_wish(const ConvProblem& p, std::string_view name) {
  for (const NamedWish& known : all_wishes()) {
    if (name == known.name && can_be_wished(p, known.wish)) return known.wish;
  }
  return std::nullopt;
}

InPlaceShape fit_in_place(const ConvProblem& p, const GatherTensors& view, int64_t workspace_limit,
                          const InPlaceWish& wish) {
  const bool has_form = wish.form != InPlaceForm::kNone;
  const InPlaceForm form = has_form ? wish.form : find_in_place_form(p);
  InPlaceShape shape = fit_form(p, view, form, workspace_limit, wish);
  if (has_form || form != InPlaceForm::kPlanes || !can_lie_side_by_side(p)) return shape;
  InPlaceShape other = fit_form(p, view, InPlaceForm::kSideBySide, workspace_limit, wish);
  const bool better =
      predict_in_place(p, view, other, 1, 1) < predict_in_place(p, view, shape, 1, 1);
  return better && other.workspace_bytes() <= workspace_limit ? other : shape;
}

size_t choose_few_tiles(const std::vector<float>& waves, int64_t batch) {
  // Cost of one place in the list, as a logarithm of the number of tiles. On an H200 the choice
  // recovers a third of the time that the first proposal loses to the best (179 batches of 16-bit
  // planes).
  constexpr double kRankCost = 0.2;
  const auto cost = [&](size_t rank) {
    const double rounds = static_cast<double>(waves[rank]) * static_cast<double>(batch);
    return kRankCost * static_cast<double>(rank) + std::log(std::max(rounds, 1.0));
  };
  size_t best = 0;
  for (size_t rank = 1; rank < waves.size(); ++rank) {
    if (cost(rank) < cost(best)) best = rank;
  }
  return best;
}

}  // namespace convx
