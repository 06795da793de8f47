// In place of csrc's: types that kernels of other instructions share with it.
#pragma once

#include "emulator.h"

namespace convx {

struct Tf32 {};

template <int kColumns>
struct WgmmaSums {
  float value[kColumns / 2];
};

}  // namespace convx
