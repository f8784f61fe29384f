/* The frame encoder: all sections into one bytes object, in one pass.  `encode_frame` in
 * `_wire/frame_encoder.py` says the same in Python; docs/wire-format.md is the specification.
 *
 * From the first look at a payload to the last byte written, no Python code runs and no container
 * is allocated: the lists that the items are borrowed from cannot change meanwhile.
 */
#include "speed.h"

typedef struct {
    size_t table, keys, headers, payloads; /* blobs */
    size_t total;
    int flags;
    Py_ssize_t topics;
} Sizes;

static inline PyObject *
item(PyObject *const *column, size_t step, Py_ssize_t index)
{
    return *(PyObject *const *)((const char *)column + step * (size_t)index);
}

static inline int64_t
time_of(const Events *events, Py_ssize_t index)
{
    return *(const int64_t *)((const char *)events->times + events->times_step * (size_t)index);
}

static inline char
raw_of(const Events *events, Py_ssize_t index)
{
    return events->raws[events->raws_step * (size_t)index];
}

/* --- what goes where --- */

/* One topic for all, found without looking into them: then no table of them is needed. */
int
mm_wants_topic_ids(const Events *events)
{
    if (events->topics == NULL) {
        return 0;
    }
    PyObject *first = item(events->topics, events->topics_step, 0);
    for (Py_ssize_t i = 1; i < events->count; i++) {
        if (item(events->topics, events->topics_step, i) != first) {
            return 1;
        }
    }
    return 0;
}

/* Number the distinct topics, in order of appearance, in the empty dict `ids`. */
static int
number_topics(const Events *events, PyObject *ids)
{
    PyObject *last = NULL;
    for (Py_ssize_t i = 0; i < events->count; i++) {
        PyObject *topic = item(events->topics, events->topics_step, i);
        if (topic == last) {
            continue;
        }
        if (!PyUnicode_CheckExact(topic)) {
            PyErr_SetString(PyExc_TypeError, "a topic is a str");
            return -1;
        }
        last = topic;
        PyObject *number = PyLong_FromSsize_t(PyDict_GET_SIZE(ids));
        if (number == NULL || PyDict_SetDefault(ids, topic, number) == NULL) {
            Py_XDECREF(number);
            return -1;
        }
        Py_DECREF(number);
    }
    return 0;
}

static int
size_table(const Events *events, PyObject *ids, Sizes *sizes)
{
    Py_ssize_t size;
    if (ids == NULL) {
        if (PyUnicode_AsUTF8AndSize(events->topic, &size) == NULL) {
            return -1;
        }
        sizes->topics = 1;
        sizes->table = (size_t)size;
        return 0;
    }
    PyObject *topic, *number;
    Py_ssize_t at = 0;
    sizes->topics = PyDict_GET_SIZE(ids);
    sizes->table = (size_t)sizes->topics - 1; /* what stands between them */
    while (PyDict_Next(ids, &at, &topic, &number)) {
        if (PyUnicode_AsUTF8AndSize(topic, &size) == NULL) {
            return -1;
        }
        sizes->table += (size_t)size;
    }
    return 0;
}

static int
size_texts(PyObject **keys, Py_ssize_t count, size_t *total)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_ssize_t size;
        if (keys[i] == NULL) {
            continue;
        }
        if (PyUnicode_AsUTF8AndSize(keys[i], &size) == NULL) {
            return -1;
        }
        *total += (size_t)size;
    }
    return 0;
}

static int
size_blobs(PyObject *const *items, size_t step, Py_ssize_t count, size_t *total)
{
    size_t sum = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *blob = item(items, step, i);
        if (blob == NULL) {
            continue;
        }
        if (!PyBytes_Check(blob)) {
            PyErr_Format(PyExc_TypeError, "a payload is bytes, not %.100s",
                         Py_TYPE(blob)->tp_name);
            return -1;
        }
        sum += (size_t)PyBytes_GET_SIZE(blob);
    }
    *total = sum;
    return 0;
}

