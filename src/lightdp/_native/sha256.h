/* SHA-256 (FIPS 180-4) for lightdp.keys: of trees (tree.h), and in stream keys: HKDF-Expand (RFC 5869) of one block, that is
 * HMAC-SHA256 (RFC 2104), for many keys.
 *
 * Time: no table, index or branch depends on a key; sizes are public. What was derived from keys is wiped from the stack.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define SHA_BLOCK 64
#define SHA_BYTES 32
#define RECORD 40                     /* a key of 32 bytes, and the 8 bytes that end its info */
#define PREFIX_MAX 160                /* bytes of info that all keys share */

typedef void Compress(uint32_t state[8], const uint8_t *block);

static const uint32_t SHA_START[8] = {
    0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
};

static const uint32_t SHA_K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

/* ---- one block, on any processor ---- */

#define ROTATED(x, n) ((x) >> (n) | (x) << (32 - (n)))
#define LATER(x, y) ((ROTATED(x, 7) ^ ROTATED(x, 18) ^ (x) >> 3) + (ROTATED(y, 17) ^ ROTATED(y, 19) ^ (y) >> 10))
/* a step that leaves the new values in d and h, so that the next one sees them one place further; w is a ring of 16 words */
#define STEP(a, b, c, d, e, f, g, h, t) \
    h += (ROTATED(e, 6) ^ ROTATED(e, 11) ^ ROTATED(e, 25)) + ((e & f) ^ (~e & g)) + SHA_K[t] + w[(t) % 16]; \
    d += h; \
    h += (ROTATED(a, 2) ^ ROTATED(a, 13) ^ ROTATED(a, 22)) + ((a & b) ^ (a & c) ^ (b & c)); \
    w[(t) % 16] += w[((t) + 9) % 16] + LATER(w[((t) + 1) % 16], w[((t) + 14) % 16]);

static void compress_plain(uint32_t state[8], const uint8_t *block)
{
    uint32_t w[16];
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3], e = state[4], f = state[5], g = state[6], h = state[7];
    for (int t = 0; t < 16; t++)
        w[t] = (uint32_t)block[4 * t] << 24 | (uint32_t)block[4 * t + 1] << 16 | (uint32_t)block[4 * t + 2] << 8 | block[4 * t + 3];
    for (int t = 0; t < 64; t += 8) {
        STEP(a, b, c, d, e, f, g, h, t) STEP(h, a, b, c, d, e, f, g, t + 1)
        STEP(g, h, a, b, c, d, e, f, t + 2) STEP(f, g, h, a, b, c, d, e, t + 3)
        STEP(e, f, g, h, a, b, c, d, t + 4) STEP(d, e, f, g, h, a, b, c, t + 5)
        STEP(c, d, e, f, g, h, a, b, t + 6) STEP(b, c, d, e, f, g, h, a, t + 7)
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d, state[4] += e, state[5] += f, state[6] += g, state[7] += h;
}

/* ---- and with the instructions of x86 for it ---- */

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#include <immintrin.h>
#define HAS_SHANI 1

__attribute__((target("sha,sse4.1,ssse3")))
static void compress_shani(uint32_t state[8], const uint8_t *block)
{
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    const __m128i low = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)state), 0xb1);
    const __m128i high = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(state + 4)), 0x1b);
    const __m128i start0 = _mm_alignr_epi8(low, high, 8), start1 = _mm_blend_epi16(high, low, 0xf0);  /* a b e f, c d g h */
    __m128i s0 = start0, s1 = start1, w[16], first, second;
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        if (i < 4) w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(block + 16 * i)), swap);
        else {
            const __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(w[i - 4], w[i - 3]), _mm_alignr_epi8(w[i - 1], w[i - 2], 4));
            w[i] = _mm_sha256msg2_epu32(sum, w[i - 1]);
        }
        const __m128i words = _mm_add_epi32(w[i], _mm_loadu_si128((const __m128i *)(SHA_K + 4 * i)));
        s1 = _mm_sha256rnds2_epu32(s1, s0, words);
        s0 = _mm_sha256rnds2_epu32(s0, s1, _mm_shuffle_epi32(words, 0x0e));
    }
    first = _mm_shuffle_epi32(_mm_add_epi32(s0, start0), 0x1b);   /* f e b a -> a b e f in memory order */
    second = _mm_shuffle_epi32(_mm_add_epi32(s1, start1), 0xb1);
    _mm_storeu_si128((__m128i *)state, _mm_blend_epi16(first, second, 0xf0));
    _mm_storeu_si128((__m128i *)(state + 4), _mm_alignr_epi8(second, first, 8));
}
#endif

