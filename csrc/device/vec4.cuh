// Four neighbouring values, loaded and stored in units of 16 bytes.
#pragma once

namespace convx {

template <typename Acc>
struct alignas(16) Vec4 {
  Acc v[4];
};

template <typename Acc>
__device__ __forceinline__ void load_vec4(Acc (&to)[4], const Acc* from) {
  const Vec4<Acc> vector = *reinterpret_cast<const Vec4<Acc>*>(from);
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i] = vector.v[i];
}

template <typename Acc>
__device__ __forceinline__ void store_vec4(Acc* to, const Acc* from) {
  Vec4<Acc> vector;
#pragma unroll
  for (int i = 0; i < 4; ++i) vector.v[i] = from[i];
  *reinterpret_cast<Vec4<Acc>*>(to) = vector;
}

}  // namespace convx
