/* Where msgpack values stop, found without making any: proves that each payload of a column is one
 * value, so that all can be decoded in one call, and that headers are maps.  `_wire/msgpack.py` has the
 * same in Python.
 *
 * A value that holds others says how many, so the number of values to come is all there is to keep:
 * no stack, however deep they are nested.
 */
#include "speed.h"

/* What follows a first byte from 0xc0 on: `bytes` of them, which begin with a length of `width`
 * bytes, if any.  It counts bytes, or values where each of what it counts has some (`values`). */
typedef struct {
    unsigned char bytes, width, values;
} Lead;

#define UNUSED 0xc1
static const Lead leads[32] = {
    {0, 0, 0}, {0, 0, 0}, {0, 0, 0}, {0, 0, 0},             /* nil, unused, false, true */
    {1, 1, 0}, {2, 2, 0}, {4, 4, 0},                        /* bin */
    {2, 1, 0}, {3, 2, 0}, {5, 4, 0},                        /* ext */
    {4, 0, 0}, {8, 0, 0},                                   /* float */
    {1, 0, 0}, {2, 0, 0}, {4, 0, 0}, {8, 0, 0},             /* uint */
    {1, 0, 0}, {2, 0, 0}, {4, 0, 0}, {8, 0, 0},             /* int */
    {2, 0, 0}, {3, 0, 0}, {5, 0, 0}, {9, 0, 0}, {17, 0, 0}, /* fixext */
    {1, 1, 0}, {2, 2, 0}, {4, 4, 0},                        /* str */
    {2, 2, 1}, {4, 4, 1}, {2, 2, 2}, {4, 4, 2},             /* array, map */
};

static inline uint64_t
big_endian(const unsigned char *at, unsigned width)
{
    uint64_t number = 0;
    while (width-- > 0) {
        number = number << 8 | *at++;
    }
    return number;
}

/* Whether the bytes from `at` to `stop` are one value and nothing else. */
static int
is_value(const unsigned char *at, const unsigned char *stop)
{
    uint64_t to_come = 1;
    while (to_come > 0) {
        /* Each value has a byte at least: a count that promises more than there can be ends it. */
        if (to_come > (uint64_t)(stop - at)) {
            return 0;
        }
        unsigned lead = *at++;
        uint64_t bytes = 0;
        to_come--;
        if (lead < 0x80 || lead >= 0xe0) {
            continue; /* a small number */
        }
        if (lead < 0xa0) {
            to_come += (uint64_t)(lead & 0x0f) << (lead < 0x90);
            continue;
        }
        if (lead < 0xc0) {
            bytes = lead & 0x1f;
        } else {
            const Lead *next = &leads[lead - 0xc0];
            if (next->bytes > stop - at || lead == UNUSED) {
                return 0;
            }
            bytes = big_endian(at, next->width);
            at += next->bytes;
            to_come += bytes * next->values;
            bytes = next->values ? 0 : bytes;
        }
        if (bytes > (uint64_t)(stop - at)) {
            return 0;
        }
        at += bytes;
    }
    return at == stop;
}

/* Whether they are one map. */
int
mm_is_map(const char *at, size_t size)
{
    const unsigned char *start = (const unsigned char *)at;
    return size > 0 && ((*start & 0xf0) == 0x80 || *start == 0xde || *start == 0xdf)
        && is_value(start, start + size);
}

static int
is_value_each(const Py_buffer *offsets, const Py_buffer *blob, Py_ssize_t offsets_at,
              Py_ssize_t blob_at, Py_ssize_t count)
{
    if (count < 0 || offsets_at < 0 || blob_at < 0 || blob_at > blob->len
        || count >= PY_SSIZE_T_MAX / 4 || offsets_at > offsets->len - 4 * (count + 1)) {
        PyErr_SetString(PyExc_ValueError, "the column is not inside of the data");
        return -1;
    }
    const unsigned char *base = (const unsigned char *)blob->buf + blob_at;
    const char *offset = (const char *)offsets->buf + offsets_at;
    uint64_t size = (uint64_t)(blob->len - blob_at);
    for (Py_ssize_t i = 0; i < count; i++, offset += 4) {
        uint32_t from = get32(offset), to = get32(offset + 4);
        if (from > to || to > size || !is_value(base + from, base + to)) {
            return 0;
        }
    }
    return 1;
}

/* is_value_each(offsets, offsets_at, blob, blob_at, count): whether each item of a column, of which
 * offsets and joined items lie in these buffers, is one value. */
PyObject *
mm_is_value_each(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer offsets, blob;
    Py_ssize_t offsets_at, blob_at, count;
    if (!PyArg_ParseTuple(args, "y*ny*nn", &offsets, &offsets_at, &blob, &blob_at, &count)) {
        return NULL;
    }
    int found = is_value_each(&offsets, &blob, offsets_at, blob_at, count);
    PyBuffer_Release(&offsets);
    PyBuffer_Release(&blob);
    return found < 0 ? NULL : PyBool_FromLong(found);
}
