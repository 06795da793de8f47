// The part of the test-only module that asks engines for plans.
#include "bind_choice.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <map>

#include "core/choose_engine.h"
#include "engines/engine_list.h"

namespace py = pybind11;
using namespace convx;

namespace {

std::span<const Engine> engines_of(const std::string& device) {
  return device == "cuda" ? cuda_engines() : cpu_engines();
}

// The shortest of several runs, in microseconds: the machine may be busy with something else.
template <typename Run>
double time_us(int repeats, const Run& run) {
  double best = 0;
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    run();
    const std::chrono::duration<double, std::micro> taken =
        std::chrono::steady_clock::now() - start;
    if (i == 0 || taken.count() < best) best = taken.count();
  }
  return best;
}

}  // namespace

void bind_choice(py::module_& m) {
  // The whole choice, as JSON text.
  m.def("choose", [](const std::string& device, const ConvProblem& problem, const DeviceCaps& caps,
                     const std::string& algorithm) {
    return describe_choice(choose_engine(engines_of(device), problem, caps, algorithm), problem,
                           caps);
  });
  // What one engine says, without asking the others; empty if it can run the problem.
  m.def("refuse", [](const std::string& name, const ConvProblem& problem, const DeviceCaps& caps) {
    for (const Engine& engine : cuda_engines()) {
      if (name == engine.name) return engine.refuse(problem, caps);
    }
    throw std::runtime_error("no such engine");
  });
  // Microseconds of planning: of the whole choice ("auto"), and of each engine.
  m.def("time_choice", [](const std::string& device, const ConvProblem& problem,
                          const DeviceCaps& caps, int repeats) {
    const std::span<const Engine> engines = engines_of(device);
    std::map<std::string, double> times;
    times["auto"] = time_us(repeats, [&] { choose_engine(engines, problem, caps, "auto"); });
    for (const Engine& engine : engines) {
      times[engine.name] = time_us(repeats, [&] {
        if (engine.refuse(problem, caps).empty()) engine.plan(problem, caps);
      });
    }
    return times;
  });
}
