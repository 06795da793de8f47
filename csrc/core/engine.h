// The interface of an engine: which problems it can run, and the cost of each.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/device_caps.h"
#include "core/plan.h"
#include "core/problem.h"

namespace convx {

struct Engine {
  EngineId id;
  const char* name;  // users write it as algorithm="..."

  // Returns an empty string if the engine can run the problem, else one clause that says why not.
  std::string (*refuse)(const ConvProblem&, const DeviceCaps&);

  // Called only for problems that were not refused.
  Plan (*plan)(const ConvProblem&, const DeviceCaps&);

  // If true, "auto" never chooses the engine; it runs only where algorithm= names it.
  bool by_name_only = false;

  // Variants: plans that differ from plan()'s and that a measurement may prefer. variants() lists
  // their names, which users write as algorithm="engine:variant"; plan_variant() returns no plan
  // if the variant does not exist for the problem. Both are null for engines without variants.
  std::vector<const char*> (*variants)(const ConvProblem&, const DeviceCaps&) = nullptr;
  std::optional<Plan> (*plan_variant)(const ConvProblem&, const DeviceCaps&,
                                      std::string_view variant) = nullptr;
};

}  // namespace convx