static int
times_differ(const Events *events)
{
    for (Py_ssize_t i = 1; events->times != NULL && i < events->count; i++) {
        if (time_of(events, i) != events->time) {
            return 1;
        }
    }
    return 0;
}

static size_t
sparse_size(size_t count, size_t blob)
{
    return padded((count + 7) / 8) + padded(4 * (count + 1)) + padded(blob);
}

static int
measure(const Events *events, PyObject *ids, Sizes *sizes)
{
    size_t count = (size_t)events->count;
    memset(sizes, 0, sizeof *sizes);
    if (size_table(events, ids, sizes) < 0
        || size_blobs(events->payloads, events->payloads_step, events->count, &sizes->payloads) < 0
        || (events->keys && size_texts(events->keys, events->count, &sizes->keys) < 0)
        || (events->headers
            && size_blobs(events->headers, sizeof(PyObject *), events->count, &sizes->headers) < 0)) {
        return -1;
    }
    size_t total = HEADER_BYTES + padded(sizes->table) + padded(4 * (count + 1)) + sizes->payloads;
    if (sizes->topics > 1) {
        sizes->flags |= TOPIC_INDEX;
        total += padded(2 * count);
    }
    if (times_differ(events)) {
        sizes->flags |= TIMES;
        total += 8 * count;
    }
    if (events->raw < 0) {
        sizes->flags |= ENCODINGS;
        total += padded(count);
    } else if (events->raw) {
        sizes->flags |= RAW;
    }
    if (events->keys) {
        sizes->flags |= KEYS;
        total += sparse_size(count, sizes->keys);
    }
    if (events->headers) {
        sizes->flags |= HEADERS;
        total += sparse_size(count, sizes->headers);
    }
    if (total > UINT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "a frame has less than 4 GiB");
        return -1;
    }
    sizes->total = total;
    return 0;
}

/* --- writing: each returns where the next section starts --- */

static char *
pad(char *at, size_t size)
{
    size_t rest = padded(size) - size;
    memset(at, 0, rest);
    return at + rest;
}

static char *
put_text(char *at, PyObject *text)
{
    Py_ssize_t size;
    const char *utf8 = PyUnicode_AsUTF8AndSize(text, &size); /* cached since it was measured */
    memcpy(at, utf8, (size_t)size);
    return at + size;
}

static char *
put_table(char *at, const Events *events, PyObject *ids, const Sizes *sizes)
{
    if (ids == NULL) {
        at = put_text(at, events->topic);
    } else {
        PyObject *topic, *number;
        Py_ssize_t place = 0;
        int more = 0;
        while (PyDict_Next(ids, &place, &topic, &number)) {
            if (more++) {
                *at++ = '\n';
            }
            at = put_text(at, topic);
        }
    }
    return pad(at, sizes->table);
}

static char *
put_topic_ids(char *at, const Events *events, PyObject *ids)
{
    PyObject *last = NULL;
    uint16_t number = 0;
    for (Py_ssize_t i = 0; i < events->count; i++, at += 2) {
        PyObject *topic = item(events->topics, events->topics_step, i);
        if (topic != last) {
            last = topic;
            number = (uint16_t)PyLong_AsLong(PyDict_GetItemWithError(ids, topic));
        }
        put16(at, number);
    }
    return pad(at, 2 * (size_t)events->count);
}

static char *
put_columns(char *at, const Events *events, const Sizes *sizes)
{
    if (sizes->flags & TIMES) {
        for (Py_ssize_t i = 0; i < events->count; i++, at += 8) {
            put64(at, (uint64_t)time_of(events, i));
        }
    }
    if (sizes->flags & ENCODINGS) {
        for (Py_ssize_t i = 0; i < events->count; i++) {
            *at++ = raw_of(events, i);
        }
        at = pad(at, (size_t)events->count);
    }
    return at;
}

