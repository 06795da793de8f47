// Chooses where the epilogue writes: the target, or the float32 partial sums of a split-K slice.
#pragma once

#include <type_traits>

namespace convx {

// Calls visit with one of them and the bias to add; partial sums get none.
template <typename Whole, typename Part, typename Bias, typename Visit>
__device__ __forceinline__ void visit_whole_or_part(bool is_part, const Whole& whole,
                                                    const Part& part, const Bias* bias,
                                                    const Visit& visit) {
  if constexpr (std::is_same_v<Whole, Part>) {  // one copy of the code for both
    Whole target = whole;
    if (is_part) target = part;
    visit(target, is_part ? nullptr : bias);
  } else if (is_part) {
    visit(part, static_cast<const Bias*>(nullptr));
  } else {
    visit(whole, bias);
  }
}

}  // namespace convx
