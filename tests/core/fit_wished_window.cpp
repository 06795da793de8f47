// window_shape.cpp once more, under other names.
#define fit_window_shape fit_window_by_wish
#define check_window_shape check_wished_window
#define predict_microseconds count_unfulfilled
#define bound_microseconds bound_unfulfilled
#define bound_tile_us bound_wished_tile
#define count_pixel_tiles count_wished_tiles
#include "engines/cuda/lines/window_shape.cpp"
//
#include "fit_wished_window.h"

namespace convx {
namespace {

const WindowWish *wished = nullptr;

} // namespace

std::string name_cut(const WindowShape &shape) {
  if (shape.streams())
    return shape.pace == Pace::kCarry ? "carrying" : "streaming";
  const std::string cut = shape.pair_rows > 0 ? "pairs"
                          : shape.by_rows     ? "rows"
                          : shape.strips > 1  ? "strips"
                                              : "stretches";
  const std::string way = shape.box_columns > 0 ? "boxed " : "";
  return (shape.window_step < shape.columns ? "overlapping " : "") + way + cut;
}

// In place of the cost model.
double count_unfulfilled(const PhaseCosts &, const WindowShape &shape) {
  const auto differs = [](int is, int want) { return want != 0 && is != want; };
  const int unfulfilled =
      8 * (!wished->cut.empty() && name_cut(shape) != wished->cut) +
      4 * differs(shape.splits, wished->splits) +
      differs(shape.columns, wished->columns) +
      differs(shape.filter_groups, wished->filter_groups) +
      differs(shape.lane_bytes, wished->lane_bytes);
  uint32_t hash = wished->seed + 1;
  for (const int number :
       {shape.columns, shape.filter_groups, shape.lane_bytes, shape.splits,
        shape.pitch, shape.strips, shape.window_step, shape.segment_length,
        static_cast<int>(shape.pace), shape.box_columns}) {
    hash = (hash ^ static_cast<uint32_t>(number)) * 0x9e3779b1u;
    hash ^= hash >> 15;
  }
  return unfulfilled + hash * 0x1p-32;
}

// No shape is left out of the search.
double bound_unfulfilled(const PhaseCosts &, const TileCosts &,
                         const WindowShape &, bool, int) {
  return -1;
}
double bound_wished_tile(const PhaseCosts &, const TileCosts &) { return -1; }

WindowShape fit_wished_window(const ConvProblem &problem,
                              const DeviceCaps &caps, TensorMath math,
                              const GatherPhase &phase,
                              const WindowWish &wish) {
  wished = &wish;
  return fit_window_shape(problem, caps, math, phase.rows, phase.columns);
}

} // namespace convx
