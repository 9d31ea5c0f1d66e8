/* From a key to samples on x86-64: AES-NI with AVX2, VAES with AVX2, VAES with AVX-512. */
#include <cpuid.h>
#include <immintrin.h>

typedef float v8f __attribute__((vector_size(32), may_alias));
typedef int32_t v8i __attribute__((vector_size(32), may_alias));
typedef uint32_t v8u __attribute__((vector_size(32), may_alias));
typedef uint16_t v8h __attribute__((vector_size(16), may_alias));
typedef float v16f __attribute__((vector_size(64), may_alias));
typedef int32_t v16i __attribute__((vector_size(64), may_alias));
typedef uint32_t v16u __attribute__((vector_size(64), may_alias));
typedef uint16_t v16h __attribute__((vector_size(32), may_alias));
typedef uint16_t v32h __attribute__((vector_size(64), may_alias));
typedef uint8_t v32b __attribute__((vector_size(32), may_alias));
typedef uint8_t v64b __attribute__((vector_size(64), may_alias));

#define WITH(features) __attribute__((target(features)))
#define SETTLE WITH("avx2")

typedef unsigned int Rounding;

static Rounding rounding_to_nearest(void)
{
    const Rounding before = _mm_getcsr();
    _mm_setcsr(0x1f80);               /* to nearest, no flushing, no traps */
    return before;
}

static void rounding_restore(Rounding before)
{
    _mm_setcsr(before);
}

#define ROUND_KEY(i, rcon) k[i] = mixed(k[i - 1], _mm_shuffle_epi32(_mm_aeskeygenassist_si128(k[i - 1], rcon), 0xff))

WITH("aes,avx2") static inline __m128i mixed(__m128i key, __m128i word)
{
    key = _mm_xor_si128(key, _mm_slli_si128(key, 4));
    key = _mm_xor_si128(key, _mm_slli_si128(key, 8));
    return _mm_xor_si128(key, word);
}

WITH("aes,avx2") static void expand(Term *term, const unsigned char *key)
{
    __m128i *k = (__m128i *)term->round;
    k[0] = _mm_loadu_si128((const __m128i *)key);
    ROUND_KEY(1, 0x01), ROUND_KEY(2, 0x02), ROUND_KEY(3, 0x04), ROUND_KEY(4, 0x08), ROUND_KEY(5, 0x10);
    ROUND_KEY(6, 0x20), ROUND_KEY(7, 0x40), ROUND_KEY(8, 0x80), ROUND_KEY(9, 0x1b), ROUND_KEY(10, 0x36);
    k[0] = _mm_xor_si128(k[0], _mm_loadu_si128((const __m128i *)(key + 16)));
}

#define PICK_AVX2(v, a, b, c) \
    _mm256_blendv_epi8((__m256i)(v), (__m256i)((c) ^ 128), _mm256_cmpeq_epi8((__m256i)((a) & (b)), _mm256_set1_epi8(-1)))

#define NAME(name) name##_aesni
#define TARGET WITH("aes,avx2")
#define WIDTH 8
#define FLOATS v8f
#define INTS v8i
#define WORDS v8u
#define HALVES v8h
#define FLOAT(v) ((v8f)_mm256_cvtepi32_ps((__m256i)(v)))
#define ROOT(v) _mm256_sqrt_ps((__m256)(v))
#define BLOCK __m128i
#define VECTORS 1
#define CHAINS 5
#define KEY(bytes) _mm_load_si128((const __m128i *)(bytes))
#define COUNTER(n) _mm_set_epi64x(0, (int64_t)(n))
#define NEXT(counter) _mm_add_epi64(counter, _mm_set_epi64x(0, 1))
#define START(x) _mm_xor_si128(x, key[0])
#define ROUND(x, r) _mm_aesenc_si128(x, key[r])
#define END(x) _mm_aesenclast_si128(x, key[ROUNDS])
#define BYTES v32b
#define WIDE v16h
#define PIECES 2
#define JOIN(x) ((v32b)_mm256_inserti128_si256(_mm256_castsi128_si256((x)[0]), (x)[1], 1))
#define TABLE(entries) ((v32b)_mm256_broadcastsi128_si256(*(const __m128i *)(entries)))
#define LOOK(table, v) ((v32b)_mm256_shuffle_epi8((__m256i)(table), (__m256i)(v)))
#define PICK(v, a, b, c) PICK_AVX2(v, a, b, c)
#include "draw.h"
#include "pass.h"

