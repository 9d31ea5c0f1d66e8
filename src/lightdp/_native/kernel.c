/* The compiled paths of lightdp.stream (noise.h), of lightdp.wire (packing.h, rotation.h, digest.h) and of lightdp.keys
 * (sha256.h, tree.h), for Python.
 *
 * lightdp/stream specifies the noise, and plain.py gives the same bits in numpy. Whatever changes here changes there.
 *
 * Bits: only IEEE binary32 (for data binary64) + - x / sqrt and conversions, in a written order; compile with
 * -ffp-contract=off (AVX-512 and ARMv8 have fused multiply-adds). No intermediate is subnormal but samples of a radius of 0, once in
 * 2^25 pairs, before they are rounded; the rounding mode is set for the call.
 * Time: no table, index or branch depends on a key, on the keystream, on a sample or on data; signs and scales are public.
 * Divisions and roots see no subnormal; beyond that their constant time is up to the processor.
 * Without x86-64 or little-endian ARMv8 and a GNU-like compiler the module builds with packing and rotation alone and BACKENDS is
 * empty.
 */
#ifdef _MSC_VER
#pragma fp_contract(off)
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "rotation.h"
#include "packing.h"
#include "noise.h"
#include "sha256.h"
#include "digest.h"
#include "tree.h"

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
    else {
        Py_BEGIN_ALLOW_THREADS
        fits = accumulated(backend, out.buf, (uint64_t)out.len / 4, start, keys.buf, scales.buf, (size_t)keys.len / 32, data);
        Py_END_ALLOW_THREADS
        if (fits < 0) PyErr_NoMemory();
    }
    PyBuffer_Release(&out);
    PyBuffer_Release(&keys);
    PyBuffer_Release(&scales);
    if (values.obj) PyBuffer_Release(&values);
    return fits < 0 ? NULL : PyBool_FromLong(fits);
}

static PyObject *draw(PyObject *self, PyObject *args)
{
    Py_buffer out, keys, signs;
    unsigned long long start;
    unsigned int unit;
    const char *backend;
    int made = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "sw*Ky*y*I", &backend, &out, &start, &keys, &signs, &unit)) return NULL;
    if (out.len % 4 || (uintptr_t)out.buf % 4 || keys.len % 32 || signs.len != keys.len / 32)
        PyErr_SetString(PyExc_ValueError, "out: aligned int32; keys: 32 bytes each; signs: an int8 for each key");
    else if (start >> 52)
        PyErr_SetString(PyExc_ValueError, "start is too large");
    else if (!supports(backend))
        PyErr_Format(PyExc_ValueError, "this machine has no backend %s", backend);
    else {
        Py_BEGIN_ALLOW_THREADS
        made = drawn(backend, out.buf, (uint64_t)out.len / 4, start, keys.buf, signs.buf, (size_t)keys.len / 32, unit);
        Py_END_ALLOW_THREADS
        if (!made) PyErr_NoMemory();
    }
    PyBuffer_Release(&out);
    PyBuffer_Release(&keys);
    PyBuffer_Release(&signs);
    if (!made) return NULL;
    Py_RETURN_NONE;
}

