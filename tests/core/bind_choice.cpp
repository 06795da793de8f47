// The part of the test-only module that asks engines for plans.
#include "bind_choice.h"

#include <pybind11/stl.h>
#include <time.h>

#include <map>
#include <tuple>

#include "core/choose_engine.h"
#include "core/text.h"
#include "engines/cuda/gemm/gemm_shape.h"
#include "engines/cuda/input_grad/phases_shape.h"
#include "engines/engines.h"
#include "plan_of.h"

namespace py = pybind11;
using namespace convx;

namespace {

std::span<const Engine> engines_of(const std::string& device) {
  return device == "cuda" ? cuda_engines() : cpu_engines();
}

// Microseconds that this thread has computed: other work of the machine does not count.
double thread_us() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

// The shortest of several runs, in microseconds.
template <typename Run>
double time_us(int repeats, const Run& run) {
  double best = 0;
  for (int i = 0; i < repeats; ++i) {
    const double start = thread_us();
    run();
    const double taken = thread_us() - start;
    if (i == 0 || taken < best) best = taken;
  }
  return best;
}

}  // namespace

void bind_choice(py::module_& m) {
  // The whole choice, as JSON text.
  m.def("choose", [](const std::string& device, const ConvProblem& problem, const DeviceCaps& caps,
                     const std::string& algorithm) {
    const Choice choice = choose_engine(engines_of(device), problem, caps, algorithm, Listed::kAll);
    return describe_choice(choice, problem, caps);
  });
  // What one engine says, without asking the others; empty if it can run the problem.
  m.def("refuse", [](const std::string& name, const ConvProblem& problem, const DeviceCaps& caps) {
    for (const Engine& engine : cuda_engines()) {
      if (name == engine.name) return refusal_of(engine, problem, caps);
    }
    throw std::runtime_error("no such engine");
  });
  // The geometry of every plan that there is: (engine, variant, line). The variant of an engine's own
  // plan is empty.
  m.def("describe_plans", [](const std::string& device, const ConvProblem& problem,
                             const DeviceCaps& caps) {
    std::vector<std::tuple<std::string, std::string, std::string>> lines;
    for (const Engine& engine : engines_of(device)) {
      const auto add = [&](const char* variant, const Plan& plan) {
        Text line;
        plan.geometry->describe(line);
        lines.emplace_back(engine.name, variant, line.str());
      };
      const Consideration answer = engine.consider(problem, caps, {});
      if (const auto* plan = std::get_if<Plan>(&answer)) {
        add("", *plan);
        if (!engine.variants) continue;
        for (const char* variant : engine.variants(problem, caps)) {
          add(variant, engine.plan_variant(problem, caps, variant).value());
        }
      }
    }
    return lines;
  });
  // The geometry of an engine's plan, read as cuda_gemm's.
  m.def("describe_as_gemm", [](const std::string& name, const ConvProblem& problem,
                               const DeviceCaps& caps) {
    Text line;
    for (const Engine& engine : cuda_engines()) {
      if (name == engine.name) {
        geometry_of<GemmShape>(plan_of(engine, problem, caps)).describe(line);
      }
    }
    return line.str();
  });
  // The name and the prediction of the engine that a call runs, and its plan's workspace for aligned
  // tensors: only engines that may win are planned for that.
  m.def("choose_for_call",
        [](const std::string& device, const ConvProblem& problem,
           const DeviceCaps& caps) -> py::tuple {
          const Choice choice =
              choose_engine(engines_of(device), problem, caps, "auto", Listed::kEligible);
          if (choice.chosen < 0) return py::make_tuple(std::string(), 0.0, int64_t{0});
          const Candidate& chosen = choice.candidates[choice.chosen];
          return py::make_tuple(std::string(chosen.engine->name), chosen.plan.predicted_us,
                                find_workspace_bytes(chosen.plan, {}));
        });
  // The time that an engine's plans are never predicted to beat, for engines that give one.
  m.def("bounds",
        [](const std::string& device, const ConvProblem& problem, const DeviceCaps& caps) {
          std::map<std::string, double> bounds;
          for (const Engine& engine : engines_of(device)) {
            if (engine.bound_us) bounds[engine.name] = engine.bound_us(problem, caps);
          }
          return bounds;
        });
  // The time that no engine is predicted to beat for what a strided input gradient is cut into.
  m.def("bound_inner", bound_inner_us);
  // Microseconds of planning: of the whole choice ("auto"), of a call that names the last
  // engine of the list ("by_name"), and of each engine.
  m.def("time_choice", [](const std::string& device, const ConvProblem& problem,
                          const DeviceCaps& caps, int repeats) {
    const std::span<const Engine> engines = engines_of(device);
    std::map<std::string, double> times;
    times["auto"] =
        time_us(repeats, [&] { choose_engine(engines, problem, caps, "auto", Listed::kEligible); });
    times["by_name"] = time_us(repeats, [&] {
      choose_engine(engines, problem, caps, engines.back().name, Listed::kEligible);
    });
    for (const Engine& engine : engines) {
      times[engine.name] = time_us(repeats, [&] { engine.consider(problem, caps, {}); });
    }
    return times;
  });
}
