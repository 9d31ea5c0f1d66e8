/* The compiled path of lightdp/wire/rotation.py: values times signs, then Walsh-Hadamard transformed; and back.
 *
 * A part has rows of one value or of LANES. Its columns are transformed alike: sums and differences of rows at distances 1, 2,
 * 4, ..., in that order, as _rotate of rotation.py has them, with the same bits. Rows of LANES fill vectors: nothing is shuffled.
 * Time: no branch or index depends on values; signs are public.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define LANES 8
#define NEAR 2048                     /* values whose first levels are done together: they stay in L1 */

typedef struct {
    double *out;
    const void *values;               /* float or, if wide, double; may be out itself */
    int wide, back;
    const int8_t *signs;              /* of rows */
    size_t lanes, part;               /* values of a row and of a part */
    double scale, most, bound;        /* clamped to most before, to bound after */
} Turn;

/* turn the part that starts at a value; not 0 if one of its values is not finite */
typedef uint64_t Turned(const Turn *t, size_t start);

#ifdef __GNUC__
#define INLINE static inline __attribute__((always_inline))
#else
#define INLINE static inline
#endif

/* a value that is finite gives 0, NaN and infinity the bits of a NaN */
INLINE uint64_t odd_bits(double value)
{
    const union { double value; uint64_t bits; } none = {value - value};
    return none.bits;
}

INLINE double clamped(double value, double bound)
{
    const double low = value > bound ? bound : value;
    return low < -bound ? -bound : low;
}

static void times_signs(const Turn *t, double *out, const int8_t *signs, size_t count)
{
    if (t->lanes == 1)
        for (size_t i = 0; i < count; i++) out[i] *= t->scale * signs[i];
    else
        for (size_t i = 0; i < count; i += LANES) {
            const double factor = t->scale * signs[i / LANES];
            for (size_t j = i; j < i + LANES; j++) out[j] *= factor;
        }
}

static void eight(double *v)
{
    const double a = v[0] + v[1], b = v[0] - v[1], c = v[2] + v[3], d = v[2] - v[3];
    const double e = v[4] + v[5], f = v[4] - v[5], g = v[6] + v[7], h = v[6] - v[7];
    const double p = a + c, q = b + d, r = a - c, s = b - d, t = e + g, u = f + h, w = e - g, x = f - h;
    v[0] = p + t, v[1] = q + u, v[2] = r + w, v[3] = s + x;
    v[4] = p - t, v[5] = q - u, v[6] = r - w, v[7] = s - x;
}

/* the levels from distance `at` on, two in one pass where there are two */
static void levels(double *v, size_t count, size_t at)
{
    for (; 4 * at <= count; at *= 4)
        for (size_t i = 0; i < count; i += 4 * at) {
            double *__restrict a = v + i, *__restrict b = a + at, *__restrict c = b + at, *__restrict d = c + at;
            for (size_t j = 0; j < at; j++) {
                const double p = a[j] + b[j], q = a[j] - b[j], r = c[j] + d[j], s = c[j] - d[j];
                a[j] = p + r, b[j] = q + s, c[j] = p - r, d[j] = q - s;
            }
        }
    if (2 * at <= count)              /* one level is left, the last: the part has two halves */
        for (size_t j = 0; j < at; j++) {
            const double p = v[j], q = v[j + at];
            v[j] = p + q, v[j + at] = p - q;
        }
}

static uint64_t turned_plain(const Turn *t, size_t start)
{
    const size_t near = t->part < NEAR ? t->part : NEAR;
    const float *narrow = (const float *)t->values + start;
    const double *wide = (const double *)t->values + start;
    const int8_t *signs = t->signs + start / t->lanes;
    double *out = t->out + start;
    uint64_t odd = 0;
    for (size_t i = 0; i < t->part; i += near) {
        if (!t->back) {
            for (size_t j = i; j < i + near; j++) {
                const double value = t->wide ? wide[j] : (double)narrow[j];
                odd |= odd_bits(value);
                out[j] = clamped(value, t->most);
            }
            times_signs(t, out + i, signs + i / t->lanes, near);
        }
        if (t->lanes == 1 && near >= 8)
            for (size_t j = i; j < i + near; j += 8) eight(out + j);
        levels(out + i, near, near >= 8 ? 8 : t->lanes);
    }
    levels(out, t->part, near);
    if (t->back)
        times_signs(t, out, signs, t->part);
    else
        for (size_t i = 0; i < t->part; i++) out[i] = clamped(out[i], t->bound);
    return odd;
}

#if defined(__GNUC__) && defined(__x86_64__)
#include <immintrin.h>

#define NAME(name) name##_avx2
#define TARGET __attribute__((target("avx2,fma")))
#define WIDTH 4
#define MIN _mm256_min_pd
#define MAX _mm256_max_pd
#define LESS(a, b) _mm256_fnmadd_pd(b, one, a)
#include "rows.h"

#define NAME(name) name##_avx512
#define TARGET __attribute__((target("avx512f")))
#define WIDTH 8
#define MIN _mm512_min_pd
#define MAX _mm512_max_pd
#define LESS(a, b) _mm512_fnmadd_pd(b, one, a)
#include "rows.h"

static const char *const WAYS[] = {"avx512", "avx2", "plain", NULL};

#elif defined(__GNUC__) && defined(__aarch64__)
#include <arm_neon.h>

#define NAME(name) name##_neon
#define TARGET
#define WIDTH 2
#define MIN(a, b) vminq_f64((float64x2_t)(a), (float64x2_t)(b))
#define MAX(a, b) vmaxq_f64((float64x2_t)(a), (float64x2_t)(b))
#define LESS(a, b) ((a) - (b))
#include "rows.h"

static const char *const WAYS[] = {"neon", "plain", NULL};

#else

static const char *const WAYS[] = {"plain", NULL};

#endif

/* how rows of LANES are turned; NULL if this machine cannot */
static Turned *turning(const char *way)
{
#if defined(__GNUC__) && defined(__x86_64__)
    __builtin_cpu_init();
    if (!strcmp(way, "avx512") && __builtin_cpu_supports("avx512f")) return turned_avx512;
    if (!strcmp(way, "avx2") && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return turned_avx2;
#elif defined(__GNUC__) && defined(__aarch64__)
    if (!strcmp(way, "neon")) return turned_neon;
#endif
    return strcmp(way, "plain") ? NULL : turned_plain;
}

/* 1 if buffers of that many bytes are a turn's; sets how wide values are and how many a row has */
static int turns(Turn *t, size_t out, size_t values, size_t signs)
{
    const size_t count = out / 8;
    t->wide = values == out;
    t->lanes = count == signs ? 1 : LANES;
    return t->part >= t->lanes && t->part <= count && !(t->part & (t->part - 1)) && count % t->part == 0 && count * 8 == out
        && t->lanes * signs == count && (t->wide || (!t->back && values == 4 * count)) && (!t->back || t->values == t->out)
        && (uintptr_t)t->out % 8 == 0 && (uintptr_t)t->values % (t->wide ? 8 : 4) == 0;
}

/* turn all parts of `count` values; not 0 if one of the values is not finite */
static uint64_t turn(const Turn *t, size_t count, Turned *turned)
{
    uint64_t odd = 0;
    if (t->lanes != LANES || t->part < NEAR) turned = turned_plain;
    for (size_t i = 0; i < count; i += t->part) odd |= turned(t, i);
    return odd;
}
