/* Noise of keys: the compiled paths of lightdp.stream, without Python. Gaussian samples are added up tile by tile, with data where
 * there is some; drawn values by themselves.
 *
 * lightdp/stream specifies both. Where no header for the processor exists, `supports` is false for every path.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* what is masked: values / step, with noise of its own from the first three terms */
typedef struct {
    const void *values;               /* float or, if wide, double; NULL: there is no data */
    int wide;
    double step;
} Data;

#define TILE 1024                     /* samples; two keystreams (5 KiB each) and the sums stay in L1 */
#define PAIRS (TILE / 2)
#define BLOCKS (TILE * 5 / 16)        /* AES blocks a tile */
#define ROUNDS 10                     /* AES-128 */

#if defined(__GNUC__) && defined(__x86_64__)
#define PROCESSOR "x86.h"
#elif defined(__GNUC__) && defined(__aarch64__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#if !defined(__clang__) || __clang_major__ >= 16 || defined(__ARM_FEATURE_AES) || defined(__ARM_FEATURE_CRYPTO)
#define PROCESSOR "arm.h"             /* older versions of clang have no AES for a single function */
#endif
#endif

#ifdef PROCESSOR

typedef struct {
    unsigned char round[ROUNDS + 1][16];  /* the first one with the key's other half, to which counters are added (xor) */
    float scale;                      /* |sigma| */
    int32_t sum;                      /* the one to which its samples are added */
} __attribute__((aligned(64))) Term;

typedef union {
    unsigned char block[BLOCKS][16];
    struct {
        uint32_t word[2][PAIRS];
        uint16_t half[PAIRS];
    };
} __attribute__((aligned(64))) Stream;

/* add to sum the samples of `in`, and fill `out` with the keystream of a term's tile */
typedef void Pass(uint32_t *sum, const Stream *in, float scale, Stream *out, const Term *next, uint64_t tile);

#define KEYS 255                      /* at once: a sum of so many values fits into 16 bits */

typedef struct {
    uint16_t all[TILE / 2], upper[TILE / 2];  /* sums modulo 2^16 of pairs of values, and of the second ones of pairs */
} __attribute__((aligned(64))) Drawn;

/* fill `drawn` with the values of n <= KEYS keys in a tile, the first `minus` of them subtracted */
typedef void Draw(Drawn *drawn, const Term *terms, size_t minus, size_t n, uint64_t tile);

typedef struct {
    const char *name;
    Pass *pass;
    Draw *draw;
} Path;

static void wipe(void *memory, size_t size)
{
    memset(memory, 0, size);
    __asm__ volatile("" : : "r"(memory) : "memory");  /* which, for all that the compiler knows, reads it */
}

#define APART __attribute__((noinline))  /* with a frame of its own */
#define FRAMES (40 << 10)             /* bytes: more than `add` or `add_drawn` and what they call take of the stack */

/* Of the stack, where keystreams, noise and round keys that left their registers lay; for callers of `add` and `add_drawn`. */
APART static void wipe_frames(void)
{
    unsigned char below[FRAMES];
    wipe(below, sizeof(below));
}

/* ---- three words -> two samples (Box-Muller), for vectors of any width ---- */

/* u = U 2^-62 in (0, 1], U = 2^(62 + e) m with m in [sqrt(1/2), sqrt(2)); square = -2 ln u = -2 e ln 2 - 4 artanh(w) */
#define UNIFORM(a, b) (FLOAT((a) & 0x7fffffffu) * 0x1p31f + FLOAT(((b) & 0x7fffffffu) | 1))
#define CUT 0x5e3504f3
#define EXPONENT(bits) FLOAT((bits) & ~0x7fffff)
#define MANTISSA(bits) (((bits) & 0x7fffff) + 0x3f3504f3)
#define SQUARE(e, w, v) ((e) * -0x1.62e430p-23f - (((v) * 0x1.a6e112p-1f + 0x1.554262p+0f) * (v) + 0x1.000002p+2f) * (w))

/* a quarter turn in 2^16 steps, which two signs make a whole one: sines and cosines of 45 degrees more are k + s and k - s */
#define ANGLE(c) (FLOAT(c) - 32767.5f)
#define S(x, y) ((((y) * 0x1.c1e5e0p-85f - 0x1.d38ba2p-50f) * (y) + 0x1.1c57d4p-16f) * (x))
#define K(y) ((((y) * -0x1.d8df1ep-103f + 0x1.6f4004p-67f) * (y) - 0x1.bea562p-33f) * (y) + 0x1.6a09e6p-1f)
#define SIGN(word) ((word) & 0x80000000u)

/* The nearest integer to z, in the lower bits of a float with units of 1. An odd last bit is no tie, which would favour even
 * integers. */
