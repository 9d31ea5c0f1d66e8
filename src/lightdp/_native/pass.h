/* One pass for one kind of processor: samples of one keystream, added up, while the next keystream is made.
 *
 * Included once for each kind, which defines:
 *   NAME(name), TARGET       a suffix for names; the attribute of functions
 *   WIDTH, FLOATS, INTS, WORDS, HALVES   numbers of a vector; vectors of float, int32_t, uint32_t and uint16_t
 *   FLOAT(v)                 int32 to float, to nearest, ties to even
 *   ROOT(v)                  square root
 *   BLOCK, CHAINS            one or more AES blocks; how many of them fill VECTORS vectors of pairs
 *   VECTORS                  vectors of pairs that a step takes
 *   KEY(bytes)               a round key for a BLOCK
 *   COUNTER(n), NEXT(counter)  the counter blocks from n on; the following ones
 *   START(x), ROUND(x, r), END(x)   AES-128 with key[0 ... 10] in scope: the first key; rounds 1 ... 9; the last round
 *
 * AES and Box-Muller do not depend on each other and partly use different units of the processor: in this order both are busy. The
 * logarithm's quotient takes long and is begun one step ahead. benchmarks/masks.py says what the limit is.
 */
#define AES(r) _Pragma("GCC unroll 12") for (int j = 0; j < CHAINS; j++) block[j] = ROUND(block[j], r)
#define ALL _Pragma("GCC unroll 2") for (int h = 0; h < VECTORS; h++)
#define QUOTIENT(i) \
    ALL bits[h] = (INTS)UNIFORM(WORD(0, i), WORD(1, i)) - CUT; \
    ALL w[h] = ((FLOATS)MANTISSA(bits[h]) - 1.0f) / ((FLOATS)MANTISSA(bits[h]) + 1.0f)
#define WORD(k, i) (*(const WORDS *)&in->word[k][(i) + WIDTH * h])

TARGET static void NAME(pass)(uint32_t *sum, const Stream *in, float scale, Stream *out, const Term *next, uint64_t tile)
{
    BLOCK key[ROUNDS + 1], counter = COUNTER(tile * BLOCKS), *to = (BLOCK *)out;
    INTS bits[VECTORS];
    FLOATS w[VECTORS];
    for (int r = 0; r <= ROUNDS; r++) key[r] = KEY(next->round[r]);
    QUOTIENT(0);
    for (int i = 0; i < PAIRS; i += VECTORS * WIDTH, to += CHAINS) {
        const int then = (i + VECTORS * WIDTH) % PAIRS;  /* the last step begins one that nobody ends */
        BLOCK block[CHAINS];
        FLOATS radius[VECTORS], x[VECTORS], s[VECTORS], k[VECTORS];
        for (int j = 0; j < CHAINS; j++) block[j] = START(counter), counter = NEXT(counter);
        AES(1);
        ALL radius[h] = SQUARE(EXPONENT(bits[h]), w[h], w[h] * w[h]);
        AES(2);
        ALL radius[h] = (FLOATS)ROOT(radius[h]) * scale;
        AES(3);
        QUOTIENT(then);
        AES(4);
        ALL x[h] = ANGLE(__builtin_convertvector(*(const HALVES *)&in->half[i + WIDTH * h], WORDS));
        AES(5);
        ALL s[h] = S(x[h], x[h] * x[h]);
        AES(6);
        ALL k[h] = K(x[h] * x[h]);
        AES(7);
        ALL x[h] = (FLOATS)((WORDS)radius[h] ^ SIGN(WORD(0, i)));
        ALL *(WORDS *)&sum[i + WIDTH * h] += SAMPLE(x[h] * (k[h] - s[h]));
        AES(8);
        ALL x[h] = (FLOATS)((WORDS)radius[h] ^ SIGN(WORD(1, i)));
        ALL *(WORDS *)&sum[i + WIDTH * h + PAIRS] += SAMPLE(x[h] * (k[h] + s[h]));
        AES(9);
        for (int j = 0; j < CHAINS; j++) to[j] = END(block[j]);
    }
}

#undef NAME
#undef TARGET
#undef WIDTH
#undef FLOATS
#undef INTS
#undef WORDS
#undef HALVES
#undef FLOAT
#undef ROOT
#undef BLOCK
#undef CHAINS
#undef VECTORS
#undef KEY
#undef COUNTER
#undef NEXT
#undef START
#undef ROUND
#undef END
#undef BYTES
#undef WIDE
#undef PIECES
#undef JOIN
#undef TABLE
#undef LOOK
#undef PICK
#undef AES
#undef ALL
#undef WORD
#undef QUOTIENT
