/* The compiled path of lightdp.stream: AES-256-CTR -> Box-Muller -> integers, added up tile by tile.
 *
 * lightdp/stream.py specifies the samples and holds a numpy path that gives the same bits. Whatever changes here changes there.
 *
 * Bits: only IEEE binary32 + - x / sqrt and conversions, in a written order; compile with -ffp-contract=off (the targets
 * below have no fused multiply-add either). No intermediate is subnormal; the rounding mode is set for the call.
 * Time: no table, index or branch depends on a key, on the keystream or on a sample; signs and scales are public.
 * Divisions and roots see no subnormal; beyond that their constant time is up to the processor.
 * Without x86-64 and a GNU-like compiler the module builds with no code path and BACKENDS is empty.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define TILE 1024                     /* samples; their keystream (6 KiB) and sums (8 KiB) stay in L1 */
#define PAIRS (TILE / 2)
#define BLOCKS (TILE * 6 / 16)        /* AES blocks a tile */
#define ROUNDS 14                     /* AES-256 */

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

typedef float v8f __attribute__((vector_size(32), may_alias));
typedef int32_t v8i __attribute__((vector_size(32), may_alias));
typedef uint32_t v8u __attribute__((vector_size(32), may_alias));

typedef struct {
    __m128i round[ROUNDS + 1];
    float scale;                      /* |sigma| * 2^15 */
    int32_t minus;                    /* 1: subtract */
} Term;

typedef union {
    __m256i wide[BLOCKS / 2];
    __m128i block[BLOCKS];
    uint32_t word[3][PAIRS];
} Stream;

typedef void Keystream(Stream *, const Term *, uint64_t);

/* ---- AES-256 (FIPS 197), counter mode, 128-bit big-endian counter that starts at zero ---- */

__attribute__((target("aes,avx2"))) static inline __m128i mix(__m128i key, __m128i word)
{
    key = _mm_xor_si128(key, _mm_slli_si128(key, 4));
    key = _mm_xor_si128(key, _mm_slli_si128(key, 8));
    return _mm_xor_si128(key, word);
}

#define EVEN(i, rcon) k[i] = mix(k[i - 2], _mm_shuffle_epi32(_mm_aeskeygenassist_si128(k[i - 1], rcon), 0xff))
#define ODD(i) k[i] = mix(k[i - 2], _mm_shuffle_epi32(_mm_aeskeygenassist_si128(k[i - 1], 0), 0xaa))

__attribute__((target("aes,avx2"))) static void expand(__m128i *k, const unsigned char *key)
{
    k[0] = _mm_loadu_si128((const __m128i *)key);
    k[1] = _mm_loadu_si128((const __m128i *)(key + 16));
    EVEN(2, 0x01), ODD(3), EVEN(4, 0x02), ODD(5), EVEN(6, 0x04), ODD(7), EVEN(8, 0x08), ODD(9);
    EVEN(10, 0x10), ODD(11), EVEN(12, 0x20), ODD(13), EVEN(14, 0x40);
}

__attribute__((target("aes,avx2"))) static void keystream_aesni(Stream *out, const Term *term, uint64_t tile)
{
    const __m128i swap = _mm_set_epi64x(0x0001020304050607, 0x08090a0b0c0d0e0f);
    __m128i counter = _mm_set_epi64x(0, (int64_t)(tile * BLOCKS));
    for (int i = 0; i < BLOCKS; i += 8) {
        __m128i x[8];
        for (int j = 0; j < 8; j++) {
            x[j] = _mm_xor_si128(_mm_shuffle_epi8(counter, swap), term->round[0]);
            counter = _mm_add_epi64(counter, _mm_set_epi64x(0, 1));
        }
        for (int r = 1; r < ROUNDS; r++)
            for (int j = 0; j < 8; j++) x[j] = _mm_aesenc_si128(x[j], term->round[r]);
        for (int j = 0; j < 8; j++) out->block[i + j] = _mm_aesenclast_si128(x[j], term->round[ROUNDS]);
    }
}

