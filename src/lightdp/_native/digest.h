/* SHA-256 of the sixteen strands of a long part at once (lightdp.wire.digest): in vectors of 512 bits, or two by two with the
 * instructions of x86 for it, each of which waits for the last one of its strand alone.
 *
 * Everything hashed here is public.
 */
#define STRANDS 16
#define STATES (STRANDS * SHA_BYTES)

/* compress so many blocks of each strand; strand k begins at data + k * apart, word i of its state is state[i][k] */
typedef void Strands(uint32_t state[8][STRANDS], const uint8_t *data, size_t apart, size_t blocks);

#ifdef HAS_SHANI

__attribute__((target("sha,sse4.1,ssse3")))
static void strands_shani(uint32_t state[8][STRANDS], const uint8_t *data, size_t apart, size_t blocks)
{
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    for (size_t strand = 0; strand < STRANDS; strand += 2) {
        uint32_t both[2][8];
        __m128i s0[2], s1[2];                          /* a b e f, c d g h */
        for (size_t k = 0; k < 2; k++) {
            for (int i = 0; i < 8; i++) both[k][i] = state[i][strand + k];
            s0[k] = _mm_set_epi32((int)both[k][0], (int)both[k][1], (int)both[k][4], (int)both[k][5]);
            s1[k] = _mm_set_epi32((int)both[k][2], (int)both[k][3], (int)both[k][6], (int)both[k][7]);
        }
        for (size_t at = 0; at < SHA_BLOCK * blocks; at += SHA_BLOCK) {
            const __m128i start0[2] = {s0[0], s0[1]}, start1[2] = {s1[0], s1[1]};
            __m128i w[2][16];
            _Pragma("GCC unroll 16") for (int i = 0; i < 16; i++)
                _Pragma("GCC unroll 2") for (size_t k = 0; k < 2; k++) {
                    const uint8_t *from = data + (strand + k) * apart + at + 16 * (size_t)i;
                    if (i < 4) w[k][i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)from), swap);
                    else {
                        const __m128i last = _mm_alignr_epi8(w[k][i - 1], w[k][i - 2], 4);
                        const __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(w[k][i - 4], w[k][i - 3]), last);
                        w[k][i] = _mm_sha256msg2_epu32(sum, w[k][i - 1]);
                    }
                    const __m128i words = _mm_add_epi32(w[k][i], _mm_loadu_si128((const __m128i *)(SHA_K + 4 * i)));
                    s1[k] = _mm_sha256rnds2_epu32(s1[k], s0[k], words);
                    s0[k] = _mm_sha256rnds2_epu32(s0[k], s1[k], _mm_shuffle_epi32(words, 0x0e));
                }
            for (int k = 0; k < 2; k++) s0[k] = _mm_add_epi32(s0[k], start0[k]), s1[k] = _mm_add_epi32(s1[k], start1[k]);
        }
        for (size_t k = 0; k < 2; k++) {
            uint32_t low[4], high[4];
            _mm_storeu_si128((__m128i *)low, s0[k]), _mm_storeu_si128((__m128i *)high, s1[k]);
            for (int i = 0; i < 2; i++) {
                state[i][strand + k] = low[3 - i], state[i + 4][strand + k] = low[1 - i];
                state[i + 2][strand + k] = high[3 - i], state[i + 6][strand + k] = high[1 - i];
            }
        }
    }
}

typedef uint32_t Words __attribute__((vector_size(64)));
#define WIDE_TARGET __attribute__((target("avx512f,avx512bw")))
#define TURNED(x, n) ((Words)_mm512_ror_epi32((__m512i)(x), n))
#define OF_THREE(x, y, z, table) ((Words)_mm512_ternarylogic_epi32((__m512i)(x), (__m512i)(y), (__m512i)(z), table))
#define XOR3 0x96
#define CHOICE 0xca                   /* y where x, else z */
#define MAJORITY 0xe8