static char *
put_bits(char *at, PyObject **items, Py_ssize_t count)
{
    size_t size = ((size_t)count + 7) / 8;
    memset(at, 0, size);
    for (Py_ssize_t i = 0; i < count; i++) {
        if (items[i] != NULL) {
            at[i >> 3] = (char)(at[i >> 3] | 1 << (i & 7));
        }
    }
    return pad(at + size, size);
}

static char *
put_keys(char *at, PyObject **keys, Py_ssize_t count)
{
    at = put_bits(at, keys, count);
    char *offsets = at, *blob = pad(at + 4 * (count + 1), 4 * ((size_t)count + 1));
    at = blob;
    for (Py_ssize_t i = 0; i < count; i++, offsets += 4) {
        put32(offsets, (uint32_t)(at - blob));
        if (keys[i] != NULL) {
            at = put_text(at, keys[i]);
        }
    }
    put32(offsets, (uint32_t)(at - blob));
    return pad(at, (size_t)(at - blob));
}

static char *
put_blobs(char *at, PyObject *const *items, size_t step, Py_ssize_t count)
{
    char *offsets = at, *blob = pad(at + 4 * (count + 1), 4 * ((size_t)count + 1));
    at = blob;
    for (Py_ssize_t i = 0; i < count; i++, offsets += 4) {
        PyObject *bytes = item(items, step, i);
        put32(offsets, (uint32_t)(at - blob));
        if (bytes != NULL) {
            size_t size = (size_t)PyBytes_GET_SIZE(bytes);
            copy_item(at, PyBytes_AS_STRING(bytes), size);
            at += size;
        }
    }
    put32(offsets, (uint32_t)(at - blob));
    return at;
}

static void
put_header(char *at, const Events *events, const Sizes *sizes)
{
    put64(at, events->stream);
    memcpy(at + 8, "MMF1", 4);
    put32(at + 16, (uint32_t)sizes->total);
    put32(at + 20, (uint32_t)events->count);
    put64(at + 24, events->epoch);
    put64(at + 32, events->first);
    put64(at + 40, (uint64_t)events->time);
    put16(at + 48, (uint16_t)sizes->flags);
    put16(at + 50, (uint16_t)sizes->topics);
    put32(at + 52, (uint32_t)sizes->table);
    put32(at + 56, (uint32_t)sizes->keys);
    put32(at + 60, (uint32_t)sizes->headers);
    uint32_t crc = mm_crc32c(0, at, CHECK_AT);
    put32(at + CHECK_AT, mm_crc32c(crc, at + CHECK_AT + 4, sizes->total - CHECK_AT - 4));
}

static void
put_frame(char *start, const Events *events, PyObject *ids, const Sizes *sizes)
{
    char *at = put_table(start + HEADER_BYTES, events, ids, sizes);
    if (sizes->flags & TOPIC_INDEX) {
        at = put_topic_ids(at, events, ids);
    }
    at = put_columns(at, events, sizes);
    if (events->keys) {
        at = put_keys(at, events->keys, events->count);
    }
    if (events->headers) {
        at = put_bits(at, events->headers, events->count);
        at = put_blobs(at, events->headers, sizeof(PyObject *), events->count);
        at = pad(at, sizes->headers);
    }
    at = put_blobs(at, events->payloads, events->payloads_step, events->count);
    assert((size_t)(at - start) == sizes->total);
    put_header(start, events, sizes);
}

/* The bytes of a frame.  `ids` is an empty dict where `mm_wants_topic_ids`, else NULL; the caller
 * makes it before it borrows anything. */
PyObject *
mm_encode_events(Events *events, PyObject *ids)
{
    Sizes sizes;
    if (events->times != NULL) {
        events->time = time_of(events, 0);
    }
    if (ids != NULL) {
        if (number_topics(events, ids) < 0) {
            return NULL;
        }
    } else if (events->topics != NULL) {
        events->topic = item(events->topics, events->topics_step, 0);
    }
    if (measure(events, ids, &sizes) < 0) {
        return NULL;
    }
    PyObject *frame = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)sizes.total);
    if (frame != NULL) {
        put_frame(PyBytes_AS_STRING(frame), events, ids, &sizes);
    }
    return frame;
}

