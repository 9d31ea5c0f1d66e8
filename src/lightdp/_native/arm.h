/* From a key to samples on ARMv8 in 64-bit mode, little-endian: NEON and the AES instructions. */
#include <arm_neon.h>
#ifdef __linux__
#include <sys/auxv.h>
#endif

typedef float v4f __attribute__((vector_size(16), may_alias));
typedef int32_t v4i __attribute__((vector_size(16), may_alias));
typedef uint32_t v4u __attribute__((vector_size(16), may_alias));
typedef uint16_t v4h __attribute__((vector_size(8), may_alias));

#if defined(__ARM_FEATURE_AES) || defined(__ARM_FEATURE_CRYPTO)
#define WITH_AES                      /* the compiler may use it everywhere */
#elif defined(__clang__)
#define WITH_AES __attribute__((target("aes")))
#else
#define WITH_AES __attribute__((target("+crypto")))
#endif
#define SETTLE

typedef uint64_t Rounding;

static Rounding rounding_to_nearest(void)
{
    Rounding before;
    __asm__ volatile("mrs %0, fpcr" : "=r"(before) : : "memory");
    __asm__ volatile("msr fpcr, %0" : : "r"((Rounding)0) : "memory");  /* to nearest, no flushing, no traps */
    return before;
}

static void rounding_restore(Rounding before)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(before) : "memory");
}

/* the S-box on each byte of a word: an AES round on four equal columns, which shifting rows does not change */
WITH_AES static inline uint32_t substituted(uint32_t word)
{
    return vgetq_lane_u32(vreinterpretq_u32_u8(vaeseq_u8(vreinterpretq_u8_u32(vdupq_n_u32(word)), vdupq_n_u8(0))), 0);
}

WITH_AES static void expand(Term *term, const unsigned char *key)
{
    uint32_t w[4 * (ROUNDS + 1)], other[4];
    memcpy(w, key, 16);
    memcpy(other, key + 16, 16);
    for (int i = 4, rcon = 1; i < 4 * (ROUNDS + 1); i++) {
        uint32_t word = w[i - 1];
        if (i % 4 == 0) word = substituted(word >> 8 | word << 24) ^ (uint32_t)rcon, rcon = rcon << 1 ^ (rcon >> 7) * 0x11b;
        w[i] = w[i - 4] ^ word;
    }
    for (int i = 0; i < 4; i++) w[i] ^= other[i];
    memcpy(term->round, w, sizeof(w));
    wipe(w, sizeof(w));
    wipe(other, sizeof(other));
}

#define NAME(name) name##_armv8
#define TARGET WITH_AES
#define WIDTH 4
#define FLOATS v4f
#define INTS v4i
#define WORDS v4u
#define HALVES v4h
#define FLOAT(v) ((v4f)vcvtq_f32_s32((int32x4_t)(v)))
#define ROOT(v) vsqrtq_f32((float32x4_t)(v))
#define BLOCK uint8x16_t
#define VECTORS 2
#define CHAINS 5
#define KEY(bytes) vld1q_u8(bytes)
#define COUNTER(n) vreinterpretq_u8_u64(vcombine_u64(vcreate_u64(n), vcreate_u64(0)))
#define NEXT(counter) vreinterpretq_u8_u64(vaddq_u64(vreinterpretq_u64_u8(counter), vcombine_u64(vcreate_u64(1), vcreate_u64(0))))
#define START(x) (x)                   /* an AES instruction begins with the key of the round before */
#define ROUND(x, r) vaesmcq_u8(vaeseq_u8(x, key[(r) - 1]))
#define END(x) veorq_u8(vaeseq_u8(x, key[ROUNDS - 1]), key[ROUNDS])
#define BYTES uint8x16_t
#define WIDE uint16x8_t
#define PIECES 2
#define JOIN(x) ((x)[0])
#define TABLE(entries) vld1q_u8((const uint8_t *)(entries))
#define LOOK(table, v) vqtbl1q_u8(table, v)
#define PICK(v, a, b, c) vbslq_u8(vceqq_u8((a) & (b), vdupq_n_u8(255)), (c) ^ 128, v)
#include "draw.h"
#include "pass.h"

static int supports(const char *backend)
{
    if (strcmp(backend, "armv8")) return 0;
#ifdef __linux__
    return (getauxval(AT_HWCAP) & (1 << 3)) != 0;  /* HWCAP_AES */
#elif defined(__APPLE__) || defined(__ARM_FEATURE_AES) || defined(__ARM_FEATURE_CRYPTO)
    return 1;
#else
    return 0;
#endif
}

static const Path PATHS[] = {{"armv8", pass_armv8, draw_armv8}, {NULL, NULL, NULL}};
