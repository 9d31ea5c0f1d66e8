/* The compiled path of lightdp.stream: AES-256-CTR -> Box-Muller -> integers, added up tile by tile; and of lightdp.wire's
 * packing and, in rotation.h, rotation; in sha256.h, the stream keys of lightdp.keys.
 *
 * lightdp/stream.py specifies the samples and holds a numpy path that gives the same bits. Whatever changes here changes there.
 *
 * Bits: only IEEE binary32 (for data binary64) + - x / sqrt and conversions, in a written order; compile with
 * -ffp-contract=off (AVX-512 has fused multiply-adds). No intermediate is subnormal; the rounding mode is set for the call.
 * Time: no table, index or branch depends on a key, on the keystream, on a sample or on data; signs and scales are public.
 * Divisions and roots see no subnormal; beyond that their constant time is up to the processor.
 * Without x86-64 and a GNU-like compiler the module builds with packing and rotation alone and BACKENDS is empty.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#include "rotation.h"
#include "sha256.h"

/* what is masked: values / step, with noise of its own from the first three terms */
typedef struct {
    const void *values;               /* float or, if wide, double; NULL: there is no data */
    int wide;
    double step;
} Data;

#if defined(__x86_64__) && defined(__GNUC__)
#include "paths.h"

/* ---- data: its own noise on three scales, and one rounding ---- */

enum { PLUS, MINUS, WHOLE, FINE };     /* sums of a tile: terms by their sign; the data's own noise in steps, and in 2^-22 steps */

/* Add the nearest integers to values / step + noise, modulo 2^32. For |x| < 2^51, x + 1.5 * 2^52 has units of 1: this rounds x
 * to the nearest integer, ties to even, and ends in its bits. Returns 0 if an x is not below 2^51: its integer means nothing. */
__attribute__((target("avx2")))
static int settle(uint32_t *restrict out, const uint32_t *restrict whole, const uint32_t *restrict fine, uint64_t n, Data data)
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
    for (uint64_t i = from / 64 * 64; i < to; i += 64) _mm_prefetch((const char *)data + i, _MM_HINT_T0);
}

/* ---- tiles outside, keys inside; 0 if a value of the data was out of range ---- */

__attribute__((target("avx2")))
static int add(uint32_t *out, uint64_t start, uint64_t count, const Term *terms, Py_ssize_t n, Data data, Pass *pass)
{
    const unsigned int mxcsr = _mm_getcsr();
    Stream stream[2] __attribute__((aligned(64)));
    int now = 0, fits = 1;
    if (count == 0 || n == 0) return 1;
    _mm_setcsr(0x1f80);               /* to nearest, no flushing, no traps */
    keystream_aesni(&stream[now], terms, start / TILE);
    for (uint64_t done = 0; done < count;) {
        const uint64_t tile = (start + done) / TILE, from = (start + done) % TILE;
        const uint64_t size = TILE - from < count - done ? TILE - from : count - done;
        const uint64_t bytes = size * (data.wide ? 8 : 4);
        uint32_t sum[4][TILE] __attribute__((aligned(64)));
        memset(sum, 0, sizeof(sum[0]) * (data.values ? 4 : 2));
        for (Py_ssize_t j = 0; j < n; j++) {
            const int last = j + 1 == n;  /* the next keystream is of the next tile, and the very last one is for nothing */
            if (data.values) fetch(data.values, bytes * (uint64_t)j / (uint64_t)n, bytes * (uint64_t)(j + 1) / (uint64_t)n);
            pass(sum[terms[j].sum], &stream[now], terms[j].scale, &stream[!now], &terms[last ? 0 : j + 1], tile + last);
            if (data.values && j == 1)
                for (int i = 0; i < TILE; i++) sum[FINE][i] <<= 11;
            now = !now;
        }
        for (uint64_t i = 0; i < size; i++) out[done + i] += sum[PLUS][from + i] - sum[MINUS][from + i];
        if (data.values) {
            fits &= settle(out + done, sum[WHOLE] + from, sum[FINE] + from, size, data);
            data.values = (const char *)data.values + size * (data.wide ? 8 : 4);
        }
        done += size;
    }
    _mm_setcsr(mxcsr);
    return fits;
}