static PyObject *move(PyObject *args, int pack)
{
    Py_buffer values, words;
    Packing p = {0};
    int fits;
    if (!PyArg_ParseTuple(args, pack ? "y*w*ii" : "w*y*ii", &values, &words, &p.shift, &p.bits)) return NULL;
    p.values = values.buf, p.words = words.buf;
    fits = packs(&p, (size_t)values.len, (size_t)words.len) && (uintptr_t)values.buf % 4 == 0 && (uintptr_t)words.buf % 4 == 0;
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
    int fits;
    (void)self;
    if (!PyArg_ParseTuple(args, "sw*y*y*Kdddp", &way, &out, &values, &signs, &part, &t.scale, &t.most, &t.bound, &t.back))
        return NULL;
    turned = turning(way);
    t.out = out.buf, t.values = values.buf, t.signs = signs.buf, t.part = (size_t)part;
    fits = turns(&t, (size_t)out.len, (size_t)values.len, (size_t)signs.len);
    if (!turned) {
        fits = 0;
        PyErr_Format(PyExc_ValueError, "this machine has no way %s", way);
    } else if (fits) {
        Py_BEGIN_ALLOW_THREADS
        odd = turn(&t, (size_t)out.len / 8, turned);
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

static PyObject *strands(PyObject *self, PyObject *args)
{
    Py_buffer data;
    unsigned long long apart;
    PyObject *result = NULL;
    Strands *way;
    const char *name;
    (void)self;
    if (!PyArg_ParseTuple(args, "sy*K", &name, &data, &apart)) return NULL;
    const size_t size = (size_t)data.len;
    way = stranding(name);
    if (!way) PyErr_Format(PyExc_ValueError, "this machine has no way %s", name);
    else if (apart % SHA_BLOCK || apart > size / (STRANDS - 1) || size - (STRANDS - 1) * apart > apart)
        PyErr_SetString(PyExc_ValueError, "apart: whole blocks, so that the last of sixteen strands is not longer than the others");
    else if ((result = PyBytes_FromStringAndSize(NULL, STATES))) {
        uint8_t *out = (uint8_t *)PyBytes_AsString(result);
        Compress *compress = compressing("shani") ? compressing("shani") : compressing("plain");
        Py_BEGIN_ALLOW_THREADS
        strand_hashes(out, data.buf, size, (size_t)apart, way, compress);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&data);
    return result;
}

static PyObject *plant(PyObject *self, PyObject *args)
{
    Py_buffer data;
    PyObject *tree = NULL;
    int fits = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*", &data)) return NULL;
    const size_t size = (size_t)data.len, count = count_enrolments(data.buf, size);
    if (count && (tree = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(size + 4 * count - 3))))
        fits = planted((uint8_t *)PyBytes_AsString(tree), data.buf, size, count);
    PyBuffer_Release(&data);
    if (fits > 0) return tree;
    Py_XDECREF(tree);
    if (fits < 0) return PyErr_NoMemory();
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

static const Py_ssize_t COLUMNS[5] = {8, 4, 2, 4, SHA_BYTES};   /* bytes of a node in starts, ends, bits, counts and hashes */

static PyObject *fold(PyObject *self, PyObject *args)
{
    PyObject *tree, *columns[5] = {NULL}, *result = NULL;     /* bytes, which nobody changes meanwhile */
    uint8_t *memory[5];
    Compress *compress;
    const char *way;
    int fits = 0, made = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "sS", &way, &tree)) return NULL;
    const uint8_t *data = (const uint8_t *)PyBytes_AsString(tree);
    const size_t size = (size_t)PyBytes_Size(tree), count = count_nodes(data, size);
    compress = compressing(way);
    if (!compress) PyErr_Format(PyExc_ValueError, "this machine has no way %s", way);
    else if (count && count < UINT32_MAX) {
        for (; made < 5 && (columns[made] = PyBytes_FromStringAndSize(NULL, COLUMNS[made] * (Py_ssize_t)count)); made++)
            memory[made] = (uint8_t *)PyBytes_AsString(columns[made]);
        if (made == 5) {
            const Nodes nodes = {memory[0], memory[1], memory[2], memory[3], memory[4]};
            Py_BEGIN_ALLOW_THREADS
            fits = folded(&nodes, data, size, count, compress);
            Py_END_ALLOW_THREADS
        }
    }
    if (fits > 0) result = PyTuple_Pack(5, columns[0], columns[1], columns[2], columns[3], columns[4]);
    for (int i = 0; i < made; i++) Py_DECREF(columns[i]);
    if (fits < 0) return PyErr_NoMemory();
    if (result || PyErr_Occurred()) return result;
    Py_RETURN_NONE;
}

static PyObject *prune(PyObject *self, PyObject *args)
{
    Py_buffer data, places, columns[5];
    PyObject *result = NULL;
    int fits;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*(y*y*y*y*y*)y*", &data, &columns[0], &columns[1], &columns[2], &columns[3], &columns[4], &places))
        return NULL;
    const Nodes nodes = {columns[0].buf, columns[1].buf, columns[2].buf, columns[3].buf, columns[4].buf};
    const size_t count = (size_t)columns[0].len / 8, size = (size_t)data.len, n = (size_t)places.len / 4;
    fits = places.len % 4 == 0;
    for (int i = 0; i < 5; i++) fits = fits && columns[i].len == COLUMNS[i] * (Py_ssize_t)count;
    if (!fits) PyErr_SetString(PyExc_ValueError, "columns: as fold returns them; places: 4 bytes each");
    else {
        const size_t bytes = pruned(NULL, &nodes, count, data.buf, size, places.buf, n);
        if (bytes && (result = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)bytes)))
            pruned((uint8_t *)PyBytes_AsString(result), &nodes, count, data.buf, size, places.buf, n);
    }
    PyBuffer_Release(&data);
    PyBuffer_Release(&places);
    for (int i = 0; i < 5; i++) PyBuffer_Release(&columns[i]);
    if (result || PyErr_Occurred()) return result;
    Py_RETURN_NONE;
}

