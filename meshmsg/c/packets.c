/* Runs of multicast packets, as they lie one behind the other in a datagram: how long one is, and
 * the frame that several of them make.  `recovery/multicast/packet_runs.py` has the same in Python. */
#include "speed.h"

#define DATA_HEAD 48
#define REPAIR 2
enum { KIND_AT = 4, PLACE_AT = 6, IDS_AT = 8, NUMBER_AT = 24, FRAME_AT = 32, PACKETS_AT = 44 };

/* run_length(data, at, packet_bytes): how many packets from `at` on follow each other in one frame;
 * there is one, and it is a data packet. */
PyObject *
mm_run_length(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 3 || !PyBytes_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "run_length(data: bytes, at, packet_bytes)");
        return NULL;
    }
    Py_ssize_t at = PyLong_AsSsize_t(args[1]), step = PyLong_AsSsize_t(args[2]);
    Py_ssize_t size = PyBytes_GET_SIZE(args[0]);
    if (PyErr_Occurred()) {
        return NULL;
    }
    if (at < 0 || step <= DATA_HEAD || at > size - DATA_HEAD) {
        PyErr_SetString(PyExc_ValueError, "there is no packet");
        return NULL;
    }
    const char *first = PyBytes_AS_STRING(args[0]) + at;
    unsigned place = get16(first + PLACE_AT), packets = get16(first + PACKETS_AT);
    uint64_t number = get64(first + NUMBER_AT);
    Py_ssize_t count = 1;
    for (at += step; at < size - DATA_HEAD && place + count < packets; at += step, count++) {
        const char *packet = first + count * step;
        unsigned char kind = (unsigned char)packet[KIND_AT];
        if (get64(packet + NUMBER_AT) != number + (uint64_t)count
            || get16(packet + PLACE_AT) != place + count || kind == 0 || kind > REPAIR
            || memcmp(packet, first, KIND_AT) != 0
            || memcmp(packet + IDS_AT, first + IDS_AT, NUMBER_AT - IDS_AT) != 0
            || memcmp(packet + FRAME_AT, first + FRAME_AT, DATA_HEAD - FRAME_AT) != 0) {
            break;
        }
    }
    return PyLong_FromSsize_t(count);
}

typedef struct {
    Py_ssize_t count, at, step, size;
    const char *data;
} Run;

static int
read_run(PyObject *object, Run *run)
{
    if (!PyTuple_Check(object) || PyTuple_GET_SIZE(object) < 4
        || !PyBytes_Check(PyTuple_GET_ITEM(object, 1))) {
        PyErr_SetString(PyExc_TypeError, "a run is (count, data, at, packet_bytes, ...)");
        return -1;
    }
    PyObject *data = PyTuple_GET_ITEM(object, 1);
    run->count = PyLong_AsSsize_t(PyTuple_GET_ITEM(object, 0));
    run->at = PyLong_AsSsize_t(PyTuple_GET_ITEM(object, 2));
    run->step = PyLong_AsSsize_t(PyTuple_GET_ITEM(object, 3));
    run->data = PyBytes_AS_STRING(data);
    run->size = PyBytes_GET_SIZE(data);
    if (PyErr_Occurred()) {
        return -1;
    }
    /* All packets but the last are whole, and that one has a head. */
    if (run->count < 1 || run->count > 0xFFFF || run->at < 0 || run->step < DATA_HEAD
        || run->step > 1 << 20 || run->at > run->size - DATA_HEAD
        || (run->count - 1) * run->step > run->size - DATA_HEAD - run->at) {
        PyErr_SetString(PyExc_ValueError, "the run is not inside of its data");
        return -1;
    }
    return 0;
}

/* Bytes of payload, from the first packet to the end of the last. */
static Py_ssize_t
payload_of(const Run *run)
{
    Py_ssize_t whole = run->count * run->step, there = run->size - run->at;
    return (there < whole ? there : whole) - run->count * DATA_HEAD;
}

/* join_runs(runs): the payloads of all their packets, one behind the other. */
PyObject *
mm_join_runs(PyObject *Py_UNUSED(module), PyObject *runs)
{
    Run run;
    Py_ssize_t total = 0;
    if (!PyList_Check(runs)) {
        PyErr_SetString(PyExc_TypeError, "join_runs(runs: list)");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(runs); i++) {
        if (read_run(PyList_GET_ITEM(runs, i), &run) < 0) {
            return NULL;
        }
        total += payload_of(&run);
    }
    PyObject *joined = PyBytes_FromStringAndSize(NULL, total);
    if (joined == NULL) {
        return NULL;
    }
    char *to = PyBytes_AS_STRING(joined);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(runs); i++) {
        read_run(PyList_GET_ITEM(runs, i), &run);
        Py_ssize_t left = payload_of(&run), part = run.step - DATA_HEAD;
        for (const char *from = run.data + run.at + DATA_HEAD; left > 0; from += run.step) {
            size_t size = (size_t)(left < part ? left : part);
            memcpy(to, from, size);
            to += size;
            left -= (Py_ssize_t)size;
        }
    }
    return joined;
}
