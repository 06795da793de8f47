// The architecture of the code that the current GPU runs.
#pragma once

namespace convx {

// 10 * major + minor of the architecture that the code for the current device was compiled for. It
// is lower than the device's own if the code comes from PTX of an older one. 0 if there is no code.
int find_code_arch();

// Whether that code may be launched before earlier kernels have ended
// (device/dependent_launch.cuh). Queried once per device.
bool code_can_start_early();

}  // namespace convx
