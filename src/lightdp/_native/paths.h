/* From a key to samples, for each kind of processor: AES-256-CTR -> Box-Muller -> integers, a tile at a time.
 *
 * lightdp/stream.py specifies the samples. A pass turns one keystream into samples and makes the next keystream: where the
 * two use different units of the processor, they run side by side.
 */
#include <immintrin.h>
#include <stdint.h>

#define TILE 1024                     /* samples; two keystreams (6 KiB each) and the sums stay in L1 */
#define PAIRS (TILE / 2)
#define BLOCKS (TILE * 6 / 16)        /* AES blocks a tile */
#define ROUNDS 14                     /* AES-256 */

typedef float v8f __attribute__((vector_size(32), may_alias));
typedef int32_t v8i __attribute__((vector_size(32), may_alias));
typedef uint32_t v8u __attribute__((vector_size(32), may_alias));
typedef float v16f __attribute__((vector_size(64), may_alias));
typedef int32_t v16i __attribute__((vector_size(64), may_alias));
typedef uint32_t v16u __attribute__((vector_size(64), may_alias));

typedef struct {
    __m128i round[ROUNDS + 1];
    float scale;                      /* |sigma| * 2^15 */
    int32_t sum;                      /* the one to which its samples are added */
} Term;

typedef union {
    v16u wider[BLOCKS / 4];           /* as __m512i, which needs a target */
    v8u wide[BLOCKS / 2];
    __m128i block[BLOCKS];
    uint32_t word[3][PAIRS];
} Stream;

/* add to sum the samples of `in`, and fill `out` with the keystream of a term's tile */
typedef void Pass(uint32_t *sum, const Stream *in, float scale, Stream *out, const Term *next, uint64_t tile);

/* ---- AES-256 (FIPS 197), counter mode, 128-bit big-endian counter that starts at zero ---- */

__attribute__((target("aes,avx2"))) static inline __m128i mix(__m128i key, __m128i word)
{
    key = _mm_xor_si128(key, _mm_slli_si128(key, 4));
    key = _mm_xor_si128(key, _mm_slli_si128(key, 8));
    return _mm_xor_si128(key, word);
}

#define EVEN(i, rcon) k[i] = mix(k[i - 2], _mm_shuffle_epi32(_mm_aeskeygenassist_si128(k[i - 1], rcon), 0xff))
#define ODD(i) k[i] = mix(k[i - 2], _mm_shuffle_epi32(_mm_aeskeygenassist_si128(k[i - 1], 0), 0xaa))

__attribute__((target("aes,avx2"))) static void expand(__m128i *k, const unsigned char *key)
{
    k[0] = _mm_loadu_si128((const __m128i *)key);
    k[1] = _mm_loadu_si128((const __m128i *)(key + 16));
    EVEN(2, 0x01), ODD(3), EVEN(4, 0x02), ODD(5), EVEN(6, 0x04), ODD(7), EVEN(8, 0x08), ODD(9);
    EVEN(10, 0x10), ODD(11), EVEN(12, 0x20), ODD(13), EVEN(14, 0x40);
}

#define SWAP _mm_set_epi64x(0x0001020304050607, 0x08090a0b0c0d0e0f)

__attribute__((target("aes,avx2"))) static void keystream_aesni(Stream *out, const Term *term, uint64_t tile)
{
    __m128i counter = _mm_set_epi64x(0, (int64_t)(tile * BLOCKS));
    for (int i = 0; i < BLOCKS; i += 8) {
        __m128i x[8];
        for (int j = 0; j < 8; j++) {
            x[j] = _mm_xor_si128(_mm_shuffle_epi8(counter, SWAP), term->round[0]);
            counter = _mm_add_epi64(counter, _mm_set_epi64x(0, 1));
        }
        for (int r = 1; r < ROUNDS; r++)
            for (int j = 0; j < 8; j++) x[j] = _mm_aesenc_si128(x[j], term->round[r]);
        for (int j = 0; j < 8; j++) out->block[i + j] = _mm_aesenclast_si128(x[j], term->round[ROUNDS]);
    }
}

