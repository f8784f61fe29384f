/* Sealed packets, many at a time: what stands around the cipher's own call.  The cipher is the
 * `encrypt` or `decrypt` of an AESGCM object of Python's `cryptography`.  `recovery/multicast/seal.py`
 * has the same in Python, and decides all that is not plain repetition. */
#include "speed.h"

#define SEALED_HEAD 32
#define CLEAR_BYTES 16 /* of them, what stands in the packet as well: magic, kind, extra, stream */
#define NONCE_AT 20
#define TAG_BYTES 16
#define SEAL_BYTES (SEALED_HEAD - CLEAR_BYTES + TAG_BYTES)
static const char SEALED_MAGIC[4] = {'M', 'M', 'E', '1'};
static const char PACKET_MAGIC[4] = {'M', 'M', 'P', '1'};

/* What the cipher makes of some bytes: a new reference to bytes of this size, or NULL. */
static PyObject *
apply(PyObject *cipher, const char *head, const char *data, Py_ssize_t size, Py_ssize_t expected)
{
    PyObject *made = NULL;
    PyObject *args[3] = {
        PyBytes_FromStringAndSize(head + NONCE_AT, SEALED_HEAD - NONCE_AT),
        PyBytes_FromStringAndSize(data, size),
        PyBytes_FromStringAndSize(head, SEALED_HEAD),
    };
    if (args[0] != NULL && args[1] != NULL && args[2] != NULL) {
        made = PyObject_Vectorcall(cipher, args, 3, NULL);
    }
    for (int n = 0; n < 3; n++) {
        Py_XDECREF(args[n]);
    }
    if (made != NULL && (!PyBytes_CheckExact(made) || PyBytes_GET_SIZE(made) != expected)) {
        Py_DECREF(made);
        PyErr_SetString(PyExc_ValueError, "the cipher gave bytes of another size");
        return NULL;
    }
    return made;
}

/* seal_packets(encrypt, data, packet_bytes, stream, sender, number, into: bytearray) */
PyObject *
mm_seal_packets(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    if (nargs != 7 || !PyBytes_CheckExact(args[1]) || !PyByteArray_CheckExact(args[6])) {
        PyErr_SetString(PyExc_TypeError, "seal_packets(encrypt, data, size, stream, ...)");
        return NULL;
    }
    PyObject *encrypt = args[0];
    const char *data = PyBytes_AS_STRING(args[1]);
    Py_ssize_t size = PyBytes_GET_SIZE(args[1]);
    Py_ssize_t step = PyLong_AsSsize_t(args[2]);
    uint64_t stream = PyLong_AsUnsignedLongLong(args[3]);
    uint64_t sender = PyLong_AsUnsignedLongLong(args[4]);
    uint64_t number = PyLong_AsUnsignedLongLong(args[5]);
    if (PyErr_Occurred()) {
        return NULL;
    }
    Py_ssize_t count = step > CLEAR_BYTES ? (size + step - 1) / step : 0;
    if (count == 0 || size - (count - 1) * step <= CLEAR_BYTES
        || PyByteArray_GET_SIZE(args[6]) < size + count * SEAL_BYTES) {
        PyErr_SetString(PyExc_ValueError, "packets are longer than their head, and have room");
        return NULL;
    }
    char *put = PyByteArray_AS_STRING(args[6]); /* the cipher runs no code that could move it */
    for (Py_ssize_t at = 0; at < size; at += step) {
        Py_ssize_t length = (size - at < step ? size - at : step) - CLEAR_BYTES;
        memcpy(put, SEALED_MAGIC, 4);
        memcpy(put + 4, data + at + 4, 4);
        put64(put + 8, stream);
        put64(put + 16, sender);
        put64(put + 24, number++);
        PyObject *made = apply(encrypt, put, data + at + CLEAR_BYTES, length, length + TAG_BYTES);
        if (made == NULL) {
            return NULL;
        }
        memcpy(put + SEALED_HEAD, PyBytes_AS_STRING(made), length + TAG_BYTES);
        Py_DECREF(made);
        put += SEALED_HEAD + length + TAG_BYTES;
    }
    Py_RETURN_NONE;
}

/* open_packets(decrypt, invalid, data, at, packet_bytes, stream, sender, number, kinds)
 *     -> (opened packets, how many)
 *
 * From `at` on, packets of the sender that have these consecutive numbers and one of these kinds (a
 * bit for each).  It ends before the first that is anything else, or does not prove itself. */
PyObject *
mm_open_packets(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    if (nargs != 9 || !PyBytes_CheckExact(args[2])) {
        PyErr_SetString(PyExc_TypeError, "open_packets(decrypt, invalid, data, at, size, ...)");
        return NULL;
    }
    const char *data = PyBytes_AS_STRING(args[2]);
    Py_ssize_t size = PyBytes_GET_SIZE(args[2]);
    Py_ssize_t at = PyLong_AsSsize_t(args[3]);
    Py_ssize_t step = PyLong_AsSsize_t(args[4]);
    uint64_t stream = PyLong_AsUnsignedLongLong(args[5]);
    uint64_t sender = PyLong_AsUnsignedLongLong(args[6]);
    uint64_t number = PyLong_AsUnsignedLongLong(args[7]);
    uint64_t kinds = PyLong_AsUnsignedLongLong(args[8]);
    if (PyErr_Occurred()) {
        return NULL;
    }
    if (at < 0 || step <= SEAL_BYTES + CLEAR_BYTES) {
        at = size;
    }
    PyObject *out = PyBytes_FromStringAndSize(NULL, at < size ? size - at : 0);
    if (out == NULL) {
        return NULL;
    }
    char *put = PyBytes_AS_STRING(out);
    long count = 0;
    for (; at < size; at += step, count++, number++) {
        const char *head = data + at;
        Py_ssize_t length = (size - at < step ? size - at : step) - SEALED_HEAD - TAG_BYTES;
        unsigned char kind = length > 0 ? (unsigned char)head[4] : 255;
        if (kind >= 64 || !(kinds >> kind & 1) || memcmp(head, SEALED_MAGIC, 4) != 0
            || get64(head + 8) != stream || get64(head + 16) != sender
            || get64(head + 24) != number) {
            break;
        }
        PyObject *made = apply(args[0], head, head + SEALED_HEAD, length + TAG_BYTES, length);
        if (made == NULL) {
            if (PyErr_ExceptionMatches(args[1])) {
                PyErr_Clear();
                break;
            }
            Py_DECREF(out);
            return NULL;
        }
        memcpy(put, PACKET_MAGIC, 4);
        memcpy(put + 4, head + 4, CLEAR_BYTES - 4);
        memcpy(put + CLEAR_BYTES, PyBytes_AS_STRING(made), length);
        Py_DECREF(made);
        put += CLEAR_BYTES + length;
    }
    if (_PyBytes_Resize(&out, put - PyBytes_AS_STRING(out)) < 0) {
        return NULL;
    }
    return Py_BuildValue("(Nl)", out, count);
}
