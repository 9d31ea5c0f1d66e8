/* A `Turned` of rotation.h for parts of NEAR values or more in rows of LANES, in vectors of WIDTH.
 *
 * Included once for each kind of processor. A pass takes 2, 4, 8 or 16 rows at a time through registers: the first reads the
 * values, clamps and multiplies them, the last clamps what it writes, or multiplies it on the way back.
 */
#define V NAME(vector)
#define B NAME(bits)
#define CLAMPED(x, bound) ((V)MAX(MIN(x, bound), -(bound)))
#define SIGNED(scale, sign) ((const double[]){scale, -(scale)}[(uint8_t)(sign) >> 7])
#define EACH _Pragma("GCC unroll 16") for (size_t r = 0; r < rows; r++)
/* LESS(a, b) has the bits of a - b. Where it is a fused a - b * one, the product is exact, and sums and differences use different
 * units at once. */
#define PAIRS(distance) EACH if (!(r & (distance)) && (distance) < rows) { \
        const V sum = x[r] + x[r + (distance)]; \
        x[r + (distance)] = (V)LESS(x[r], x[r + (distance)]); \
        x[r] = sum; \
    }
#define LEVELS PAIRS(1) PAIRS(2) PAIRS(4) PAIRS(8)

typedef double V __attribute__((vector_size(8 * WIDTH), may_alias, aligned(8)));
typedef uint64_t B __attribute__((vector_size(8 * WIDTH)));

/* sixteen rows at a time from the values to out; adds to `odd` what is not finite */
TARGET INLINE void NAME(enter)(const Turn *t, size_t start, int wide, int back, B *odd)
{
    typedef float F __attribute__((vector_size(4 * WIDTH), may_alias, aligned(4)));
    const V one __attribute__((unused)) = 1.0 - (V){0}, most = t->most - (V){0};
    const size_t rows = 16;
    for (size_t i = start; i < start + NEAR; i += rows * LANES)
        for (size_t j = i; j < i + LANES; j += WIDTH) {
            V x[16];
            EACH {
                const size_t at = j + r * LANES;
                if (wide) x[r] = *(const V *)((const double *)t->values + at);
                else x[r] = __builtin_convertvector(*(const F *)((const float *)t->values + at), V);
                if (back) continue;
                *odd |= (B)(x[r] - x[r]);  /* 0 if it is finite, else the bits of a NaN */
                x[r] = CLAMPED(x[r], most) * SIGNED(t->scale, t->signs[at / LANES]);
            }
            LEVELS
            EACH *(V *)(t->out + j + r * LANES) = x[r];
        }
}

/* so many rows at a time, `at` values apart, over `count` values; done: these are the last levels */
TARGET INLINE void NAME(pass)(const Turn *t, size_t start, size_t count, size_t at, const size_t rows, int back, int done)
{
    const V one __attribute__((unused)) = 1.0 - (V){0}, bound = t->bound - (V){0};
    for (size_t i = start; i < start + count; i += rows * at)
        for (size_t j = i; j < i + at; j += WIDTH) {
            V x[16];
            if (at >= NEAR) EACH __builtin_prefetch(t->out + j + r * at + 4 * LANES);  /* from L2 */
            EACH x[r] = *(const V *)(t->out + j + r * at);
            LEVELS
            EACH {
                if (done && back) x[r] *= SIGNED(t->scale, t->signs[(j + r * at) / LANES]);
                else if (done) x[r] = CLAMPED(x[r], bound);
                *(V *)(t->out + j + r * at) = x[r];
            }
        }
}

TARGET INLINE uint64_t NAME(turn)(const Turn *t, size_t start, int wide, int back)
{
    B odd = {0};
    uint64_t any = 0;
    size_t at = NEAR;
    for (size_t i = start; i < start + t->part; i += NEAR) {
        NAME(enter)(t, i, wide, back, &odd);
        if (t->part == NEAR) NAME(pass)(t, i, NEAR, 16 * LANES, 16, back, 1);
        else NAME(pass)(t, i, NEAR, 16 * LANES, 16, back, 0);
    }
    for (; 8 * at < t->part; at *= 8) NAME(pass)(t, start, t->part, at, 8, back, 0);
    if (8 * at == t->part) NAME(pass)(t, start, t->part, at, 8, back, 1);
    else if (4 * at == t->part) NAME(pass)(t, start, t->part, at, 4, back, 1);
    else if (2 * at == t->part) NAME(pass)(t, start, t->part, at, 2, back, 1);
    for (int i = 0; i < WIDTH; i++) any |= odd[i];
    return any;
}

TARGET static uint64_t NAME(turned)(const Turn *t, size_t start)
{
    return t->back ? NAME(turn)(t, start, 1, 1) : t->wide ? NAME(turn)(t, start, 1, 0) : NAME(turn)(t, start, 0, 0);
}

#undef NAME
#undef TARGET
#undef WIDTH
#undef MIN
#undef MAX
#undef LESS
#undef V
#undef B
#undef CLAMPED
#undef SIGNED
#undef EACH
#undef PAIRS
#undef LEVELS