#define MAGIC 0x4b400000u             /* the bits of 1.5 * 2^23 */
#define SAMPLE(z) ((WORDS)((FLOATS)((WORDS)(z) | 1) + 0x1.8p23f))

/* ---- three bytes -> a drawn value: for each byte, the entries for its lower and for its upper four bits, as in plain.py ---- */

static const signed char TABLES[6][16] __attribute__((aligned(16))) = {
    {-11, -4, -3, -2, -1, -1, 0, 0, 1, 2, 2, 3, 4, 5, 12, 1},
    {-7, -5, -4, -3, -3, -2, -1, -1, 0, 1, 2, 2, 3, 4, 6, 0},
    {-8, -7, -4, -3, -3, -2, -1, 0, 2, 3, 4, 4, 5, 8, 9, 1},
    {-14, -6, -4, -3, -3, -2, -1, -1, 0, 1, 2, 2, 3, 5, 13, 0},
    {-12, -6, -5, -4, -4, -3, -2, -1, 3, 4, 5, 5, 6, 7, 13, 2},
    {-9, -8, -7, -6, -4, -3, -2, -1, 1, 2, 3, 5, 6, 7, 8, 0},
};

#include PROCESSOR

/* ---- data: its own noise on three scales, and one rounding ---- */

enum { PLUS, MINUS, WHOLE, FINE };     /* sums of a tile: terms by their sign; the data's own noise in steps, and in 2^-22 steps */

/* Add the nearest integers to values / step + noise, modulo 2^32. For |x| < 2^51, x + 1.5 * 2^52 has units of 1: this rounds x
 * to the nearest integer, ties to even, and ends in its bits. Returns 0 if an x is not below 2^51: its integer means nothing. */
SETTLE static int settle(uint32_t *__restrict out, const uint32_t *__restrict whole, const uint32_t *__restrict fine, uint64_t n, Data data)
{
    int64_t beyond = -1;
    for (uint64_t i = 0; i < n; i++) {
        const double value = data.wide ? ((const double *)data.values)[i] : (double)((const float *)data.values)[i];
        const double noise = (double)(int32_t)fine[i] * 0x1p-22 + (double)(int32_t)whole[i];
        const union { double value; int64_t bits; } x = {value / data.step + noise}, sum = {x.value + 0x1.8p52};
        beyond &= (x.bits & INT64_MAX) - 0x4320000000000000;  /* negative if |x| < 2^51 */
        out[i] += (uint32_t)sum.bits;
    }
    return beyond < 0;
}

/* Data comes from far while noise is made, a little of it with each term: all at once would wait. */
static void fetch(const void *data, uint64_t from, uint64_t to)
{
    for (uint64_t i = from / 64 * 64; i < to; i += 64) __builtin_prefetch((const char *)data + i);
}

/* ---- tiles outside, keys inside; 0 if a value of the data was out of range ---- */

APART SETTLE static int add(uint32_t *out, uint64_t start, uint64_t count, const Term *terms, size_t n, Data data, Pass *pass)
{
    uint32_t sum[4][TILE] __attribute__((aligned(64))), begin[4] = {0};  /* without what SAMPLE adds */
    const Rounding before = rounding_to_nearest();
    Stream stream[2];
    int now = 0, fits = 1;
    memset(sum, 0, sizeof(sum));
    for (size_t j = 0; j < n; j++) begin[terms[j].sum] -= MAGIC;
    memset(&stream[1], 0, sizeof(stream[1]));
    pass(sum[0], &stream[1], 1.0f, &stream[now], terms, start / TILE);  /* for the first keystream; its samples are for nothing */
    for (uint64_t done = 0; done < count;) {
        const uint64_t tile = (start + done) / TILE, from = (start + done) % TILE;
        const uint64_t size = TILE - from < count - done ? TILE - from : count - done;
        const uint64_t bytes = size * (data.wide ? 8 : 4);
        for (int k = 0; k < (data.values ? 4 : 2); k++)
            for (int i = 0; i < TILE; i++) sum[k][i] = begin[k];
        for (size_t j = 0; j < n; j++) {
            const int last = j + 1 == n;  /* the next keystream is of the next tile, and the very last one is for nothing */
            if (data.values) fetch(data.values, bytes * j / n, bytes * (j + 1) / n);
            pass(sum[terms[j].sum], &stream[now], terms[j].scale, &stream[!now], &terms[last ? 0 : j + 1], tile + (uint64_t)last);
            if (data.values && j == 1)
                for (int i = 0; i < TILE; i++) sum[FINE][i] = (sum[FINE][i] + MAGIC) * 2048 - MAGIC;
            now = !now;
        }
        for (uint64_t i = 0; i < size; i++) out[done + i] += sum[PLUS][from + i] - sum[MINUS][from + i];
        if (data.values) {
            fits &= settle(out + done, sum[WHOLE] + from, sum[FINE] + from, size, data);
            data.values = (const char *)data.values + size * (data.wide ? 8 : 4);
        }
        done += size;
    }
    rounding_restore(before);
    return fits;
}