/* the way of this name, or NULL if this machine has none */
static Compress *compressing(const char *way)
{
#ifdef HAS_SHANI
    if (!strcmp(way, "shani")) {
        static int known = -1;                         /* asking takes microseconds on a virtual machine */
        unsigned int a, b = 0, c, d;
        if (known < 0) {
            __builtin_cpu_init();
            known = __get_cpuid_count(7, 0, &a, &b, &c, &d) && b >> 29 & 1 && __builtin_cpu_supports("sse4.1");
        }
        return known ? compress_shani : NULL;
    }
#endif
    return strcmp(way, "plain") ? NULL : compress_plain;
}

/* ---- SHA-256 of bytes that are public ---- */

static void put_words(uint8_t *out, const uint32_t state[8])
{
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 4; j++) out[4 * i + j] = (uint8_t)(state[i] >> (24 - 8 * j));
}

/* the padding of a message that ends with `length` bytes after `before` others; returns how many blocks the former fill */
static size_t padded(uint8_t *blocks, size_t length, size_t before)
{
    const size_t count = (length + 9 + SHA_BLOCK - 1) / SHA_BLOCK;
    const uint64_t bits = 8 * ((uint64_t)before + length);
    memset(blocks + length, 0, SHA_BLOCK * count - length);
    blocks[length] = 0x80;
    for (int i = 0; i < 8; i++) blocks[SHA_BLOCK * count - 1 - (size_t)i] = (uint8_t)(bits >> 8 * i);
    return count;
}

static void digest(uint8_t *out, const uint8_t *data, size_t length, Compress *compress)
{
    const size_t rest = length % SHA_BLOCK, whole = length - rest;
    uint8_t last[2 * SHA_BLOCK];
    uint32_t state[8];
    memcpy(state, SHA_START, sizeof(SHA_START));
    for (size_t at = 0; at < whole; at += SHA_BLOCK) compress(state, data + at);
    memcpy(last, data + whole, rest);
    for (size_t at = 0, end = SHA_BLOCK * padded(last, rest, whole); at < end; at += SHA_BLOCK) compress(state, last + at);
    put_words(out, state);
}

/* ---- HMAC(key, prefix, end of the record, 1) for each record ---- */

/* SHA-256 of a block of key ^ pad, and `blocks` that follow and end with their padding */
static void hash_keyed(uint32_t state[8], const uint8_t *key, int pad, const uint8_t *blocks, size_t count, Compress *compress)
{
    uint8_t block[SHA_BLOCK];
    for (int i = 0; i < SHA_BLOCK; i++) block[i] = (uint8_t)((i < SHA_BYTES ? key[i] : 0) ^ pad);
    memcpy(state, SHA_START, sizeof(SHA_START));
    compress(state, block);
    for (size_t i = 0; i < count; i++) compress(state, blocks + SHA_BLOCK * i);
    for (volatile uint8_t *p = block; p < block + SHA_BLOCK; p++) *p = 0;
}

static void expanded(uint8_t *out, const uint8_t *prefix, size_t length, const uint8_t *records, size_t n, Compress *compress)
{
    uint8_t inner[PREFIX_MAX + 2 * SHA_BLOCK], outer[SHA_BLOCK];
    uint32_t state[8];
    memcpy(inner, prefix, length);
    inner[length + RECORD - SHA_BYTES] = 1;
    const size_t blocks = padded(inner, length + RECORD - SHA_BYTES + 1, SHA_BLOCK);
    padded(outer, SHA_BYTES, SHA_BLOCK);
    for (size_t i = 0; i < n; i++) {
        const uint8_t *record = records + RECORD * i;
        memcpy(inner + length, record + SHA_BYTES, RECORD - SHA_BYTES);
        hash_keyed(state, record, 0x36, inner, blocks, compress);
        put_words(outer, state);
        hash_keyed(state, record, 0x5c, outer, 1, compress);
        put_words(out + SHA_BYTES * i, state);
    }
    for (volatile uint8_t *p = outer; p < outer + SHA_BLOCK; p++) *p = 0;
    for (volatile uint32_t *p = state; p < state + 8; p++) *p = 0;
}
