// The interface of an engine: which problems it can run, and the cost of each.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/device_caps.h"
#include "core/plan.h"
#include "core/problem.h"

namespace convx {

// One clause that says why an engine cannot run a problem.
struct Refusal {
  std::string why;
};
using Consideration = std::variant<Refusal, Plan>;

inline constexpr double kNeverGiveUp = std::numeric_limits<double>::infinity();

// Lower bounds of predictions are multiplied by it, because they are rounded differently.
inline constexpr double kBoundFactor = 1 - 1e-9;

struct SearchLimits {
  // A plan that is predicted to take this long or longer is of no use. An engine may then refuse,
  // or return that plan all the same, whichever is less work.
  double give_up_us = kNeverGiveUp;
};

struct Engine {
  EngineId id;
  const char* name;  // users write it as algorithm="..."

  // Refuses the problem, or plans it.
  Consideration (*consider)(const ConvProblem&, const DeviceCaps&, const SearchLimits&);

  // Optional: returns, without a search, microseconds that no plan of the engine is predicted to
  // beat. It is called for any problem, also for one that consider() refuses. An engine with a long
  // search has it, so that it is not considered where another engine is faster anyway.
  double (*bound_us)(const ConvProblem&, const DeviceCaps&) = nullptr;
  // The typical ratio of a plan's prediction to bound_us: the median over the suite (2026-11-19).
  // Engines are considered in the order of bound_us times this ratio, the time expected of them.
  double typical_ratio = 1;

  // Optional: returns 0 if the engine's kernels apply the problem's residual and activation, and
  // otherwise microseconds of the pass that applies them behind the engine, which then plans the
  // problem without them. Null if the kernels apply every epilogue, as on the CPU.
  double (*separate_pass_us)(const ConvProblem&, const DeviceCaps&) = nullptr;

  // Optional: returns false on GPUs where the other engines' predictions were fitted to
  // measurements, and this one's were not. "auto" never chooses the engine there; algorithm= may
  // name it.
  bool (*competes_on)(const DeviceCaps&) = nullptr;

  // Variants: plans that differ from consider()'s and that a measurement may prefer. variants()
  // lists their names, which users write as algorithm="engine:variant"; plan_variant() returns no
  // plan if the variant does not exist for the problem. variants() is called only for problems that
  // are not refused. Both are null for engines without variants.
  std::vector<const char*> (*variants)(const ConvProblem&, const DeviceCaps&) = nullptr;
  std::optional<Plan> (*plan_variant)(const ConvProblem&, const DeviceCaps&,
                                      std::string_view variant) = nullptr;

  bool is_by_name_only(const DeviceCaps& caps) const { return competes_on && !competes_on(caps); }
};

}  // namespace convx
