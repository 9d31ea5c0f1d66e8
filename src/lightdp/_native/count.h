/* Bits of keystreams, counted over keys, for one kind of processor.
 *
 * Included once for each kind, before pass.h, which lists most of what it defines and undefines all of it; here also:
 *   PARITY(a, b, c), MAJORITY(a, b, c)   of each bit position: the two digits of the sum of three bits
 *   ONES(v)                  how many bits of each byte are set
 *
 * Each bit position of a piece has a counter of its own, one digit in each plane: 3 bits of one weight become a digit and a carry,
 * so that a key costs one such adder a vector, which is little beside its 14 rounds of AES.
 */
#define ABREAST 8                     /* vectors: their AES keeps the units busy, and they fit into 16 registers with a round key */
#define PIECE (ABREAST * sizeof(BLOCK))
#define EACH _Pragma("GCC unroll 8") for (int i = 0; i < ABREAST; i++)
#define ADD(digit, other) { \
    const BLOCK a = (digit)[i], b = other; \
    (digit)[i] = PARITY(a, b, x[i]); \
    x[i] = MAJORITY(a, b, x[i]); \
}

TARGET static void NAME(count)(Counters *c, const Term *terms, size_t n, uint64_t block)
{
    const BLOCK none = {0};
    int levels = 0;
    while (n >> levels) levels++;
    for (size_t at = 0; at < SPAN; at += PIECE) {
        BLOCK counter = COUNTER(block + at / 16), bytes[ABREAST], x[ABREAST];
        EACH bytes[i] = BYTES(counter), counter = NEXT(counter);
        memset(c->digit, 0, sizeof(c->digit[0]) * (size_t)levels);
        for (size_t j = 0; j < n; j++) {
            BLOCK key[ROUNDS + 1];
            int level = 0;
            key[0] = KEY(terms[j].round[0]);
            EACH x[i] = START(bytes[i]);
            _Pragma("GCC unroll 13") for (int r = 1; r < ROUNDS; r++) {
                key[r] = KEY(terms[j].round[r]);
                EACH x[i] = ROUND(x[i], r);
            }
            key[ROUNDS] = KEY(terms[j].round[ROUNDS]);
            EACH x[i] = END(x[i]);
            for (; j >> level & 1; level++)  /* bits of this weight wait since key j - 2^level */
                EACH ADD((BLOCK *)c->digit[level], ((BLOCK *)c->waiting[level])[i])
            EACH ((BLOCK *)c->waiting[level])[i] = x[i];
        }
        EACH x[i] = none;
        for (int level = 0; level < levels; level++) {
            const int waits = n >> level & 1;
            EACH ADD((BLOCK *)c->digit[level], waits ? ((BLOCK *)c->waiting[level])[i] : none)
        }
        for (int top = levels; top > 0; top = (top - 1) / WEIGHTS * WEIGHTS) {
            const int lowest = (top - 1) / WEIGHTS * WEIGHTS;
            EACH x[i] = none;
            for (int level = top; level-- > lowest;)
                EACH x[i] = x[i] + x[i] + (ONES(((BLOCK *)c->digit[level])[i]));  /* no byte passes its 255, whatever lanes add up */
            EACH ((BLOCK *)(c->ones[lowest / WEIGHTS].byte + at))[i] = x[i];
        }
    }
}

#undef ABREAST
#undef PIECE
#undef EACH
#undef ADD
