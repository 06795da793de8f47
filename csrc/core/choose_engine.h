// The heuristic: the applicable engine with the smallest predicted time wins.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/engine.h"

namespace convx {

// One row of the table the choice was made from.
struct Candidate {
  const Engine* engine;  // of the list, which is static
  std::string refusal;   // empty: the engine applies, and plan is set
  Plan plan;
};

struct Choice {
  std::vector<Candidate> candidates;  // in the order of the engine list
  int chosen = -1;                    // index into candidates
  std::string variant;                // of the chosen one; empty: its own plan
  bool tuned = false;                 // not predicted to be the fastest, but measured
  std::string error;                  // why nothing could be chosen; empty on success
};

// algorithm is "auto", the name of an engine, or "engine:variant".
Choice choose_engine(std::span<const Engine> engines, const ConvProblem& problem,
                     const DeviceCaps& caps, std::string_view algorithm);

// The choice as JSON text: the problem, its flops and bytes, every candidate with its predicted
// time and variants, or its refusal, and the winner. Caps: those that it was made with.
std::string describe_choice(const Choice& choice, const ConvProblem& problem,
                            const DeviceCaps& caps);

}  // namespace convx
