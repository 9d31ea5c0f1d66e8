/* Bits of keystreams, counted over keys, for one kind of processor.
 *
 * Included once for each kind, before pass.h, which lists most of what it defines and undefines all of it; here also:
 *   PARITY(a, b, c), MAJORITY(a, b, c)   of each bit position: the two digits of the sum of three bits
 *   ONES(v), PLUS(a, b)      of each byte: how many of its bits are set; the sum
 *
 * Each bit position of a span has a binary counter, whose digits lie apart: 3 bits of one weight become a digit and a carry. A key
 * costs one such adder a vector, little beside 10 rounds of AES; benchmarks/mask_counts.py measures both.
 */
#define ABREAST 8                     /* vectors: their AES keeps the units busy, and they fit into 16 registers with a round key */
#define PIECE (ABREAST * sizeof(BLOCK))
#define EACH _Pragma("GCC unroll 8") for (int i = 0; i < ABREAST; i++)
#define DIGIT(level) ((BLOCK *)(c->digit[level] + at))[i]
#define WAITING(level) ((BLOCK *)(c->waiting[level] + at))[i]
#define ADD(digit, other) { \
    const BLOCK a = digit, b = other; \
    digit = PARITY(a, b, x[i]); \
    x[i] = MAJORITY(a, b, x[i]); \
}

TARGET static void NAME(count)(Counters *c, const Term *terms, size_t n, uint64_t block)
{
    const BLOCK none = {0};
    int levels = 0;
    while (n >> levels) levels++;
    memset(c->digit, 0, sizeof(c->digit[0]) * (size_t)levels);
    for (size_t at = 0; at < SPAN; at += PIECE) {
        BLOCK counter = COUNTER(block + at / 16), counters[ABREAST], x[ABREAST];
        EACH counters[i] = counter, counter = NEXT(counter);
        for (size_t j = 0; j < n; j++) {
            BLOCK key[ROUNDS + 1];
            int level = 0;
            key[0] = KEY(terms[j].round[0]);
            EACH x[i] = START(counters[i]);
            _Pragma("GCC unroll 9") for (int r = 1; r < ROUNDS; r++) {
                key[r] = KEY(terms[j].round[r]);
                EACH x[i] = ROUND(x[i], r);
            }
            key[ROUNDS] = KEY(terms[j].round[ROUNDS]);
            EACH x[i] = END(x[i]);
            for (; j >> level & 1; level++)  /* bits of this weight wait since key j - 2^level */
                EACH ADD(DIGIT(level), WAITING(level))
            EACH WAITING(level) = x[i];
        }
        EACH x[i] = none;
        for (int level = 0; level < levels; level++) {
            const int waits = n >> level & 1;
            EACH ADD(DIGIT(level), waits ? WAITING(level) : none)
        }
        for (int lowest = (levels - 1) / WEIGHTS * WEIGHTS, top = levels; lowest >= 0; top = lowest, lowest -= WEIGHTS) {
            EACH x[i] = none;
            for (int level = top; level-- > lowest;) EACH x[i] = PLUS(PLUS(x[i], x[i]), ONES(DIGIT(level)));
            EACH ((BLOCK *)(c->ones[lowest / WEIGHTS].byte + at))[i] = x[i];
        }
    }
}

#undef ABREAST
#undef PIECE
#undef EACH
#undef DIGIT
#undef WAITING
#undef ADD
