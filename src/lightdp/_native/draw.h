/* Values drawn from keystreams through small tables, added up over keys, for one kind of processor.
 *
 * Included once for each kind, before pass.h, which lists most of what it defines and undefines all of it; here also:
 *   BYTES, WIDE              vectors of uint8_t and uint16_t of the same size, one or more BLOCKs
 *   PIECES                   vectors of values at once: three times as many for AES, which keep its units busy
 *   JOIN(x)                  BYTES from the BLOCKs at x
 *   TABLE(entries)           16 bytes for LOOK
 *   LOOK(table, v)           entries of the table for bytes below 16, without an access to memory
 *   PICK(v, a, b, c)         of each byte: c + 128 where a = b = 255, otherwise v
 *
 * While AES makes the keystream of a key, the last key's bytes are looked up and added up, step by step between the rounds: both
 * use different units of the processor. Values have 128 added, so that two neighbours are a number of 16 bits; the sums of these
 * numbers and of their upper bytes give those of both (`add_drawn`), with fewer instructions than widening each.
 * benchmarks/drawn.py measures how near to AES alone this is.
 */
#define JOINED (sizeof(BYTES) / sizeof(BLOCK))
#define ABREAST (3 * PIECES * JOINED)  /* first bytes of all values, then second, then third */
#define EACH _Pragma("GCC unroll 24") for (size_t i = 0; i < ABREAST; i++)
#define PIECE _Pragma("GCC unroll 4") for (size_t p = 0; p < PIECES; p++)
#define PART(k) JOIN(&last[((k) * PIECES + p) * JOINED])
#define LOOKED(k) (LOOK(table[2 * (k)], PART(k) & 15) + LOOK(table[2 * (k) + 1], PART(k) >> 4))
#define STEP(s) { \
    const size_t p = (s) / 4; \
    if ((s) % 4 == 0) value[p] = LOOKED(0); \
    else if ((s) % 4 < 3) value[p] += LOOKED((s) % 4); \
    else { \
        const WIDE pair = (WIDE)PICK(value[p], PART(0), PART(1), PART(2)); \
        all[p] += pair; \
        upper[p] += pair >> 8; \
    } \
}
#define STEPS(from, to) _Pragma("GCC unroll 16") for (size_t s = (from); s < (to); s++) STEP(s)  /* four for each vector of values */

TARGET static void NAME(draw)(Drawn *drawn, const Term *terms, size_t minus, size_t n, uint64_t tile)
{
    BYTES table[6];
    for (int t = 0; t < 6; t++) table[t] = TABLE(TABLES[t]);
    table[4] += 128;                  /* once for each value */
    for (size_t at = 0; at < TILE; at += PIECES * sizeof(BYTES)) {
        BLOCK counter[ABREAST], x[ABREAST], last[ABREAST] = {{0}};
        BYTES value[PIECES];
        WIDE all[PIECES] = {{0}}, upper[PIECES] = {{0}};
        for (uint64_t k = 0; k < 3; k++) {
            BLOCK next = COUNTER((3 * tile + k) * (TILE / 16) + at / 16);
            for (size_t i = 0; i < ABREAST / 3; i++) counter[k * (ABREAST / 3) + i] = next, next = NEXT(next);
        }
        for (size_t j = 0; j < n; j++) {
            BLOCK key[ROUNDS + 1];
            key[0] = KEY(terms[j].round[0]);
            EACH x[i] = START(counter[i]);
            _Pragma("GCC unroll 9") for (size_t r = 1; r < ROUNDS; r++) {
                key[r] = KEY(terms[j].round[r]);
                EACH x[i] = ROUND(x[i], r);
                if (r < 9) STEPS(4 * PIECES * (r - 1) / 8, 4 * PIECES * r / 8)
            }
            key[ROUNDS] = KEY(terms[j].round[ROUNDS]);
            if (j == 0) PIECE all[p] = upper[p] = (WIDE){0};  /* there was no last key */
            else if (j == minus) PIECE all[p] = -all[p], upper[p] = -upper[p];
            EACH last[i] = END(x[i]);
        }
        STEPS(0, 4 * PIECES)
        if (minus == n) PIECE all[p] = -all[p], upper[p] = -upper[p];
        PIECE ((WIDE *)((unsigned char *)drawn->all + at))[p] = all[p];
        PIECE ((WIDE *)((unsigned char *)drawn->upper + at))[p] = upper[p];
    }
}

#undef JOINED
#undef ABREAST
#undef EACH
#undef PIECE
#undef PART
#undef LOOKED
#undef STEP
#undef STEPS