__attribute__((target("vaes,avx2"))) static void keystream_vaes(Stream *out, const Term *term, uint64_t tile)
{
    const __m256i swap = _mm256_broadcastsi128_si256(_mm_set_epi64x(0x0001020304050607, 0x08090a0b0c0d0e0f));
    __m256i key[ROUNDS + 1], counter = _mm256_set_epi64x(0, (int64_t)(tile * BLOCKS + 1), 0, (int64_t)(tile * BLOCKS));
    for (int r = 0; r <= ROUNDS; r++) key[r] = _mm256_broadcastsi128_si256(term->round[r]);
    for (int i = 0; i < BLOCKS / 2; i += 8) {
        __m256i x[8];
        for (int j = 0; j < 8; j++) {
            x[j] = _mm256_xor_si256(_mm256_shuffle_epi8(counter, swap), key[0]);
            counter = _mm256_add_epi64(counter, _mm256_set_epi64x(0, 2, 0, 2));
        }
        for (int r = 1; r < ROUNDS; r++)
            for (int j = 0; j < 8; j++) x[j] = _mm256_aesenc_epi128(x[j], key[r]);
        for (int j = 0; j < 8; j++) out->wide[i + j] = _mm256_aesenclast_epi128(x[j], key[ROUNDS]);
    }
}

/* ---- three words -> two samples (Box-Muller), eight pairs at a time ---- */

#define FLOAT(v) ((v8f)_mm256_cvtepi32_ps((__m256i)(v)))          /* nearest, ties to even, as RINT */
#define RINT(v) ((v8i)_mm256_cvtps_epi32((__m256)(v)))

__attribute__((target("avx2"))) static void gauss(uint32_t *sum, const Stream *in, float scale)
{
    for (int i = 0; i < PAIRS; i += 8) {
        const v8u a = *(const v8u *)&in->word[0][i], b = *(const v8u *)&in->word[1][i], c = *(const v8u *)&in->word[2][i];
        v8u *sine = (v8u *)&sum[i], *cosine = (v8u *)&sum[i + PAIRS];

        /* u = U 2^-62 in (0, 1], U = 2^(62 + e) m with m in [sqrt(1/2), sqrt(2)); square = -2 ln u = -2 e ln 2 - 4 artanh(w) */
        const v8f U = FLOAT(a & 0x7fffffffu) * 0x1p31f + FLOAT((b & 0x7fffffffu) | 1);
        const v8i bits = (v8i)U - 0x5e3504f3;
        const v8f e = FLOAT(bits & ~0x7fffff), m = (v8f)((bits & 0x7fffff) + 0x3f3504f3);
        const v8f w = (m - 1.0f) / (m + 1.0f), v = w * w;
        const v8f square = e * -0x1.62e430p-23f - ((v * 0x1.a6e112p-1f + 0x1.554262p+0f) * v + 0x1.000002p+2f) * w;
        const v8f radius = (v8f)_mm256_sqrt_ps((__m256)square) * scale;

        /* a quarter turn to each side, by doubling an eighth; the top bit turns by a half */
        const v8f x = FLOAT(c + c) * 0x1p-32f, y = x * x;
        const v8f s = (((y * -0x1.af30fcp-8f + 0x1.cdabb0p-4f) * y - 0x1.d3ba9cp-1f) * y + 0x1.1c5832p+1f) * x;
        const v8f k = ((y * -0x1.d8dc86p-6f + 0x1.6f402cp-2f) * y - 0x1.bea566p+0f) * y + 0x1.6a09e6p+0f;
        const v8f turned = (v8f)((v8u)radius ^ (c & 0x80000000u));

        *sine += (v8u)((RINT(turned * (s * k)) + 0x4000) >> 15);
        *cosine += (v8u)((RINT(turned * (1.0f - s * s)) + 0x4000) >> 15);
    }
}

/* ---- tiles outside, keys inside ---- */

static void add(uint32_t *out, uint64_t start, uint64_t count, const Term *terms, Py_ssize_t n, Keystream *keystream)
{
    const unsigned int mxcsr = _mm_getcsr();
    _mm_setcsr(0x1f80);               /* to nearest, no flushing, no traps */
    for (uint64_t done = 0; done < count;) {
        const uint64_t tile = (start + done) / TILE, from = (start + done) % TILE;
        const uint64_t size = TILE - from < count - done ? TILE - from : count - done;
        uint32_t sum[2][TILE] __attribute__((aligned(64))) = {{0}};
        Stream stream __attribute__((aligned(64)));
        for (Py_ssize_t j = 0; j < n; j++) {
            keystream(&stream, &terms[j], tile);
            gauss(sum[terms[j].minus], &stream, terms[j].scale);
        }
        for (uint64_t i = 0; i < size; i++) out[done + i] += sum[0][from + i] - sum[1][from + i];
        done += size;
    }
    _mm_setcsr(mxcsr);
}

