#include "core/choose_engine.h"

#include "core/text.h"

namespace convx {
namespace {

std::string list_names(std::span<const Engine> engines) {
  std::string names = "'auto'";
  for (const Engine& engine : engines) names += std::string(", '") + engine.name + "'";
  return names;
}

std::vector<const char*> find_variants(const Engine& engine, const ConvProblem& problem,
                                       const DeviceCaps& caps) {
  return engine.variants ? engine.variants(problem, caps) : std::vector<const char*>{};
}

std::string list_variants(const Engine& engine, const ConvProblem& problem,
                          const DeviceCaps& caps) {
  std::string names;
  for (const char* variant : find_variants(engine, problem, caps)) {
    names += std::string(names.empty() ? " has '" : ", '") + engine.name + ":" + variant + "'";
  }
  return engine.name + (names.empty() ? " has no variants" : names);
}

}  // namespace

Choice choose_engine(std::span<const Engine> engines, const ConvProblem& problem,
                     const DeviceCaps& caps, std::string_view algorithm) {
  Choice choice;
  const bool automatic = algorithm == "auto";
  const size_t colon = algorithm.find(':');
  const std::string_view wanted = algorithm.substr(0, colon);
  if (colon != std::string_view::npos) choice.variant = algorithm.substr(colon + 1);
  bool known = automatic;
  for (const Engine& engine : engines) {
    Candidate candidate{&engine, engine.refuse(problem, caps), {}};
    if (candidate.refusal.empty()) candidate.plan = engine.plan(problem, caps);
    const int index = static_cast<int>(choice.candidates.size());
    const bool asked = wanted == engine.name;
    const bool eligible = automatic ? !engine.by_name_only : asked;
    known = known || asked;
    if (asked && candidate.refusal.empty() && !choice.variant.empty()) {
      std::optional<Plan> plan;
      if (engine.plan_variant) plan = engine.plan_variant(problem, caps, choice.variant);
      if (plan) {
        candidate.plan = std::move(*plan);
      } else {
        choice.error = "algorithm=" + word_text(algorithm) + " is none for this problem; " +
                       list_variants(engine, problem, caps) + " (" + to_text(problem) + ", " +
                       name_of(problem.pass) + ")";
      }
    }
    if (eligible && candidate.refusal.empty() &&
        (choice.chosen < 0 ||
         candidate.plan.predicted_us < choice.candidates[choice.chosen].plan.predicted_us)) {
      choice.chosen = index;
    }
    if (asked && !candidate.refusal.empty()) {
      choice.error = std::string("algorithm='") + engine.name +
                     "' cannot run this problem: " + candidate.refusal + " (" + to_text(problem) +
                     ", " + name_of(problem.pass) + ")";
    }
    choice.candidates.push_back(std::move(candidate));
  }
  if (!known) {
    choice.error =
        "unknown algorithm=" + word_text(algorithm) + "; expected one of " + list_names(engines);
  } else if (choice.chosen < 0 && choice.error.empty()) {
    choice.error = "no engine can run " + to_text(problem);
    for (const Candidate& candidate : choice.candidates) {
      choice.error += std::string("; ") + candidate.engine->name + ": " + candidate.refusal;
    }
  }
  return choice;
}

std::string describe_choice(const Choice& choice, const ConvProblem& problem,
                            const DeviceCaps& caps) {
  Text out;
  out << "{\"problem\": " << quote(to_text(problem))
      << ", \"direction\": " << quote(name_of(problem.pass))
      << ", \"precision\": " << quote(name_of(problem.precision))
      << ", \"flops\": " << count_flops(problem) << ", \"bytes\": " << count_bytes(problem)
      << ", \"error\": " << quote(choice.error) << ", \"engine\": "
      << quote(choice.chosen < 0 ? "" : choice.candidates[choice.chosen].engine->name)
      << ", \"variant\": " << quote(choice.variant)
      << ", \"tuned\": " << (choice.tuned ? "true" : "false") << ", \"candidates\": ";
  write_list(out, choice.candidates, [&](const Candidate& candidate) {
    const Engine& engine = *candidate.engine;
    out << "{\"name\": " << quote(engine.name) << ", \"refusal\": " << quote(candidate.refusal)
        << ", \"by_name_only\": " << (engine.by_name_only ? "true" : "false");
    if (candidate.refusal.empty()) {
      const Plan& plan = candidate.plan;
      out << ", \"predicted_us\": " << plan.predicted_us
          << ", \"workspace_bytes\": " << plan.workspace_bytes << ", \"split\": " << plan.split
          << ", \"halves\": " << (plan.halves ? "true" : "false") << ", \"tile\": [" << plan.tile.m
          << ", " << plan.tile.n << ", " << plan.tile.k << "], \"variants\": ";
      write_list(out, find_variants(engine, problem, caps),
                 [&](const char* variant) { out << quote(variant); });
    }
    out << "}";
  });
  out << "}";
  return out.str();
}

}  // namespace convx