static void wipe(void *memory, size_t size)
{
    for (volatile char *p = memory; size--;) *p++ = 0;
}

/* as `add`, or -1 with an exception set */
static int run(const Py_buffer *out, uint64_t start, const Py_buffer *keys, const Py_buffer *scales, Data data, const char *backend)
{
    const Py_ssize_t n = keys->len / 32;
    Pass *const pass = !strcmp(backend, "vaes512") ? pass_vaes512 : !strcmp(backend, "vaes") ? pass_vaes : pass_aesni;
    Term *terms = NULL;
    int fits;
    if (posix_memalign((void **)&terms, 64, sizeof(Term) * (size_t)(n + 1))) {
        PyErr_NoMemory();
        return -1;
    }
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t j = 0; j < n; j++) {
        const float scale = ((const float *)scales->buf)[j];
        expand(terms[j].round, (const unsigned char *)keys->buf + 32 * j);
        terms[j].scale = scale < 0 ? -scale : scale;
        terms[j].sum = data.values && j < 3 ? (j == 0 ? WHOLE : FINE) : (scale < 0 ? MINUS : PLUS);
    }
    fits = add(out->buf, start, (uint64_t)out->len / 4, terms, n, data, pass);
    wipe(terms, sizeof(Term) * (size_t)n);
    free(terms);
    Py_END_ALLOW_THREADS
    return fits;
}

static int supports(const char *backend)
{
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("aes") || !__builtin_cpu_supports("avx2")) return 0;
    if (!strcmp(backend, "aesni")) return 1;
    if (!__builtin_cpu_supports("vaes")) return 0;
    if (!strcmp(backend, "vaes")) return 1;
    return !strcmp(backend, "vaes512") && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
}

#else

static int run(const Py_buffer *out, uint64_t start, const Py_buffer *keys, const Py_buffer *scales, Data data, const char *backend)
{
    (void)out, (void)start, (void)keys, (void)scales, (void)data, (void)backend;
    PyErr_SetString(PyExc_RuntimeError, "no code path");
    return -1;
}

static int supports(const char *backend)
{
    return (void)backend, 0;
}

#endif

/* ---- packed words (lightdp/wire/packing.py): 32 / gcd(bits, 32) lanes of `columns` values each ---- */

#define ROW 4096                      /* columns at a time: their words stay in the cache */

typedef struct {
    uint32_t *values, *words;
    size_t length, columns;
    int shift, bits;
} Packing;

/* a value in units of 2^shift, rounded, ties to even */
#define ROUNDED(value) ((((value) + half + (((value) >> p.shift) & odd)) >> p.shift) & kept)

/* put `count` values into the words from `low` on, which are zero there */
static void pack_row(Packing p, const uint32_t *restrict values, uint32_t *restrict low, size_t count, int offset)
{
    const uint32_t odd = p.shift > 0, half = odd ? (1u << (p.shift - 1)) - 1 : 0, kept = UINT32_MAX >> (32 - p.bits);
    if (offset + p.bits <= 32)
        for (size_t i = 0; i < count; i++) low[i] |= ROUNDED(values[i]) << offset;
    else {
        uint32_t *restrict high = low + p.columns;
        for (size_t i = 0; i < count; i++) {
            low[i] |= ROUNDED(values[i]) << offset;
            high[i] |= ROUNDED(values[i]) >> (32 - offset);
        }
    }
}

/* add to `count` values what the words from `low` on hold; only the low bits of the sums mean anything */
static void unpack_row(Packing p, uint32_t *restrict values, const uint32_t *restrict low, size_t count, int offset)
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

/* ---- Python: arguments are checked here only as far as memory safety needs; callers check their meaning ---- */

