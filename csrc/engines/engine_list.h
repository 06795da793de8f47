// The engines of each device, in the order in which explain() lists them.
#pragma once

#include <span>

#include "core/engine.h"

namespace convx {

std::span<const Engine> cpu_engines();
std::span<const Engine> cuda_engines();

}  // namespace convx