/* sixteen vectors of words as a matrix, transposed: words first by two, then by four, then blocks of four */
WIDE_TARGET static inline __attribute__((always_inline)) void transpose(__m512i row[16])
{
    __m512i t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(row[i], row[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(row[i], row[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; j++) {
            row[i + 2 * j] = _mm512_unpacklo_epi64(t[i + j], t[i + 2 + j]);
            row[i + 2 * j + 1] = _mm512_unpackhi_epi64(t[i + j], t[i + 2 + j]);
        }
    for (int i = 0; i < 16; i += 8)
        for (int j = 0; j < 4; j++) {
            t[i + j] = _mm512_shuffle_i32x4(row[i + j], row[i + 4 + j], 0x88);
            t[i + 4 + j] = _mm512_shuffle_i32x4(row[i + j], row[i + 4 + j], 0xdd);
        }
    for (int j = 0; j < 8; j++) {
        row[j] = _mm512_shuffle_i32x4(t[j], t[8 + j], 0x88);
        row[8 + j] = _mm512_shuffle_i32x4(t[j], t[8 + j], 0xdd);
    }
}

WIDE_TARGET static void strands_avx512(uint32_t state[8][STRANDS], const uint8_t *data, size_t apart, size_t blocks)
{
    const __m512i swap = _mm512_broadcast_i32x4(_mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203));
    Words s[8];
    for (int i = 0; i < 8; i++) s[i] = (Words)_mm512_loadu_si512(state[i]);
    for (size_t at = 0; at < SHA_BLOCK * blocks; at += SHA_BLOCK) {
        Words a = s[0], b = s[1], c = s[2], d = s[3], e = s[4], f = s[5], g = s[6], h = s[7];
        __m512i w[16];
        _Pragma("GCC unroll 16") for (size_t k = 0; k < STRANDS; k++)
            w[k] = _mm512_shuffle_epi8(_mm512_loadu_si512(data + k * apart + at), swap);
        transpose(w);
        _Pragma("GCC unroll 64") for (int t = 0; t < 64; t++) {
            const Words next = (Words)w[(t + 1) % 16], recent = (Words)w[(t + 14) % 16], word = (Words)w[t % 16];
            const Words one = h + OF_THREE(TURNED(e, 6), TURNED(e, 11), TURNED(e, 25), XOR3) + OF_THREE(e, f, g, CHOICE)
                              + (word + SHA_K[t]);
            const Words two = OF_THREE(TURNED(a, 2), TURNED(a, 13), TURNED(a, 22), XOR3) + OF_THREE(a, b, c, MAJORITY);
            h = g, g = f, f = e, e = d + one, d = c, c = b, b = a, a = one + two;
            if (t < 48)
                w[t % 16] = (__m512i)(word + (Words)w[(t + 9) % 16] + OF_THREE(TURNED(next, 7), TURNED(next, 18), next >> 3, XOR3)
                                      + OF_THREE(TURNED(recent, 17), TURNED(recent, 19), recent >> 10, XOR3));
        }
        s[0] += a, s[1] += b, s[2] += c, s[3] += d, s[4] += e, s[5] += f, s[6] += g, s[7] += h;
    }
    for (int i = 0; i < 8; i++) _mm512_storeu_si512(state[i], (__m512i)s[i]);
}
#endif

static const char *const DIGESTS[] = {"avx512", "shani", NULL};   /* the fastest first */

/* the way of this name, or NULL if this machine does not have it */
static Strands *stranding(const char *way)
{
#ifdef HAS_SHANI
    __builtin_cpu_init();
    if (!strcmp(way, "avx512") && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")) return strands_avx512;
    if (!strcmp(way, "shani") && compressing("shani")) return strands_shani;
#endif
    return (void)way, NULL;
}

/* The hashes of the strands of `size` > 0 bytes, one after the other: each strand has as many whole blocks as are needed, and the last
 * one, which must not be empty, the rest. */
static void strand_hashes(uint8_t *out, const uint8_t *data, size_t size, size_t apart, Strands *strands, Compress *compress)
{
    const size_t last = size - (STRANDS - 1) * apart, blocks = last / SHA_BLOCK;
    uint32_t state[8][STRANDS];
    for (int i = 0; i < 8; i++)
        for (int k = 0; k < STRANDS; k++) state[i][k] = SHA_START[i];
    strands(state, data, apart, blocks);
    for (size_t k = 0; k < STRANDS; k++) {
        const size_t length = k + 1 < STRANDS ? apart : last, whole = length / SHA_BLOCK * SHA_BLOCK;
        const uint8_t *strand = data + k * apart;
        uint8_t end[2 * SHA_BLOCK];
        uint32_t own[8];
        for (int i = 0; i < 8; i++) own[i] = state[i][k];
        for (size_t at = blocks * SHA_BLOCK; at < whole; at += SHA_BLOCK) compress(own, strand + at);
        memcpy(end, strand + whole, length - whole);
        for (size_t at = 0, stop = SHA_BLOCK * padded(end, length - whole, whole); at < stop; at += SHA_BLOCK) compress(own, end + at);
        put_words(out + SHA_BYTES * k, own);
    }
}