/* Add the noise of n keys of 32 bytes to `count` integers, and data if there is some. `backend` must be supported.
 * Returns 0 if a value of the data was out of range, -1 if there is no memory. */
static int accumulated(const char *backend, uint32_t *out, uint64_t count, uint64_t start, const unsigned char *keys,
                       const float *scales, size_t n, Data data)
{
    const Path *path = PATHS;
    char *memory;
    Term *terms;
    int fits;
    if (count == 0 || n == 0) return 1;
    if (!(memory = malloc(sizeof(Term) * (n + 1)))) return -1;
    terms = (Term *)(memory + (64 - (uintptr_t)memory % 64));
    for (size_t j = 0; j < n; j++) {
        expand(&terms[j], keys + 32 * j);
        terms[j].scale = scales[j] < 0 ? -scales[j] : scales[j];
        terms[j].sum = data.values && j < 3 ? (j == 0 ? WHOLE : FINE) : (scales[j] < 0 ? MINUS : PLUS);
    }
    while (strcmp(path->name, backend)) path++;
    fits = add(out, start, count, terms, n, data, path->pass);
    wipe(terms, sizeof(Term) * n);
    free(memory);
    wipe_frames();                    /* at last: a loader that looks up `free` only now saves registers there */
    return fits;
}

/* ---- drawn values: tiles outside, keys inside ---- */

APART SETTLE static void add_drawn(uint32_t *out, uint64_t start, uint64_t count, const Term *terms, size_t minus, size_t n,
                                   uint32_t unit, Draw *draw)
{
    const uint16_t bias = (uint16_t)(128 * (n - 2 * minus));
    int16_t value[TILE] __attribute__((aligned(64)));
    Drawn sums;
    for (uint64_t done = 0; done < count;) {
        const uint64_t from = (start + done) % TILE, size = TILE - from < count - done ? TILE - from : count - done;
        draw(&sums, terms, minus, n, (start + done) / TILE);
        for (int i = 0; i < TILE / 2; i++) {
            value[2 * i] = (int16_t)(sums.all[i] - (sums.upper[i] << 8) - bias);
            value[2 * i + 1] = (int16_t)(sums.upper[i] - bias);
        }
        for (uint64_t i = 0; i < size; i++) out[done + i] += unit * (uint32_t)value[from + i];
        done += size;
    }
}

/* Add unit * sum of sign * d(key) over n keys of 32 bytes to `count` integers. `backend` must be supported. Returns 0 if there is no
 * memory. */
static int drawn(const char *backend, uint32_t *out, uint64_t count, uint64_t start, const unsigned char *keys,
                 const signed char *signs, size_t n, uint32_t unit)
{
    const Path *path = PATHS;
    const size_t most = n < KEYS ? n : KEYS;
    char *memory = malloc(sizeof(Term) * (most + 1));
    if (!memory) return 0;
    Term *terms = (Term *)(memory + (64 - (uintptr_t)memory % 64));
    while (strcmp(path->name, backend)) path++;
    for (size_t first = 0; first < n && count; first += KEYS) {
        const size_t some = n - first < KEYS ? n - first : KEYS;
        size_t minus = 0, plus = some;
        for (size_t j = first; j < first + some; j++) expand(&terms[signs[j] < 0 ? minus++ : --plus], keys + 32 * j);
        add_drawn(out, start, count, terms, minus, some, unit, path->draw);
    }
    wipe(terms, sizeof(Term) * most);
    free(memory);
    wipe_frames();                    /* at last: a loader that looks up `free` only now saves registers there */
    return 1;
}

#else

static const struct { const char *name; } PATHS[] = {{NULL}};

static int supports(const char *backend)
{
    return (void)backend, 0;
}

static int accumulated(const char *backend, uint32_t *out, uint64_t count, uint64_t start, const unsigned char *keys,
                       const float *scales, size_t n, Data data)
{
    return (void)backend, (void)out, (void)count, (void)start, (void)keys, (void)scales, (void)n, (void)data, -1;
}

static int drawn(const char *backend, uint32_t *out, uint64_t count, uint64_t start, const unsigned char *keys,
                 const signed char *signs, size_t n, uint32_t unit)
{
    return (void)backend, (void)out, (void)count, (void)start, (void)keys, (void)signs, (void)n, (void)unit, 0;
}

#endif
