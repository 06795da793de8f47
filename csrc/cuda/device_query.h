// Facts about the CUDA devices and about the code that they run, each looked up once per device.
#pragma once

#include <atomic>

#include "core/device_caps.h"

namespace convx {

// A value that is computed once per device.
class PerDevice {
  static constexpr int kDevices = 64;  // the values of further devices are not kept

 public:
  // Returns find()'s result for this device, and keeps it unless it is 0. Threads that call this at
  // the same time may all call find.
  template <typename Find>
  int get(int device, const Find& find) {
    if (device >= kDevices) return find();
    if (const int known = known_[device].load(std::memory_order_acquire)) return known;
    const int found = find();
    known_[device].store(found, std::memory_order_release);
    return found;
  }

 private:
  std::atomic<int> known_[kDevices]{};
};

// Read once per device and process.
DeviceCaps query_cuda_caps(int device);

int current_cuda_device();

// Makes the device's context current in the calling thread.
void bind_cuda_context(int device);

// Whether the code that the current device runs may be launched before earlier kernels have ended
// (device/dependent_launch.cuh). Queried once per device.
bool code_can_start_early();

}  // namespace convx
