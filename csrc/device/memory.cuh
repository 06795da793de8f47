// Loads and stores whose width the compiler must not choose: shared memory by 32-bit address, as
// wgmma and bulk copies use it, and 8 and 16 bytes of global memory.
#pragma once

#include <cstdint>

namespace convx {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void store_16_bytes(uint32_t address, const uint32_t (&words)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"r"(address), "r"(words[0]),
               "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}

__device__ __forceinline__ void load_16_bytes(uint32_t address, uint32_t (&words)[4]) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address));
}

__device__ __forceinline__ void load_8_bytes(uint32_t address, uint32_t (&words)[2]) {
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];\n"
               : "=r"(words[0]), "=r"(words[1])
               : "r"(address));
}

__device__ __forceinline__ void store_8_bytes(uint32_t address, uint32_t first, uint32_t second) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};\n" ::"r"(address), "r"(first), "r"(second)
               : "memory");
}

__device__ __forceinline__ void store_pair(uint32_t address, float first, float second) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};\n" ::"r"(address), "f"(first), "f"(second)
               : "memory");
}

// ldmatrix and stmatrix: four 8 x 8 matrices of 16-bit values, or 8 x 4 of 32-bit values (sm_75
// loads, sm_90 stores). Lane l holds columns 2(l%4) and the next of row l/4 of each matrix, and
// passes the address of row l%8 of matrix l/8, 16 bytes.
__device__ __forceinline__ void load_matrices(uint32_t address, uint32_t (&words)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}
// Transposed: lane l holds rows 2(l%4) and the next of column l/4 of each matrix.
__device__ __forceinline__ void load_transposed_matrices(uint32_t address, uint32_t (&words)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void store_matrices(uint32_t address, const uint32_t (&words)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(address),
               "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}

// Transposed: lane l holds rows 2(l%4) and the next of column l/4 of each matrix.
__device__ __forceinline__ void store_transposed_matrices(uint32_t address,
                                                          const uint32_t (&words)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(address),
      "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
      : "memory");
}

template <typename T>
__device__ __forceinline__ T load_element(uint32_t address) {
  static_assert(sizeof(T) == 8 || sizeof(T) == 4 || sizeof(T) == 2);
  if constexpr (sizeof(T) == 8) {
    uint32_t words[2];
    load_8_bytes(address, words);
    return {words[0], words[1]};
  } else if constexpr (sizeof(T) == 4) {
    uint32_t bits;
    asm volatile("ld.shared.b32 %0, [%1];\n" : "=r"(bits) : "r"(address));
    return reinterpret_cast<const T&>(bits);
  } else {
    uint16_t bits;
    asm volatile("ld.shared.u16 %0, [%1];\n" : "=h"(bits) : "r"(address));
    return reinterpret_cast<const T&>(bits);
  }
}

__device__ __forceinline__ uint32_t load_word(uint32_t address) {
  uint32_t word;
  asm volatile("ld.shared.b32 %0, [%1];\n" : "=r"(word) : "r"(address));
  return word;
}
// Returns 16 bits in the lower half of a word.
__device__ __forceinline__ uint32_t load_half_word(uint32_t address) {
  uint32_t word;
  asm volatile("ld.shared.u16 %0, [%1];\n" : "=r"(word) : "r"(address));
  return word;
}

__device__ __forceinline__ void store_word(uint32_t address, uint32_t word) {
  asm volatile("st.shared.b32 [%0], %1;\n" ::"r"(address), "r"(word) : "memory");
}

__device__ __forceinline__ void store_element(uint32_t address, float value) {
  asm volatile("st.shared.f32 [%0], %1;\n" ::"r"(address), "f"(value) : "memory");
}
__device__ __forceinline__ void store_element(uint32_t address, uint16_t value) {
  asm volatile("st.shared.u16 [%0], %1;\n" ::"r"(address), "h"(value) : "memory");
}

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