/* add a tuple of the names that this machine supports, the fastest first */
static int add_names(PyObject *module, const char *attribute, const char *const *names)
{
    PyObject *list = PyList_New(0), *tuple = NULL;
    int failed = !list;
    for (; !failed && *names; names++) {
        PyObject *name = PyUnicode_FromString(*names);
        failed = !name || PyList_Append(list, name);
        Py_XDECREF(name);
    }
    failed = failed || !(tuple = PyList_AsTuple(list)) || PyModule_AddObjectRef(module, attribute, tuple);
    Py_XDECREF(list);
    Py_XDECREF(tuple);
    return failed ? -1 : 0;
}

static int execute(PyObject *module)
{
    const char *backends[8] = {NULL}, *ways[8] = {NULL}, *digests[8] = {NULL};
    int count = 0;
    for (int i = 0; PATHS[i].name; i++)
        if (supports(PATHS[i].name)) backends[count++] = PATHS[i].name;
    count = 0;
    for (int i = 0; WAYS[i]; i++)
        if (turning(WAYS[i])) ways[count++] = WAYS[i];
    count = 0;
    for (int i = 0; DIGESTS[i]; i++)
        if (stranding(DIGESTS[i])) digests[count++] = DIGESTS[i];
    const char *const expansions[] = {compressing("shani") ? "shani" : "plain", compressing("shani") ? "plain" : NULL, NULL};
    return add_names(module, "BACKENDS", backends) || add_names(module, "ROTATIONS", ways)
        || add_names(module, "EXPANSIONS", expansions) || add_names(module, "DIGESTS", digests) ? -1 : 0;
}

static PyMethodDef methods[] = {
    {"accumulate", accumulate, METH_VARARGS,
     "accumulate(backend, out, start, keys, scales[, (values, step)]): add the samples of lightdp.stream to out; a negative scale\n"
     "subtracts. With values, the first three terms are their noise; False if one of them was too large or not a number."},
    {"draw", draw, METH_VARARGS,
     "draw(backend, out, start, keys, signs, unit): add unit times the drawn values of lightdp.stream to out."},
    {"pack", pack, METH_VARARGS, "pack(values, words, shift, bits): values rounded to units of 2^shift, into words that are zero."},
    {"unpack", unpack, METH_VARARGS, "unpack(values, words, 0, bits): add what words hold to values."},
    {"rotate", rotate, METH_VARARGS,
     "rotate(way, out, values, signs, part, scale, most, bound, back): values clamped to most, rows times signs and scale, the\n"
     "columns of each part transformed, clamped to bound; False if a value is not finite. back: transformed, then times signs and\n"
     "scale, in place. way: one of ROTATIONS, the fastest first; all give the same bits."},
    {"expand", expand_keys, METH_VARARGS,
     "expand(way, prefix, records): for each record of 40 bytes, 32 bytes of HKDF-Expand with its first 32 as the key and prefix\n"
     "and its last 8 as the info. way: one of EXPANSIONS, the fastest first."},
    {"strands", strands, METH_VARARGS,
     "strands(way, data, apart): the SHA-256 of sixteen strands of data, which begin so far apart, of whole blocks but for the last\n"
     "one. way: one of DIGESTS, the fastest first."},
    {"plant", plant, METH_VARARGS,
     "plant(enrolments): the bytes of their tree (lightdp.keys.nodes); None if they are not enrolments sorted by name."},
    {"fold", fold, METH_VARARGS,
     "fold(way, tree): starts, ends, bits, counts and hashes of its nodes; None if it is not a tree. way: one of EXPANSIONS."},
    {"prune", prune, METH_VARARGS,
     "prune(tree, columns, places): the bytes of the tree that shows these places alone, which are sorted; None if it cannot."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)execute}, {0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "kernel", "The compiled paths of lightdp.stream, lightdp.wire and lightdp.keys.", 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_kernel(void)
{
    return PyModuleDef_Init(&module);
}