/* --- encode_frame, as Python has it --- */

typedef struct {
    PyObject *topics, *payloads; /* fast sequences, owned */
    PyObject *ids;
    int64_t *times;
    PyObject **keys, **headers;
} Held;

static void
let_go(Held *held)
{
    Py_XDECREF(held->topics);
    Py_XDECREF(held->payloads);
    Py_XDECREF(held->ids);
    PyMem_Free(held->times);
    PyMem_Free(held->keys);
    PyMem_Free(held->headers);
}

static int
take_topics(Events *events, Held *held, PyObject *topics)
{
    if (PyUnicode_Check(topics)) {
        events->topic = topics;
        return 0;
    }
    held->topics = PySequence_Tuple(topics);
    if (held->topics == NULL || PyTuple_GET_SIZE(held->topics) != events->count) {
        if (held->topics != NULL) {
            PyErr_SetString(PyExc_ValueError, "as many topics as payloads");
        }
        return -1;
    }
    events->topics = &PyTuple_GET_ITEM(held->topics, 0);
    events->topics_step = sizeof(PyObject *);
    if (mm_wants_topic_ids(events)) {
        held->ids = PyDict_New();
        return held->ids == NULL ? -1 : 0;
    }
    if (!PyUnicode_Check(events->topics[0])) {
        PyErr_SetString(PyExc_TypeError, "a topic is a str");
        return -1;
    }
    return 0;
}

static int
take_times(Events *events, Held *held, PyObject *times)
{
    if (PyLong_Check(times)) {
        events->time = PyLong_AsLongLong(times);
        return events->time == -1 && PyErr_Occurred() ? -1 : 0;
    }
    PyObject *all = PySequence_Tuple(times);
    if (all == NULL) {
        return -1;
    }
    int bad = PyTuple_GET_SIZE(all) != events->count;
    if (bad) {
        PyErr_SetString(PyExc_ValueError, "as many times as payloads");
    } else {
        held->times = PyMem_Calloc((size_t)events->count, sizeof *held->times);
        bad = held->times == NULL;
    }
    for (Py_ssize_t i = 0; !bad && i < events->count; i++) {
        held->times[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(all, i));
        bad = held->times[i] == -1 && PyErr_Occurred();
    }
    Py_DECREF(all);
    events->times = held->times;
    events->times_step = sizeof *held->times;
    return bad ? -1 : 0;
}

static int
take_raw(Events *events, PyObject *raw)
{
    if (PyBool_Check(raw)) {
        events->raw = raw == Py_True;
        return 0;
    }
    if (!PyBytes_Check(raw) || PyBytes_GET_SIZE(raw) != events->count) {
        PyErr_SetString(PyExc_TypeError, "raw is a bool, or bytes: one for each payload");
        return -1;
    }
    events->raw = -1;
    events->raws = PyBytes_AS_STRING(raw);
    events->raws_step = 1;
    return 0;
}

/* Keys or headers by index, as an array; none if there is no value at all. */
static int
take_notes(PyObject *values, Py_ssize_t count, int texts, PyObject ***items)
{
    if (values == NULL || values == Py_None) {
        return 0;
    }
    if (!PyDict_Check(values)) {
        PyErr_SetString(PyExc_TypeError, "keys and headers are dicts by index");
        return -1;
    }
    if (PyDict_GET_SIZE(values) == 0) {
        return 0;
    }
    *items = PyMem_Calloc((size_t)count, sizeof **items);
    if (*items == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    PyObject *index, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(values, &at, &index, &value)) {
        Py_ssize_t place = PyLong_CheckExact(index) ? PyLong_AsSsize_t(index) : -1;
        if (place < 0 || place >= count || !(texts ? PyUnicode_Check(value) : PyBytes_Check(value))) {
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_IndexError, "a key or headers of no event, or of no use");
            }
            return -1;
        }
        (*items)[place] = value;
    }
    return 0;
}

