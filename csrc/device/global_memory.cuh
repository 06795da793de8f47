// Global memory by the widest instructions there are.
#pragma once

#include <cstdint>

namespace convx {

// Written out because the compiler makes four stores of it where the words come from registers.
__device__ __forceinline__ void store_global_16_bytes(void* to, const uint4& words) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"l"(to), "r"(words.x), "r"(words.y),
               "r"(words.z), "r"(words.w)
               : "memory");
}

}  // namespace convx
