// What one engine answers, whatever the others would.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>
#include <variant>

#include "core/engine.h"

// Empty if the engine has a plan.
inline std::string refusal_of(const convx::Engine& engine, const convx::ConvProblem& problem,
                              const convx::DeviceCaps& caps) {
  const convx::Consideration answer = engine.consider(problem, caps, {});
  const auto* refusal = std::get_if<convx::Refusal>(&answer);
  return refusal ? refusal->why : "";
}

// Throws if the engine refuses.
inline convx::Plan plan_of(const convx::Engine& engine, const convx::ConvProblem& problem,
                           const convx::DeviceCaps& caps) {
  convx::Consideration answer = engine.consider(problem, caps, {});
  if (auto* plan = std::get_if<convx::Plan>(&answer)) return std::move(*plan);
  throw std::runtime_error(std::get<convx::Refusal>(answer).why);
}
