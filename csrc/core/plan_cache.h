// Remembers plans, so that a repeated call decides nothing anew.
#pragma once

#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>

#include "core/choose_engine.h"

namespace convx {

class PlanCache {
 public:
  // The plan for the problem on this machine, from memory or from choose_engine. On failure,
  // error is set and the plan is meaningless; failures are not remembered.
  Plan find_or_choose(std::span<const Engine> engines, const ConvProblem& problem,
                      const DeviceCaps& caps, int device, const std::string& algorithm,
                      std::string& error) {
    const Key key{problem, caps, device, algorithm};
    {
      std::shared_lock lock(mutex_);
      if (auto found = plans_.find(key); found != plans_.end()) return found->second;
    }
    const Choice choice = choose_engine(engines, problem, caps, algorithm);
    error = choice.error;
    if (!error.empty()) return {};
    std::unique_lock lock(mutex_);
    // Programs with ever-changing shapes must not grow the cache without bound.
    if (plans_.size() >= kCapacity) plans_.clear();
    return plans_.emplace(key, choice.candidates[choice.chosen].plan).first->second;
  }

 private:
  static constexpr size_t kCapacity = 4096;

  struct Key {
    ConvProblem problem;
    DeviceCaps caps;
    int device;
    std::string algorithm;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const {
      return hash_value(key.problem) ^ std::hash<std::string>()(key.algorithm) ^
             (static_cast<size_t>(key.device) << 8) ^ static_cast<size_t>(key.caps.threads);
    }
  };

  std::shared_mutex mutex_;
  std::unordered_map<Key, Plan, KeyHash> plans_;
};

}  // namespace convx