static void wipe(void *memory, size_t size)
{
    for (volatile char *p = memory; size--;) *p++ = 0;
}

/* 0, or -1 with an exception set */
static int run(const Py_buffer *out, uint64_t start, const Py_buffer *keys, const Py_buffer *scales, const char *backend)
{
    const Py_ssize_t n = keys->len / 32;
    Keystream *const keystream = strcmp(backend, "vaes") ? keystream_aesni : keystream_vaes;
    Term *terms = NULL;
    if (posix_memalign((void **)&terms, 64, sizeof(Term) * (size_t)(n + 1))) {
        PyErr_NoMemory();
        return -1;
    }
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t j = 0; j < n; j++) {
        const float scale = ((const float *)scales->buf)[j];
        expand(terms[j].round, (const unsigned char *)keys->buf + 32 * j);
        terms[j].scale = scale < 0 ? -scale : scale;
        terms[j].minus = scale < 0;
    }
    add(out->buf, start, (uint64_t)out->len / 4, terms, n, keystream);
    wipe(terms, sizeof(Term) * (size_t)n);
    free(terms);
    Py_END_ALLOW_THREADS
    return 0;
}

static int supports(const char *backend)
{
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("aes") || !__builtin_cpu_supports("avx2")) return 0;
    return !strcmp(backend, "aesni") || (!strcmp(backend, "vaes") && __builtin_cpu_supports("vaes"));
}

#else

static int run(const Py_buffer *out, uint64_t start, const Py_buffer *keys, const Py_buffer *scales, const char *backend)
{
    (void)out, (void)start, (void)keys, (void)scales, (void)backend;
    PyErr_SetString(PyExc_RuntimeError, "no code path");
    return -1;
}

static int supports(const char *backend)
{
    return (void)backend, 0;
}

#endif

/* ---- Python: arguments are checked here only as far as memory safety needs; lightdp.stream checks their meaning ---- */

static PyObject *accumulate(PyObject *self, PyObject *args)
{
    Py_buffer out, keys, scales;
    unsigned long long start;
    const char *backend;
    int failed = -1;
    (void)self;
    if (!PyArg_ParseTuple(args, "sw*Ky*y*", &backend, &out, &start, &keys, &scales)) return NULL;
    if (out.len % 4 || (uintptr_t)out.buf % 4 || (uintptr_t)scales.buf % 4 || keys.len % 32 || scales.len != keys.len / 8)
        PyErr_SetString(PyExc_ValueError, "out: aligned int32; keys: 32 bytes a term; scales: one aligned float32 a term");
    else if (start >> 52)
        PyErr_SetString(PyExc_ValueError, "start is too large");
    else if (!supports(backend))
        PyErr_Format(PyExc_ValueError, "this machine has no backend %s", backend);
    else
        failed = run(&out, start, &keys, &scales, backend);
    PyBuffer_Release(&out);
    PyBuffer_Release(&keys);
    PyBuffer_Release(&scales);
    if (failed) return NULL;
    Py_RETURN_NONE;
}

static int execute(PyObject *module)
{
    PyObject *backends = supports("vaes") ? Py_BuildValue("(ss)", "vaes", "aesni")
                       : supports("aesni") ? Py_BuildValue("(s)", "aesni") : PyTuple_New(0);
    const int failed = PyModule_AddObjectRef(module, "BACKENDS", backends);
    Py_XDECREF(backends);
    return failed;
}

static PyMethodDef methods[] = {
    {"accumulate", accumulate, METH_VARARGS,
     "accumulate(backend, out, start, keys, scales): add the samples of lightdp.stream; a negative scale subtracts."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)execute}, {0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "kernel", "The compiled path of lightdp.stream.", 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_kernel(void)
{
    return PyModuleDef_Init(&module);
}