static PyObject *accumulate(PyObject *self, PyObject *args)
{
    Py_buffer out, keys, scales, values = {0};
    Data data = {NULL, 0, 1.0};
    unsigned long long start;
    const char *backend;
    int fits = -1;
    (void)self;
    if (!PyArg_ParseTuple(args, "sw*Ky*y*|(y*d)", &backend, &out, &start, &keys, &scales, &values, &data.step)) return NULL;
    data.values = values.buf;
    data.wide = values.len > out.len;
    if (out.len % 4 || (uintptr_t)out.buf % 4 || (uintptr_t)scales.buf % 4 || keys.len % 32 || scales.len != keys.len / 8)
        PyErr_SetString(PyExc_ValueError, "out: aligned int32; keys: 32 bytes a term; scales: one aligned float32 a term");
    else if (values.obj
             && (values.len != out.len * (1 + data.wide) || (uintptr_t)values.buf % (data.wide ? 8 : 4) || keys.len < 96))
        PyErr_SetString(PyExc_ValueError, "values: one aligned float32 or float64 for each of out, with three terms of their own");
    else if (start >> 52)
        PyErr_SetString(PyExc_ValueError, "start is too large");
    else if (!supports(backend))
        PyErr_Format(PyExc_ValueError, "this machine has no backend %s", backend);
    else
        fits = run(&out, start, &keys, &scales, data, backend);
    PyBuffer_Release(&out);
    PyBuffer_Release(&keys);
    PyBuffer_Release(&scales);
    if (values.obj) PyBuffer_Release(&values);
    return fits < 0 ? NULL : PyBool_FromLong(fits);
}

static PyObject *move(PyObject *args, int pack)
{
    Py_buffer values, words;
    Packing p = {0};
    int fits;
    if (!PyArg_ParseTuple(args, pack ? "y*w*ii" : "w*y*ii", &values, &words, &p.shift, &p.bits)) return NULL;
    fits = p.bits >= 2 && p.bits <= 32 && p.shift >= 0 && p.shift <= 32 - p.bits;
    if (fits) {
        const size_t unit = (size_t)(p.bits & -p.bits), lanes = 32 / unit;  /* unit = gcd(bits, 32) */
        p.values = values.buf, p.words = words.buf, p.length = (size_t)values.len / 4;
        p.columns = p.length / lanes + (p.length % lanes != 0);
        fits = values.len % 4 == 0 && (size_t)words.len == p.columns * ((size_t)p.bits / unit) * 4
            && (uintptr_t)values.buf % 4 == 0 && (uintptr_t)words.buf % 4 == 0;
    }
    if (fits) {
        Py_BEGIN_ALLOW_THREADS
        each_row(p, pack);
        Py_END_ALLOW_THREADS
    } else
        PyErr_SetString(PyExc_ValueError, "values: aligned int32; words: aligned, as many as they fill; bits + shift <= 32");
    PyBuffer_Release(&values);
    PyBuffer_Release(&words);
    if (!fits) return NULL;
    Py_RETURN_NONE;
}

static PyObject *pack(PyObject *self, PyObject *args)
{
    return (void)self, move(args, 1);
}

static PyObject *unpack(PyObject *self, PyObject *args)
{
    return (void)self, move(args, 0);
}

static PyObject *rotate(PyObject *self, PyObject *args)
{
    Py_buffer out, values, signs;
    unsigned long long part;
    const char *way;
    Turned *turned;
    Turn t = {0};
    uint64_t odd = 0;
    size_t count;
    int fits;
    (void)self;
    if (!PyArg_ParseTuple(args, "sw*y*y*Kdddp", &way, &out, &values, &signs, &part, &t.scale, &t.most, &t.bound, &t.back))
        return NULL;
    turned = turning(way);
    count = (size_t)out.len / 8;
    t.out = out.buf, t.values = values.buf, t.signs = signs.buf, t.wide = values.len == out.len, t.part = (size_t)part;
    t.lanes = count == (size_t)signs.len ? 1 : LANES;
    fits = part >= t.lanes && part <= count && !(part & (part - 1)) && count % part == 0 && count * 8 == (size_t)out.len
        && t.lanes * (size_t)signs.len == count && (t.wide || (!t.back && (size_t)values.len == 4 * count))
        && (!t.back || values.buf == out.buf) && (uintptr_t)out.buf % 8 == 0 && (uintptr_t)values.buf % (t.wide ? 8 : 4) == 0;
    if (!turned) {
        fits = 0;
        PyErr_Format(PyExc_ValueError, "this machine has no way %s", way);
    } else if (fits) {
        if (t.lanes != LANES || t.part < NEAR) turned = turned_plain;
        Py_BEGIN_ALLOW_THREADS
        for (size_t i = 0; i < count; i += t.part) odd |= turned(&t, i);
        Py_END_ALLOW_THREADS
    } else
        PyErr_SetString(PyExc_ValueError, "out: aligned float64 in whole parts; values: as many, float32 or float64, or out itself, as "
                                          "back needs; signs: an int8 for each value or for each eight; part: a power of two");
    PyBuffer_Release(&out);
    PyBuffer_Release(&values);
    PyBuffer_Release(&signs);
    return fits ? PyBool_FromLong(odd == 0) : NULL;
}

