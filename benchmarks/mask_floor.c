/* The bare AES-128-CTR keystream of many keys, as the compiled paths of lightdp.stream make it and without any use of it: the floor
 * under drawn noise. x86-64 alone; benchmarks/drawn.py compiles and calls it. Round keys are arbitrary: time does not depend on them.
 */
#include <immintrin.h>
#include <stdint.h>

#define FLOOR(name, features, BLOCK, LOAD, ADD, XOR, ROUND, LAST, STORE) \
    __attribute__((target(features))) uint64_t name(const __m128i *keys, uint64_t n, uint64_t bytes) \
    { \
        BLOCK all = {0}, counter = {0}; \
        uint64_t out[8]; \
        for (uint64_t done = 0; done < bytes; done += 8 * sizeof(BLOCK), counter = ADD(counter, LOAD(keys))) \
            for (uint64_t j = 0; j < n; j++) { \
                BLOCK x[8]; \
                for (int i = 0; i < 8; i++) x[i] = XOR(counter, LOAD(keys + 11 * j + i)); \
                _Pragma("GCC unroll 9") for (int r = 1; r < 10; r++) \
                    _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++) x[i] = ROUND(x[i], LOAD(keys + 11 * j + r)); \
                _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++) all = XOR(all, LAST(x[i], LOAD(keys + 11 * j + 10))); \
            } \
        STORE((void *)out, all); \
        return out[0]; \
    }
#define LOAD_128(p) _mm_load_si128(p)
#define LOAD_256(p) _mm256_broadcastsi128_si256(*(p))
#define LOAD_512(p) _mm512_broadcast_i32x4(*(p))

FLOOR(aesni, "aes,avx2", __m128i, LOAD_128, _mm_add_epi64, _mm_xor_si128, _mm_aesenc_si128, _mm_aesenclast_si128, _mm_storeu_si128)
FLOOR(vaes, "vaes,avx2", __m256i, LOAD_256, _mm256_add_epi64, _mm256_xor_si256, _mm256_aesenc_epi128, _mm256_aesenclast_epi128,
      _mm256_storeu_si256)
FLOOR(vaes512, "vaes,avx512f", __m512i, LOAD_512, _mm512_add_epi64, _mm512_xor_si512, _mm512_aesenc_epi128, _mm512_aesenclast_epi128,
      _mm512_storeu_si512)
