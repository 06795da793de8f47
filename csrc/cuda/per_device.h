// A value that is computed once per device.
#pragma once

#include <atomic>

namespace convx {

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

}  // namespace convx
