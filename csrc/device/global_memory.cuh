// Global memory by the widest instructions there are.
#pragma once

#include <cstdint>

namespace convx {

// Written out because the compiler makes four stores of it where the words come from registers.
__device__ __forceinline__ void store_global_16_bytes(void* to, const uint32_t (&words)[4]) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"l"(to), "r"(words[0]), "r"(words[1]),
               "r"(words[2]), "r"(words[3])
               : "memory");
}
// What is not read again soon: the caches give it up first.
__device__ __forceinline__ void stream_16_bytes(void* to, const uint32_t (&words)[4]) {
  asm volatile("st.global.cs.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"l"(to), "r"(words[0]),
               "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}

}  // namespace convx
