// The contract of an engine's plan side: what it can do, and what that would cost.
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
  const char* name;  // what users write as algorithm="..."

  // Empty if the engine can run the problem, else one clause that says why it cannot.
  std::string (*refuse)(const ConvProblem&, const DeviceCaps&);

  // Called only for problems that were not refused.
  Plan (*plan)(const ConvProblem&, const DeviceCaps&);

  // Runs only where it is asked for by name: for engines that have still to earn trust.
  bool by_name_only = false;

  // Other plans than plan()'s that a measurement may prefer, where the engine has any: their names,
  // what users write as algorithm="engine:variant". No plan: not for this problem.
  std::vector<const char*> (*variants)(const ConvProblem&, const DeviceCaps&) = nullptr;
  std::optional<Plan> (*plan_variant)(const ConvProblem&, const DeviceCaps&,
                                      std::string_view variant) = nullptr;
};

}  // namespace convx