static int
take_number(PyObject *number, uint64_t *value)
{
    *value = PyLong_AsUnsignedLongLong(number);
    return *value == (uint64_t)-1 && PyErr_Occurred() ? -1 : 0;
}

static PyObject *
encode_frame(PyObject *const *args, PyObject *raw, PyObject *keys, PyObject *headers)
{
    Events events = {0};
    Held held = {0};
    PyObject *frame = NULL;
    held.payloads = PySequence_Fast(args[4], "payloads are a sequence");
    if (held.payloads == NULL) {
        return NULL;
    }
    events.count = PySequence_Fast_GET_SIZE(held.payloads);
    if (events.count < 1 || events.count > FRAME_EVENTS_MAX) {
        PyErr_SetString(PyExc_AssertionError, "a frame has 1 to FRAME_EVENTS_MAX events");
    } else if (take_number(args[0], &events.stream) == 0 && take_number(args[1], &events.epoch) == 0
               && take_number(args[2], &events.first) == 0
               && take_topics(&events, &held, args[3]) == 0
               && take_times(&events, &held, args[5]) == 0 && take_raw(&events, raw) == 0
               && take_notes(keys, events.count, 1, &held.keys) == 0
               && take_notes(headers, events.count, 0, &held.headers) == 0) {
        events.keys = held.keys;
        events.headers = held.headers;
        events.payloads = PySequence_Fast_ITEMS(held.payloads);
        events.payloads_step = sizeof(PyObject *);
        if (PySequence_Fast_GET_SIZE(held.payloads) != events.count) {
            PyErr_SetString(PyExc_ValueError, "payloads changed while they were read");
        } else {
            frame = mm_encode_events(&events, held.ids);
        }
    }
    let_go(&held);
    return frame;
}

/* encode_frame(stream, epoch, first, topics, payloads, times, *, raw, keys, headers, length) */
PyObject *
mm_encode_frame(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs,
                PyObject *names)
{
    PyObject *raw = Py_True, *keys = NULL, *headers = NULL;
    Py_ssize_t named = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    if (nargs != 6) {
        PyErr_SetString(PyExc_TypeError, "encode_frame() takes 6 positional arguments");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < named; i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i), *value = args[nargs + i];
        if (PyUnicode_CompareWithASCIIString(name, "raw") == 0) {
            raw = value;
        } else if (PyUnicode_CompareWithASCIIString(name, "keys") == 0) {
            keys = value;
        } else if (PyUnicode_CompareWithASCIIString(name, "headers") == 0) {
            headers = value;
        } else if (PyUnicode_CompareWithASCIIString(name, "length") != 0) {
            PyErr_Format(PyExc_TypeError, "encode_frame() has no argument %R", name);
            return NULL;
        }
    }
    return encode_frame(args, raw, keys, headers);
}

/* --- what publish_many asks of a list --- */

/* scan(chunk): (all are bytes, the one length they have or -1, the largest length). */
PyObject *
mm_scan(PyObject *Py_UNUSED(module), PyObject *chunk)
{
    if (!PyList_Check(chunk) || PyList_GET_SIZE(chunk) == 0) {
        PyErr_SetString(PyExc_TypeError, "scan() takes a list that is not empty");
        return NULL;
    }
    PyObject *const *items = PySequence_Fast_ITEMS(chunk);
    Py_ssize_t count = PyList_GET_SIZE(chunk), largest = 0, uniform = -2;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (!PyBytes_CheckExact(items[i])) {
            return Py_BuildValue("(Onn)", Py_False, (Py_ssize_t)-1, (Py_ssize_t)0);
        }
        Py_ssize_t size = PyBytes_GET_SIZE(items[i]);
        largest = size > largest ? size : largest;
        uniform = uniform == -2 || uniform == size ? size : -1;
    }
    return Py_BuildValue("(Onn)", Py_True, uniform, largest);
}
