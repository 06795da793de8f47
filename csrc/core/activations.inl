// The activations' formulas. Whoever computes them includes this file inside a namespace of its
// own: functions from a header would be compiled for the baseline instruction set, and wider ones
// could not be inlined into them. It includes <cmath> and core/epilogue.h before.

#ifdef __CUDACC__
#define CONVX_ACTIVATION __host__ __device__ __forceinline__
#else
#define CONVX_ACTIVATION inline __attribute__((always_inline))
#endif

// The functions of the C++ and CUDA math libraries.
struct LibraryMath {
  template <typename Acc>
  static CONVX_ACTIVATION Acc exp(Acc v) {
    if constexpr (sizeof(Acc) == 4) return ::expf(v);
    return ::exp(v);
  }
  template <typename Acc>
  static CONVX_ACTIVATION Acc tanh(Acc v) {
    if constexpr (sizeof(Acc) == 4) return ::tanhf(v);
    return ::tanh(v);
  }
  template <typename Acc>
  static CONVX_ACTIVATION Acc erf(Acc v) {
    if constexpr (sizeof(Acc) == 4) return ::erff(v);
    return ::erf(v);
  }
  // On GPUs, float32 values are divided without the subroutine that subnormal quotients need.
  template <typename Acc>
  static CONVX_ACTIVATION Acc divide(Acc a, Acc b) {
#ifdef __CUDA_ARCH__
    if constexpr (sizeof(Acc) == 4) return ::__fdividef(a, b);
#endif
    return a / b;
  }
};

// NaN stays NaN.
template <typename Acc>
CONVX_ACTIVATION Acc clamp_value(Acc v, Acc low, Acc high) {
  return v < low ? low : v > high ? high : v;
}

// PyTorch's definitions. Math: LibraryMath, or a class with the same functions.
template <Activation kActivation, typename Math, typename Acc>
CONVX_ACTIVATION Acc activate(Acc v, Acc slope) {
  using enum Activation;
  [[maybe_unused]] constexpr Acc kSixth = Acc(1) / 6;
  if constexpr (kActivation == kRelu) return v < 0 ? Acc(0) : v;
  if constexpr (kActivation == kRelu6) return clamp_value<Acc>(v, 0, 6);
  if constexpr (kActivation == kLeakyRelu) return v > 0 ? v : v * slope;
  if constexpr (kActivation == kSilu) return Math::template divide<Acc>(v, 1 + Math::exp(-v));
  if constexpr (kActivation == kGelu) {
    constexpr Acc kSqrtHalf = Acc(0.70710678118654752440);
    return v * Acc(0.5) * (1 + Math::erf(v * kSqrtHalf));
  }
  if constexpr (kActivation == kGeluTanh) {  // (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u))
    constexpr Acc kTwiceSqrtTwoByPi = Acc(1.59576912160573071176);
    const Acc u = kTwiceSqrtTwoByPi * (v + Acc(0.044715) * v * v * v);
    return Math::template divide<Acc>(v, 1 + Math::exp(-u));
  }
  if constexpr (kActivation == kSigmoid) return Math::template divide<Acc>(1, 1 + Math::exp(-v));
  if constexpr (kActivation == kTanh) return Math::tanh(v);
  if constexpr (kActivation == kHardswish) return v * clamp_value<Acc>(v + 3, 0, 6) * kSixth;
  if constexpr (kActivation == kHardsigmoid) return clamp_value<Acc>(v + 3, 0, 6) * kSixth;
  if constexpr (kActivation == kMish) {  // tanh(log(1 + e)) = n / (n + 2) with n = e (e + 2)
    const Acc e = Math::exp(clamp_value<Acc>(v, -1000, 20));
    const Acc n = e * (e + 2);
    return v > 20 ? v : v * Math::template divide<Acc>(n, n + 2);
  }
  return v;
}

// Calls visit.operator()<kActivation>() for the activation.
template <typename Visit>
CONVX_ACTIVATION void visit_activation(Activation activation, const Visit& visit) {
  using enum Activation;
  switch (activation) {
    case kNone:
      return visit.template operator()<kNone>();
    case kRelu:
      return visit.template operator()<kRelu>();
    case kRelu6:
      return visit.template operator()<kRelu6>();
    case kLeakyRelu:
      return visit.template operator()<kLeakyRelu>();
    case kSilu:
      return visit.template operator()<kSilu>();
    case kGelu:
      return visit.template operator()<kGelu>();
    case kGeluTanh:
      return visit.template operator()<kGeluTanh>();
    case kSigmoid:
      return visit.template operator()<kSigmoid>();
    case kTanh:
      return visit.template operator()<kTanh>();
    case kHardswish:
      return visit.template operator()<kHardswish>();
    case kHardsigmoid:
      return visit.template operator()<kHardsigmoid>();
    case kMish:
      return visit.template operator()<kMish>();
  }
}

#undef CONVX_ACTIVATION
