// The geometry of both CPU engines.
#pragma once

#include <variant>

#include "engines/cpu/driver/channelwise.h"
#include "engines/cpu/driver/gather_driver.h"
#include "engines/cpu/driver/weight_driver.h"

namespace convx {

struct CpuPlan {
  static constexpr EngineId kEngines[] = {EngineId::kCpuGemm, EngineId::kCpuDirect};

  std::variant<GatherGeometry, WeightGeometry, ChannelwiseGeometry> driver;

  void describe(Text& out) const {
    std::visit([&](const auto& geometry) { geometry.describe(out); }, driver);
  }
};

// The geometry of one driver.
template <typename T>
const T& cpu_geometry_of(const Plan& plan) {
  return std::get<T>(geometry_of<CpuPlan>(plan).driver);
}

}  // namespace convx
