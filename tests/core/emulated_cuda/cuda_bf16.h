// In place of CUDA's header, where kernels are compiled for the host: see emulator.h.
#pragma once

#include "emulator.h"