__attribute__((target("vaes,avx2"))) static void keystream_vaes(Stream *out, const Term *term, uint64_t tile)
{
    const int64_t n = (int64_t)(tile * BLOCKS);
    __m256i key[ROUNDS + 1], counter = _mm256_set_epi64x(0, n + 1, 0, n);
    for (int r = 0; r <= ROUNDS; r++) key[r] = _mm256_broadcastsi128_si256(term->round[r]);
    for (int i = 0; i < BLOCKS / 2; i += 8) {
        __m256i x[8];
        for (int j = 0; j < 8; j++) {
            x[j] = _mm256_xor_si256(_mm256_shuffle_epi8(counter, _mm256_broadcastsi128_si256(SWAP)), key[0]);
            counter = _mm256_add_epi64(counter, _mm256_set_epi64x(0, 2, 0, 2));
        }
        for (int r = 1; r < ROUNDS; r++)
            for (int j = 0; j < 8; j++) x[j] = _mm256_aesenc_epi128(x[j], key[r]);
        for (int j = 0; j < 8; j++) out->wide[i + j] = (v8u)_mm256_aesenclast_epi128(x[j], key[ROUNDS]);
    }
}

/* ---- three words -> two samples (Box-Muller), for vectors of any width ---- */

/* u = U 2^-62 in (0, 1], U = 2^(62 + e) m with m in [sqrt(1/2), sqrt(2)); square = -2 ln u = -2 e ln 2 - 4 artanh(w) */
#define UNIFORM(a, b) (FLOAT((a) & 0x7fffffffu) * 0x1p31f + FLOAT(((b) & 0x7fffffffu) | 1))
#define CUT 0x5e3504f3
#define EXPONENT(bits) FLOAT((bits) & ~0x7fffff)
#define MANTISSA(bits) (((bits) & 0x7fffff) + 0x3f3504f3)
#define SQUARE(e, w, v) ((e) * -0x1.62e430p-23f - (((v) * 0x1.a6e112p-1f + 0x1.554262p+0f) * (v) + 0x1.000002p+2f) * (w))

/* a quarter turn to each side, by doubling an eighth; the top bit turns by a half */
#define ANGLE(c) (FLOAT((c) + (c)) * 0x1p-32f)
#define S(x, y) (((((y) * -0x1.af30fcp-8f + 0x1.cdabb0p-4f) * (y) - 0x1.d3ba9cp-1f) * (y) + 0x1.1c5832p+1f) * (x))
#define K(y) ((((y) * -0x1.d8dc86p-6f + 0x1.6f402cp-2f) * (y) - 0x1.bea566p+0f) * (y) + 0x1.6a09e6p+0f)
#define SAMPLE(z) ((RINT(z) + 0x4000) >> 15)

#define FLOAT(v) ((v8f)_mm256_cvtepi32_ps((__m256i)(v)))          /* nearest, ties to even, as RINT */
#define RINT(v) ((v8i)_mm256_cvtps_epi32((__m256)(v)))

__attribute__((target("avx2"))) static void gauss(uint32_t *sum, const Stream *in, float scale)
{
    for (int i = 0; i < PAIRS; i += 8) {
        const v8u a = *(const v8u *)&in->word[0][i], b = *(const v8u *)&in->word[1][i], c = *(const v8u *)&in->word[2][i];
        const v8i bits = (v8i)UNIFORM(a, b) - CUT;
        const v8f m = (v8f)MANTISSA(bits), w = (m - 1.0f) / (m + 1.0f), v = w * w;
        const v8f radius = (v8f)_mm256_sqrt_ps((__m256)SQUARE(EXPONENT(bits), w, v)) * scale;
        const v8f turned = (v8f)((v8u)radius ^ (c & 0x80000000u));
        const v8f x = ANGLE(c), y = x * x, s = S(x, y), k = K(y);
        *(v8u *)&sum[i] += (v8u)SAMPLE(turned * (s * k));
        *(v8u *)&sum[i + PAIRS] += (v8u)SAMPLE(turned * (1.0f - s * s));
    }
}

