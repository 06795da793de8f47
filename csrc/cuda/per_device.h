// What is found out once for each device.
#pragma once

#include <atomic>

namespace convx {

class PerDevice {
  static constexpr int kDevices = 64;  // others are asked every time

 public:
  // What find() said of this device, unless it was 0. Threads that come at once may all call it.
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

}  // namespace convx
