// 8- and 16-byte stores to global memory.
#pragma once

#include <cstdint>

namespace convx {

// Inline PTX, because the compiler would use a store for each word in registers.
__device__ __forceinline__ void store_global_8_bytes(void* to, uint32_t first, uint32_t second) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};\n" ::"l"(to), "r"(first), "r"(second) : "memory");
}
__device__ __forceinline__ void store_global_16_bytes(void* to, const uint32_t (&words)[4]) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"l"(to), "r"(words[0]), "r"(words[1]),
               "r"(words[2]), "r"(words[3])
               : "memory");
}
// For data that is not read again soon: caches evict it first.
__device__ __forceinline__ void stream_16_bytes(void* to, const uint32_t (&words)[4]) {
  asm volatile("st.global.cs.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"l"(to), "r"(words[0]),
               "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}

}  // namespace convx