#define NAME(name) name##_vaes
#define TARGET WITH("vaes,avx2")
#define WIDTH 8
#define FLOATS v8f
#define INTS v8i
#define WORDS v8u
#define HALVES v8h
#define FLOAT(v) ((v8f)_mm256_cvtepi32_ps((__m256i)(v)))
#define ROOT(v) _mm256_sqrt_ps((__m256)(v))
#define BLOCK __m256i
#define VECTORS 2
#define CHAINS 5
#define KEY(bytes) _mm256_broadcastsi128_si256(*(const __m128i *)(bytes))
#define COUNTER(n) _mm256_set_epi64x(0, (int64_t)(n) + 1, 0, (int64_t)(n))
#define NEXT(counter) _mm256_add_epi64(counter, _mm256_set_epi64x(0, 2, 0, 2))
#define START(x) _mm256_xor_si256(x, key[0])
#define ROUND(x, r) _mm256_aesenc_epi128(x, key[r])
#define END(x) _mm256_aesenclast_epi128(x, key[ROUNDS])
#define BYTES v32b
#define WIDE v16h
#define PIECES 4
#define JOIN(x) ((v32b)(x)[0])
#define TABLE(entries) ((v32b)_mm256_broadcastsi128_si256(*(const __m128i *)(entries)))
#define LOOK(table, v) ((v32b)_mm256_shuffle_epi8((__m256i)(table), (__m256i)(v)))
#define PICK(v, a, b, c) PICK_AVX2(v, a, b, c)
#include "draw.h"
#include "pass.h"

#define NAME(name) name##_vaes512
#define TARGET WITH("vaes,avx512f,avx512bw")
#define WIDTH 16
#define FLOATS v16f
#define INTS v16i
#define WORDS v16u
#define HALVES v16h
#define FLOAT(v) ((v16f)_mm512_cvtepi32_ps((__m512i)(v)))
#define ROOT(v) _mm512_sqrt_ps((__m512)(v))
#define BLOCK __m512i
#define VECTORS 2
#define CHAINS 5
#define KEY(bytes) _mm512_broadcast_i32x4(*(const __m128i *)(bytes))
#define COUNTER(n) _mm512_set_epi64(0, (int64_t)(n) + 3, 0, (int64_t)(n) + 2, 0, (int64_t)(n) + 1, 0, (int64_t)(n))
#define NEXT(counter) _mm512_add_epi64(counter, _mm512_set_epi64(0, 4, 0, 4, 0, 4, 0, 4))
#define START(x) _mm512_xor_si512(x, key[0])
#define ROUND(x, r) _mm512_aesenc_epi128(x, key[r])
#define END(x) _mm512_aesenclast_epi128(x, key[ROUNDS])
#define BYTES v64b
#define WIDE v32h
#define PIECES 4
#define JOIN(x) ((v64b)(x)[0])
#define TABLE(entries) ((v64b)_mm512_broadcast_i32x4(*(const __m128i *)(entries)))
#define LOOK(table, v) ((v64b)_mm512_shuffle_epi8((__m512i)(table), (__m512i)(v)))
#define PICK(v, a, b, c) \
    _mm512_mask_add_epi8((__m512i)(v), _mm512_cmpeq_epi8_mask((__m512i)((a) & (b)), _mm512_set1_epi8(-1)), (__m512i)(c), \
                         _mm512_set1_epi8(-128))
#include "draw.h"
#include "pass.h"

/* VAES, a name that not every compiler knows; asked once, as virtual machines take microseconds to answer */
static int has_vaes(void)
{
    static int known = -1;
    unsigned int a, b, c, d;
    if (known < 0) known = __get_cpuid_count(7, 0, &a, &b, &c, &d) && c >> 9 & 1;
    return known;
}

static int supports(const char *backend)
{
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("aes") || !__builtin_cpu_supports("avx2")) return 0;
    if (!strcmp(backend, "aesni")) return 1;
    if (!has_vaes()) return 0;
    if (!strcmp(backend, "vaes")) return 1;
    return !strcmp(backend, "vaes512") && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
}

static const Path PATHS[] = {
    {"vaes512", pass_vaes512, draw_vaes512}, {"vaes", pass_vaes, draw_vaes}, {"aesni", pass_aesni, draw_aesni}, {NULL, NULL, NULL},
};
