// Caches plans, so that a repeated call decides nothing. Also holds the choices that were measured.
#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/choose_engine.h"

namespace convx {

class PlanCache {
 public:
  struct Call {
    ConvProblem problem;
    int device;
    bool operator==(const Call&) const = default;
  };
  // Called with a problem that nobody has measured; may measure it and call prefer().
  using Measure = void (*)(const Call&);

  // The plan for the problem on this machine, from the cache or from choose_engine. It stays valid
  // while the caller holds it, even if the cache drops it. On failure error is set and the result
  // is null; failures are not cached.
  std::shared_ptr<const Plan> find_or_choose(std::span<const Engine> engines,
                                             const ConvProblem& problem, const DeviceCaps& caps,
                                             int device, std::string_view algorithm,
                                             std::string& error) {
    const KeyView key{problem, caps, device, algorithm};
    {
      std::shared_lock lock(mutex_);
      if (auto found = plans_.find(key); found != plans_.end()) return found->second;
    }
    Choice choice = choose(engines, problem, caps, device, algorithm, Listed::kEligible);
    error = choice.error;
    if (!error.empty()) return nullptr;
    if (algorithm == "auto" && measure({problem, device})) {
      choice = choose(engines, problem, caps, device, algorithm, Listed::kEligible);
    }
    auto plan = std::make_shared<const Plan>(std::move(choice.candidates[choice.chosen].plan));
    std::unique_lock lock(mutex_);
    if (recording_ && algorithm == "auto") note_call(problem, device);
    if (measure_ && algorithm == "auto" && !find_preferred({problem, device})) return plan;
    // Programs with ever-changing shapes must not grow the cache without bound.
    if (plans_.size() >= kCapacity) plans_.clear();
    return plans_.emplace(Key{problem, caps, device, std::string(algorithm)}, plan).first->second;
  }

  // The choice that the plan comes from. "auto" means the algorithm that was measured to be the
  // fastest, if there is one and it can run within these caps.
  Choice choose(std::span<const Engine> engines, const ConvProblem& problem, const DeviceCaps& caps,
                int device, std::string_view algorithm, Listed listed = Listed::kAll) {
    std::string preferred;
    if (algorithm == "auto") {
      std::shared_lock lock(mutex_);
      if (const std::string* found = find_preferred({problem, device})) preferred = *found;
    }
    if (!preferred.empty()) {
      Choice choice = choose_engine(engines, problem, caps, preferred, listed);
      choice.tuned = true;
      if (choice.error.empty()) return choice;
    }
    return choose_engine(engines, problem, caps, algorithm, listed);
  }

  // Makes "auto" mean this algorithm for the problem. Strides along axes of one element do not
  // matter. Passing "auto" undoes it.
  void prefer(const ConvProblem& problem, int device, std::string_view algorithm) {
    const Call call = find_measured(problem, device);
    std::unique_lock lock(mutex_);
    if (algorithm == "auto") {
      preferred_.erase(call);
    } else {
      preferred_.insert_or_assign(call, std::string(algorithm));
    }
    plans_.clear();
  }

  // Sets the function that is called, without a lock, for every problem that "auto" plans and that
  // nobody has measured; null disables it. The plan of a problem that is still unmeasured is not
  // cached, so that the next call asks again. Clears the cached plans, and returns the previous
  // function.
  Measure measure_new(Measure measure) {
    std::unique_lock lock(mutex_);
    plans_.clear();
    return std::exchange(measure_, measure);
  }

  // Starts or stops recording the problems that "auto" plans, each once, and returns those recorded
  // so far. Starting clears the cached plans, so that every call is planned and recorded.
  std::vector<Call> record(bool on) {
    std::unique_lock lock(mutex_);
    recording_ = on;
    if (on) plans_.clear();
    return std::exchange(calls_, {});
  }

 private:
  static constexpr size_t kCapacity = 4096;

  // Everything that a plan depends on. Lookups use the view, which copies nothing.
  struct Key {
    ConvProblem problem;
    DeviceCaps caps;
    int device;
    std::string algorithm;
  };
  struct KeyView {
    const ConvProblem& problem;
    const DeviceCaps& caps;
    int device;
    std::string_view algorithm;
  };
  struct KeyHash {
    using is_transparent = void;
    template <typename AnyKey>
    size_t operator()(const AnyKey& key) const {
      return hash_value(key.problem) ^ std::hash<std::string_view>()(key.algorithm) ^
             (static_cast<size_t>(key.device) << 8) ^ static_cast<size_t>(key.caps.threads);
    }
  };
  struct KeyEqual {
    using is_transparent = void;
    template <typename OneKey, typename OtherKey>
    bool operator()(const OneKey& a, const OtherKey& b) const {
      return a.problem == b.problem && a.device == b.device && a.algorithm == b.algorithm &&
             a.caps == b.caps;
    }
  };

  struct CallHash {
    size_t operator()(const Call& call) const {
      return hash_value(call.problem) ^ (static_cast<size_t>(call.device) << 8);
    }
  };

  // The problem that a measurement stands for: residuals and activations cost every engine alike.
  static Call find_measured(const ConvProblem& problem, int device) {
    return {drop_fusion(drop_unused_strides(problem)), device};
  }

  // The preferred algorithm, or null. The caller holds the lock.
  const std::string* find_preferred(const Call& call) const {
    const auto found = preferred_.find(find_measured(call.problem, call.device));
    return found != preferred_.end() ? &found->second : nullptr;
  }

  // Calls measure_ if the problem has no preferred algorithm; returns whether it did.
  bool measure(const Call& call) {
    Measure measure = nullptr;
    {
      std::shared_lock lock(mutex_);
      if (!find_preferred(call)) measure = measure_;
    }
    if (measure) measure({drop_fusion(call.problem), call.device});
    return measure != nullptr;
  }

  void note_call(const ConvProblem& problem, int device) {
    const Call call{drop_fusion(problem), device};
    if (calls_.size() >= kCapacity) return;
    if (std::find(calls_.begin(), calls_.end(), call) == calls_.end()) calls_.push_back(call);
  }

  std::shared_mutex mutex_;
  std::unordered_map<Key, std::shared_ptr<const Plan>, KeyHash, KeyEqual> plans_;
  std::unordered_map<Call, std::string, CallHash> preferred_;  // algorithms
  std::vector<Call> calls_;
  bool recording_ = false;
  Measure measure_ = nullptr;
};

}  // namespace convx