static PyObject *expand_keys(PyObject *self, PyObject *args)
{
    Py_buffer prefix, records;
    PyObject *result = NULL;
    Compress *compress;
    const char *way;
    (void)self;
    if (!PyArg_ParseTuple(args, "sy*y*", &way, &prefix, &records)) return NULL;
    compress = compressing(way);
    if (!compress) PyErr_Format(PyExc_ValueError, "this machine has no way %s", way);
    else if (prefix.len > PREFIX_MAX || records.len % RECORD)
        PyErr_SetString(PyExc_ValueError, "prefix: at most 160 bytes; records: 40 bytes each");
    else if ((result = PyBytes_FromStringAndSize(NULL, records.len / RECORD * SHA_BYTES)))
        expanded((uint8_t *)PyBytes_AsString(result), prefix.buf, (size_t)prefix.len, records.buf, (size_t)records.len / RECORD, compress);
    PyBuffer_Release(&prefix);
    PyBuffer_Release(&records);
    return result;
}

static int execute(PyObject *module)
{
    PyObject *backends = supports("vaes512") ? Py_BuildValue("(sss)", "vaes512", "vaes", "aesni")
                       : supports("vaes") ? Py_BuildValue("(ss)", "vaes", "aesni")
                       : supports("aesni") ? Py_BuildValue("(s)", "aesni") : PyTuple_New(0);
    PyObject *rotations = turning("avx512") ? Py_BuildValue("(sss)", "avx512", "avx2", "plain")
                        : turning("avx2") ? Py_BuildValue("(ss)", "avx2", "plain") : Py_BuildValue("(s)", "plain");
    PyObject *expansions = compressing("shani") ? Py_BuildValue("(ss)", "shani", "plain") : Py_BuildValue("(s)", "plain");
    const int failed = PyModule_AddObjectRef(module, "BACKENDS", backends) || PyModule_AddObjectRef(module, "ROTATIONS", rotations)
                    || PyModule_AddObjectRef(module, "EXPANSIONS", expansions);
    Py_XDECREF(backends);
    Py_XDECREF(rotations);
    Py_XDECREF(expansions);
    return failed ? -1 : 0;
}

static PyMethodDef methods[] = {
    {"accumulate", accumulate, METH_VARARGS,
     "accumulate(backend, out, start, keys, scales[, (values, step)]): add the samples of lightdp.stream to out; a negative scale\n"
     "subtracts. With values, the first three terms are their noise; False if one of them was too large or not a number."},
    {"pack", pack, METH_VARARGS, "pack(values, words, shift, bits): values rounded to units of 2^shift, into words that are zero."},
    {"unpack", unpack, METH_VARARGS, "unpack(values, words, 0, bits): add what words hold to values."},
    {"rotate", rotate, METH_VARARGS,
     "rotate(way, out, values, signs, part, scale, most, bound, back): values clamped to most, rows times signs and scale, the\n"
     "columns of each part transformed, clamped to bound; False if a value is not finite. back: transformed, then times signs and\n"
     "scale, in place. way: one of ROTATIONS, the fastest first; all give the same bits."},
    {"expand", expand_keys, METH_VARARGS,
     "expand(way, prefix, records): for each record of 40 bytes, 32 bytes of HKDF-Expand with its first 32 as the key and prefix\n"
     "and its last 8 as the info. way: one of EXPANSIONS, the fastest first."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)execute}, {0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "kernel", "The compiled paths of lightdp.stream and lightdp.wire.", 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_kernel(void)
{
    return PyModuleDef_Init(&module);
}
