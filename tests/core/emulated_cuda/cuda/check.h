// In place of csrc's.
#pragma once

#include <stdexcept>
#include <string>

#include "core/problem.h"

namespace convx {

struct LaunchSite {
  const char* engine;
  const ConvProblem* problem;
  void* stream = nullptr;
  void* (*get_blas)() = [] { return static_cast<void*>(nullptr); };
};

[[noreturn]] inline void throw_launch_error(const LaunchSite&, const std::string& what,
                                            const std::string& status) {
  throw std::runtime_error(what + " failed: " + status);
}

}  // namespace convx
