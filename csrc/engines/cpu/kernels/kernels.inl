// The kernels of one instruction set. Each cpu_kernels*.cpp includes this file inside its own
// namespace, which also defines kVectorBytes and the extents of the register tiles.

#if defined(__clang__)
#define CONVX_UNROLL _Pragma("clang loop unroll(full)")
#else
#define CONVX_UNROLL _Pragma("GCC unroll 16")
#endif

// Vec is a vector of Acc, Loose the same with the alignment of one element, and Mask the vector of
// integers of the same size.
template <typename Acc>
struct VectorTypes;
template <>
struct VectorTypes<float> {
  typedef float Vec __attribute__((vector_size(kVectorBytes)));
  typedef float Loose __attribute__((vector_size(kVectorBytes), aligned(4), may_alias));
  typedef int32_t Mask __attribute__((vector_size(kVectorBytes)));
};
template <>
struct VectorTypes<double> {
  typedef double Vec __attribute__((vector_size(kVectorBytes)));
  typedef double Loose __attribute__((vector_size(kVectorBytes), aligned(8), may_alias));
  typedef int64_t Mask __attribute__((vector_size(kVectorBytes)));
};

template <typename Acc>
constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(Acc));

// out = a[start], b[start], a[start + 1], b[start + 1], ...
template <typename Acc, int kStart, int... kLane>
inline __attribute__((always_inline)) void interleave(const typename VectorTypes<Acc>::Vec& a,
                                                      const typename VectorTypes<Acc>::Vec& b,
                                                      typename VectorTypes<Acc>::Vec& out,
                                                      std::integer_sequence<int, kLane...>) {
#if defined(__clang__)
  out = __builtin_shufflevector(a, b, (kStart + kLane / 2 + kLane % 2 * kLanes<Acc>)...);
#else
  using Mask = typename VectorTypes<Acc>::Mask;
  out = __builtin_shuffle(a, b, Mask{(kStart + kLane / 2 + kLane % 2 * kLanes<Acc>)...});
#endif
}

// Interleaving vector l with vector l + lanes / 2, log2(lanes) times, transposes a square.
template <typename Acc>
inline __attribute__((always_inline)) void transpose_square(
    typename VectorTypes<Acc>::Vec* square) {
  using Vec = typename VectorTypes<Acc>::Vec;
  constexpr int lanes = kLanes<Acc>;
  constexpr std::make_integer_sequence<int, lanes> order;
  CONVX_UNROLL
  for (int stage = 1; stage < lanes; stage *= 2) {
    Vec next[lanes];
    CONVX_UNROLL
    for (int l = 0; l < lanes / 2; ++l) {
      const Vec& other = square[l + lanes / 2];
      interleave<Acc, 0>(square[l], other, next[2 * l], order);
      interleave<Acc, lanes / 2>(square[l], other, next[2 * l + 1], order);
    }
    CONVX_UNROLL
    for (int l = 0; l < lanes; ++l) square[l] = next[l];
  }
}

#include "engines/cpu/kernels/finish_kernels.inl"
//
#include "engines/cpu/kernels/copy_kernels.inl"
#include "engines/cpu/kernels/depthwise_kernels.inl"
#include "engines/cpu/kernels/multiply_kernels.inl"
#include "engines/cpu/kernels/weight_kernels.inl"

template <typename T>
constexpr CpuKernels<accumulate_t<T>> make_kernels() {
  using Acc = accumulate_t<T>;
  return {kLanes<Acc>,
          {kRowsOfTwo, kRowsOfFour},
          {kDotColumnsOfOne, kDotColumnsOfTwo, kDotColumnsOfFour},
          kPanelVectors,
          {kRunPixelsOfOne, kRunPixelsOfTwo, kRunPixelsOfPanel},
          {kPixelRowsOfOne, kPixelRowsOfTwo, kPixelRowsOfPanel},
          load_rows<T>,
          store_tile<T>,
          pack_panel<Acc>,
          multiply_tile<Acc>,
          multiply_run<Acc>,
          multiply_plane<Acc>,
          dot_tile<Acc>,
          transpose<Acc>,
          multiply_pixels<Acc>,
          gather_channels<T>,
          dot_channels<T>};
}

constexpr CpuKernelTable kTable = {kVectorBytes, make_kernels<float>(), make_kernels<Half>(),
                                   make_kernels<BFloat16>(), make_kernels<double>()};

#undef CONVX_UNROLL
