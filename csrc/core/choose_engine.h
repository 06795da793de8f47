// Chooses an engine: among those that do not refuse the problem, the one with the smallest
// predicted time.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/engine.h"

namespace convx {

// One engine's answer: a refusal or a plan.
struct Candidate {
  const Engine* engine;  // points into the static engine list
  std::string refusal;   // if empty, plan is set
  Plan plan;
};

struct Choice {
  std::vector<Candidate> candidates;  // only considered engines, in the order of the list
  int chosen = -1;                    // index into candidates
  std::string variant;                // name of the chosen variant; empty for plan()'s own plan
  bool tuned = false;                 // true if a measurement, not a prediction, chose it
  std::string error;                  // why nothing could be chosen; empty on success
};

enum class Listed {
  kAll,       // every engine's answer, for explain()
  kEligible,  // only what the choice needs: engines that cannot win are not planned
};

// algorithm is "auto", the name of an engine, or "engine:variant". What is listed does not change
// what is chosen. With limits, nothing may be chosen, and then there is no error either.
Choice choose_engine(std::span<const Engine> engines, const ConvProblem& problem,
                     const DeviceCaps& caps, std::string_view algorithm, Listed listed,
                     const SearchLimits& limits = {});

// The choice as JSON: the problem, its flops and bytes, the winner, and every candidate with its
// predicted time, geometry and variants, or its refusal. caps must be those that the choice was
// made with.
std::string describe_choice(const Choice& choice, const ConvProblem& problem,
                            const DeviceCaps& caps);

}  // namespace convx
