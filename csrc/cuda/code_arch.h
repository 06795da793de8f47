// Which of the library's codes a device runs.
#pragma once

namespace convx {

// 10 * major + minor of the architecture that the code for the current device was compiled for:
// less than the device's own where it was made from PTX of an older one. 0 if there is none.
int find_code_arch();

// Whether that code waits for kernels before it: device/dependent_launch.cuh. Asks once a device.
bool code_can_start_early();

}  // namespace convx
