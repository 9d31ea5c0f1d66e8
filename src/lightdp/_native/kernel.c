/* The compiled path of lightdp.stream: AES-256-CTR -> Box-Muller -> integers, added up tile by tile.
 *
 * lightdp/stream.py specifies the samples and holds a numpy path that gives the same bits. Whatever changes here changes there.
 *
 * Bits: only IEEE binary32 + - x / sqrt and conversions, in a written order; compile with -ffp-contract=off (AVX-512
 * has fused multiply-adds). No intermediate is subnormal; the rounding mode is set for the call.
 * Time: no table, index or branch depends on a key, on the keystream or on a sample; signs and scales are public.
 * Divisions and roots see no subnormal; beyond that their constant time is up to the processor.
 * Without x86-64 and a GNU-like compiler the module builds with no code path and BACKENDS is empty.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include "paths.h"

/* ---- tiles outside, keys inside ---- */

static void add(uint32_t *out, uint64_t start, uint64_t count, const Term *terms, Py_ssize_t n, Pass *pass)
{
    const unsigned int mxcsr = _mm_getcsr();
    Stream stream[2] __attribute__((aligned(64)));
    int now = 0;
    if (count == 0 || n == 0) return;
    _mm_setcsr(0x1f80);               /* to nearest, no flushing, no traps */
    keystream_aesni(&stream[now], terms, start / TILE);
    for (uint64_t done = 0; done < count;) {
        const uint64_t tile = (start + done) / TILE, from = (start + done) % TILE;
        const uint64_t size = TILE - from < count - done ? TILE - from : count - done;
        uint32_t sum[2][TILE] __attribute__((aligned(64))) = {{0}};
        for (Py_ssize_t j = 0; j < n; j++) {
            const int last = j + 1 == n;  /* the next keystream is of the next tile, and the very last one is for nothing */
            pass(sum[terms[j].minus], &stream[now], terms[j].scale, &stream[!now], &terms[last ? 0 : j + 1], tile + last);
            now = !now;
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
    Pass *const pass = !strcmp(backend, "vaes512") ? pass_vaes512 : !strcmp(backend, "vaes") ? pass_vaes : pass_aesni;
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
    add(out->buf, start, (uint64_t)out->len / 4, terms, n, pass);
    wipe(terms, sizeof(Term) * (size_t)n);
    free(terms);
    Py_END_ALLOW_THREADS
    return 0;
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
    PyObject *backends = supports("vaes512") ? Py_BuildValue("(sss)", "vaes512", "vaes", "aesni")
                       : supports("vaes") ? Py_BuildValue("(ss)", "vaes", "aesni")
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
