#include "core/choose_engine.h"

#include <algorithm>

#include "core/text.h"

namespace convx {
namespace {

// Engines may round differently where they compare sums with the time to give up at.
constexpr double kRounding = 1 + 1e-9;

// Operands as PyTorch allocates them, as far as a workspace depends on their addresses.
constexpr Buffers kAlignedOperands{};

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

std::string describe_geometry(const Plan& plan) {
  Text line;
  plan.geometry->describe(line);
  return line.str();
}

}  // namespace

Choice choose_engine(std::span<const Engine> engines, const ConvProblem& problem,
                     const DeviceCaps& caps, std::string_view algorithm, Listed listed,
                     const SearchLimits& limits) {
  Choice choice;
  const bool automatic = algorithm == "auto";
  const size_t colon = algorithm.find(':');
  const std::string_view wanted = algorithm.substr(0, colon);
  if (colon != std::string_view::npos) choice.variant = algorithm.substr(colon + 1);
  const bool known = automatic || std::any_of(engines.begin(), engines.end(),
                                              [&](const Engine& e) { return wanted == e.name; });

  const bool is_fused = problem.epilogue.is_fused();
  const ConvProblem plain = is_fused ? drop_fusion(problem) : problem;
  struct Contender {
    size_t index;
    double bound_us, expected_us, pass_us;  // pass_us is part of both others
    bool is_eligible;
  };
  std::vector<Contender> contenders;
  for (size_t i = 0; i < engines.size(); ++i) {
    const Engine& engine = engines[i];
    const bool eligible = automatic ? !engine.is_by_name_only(caps) : wanted == engine.name;
    if (!eligible && known && listed == Listed::kEligible) continue;
    const bool has_bound = listed == Listed::kEligible && automatic && engine.bound_us;
    const bool may_pass = is_fused && engine.separate_pass_us;
    const double pass_us = may_pass ? engine.separate_pass_us(problem, caps) : 0;
    const double bound_us = has_bound ? engine.bound_us(plain, caps) : 0;
    contenders.push_back(
        {i, bound_us + pass_us, bound_us * engine.typical_ratio + pass_us, pass_us, eligible});
  }
  // Engines without a search come first, and the best time so far ends each search.
  std::stable_sort(
      contenders.begin(), contenders.end(),
      [](const Contender& a, const Contender& b) { return a.expected_us < b.expected_us; });

  double best_us = limits.give_up_us;
  const Engine* best = nullptr;
  for (const auto& [index, bound_us, expected_us, pass_us, is_eligible] : contenders) {
    const Engine& engine = engines[index];
    if (bound_us > best_us) continue;
    SearchLimits remaining;
    if (listed == Listed::kEligible) remaining.give_up_us = best_us * kRounding - pass_us;
    Candidate candidate{&engine, {}, {}};
    const ConvProblem& own = pass_us > 0 ? plain : problem;
    Consideration answer = engine.consider(own, caps, remaining);
    if (Plan* plan = std::get_if<Plan>(&answer)) {
      candidate.plan = std::move(*plan);
    } else {
      candidate.refusal = std::move(std::get<Refusal>(answer).why);
    }
    const bool asked = wanted == engine.name;
    if (asked && candidate.refusal.empty() && !choice.variant.empty()) {
      std::optional<Plan> plan;
      if (engine.plan_variant) plan = engine.plan_variant(own, caps, choice.variant);
      if (plan) {
        candidate.plan = std::move(*plan);
      } else {
        choice.error = "algorithm=" + word_text(algorithm) + " is none for this problem; " +
                       list_variants(engine, problem, caps) + " (" + to_text(problem) + ", " +
                       name_of(problem.pass) + ")";
      }
    }
    if (asked && !candidate.refusal.empty()) {
      choice.error = std::string("algorithm='") + engine.name +
                     "' cannot run this problem: " + candidate.refusal + " (" + to_text(problem) +
                     ", " + name_of(problem.pass) + ")";
    }
    candidate.plan.finishes_separately = pass_us > 0;
    candidate.plan.predicted_us += pass_us;
    // Among equal predictions, the first engine of the list wins.
    const double us = candidate.plan.predicted_us;
    if (is_eligible && candidate.refusal.empty() &&
        (us < best_us || (us == best_us && (!best || &engine < best)))) {
      best = &engine, best_us = us;
    }
    choice.candidates.push_back(std::move(candidate));
  }
  std::sort(choice.candidates.begin(), choice.candidates.end(),
            [](const Candidate& a, const Candidate& b) { return a.engine < b.engine; });
  for (size_t i = 0; i < choice.candidates.size(); ++i) {
    if (choice.candidates[i].engine == best) choice.chosen = static_cast<int>(i);
  }
  if (!known) {
    choice.error =
        "unknown algorithm=" + word_text(algorithm) + "; expected one of " + list_names(engines);
  } else if (choice.chosen < 0 && choice.error.empty() && limits.give_up_us == kNeverGiveUp) {
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
        << ", \"by_name_only\": " << (engine.is_by_name_only(caps) ? "true" : "false");
    if (candidate.refusal.empty()) {
      const Plan& plan = candidate.plan;
      out << ", \"predicted_us\": " << plan.predicted_us
          << ", \"workspace_bytes\": " << find_workspace_bytes(plan, kAlignedOperands)
          << ", \"split\": " << plan.split << ", \"halves\": " << (plan.halves ? "true" : "false")
          << ", \"separate_pass\": " << (plan.finishes_separately ? "true" : "false")
          << ", \"tile\": [" << plan.tile.m << ", " << plan.tile.n << ", " << plan.tile.k
          << "], \"geometry\": " << quote(describe_geometry(plan)) << ", \"variants\": ";
      write_list(out, find_variants(engine, problem, caps),
                 [&](const char* variant) { out << quote(variant); });
    }
    out << "}";
  });
  out << "}";
  return out.str();
}

}  // namespace convx