__attribute__((target("aes,avx2")))
static void pass_aesni(uint32_t *sum, const Stream *in, float scale, Stream *out, const Term *next, uint64_t tile)
{
    gauss(sum, in, scale);
    keystream_aesni(out, next, tile);
}

__attribute__((target("vaes,avx2")))
static void pass_vaes(uint32_t *sum, const Stream *in, float scale, Stream *out, const Term *next, uint64_t tile)
{
    gauss(sum, in, scale);
    keystream_vaes(out, next, tile);
}

#undef FLOAT
#undef RINT
#define FLOAT(v) ((v16f)_mm512_cvtepi32_ps((__m512i)(v)))
#define RINT(v) ((v16i)_mm512_cvtps_epi32((__m512)(v)))
#define AES(r) for (int j = 0; j < 6; j++) block[j] = _mm512_aesenc_epi128(block[j], key[r])
#define BOTH for (int h = 0; h < 2; h++)

/* 24 blocks and 32 pairs at a time. AES has one port here and Box-Muller mostly another: in this order both are busy. */
__attribute__((target("vaes,avx512f,avx512bw")))
static void pass_vaes512(uint32_t *sum, const Stream *in, float scale, Stream *out, const Term *next, uint64_t tile)
{
    const int64_t n = (int64_t)(tile * BLOCKS);
    __m512i key[ROUNDS + 1], counter = _mm512_set_epi64(0, n + 3, 0, n + 2, 0, n + 1, 0, n);
    for (int r = 0; r <= ROUNDS; r++) key[r] = _mm512_broadcast_i32x4(next->round[r]);
    for (int i = 0; i < PAIRS; i += 32) {
        __m512i block[6];
        v16u c[2];
        v16i bits[2];
        v16f w[2], turned[2], x[2], s[2], k[2];
        for (int j = 0; j < 6; j++) {
            block[j] = _mm512_xor_si512(_mm512_shuffle_epi8(counter, _mm512_broadcast_i32x4(SWAP)), key[0]);
            counter = _mm512_add_epi64(counter, _mm512_set_epi64(0, 4, 0, 4, 0, 4, 0, 4));
        }
        AES(1);
        BOTH bits[h] = (v16i)UNIFORM(*(const v16u *)&in->word[0][i + 16 * h], *(const v16u *)&in->word[1][i + 16 * h]) - CUT;
        AES(2);
        AES(3);
        BOTH w[h] = ((v16f)MANTISSA(bits[h]) - 1.0f) / ((v16f)MANTISSA(bits[h]) + 1.0f);
        AES(4);
        BOTH c[h] = *(const v16u *)&in->word[2][i + 16 * h], x[h] = ANGLE(c[h]);
        AES(5);
        BOTH s[h] = S(x[h], x[h] * x[h]);
        AES(6);
        AES(7);
        BOTH k[h] = K(x[h] * x[h]);
        AES(8);
        BOTH turned[h] = (v16f)_mm512_sqrt_ps((__m512)SQUARE(EXPONENT(bits[h]), w[h], w[h] * w[h])) * scale;
        AES(9);
        AES(10);
        BOTH k[h] = s[h] * k[h], s[h] = 1.0f - s[h] * s[h];
        AES(11);
        BOTH turned[h] = (v16f)((v16u)turned[h] ^ (c[h] & 0x80000000u));
        BOTH *(v16u *)&sum[i + 16 * h] += (v16u)SAMPLE(turned[h] * k[h]);
        AES(12);
        AES(13);
        BOTH *(v16u *)&sum[i + 16 * h + PAIRS] += (v16u)SAMPLE(turned[h] * s[h]);
        for (int j = 0; j < 6; j++)
            out->wider[i / 32 * 6 + j] = (v16u)_mm512_aesenclast_epi128(block[j], key[ROUNDS]);
    }
}
