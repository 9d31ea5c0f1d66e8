/* Packed words (lightdp/wire/packing.py): 32 / gcd(bits, 32) lanes of `columns` values each. Without Python. */
#include <stddef.h>
#include <stdint.h>

#define ROW 4096                      /* columns at a time: their words stay in the cache */

typedef struct {
    uint32_t *values, *words;
    size_t length, columns;
    int shift, bits;
} Packing;

/* 1 if words of that many bytes are what values of that many bytes fill; sets the length and the columns */
static int packs(Packing *p, size_t values, size_t words)
{
    size_t unit, lanes;
    if (p->bits < 2 || p->bits > 32 || p->shift < 0 || p->shift > 32 - p->bits) return 0;
    unit = (size_t)(p->bits & -p->bits), lanes = 32 / unit;  /* unit = gcd(bits, 32) */
    p->length = values / 4;
    p->columns = p->length / lanes + (p->length % lanes != 0);
    return values % 4 == 0 && words == p->columns * ((size_t)p->bits / unit) * 4;
}

/* a value in units of 2^shift, rounded, ties to even */
#define ROUNDED(value) ((((value) + half + (((value) >> p.shift) & odd)) >> p.shift) & kept)

/* put `count` values into the words from `low` on, which are zero there */
static void pack_row(Packing p, const uint32_t *__restrict values, uint32_t *__restrict low, size_t count, int offset)
{
    const uint32_t odd = p.shift > 0, half = odd ? (1u << (p.shift - 1)) - 1 : 0, kept = UINT32_MAX >> (32 - p.bits);
    if (offset + p.bits <= 32)
        for (size_t i = 0; i < count; i++) low[i] |= ROUNDED(values[i]) << offset;
    else {
        uint32_t *__restrict high = low + p.columns;
        for (size_t i = 0; i < count; i++) {
            low[i] |= ROUNDED(values[i]) << offset;
            high[i] |= ROUNDED(values[i]) >> (32 - offset);
        }
    }
}

/* add to `count` values what the words from `low` on hold; only the low bits of the sums mean anything */
static void unpack_row(Packing p, uint32_t *__restrict values, const uint32_t *__restrict low, size_t count, int offset)
{
    if (offset + p.bits <= 32)
        for (size_t i = 0; i < count; i++) values[i] += low[i] >> offset;
    else
        for (size_t i = 0; i < count; i++) values[i] += (low[i] >> offset) + (low[i + p.columns] << (32 - offset));
}

static void each_row(Packing p, int pack)
{
    for (size_t column = 0; column < p.columns; column += ROW)
        for (size_t lane = 0, first = column; first < p.length; lane++, first += p.columns) {
            const size_t left = p.length - first < p.columns - column ? p.length - first : p.columns - column;
            const size_t bit = lane * (size_t)p.bits, count = left < ROW ? left : ROW;
            uint32_t *values = p.values + first, *low = p.words + bit / 32 * p.columns + column;
            if (pack) pack_row(p, values, low, count, (int)(bit % 32));
            else unpack_row(p, values, low, count, (int)(bit % 32));
        }
}
