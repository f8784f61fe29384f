/* The frame decoder, as far as it pays: header, checksum, the sections of the frames that there are
 * most of, and offsets; splitting payloads; and making events of them.  Frames with other sections
 * are read on by `Frame._read_sections`.
 *
 * These bytes come from the network.  Every number in them is checked against the size of what was
 * received before it is used, and nothing is allocated by a claimed size.  What is accepted and what
 * is refused is exactly as in `_wire/frame.py`: a test feeds harmed frames to both.
 */
#include "speed.h"

/* --- the slots of Frame and VarColumn, written by their place --- */

enum { F_DATA, F_STREAM, F_EPOCH, F_FIRST, F_STOP, F_COUNT, F_TIME, F_FLAGS, F_TOPICS, F_PAYLOADS,
       F_TOPIC_IDS, F_KEYS, F_HEADERS, F_ENCODINGS, F_KEY_BITS, F_HEADER_BITS, F_TIMES_AT, F_SLOTS };
static const char *const frame_names[] = {
    "data", "stream", "epoch", "first", "stop", "count", "time", "flags", "topics", "payloads",
    "_topic_ids", "_keys", "_headers", "_encodings", "_key_bits", "_header_bits", "_times_at"};
enum { C_DATA, C_OFFSETS_AT, C_BLOB_AT, C_BLOB_STOP, C_COUNT, C_LENGTH, C_OFFSETS, C_SLOTS };
static const char *const column_names[] = {"_data", "_offsets_at", "_blob_at", "_blob_stop", "count",
                                           "_length", "_offsets"};

enum { B_DATA, B_PAYLOADS, B_CODEC, B_FRAME, B_HI, B_KEEP, B_LO, B_STREAM, B_SLOTS };
static const char *const batch_names[] = {"_data", "_payloads", "codec", "frame", "hi", "keep", "lo",
                                          "stream"};

static Py_ssize_t frame_slots[F_SLOTS], column_slots[C_SLOTS], batch_slots[B_SLOTS];
static PyTypeObject *frame_type, *column_type, *batch_type;
static PyObject *event_type;
static PyObject *known_tables, *read_table, *protocol_error, *empty;

/* Where the slots of these names lie in an object of a class. */
int
mm_find_slots(PyObject *type, const char *const *names, int count, Py_ssize_t *places)
{
    for (int i = 0; i < count; i++) {
        PyObject *slot = PyObject_GetAttrString(type, names[i]);
        if (slot == NULL) {
            return -1;
        }
        PyMemberDef *member =
            Py_TYPE(slot) == &PyMemberDescr_Type ? ((PyMemberDescrObject *)slot)->d_member : NULL;
        if (member == NULL || member->type != T_OBJECT_EX) {
            Py_DECREF(slot);
            PyErr_Format(PyExc_TypeError, "%s is not a slot", names[i]);
            return -1;
        }
        places[i] = member->offset;
        Py_DECREF(slot);
    }
    return 0;
}

/* set_up_decoder(Frame, VarColumn, known tables, read table, ProtocolError): once, at import. */
PyObject *
mm_set_up_decoder(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *frame, *column, *tables, *read, *error;
    if (!PyArg_ParseTuple(args, "O!O!O!OO", &PyType_Type, &frame, &PyType_Type, &column,
                          &PyDict_Type, &tables, &read, &error)
        || mm_find_slots(frame, frame_names, F_SLOTS, frame_slots) < 0
        || mm_find_slots(column, column_names, C_SLOTS, column_slots) < 0) {
        return NULL;
    }
    Py_XSETREF(frame_type, (PyTypeObject *)Py_NewRef(frame));
    Py_XSETREF(column_type, (PyTypeObject *)Py_NewRef(column));
    Py_XSETREF(known_tables, Py_NewRef(tables));
    Py_XSETREF(read_table, Py_NewRef(read));
    Py_XSETREF(protocol_error, Py_NewRef(error));
    if (empty == NULL) {
        empty = PyBytes_FromStringAndSize(NULL, 0);
    }
    return empty == NULL ? NULL : Py_NewRef(Py_None);
}

/* Takes `value` over; NULL says that making it failed. */
static int
set_slot(PyObject *object, Py_ssize_t place, PyObject *value)
{
    if (value == NULL) {
        return -1;
    }
    PyObject **slot = (PyObject **)((char *)object + place);
    Py_XSETREF(*slot, value);
    return 0;
}

#define SET_FRAME(slot, value) set_slot(frame, frame_slots[slot], value)
#define SET_COLUMN(slot, value) set_slot(column, column_slots[slot], value)

#define SET_BATCH(slot, value) set_slot(batch, batch_slots[slot], value)

/* Borrowed; NULL where nothing was set. */
static PyObject *
get_slot(PyObject *object, Py_ssize_t place)
{
    return *(PyObject **)((char *)object + place);
}

/* --- offsets --- */

static uint32_t
offset_at(const char *offsets, Py_ssize_t index)
{
    return get32(offsets + 4 * index);
}

/* The one length that all items have, -1 if they differ, -2 if the offsets do not fit the blob. */
static Py_ssize_t
length_of(const char *offsets, Py_ssize_t count, size_t blob)
{
    uint64_t length = blob / (size_t)count;
    uint32_t uneven = offset_at(offsets, 0), falling = 0;
    uint32_t before = 0, step = (uint32_t)length;
    for (Py_ssize_t i = 1; i <= count; i++) {
        uint32_t offset = offset_at(offsets, i);
        falling |= offset < before;
        uneven |= (offset - before) ^ step;
        before = offset;
    }
    if (!uneven && length * (uint64_t)count == blob && !falling) {
        return (Py_ssize_t)length;
    }
    return offset_at(offsets, 0) != 0 || before != blob || falling ? -2 : -1;
}

static PyObject *
bad_offsets(void)
{
    PyErr_SetString(protocol_error, "offsets do not fit their blob");
    return NULL;
}

typedef struct {
    Py_ssize_t offsets_at, blob_at, blob_stop, count;
} Places;

/* Whether all of a column lies inside of the data; the callers in Python have looked before. */
static int
check_places(PyObject *data, const Places *p)
{
    if (PyBytes_Check(data) && p->count > 0 && p->count <= FRAME_EVENTS_MAX && p->offsets_at >= 0
        && p->offsets_at <= PyBytes_GET_SIZE(data) - 4 * (p->count + 1) && p->blob_at >= 0
        && p->blob_at <= p->blob_stop && p->blob_stop <= PyBytes_GET_SIZE(data)) {
        return 0;
    }
    PyErr_SetString(PyExc_ValueError, "the column is not inside of the data");
    return -1;
}

static int
read_places(PyObject *const *args, Places *p)
{
    Py_ssize_t *all[] = {&p->offsets_at, &p->blob_at, &p->blob_stop, &p->count};
    for (int i = 0; i < 4; i++) {
        *all[i] = PyLong_AsSsize_t(args[1 + i]);
        if (*all[i] == -1 && PyErr_Occurred()) {
            return -1;
        }
    }
    return check_places(args[0], p);
}

/* column_length(data, offsets_at, blob_at, blob_stop, count): the items' length, -1 if it differs;
 * raises ProtocolError for offsets that do not fit. */
PyObject *
mm_column_length(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    Places p;
    if (nargs != 5) {
        PyErr_SetString(PyExc_TypeError, "column_length() takes 5 arguments");
        return NULL;
    }
    if (read_places(args, &p) < 0) {
        return NULL;
    }
    const char *data = PyBytes_AS_STRING(args[0]);
    size_t blob = (size_t)(p.blob_stop - p.blob_at);
    Py_ssize_t length = length_of(data + p.offsets_at, p.count, blob);
    return length == -2 ? bad_offsets() : PyLong_FromSsize_t(length);
}

static int
check_items(const Places *p, Py_ssize_t lo, Py_ssize_t hi)
{
    if (lo < 0 || lo > hi || hi > p->count) {
        PyErr_SetString(PyExc_IndexError, "no such items");
        return -1;
    }
    return 0;
}

static inline PyObject *
item_at(PyObject *data, const Places *p, Py_ssize_t index)
{
    const char *start = PyBytes_AS_STRING(data), *offset = start + p->offsets_at + 4 * index;
    uint32_t from = get32(offset), to = get32(offset + 4);
    if (from > to || (Py_ssize_t)to > p->blob_stop - p->blob_at) {
        return bad_offsets(); /* checked when the frame was read, and still never trusted */
    }
    PyObject *item = PyBytes_FromStringAndSize(NULL, to - from);
    if (item != NULL) {
        copy_item(PyBytes_AS_STRING(item), start + p->blob_at + from, to - from);
    }
    return item;
}

/* split(data, offsets_at, blob_at, blob_stop, count, lo, hi): items `lo` to `hi` as a list. */
PyObject *
mm_split(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    Places p;
    if (nargs != 7) {
        PyErr_SetString(PyExc_TypeError, "split() takes 7 arguments");
        return NULL;
    }
    if (read_places(args, &p) < 0) {
        return NULL;
    }
    Py_ssize_t lo = PyLong_AsSsize_t(args[5]), hi = PyLong_AsSsize_t(args[6]);
    if (PyErr_Occurred()) {
        return NULL;
    }
    if (check_items(&p, lo, hi) < 0) {
        return NULL;
    }
    PyObject *items = PyList_New(hi - lo);
    for (Py_ssize_t i = lo; items != NULL && i < hi; i++) {
        PyObject *item = item_at(args[0], &p, i);
        if (item == NULL) {
            Py_CLEAR(items);
        } else {
            PyList_SET_ITEM(items, i - lo, item);
        }
    }
    return items;
}

/* check_headers(data, offsets_at, blob_at, blob_stop, count, bits): raises ProtocolError unless the
 * headers of each event that has some are one map, and not too large. */
PyObject *
mm_check_headers(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    Places p;
    if (nargs != 6 || !PyBytes_Check(args[5])) {
        PyErr_SetString(PyExc_TypeError, "check_headers() takes a column and the bits of it");
        return NULL;
    }
    if (read_places(args, &p) < 0) {
        return NULL;
    }
    if (PyBytes_GET_SIZE(args[5]) * 8 < p.count) {
        PyErr_SetString(PyExc_ValueError, "too few bits");
        return NULL;
    }
    const char *start = PyBytes_AS_STRING(args[0]), *bits = PyBytes_AS_STRING(args[5]);
    for (Py_ssize_t i = 0; i < p.count; i++) {
        uint32_t from = offset_at(start + p.offsets_at, i), to = offset_at(start + p.offsets_at, i + 1);
        if (!(bits[i >> 3] >> (i & 7) & 1)) {
            continue;
        }
        if (from > to || (Py_ssize_t)to > p.blob_stop - p.blob_at) {
            return bad_offsets();
        }
        if (to - from > HEADERS_READ_BYTES_MAX) {
            PyErr_Format(protocol_error, "headers of %u bytes", to - from);
            return NULL;
        }
        if (!mm_is_map(start + p.blob_at + from, to - from)) {
            PyErr_SetString(protocol_error, "headers that are no msgpack map");
            return NULL;
        }
    }
    Py_RETURN_NONE;
}

static PyObject *
make_column(PyObject *data, const Places *p)
{
    size_t blob = (size_t)(p->blob_stop - p->blob_at);
    Py_ssize_t length = length_of(PyBytes_AS_STRING(data) + p->offsets_at, p->count, blob);
    if (length == -2) {
        return bad_offsets();
    }
    PyObject *column = column_type->tp_alloc(column_type, 0);
    if (column == NULL) {
        return NULL;
    }
    if (SET_COLUMN(C_DATA, Py_NewRef(data)) < 0
        || SET_COLUMN(C_OFFSETS_AT, PyLong_FromSsize_t(p->offsets_at)) < 0
        || SET_COLUMN(C_BLOB_AT, PyLong_FromSsize_t(p->blob_at)) < 0
        || SET_COLUMN(C_BLOB_STOP, PyLong_FromSsize_t(p->blob_stop)) < 0
        || SET_COLUMN(C_COUNT, PyLong_FromSsize_t(p->count)) < 0
        || SET_COLUMN(C_LENGTH, PyLong_FromSsize_t(length)) < 0
        || SET_COLUMN(C_OFFSETS, Py_NewRef(Py_None)) < 0) {
        Py_CLEAR(column);
    }
    return column;
}

/* --- frames --- */

typedef struct {
    uint64_t stream, epoch, first;
    int64_t time;
    uint32_t length, count, table, keys, headers;
    unsigned flags, topics;
} Header;

static void
read_header(const char *at, Header *h)
{
    h->stream = get64(at);
    h->length = get32(at + 16);
    h->count = get32(at + 20);
    h->epoch = get64(at + 24);
    h->first = get64(at + 32);
    h->time = (int64_t)get64(at + 40);
    h->flags = get16(at + 48);
    h->topics = get16(at + 50);
    h->table = get32(at + 52);
    h->keys = get32(at + 56);
    h->headers = get32(at + 60);
}

static int
refuse(const char *why)
{
    PyErr_SetString(protocol_error, why);
    return -1;
}

static int
check_header(const char *at, size_t size, Header *h)
{
    if (size < HEADER_BYTES || size > FRAME_BYTES_MAX) {
        PyErr_Format(protocol_error, "a frame of %zu bytes", size);
        return -1;
    }
    read_header(at, h);
    if (memcmp(at + 8, "MMF1", 4) != 0) {
        return refuse("not a frame");
    }
    if (h->length != size) {
        PyErr_Format(protocol_error, "a frame of %zu bytes says it has %u", size, h->length);
        return -1;
    }
    uint32_t check = mm_crc32c(0, at, CHECK_AT);
    if (mm_crc32c(check, at + CHECK_AT + 4, size - CHECK_AT - 4) != get32(at + CHECK_AT)) {
        return refuse("checksum differs");
    }
    if (h->count == 0 || h->count > FRAME_EVENTS_MAX || h->topics == 0
        || h->flags & ~(unsigned)KNOWN_FLAGS) {
        return refuse("header fields out of range");
    }
    if (h->topics > h->count || h->table > h->topics * (TOPIC_BYTES_MAX + 1u)) {
        return refuse("a topic table larger than its topics can be");
    }
    if (h->first > (uint64_t)INT64_MAX - h->count || h->epoch > (uint64_t)INT64_MAX) {
        return refuse("sequence number or epoch out of range");
    }
    return 0;
}

static int
fill_header(PyObject *frame, PyObject *data, const Header *h)
{
    return SET_FRAME(F_DATA, Py_NewRef(data)) < 0
        || SET_FRAME(F_STREAM, PyLong_FromUnsignedLongLong(h->stream)) < 0
        || SET_FRAME(F_EPOCH, PyLong_FromUnsignedLongLong(h->epoch)) < 0
        || SET_FRAME(F_FIRST, PyLong_FromUnsignedLongLong(h->first)) < 0
        || SET_FRAME(F_STOP, PyLong_FromUnsignedLongLong(h->first + h->count)) < 0
        || SET_FRAME(F_COUNT, PyLong_FromUnsignedLong(h->count)) < 0
        || SET_FRAME(F_TIME, PyLong_FromLongLong(h->time)) < 0
        || SET_FRAME(F_FLAGS, PyLong_FromUnsignedLong(h->flags)) < 0 ? -1 : 0;
}

static int
fill_nothing(PyObject *frame)
{
    static const int none[] = {F_TOPIC_IDS, F_KEYS, F_HEADERS};
    static const int blank[] = {F_ENCODINGS, F_KEY_BITS, F_HEADER_BITS};
    for (int i = 0; i < 3; i++) {
        SET_FRAME(none[i], Py_NewRef(Py_None));
        SET_FRAME(blank[i], Py_NewRef(empty));
    }
    return 0;
}

/* The topics that a table lists, from those that were read before or by `_TopicTables.read`. */
static PyObject *
topics_of(const char *table, size_t size)
{
    PyObject *bytes = PyBytes_FromStringAndSize(table, (Py_ssize_t)size);
    if (bytes == NULL) {
        return NULL;
    }
    PyObject *topics = PyDict_GetItemWithError(known_tables, bytes);
    if (topics != NULL && PyTuple_CheckExact(topics) && PyTuple_GET_SIZE(topics) == 1) {
        Py_INCREF(topics);
    } else if (topics == NULL && PyErr_Occurred()) {
        topics = NULL;
    } else {
        PyObject *one = PyLong_FromLong(1);
        PyObject *args[] = {bytes, one};
        topics = one == NULL ? NULL : PyObject_Vectorcall(read_table, args, 2, NULL);
        Py_XDECREF(one);
    }
    Py_DECREF(bytes);
    return topics;
}

/* A frame of one topic without keys, headers or mixed encodings: most are. */
static int
fill_plain(PyObject *frame, PyObject *data, const Header *h)
{
    const char *start = PyBytes_AS_STRING(data);
    size_t size = (size_t)PyBytes_GET_SIZE(data), at = HEADER_BYTES;
    if (h->table > size - at) { /* a sum could wrap where size_t has 32 bits */
        return refuse("topic table does not fit the frame");
    }
    if (SET_FRAME(F_TOPICS, topics_of(start + at, h->table)) < 0 || fill_nothing(frame) < 0) {
        return -1;
    }
    at += padded(h->table);
    size_t times_at = 0;
    if (h->flags & TIMES) {
        times_at = at;
        at += 8 * (size_t)h->count;
    }
    size_t stop = at + 4 * ((size_t)h->count + 1);
    if (padded(stop) > size) {
        return refuse("sections do not fit the frame");
    }
    Places places = {(Py_ssize_t)at, (Py_ssize_t)padded(stop), (Py_ssize_t)size, h->count};
    return SET_FRAME(F_TIMES_AT, PyLong_FromSize_t(times_at)) < 0
        || SET_FRAME(F_PAYLOADS, make_column(data, &places)) < 0 ? -1 : 0;
}

/* read_frame(frame, data): fill the slots of a new `Frame`; None when it is all read, else the
 * header's (topic_count, table_bytes, key_bytes, header_bytes), to be read on. */
PyObject *
mm_read_frame(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    Header h;
    if (nargs != 2 || frame_type == NULL || !PyObject_TypeCheck(args[0], frame_type)
        || !PyBytes_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "read_frame(frame: Frame, data: bytes)");
        return NULL;
    }
    PyObject *frame = args[0], *data = args[1];
    if (check_header(PyBytes_AS_STRING(data), (size_t)PyBytes_GET_SIZE(data), &h) < 0
        || fill_header(frame, data, &h) < 0) {
        return NULL;
    }
    if (h.flags & ~(unsigned)(RAW | TIMES) || h.topics != 1) {
        return Py_BuildValue("(IIII)", h.topics, h.table, h.keys, h.headers);
    }
    return fill_plain(frame, data, &h) < 0 ? NULL : Py_NewRef(Py_None);
}

/* new_frame(data): a `Frame`, by the shortest way. */
PyObject *
mm_new_frame(PyObject *Py_UNUSED(module), PyObject *data)
{
    Header h;
    if (frame_type == NULL || !PyBytes_Check(data)) {
        PyErr_SetString(PyExc_TypeError, "new_frame(data: bytes)");
        return NULL;
    }
    if (check_header(PyBytes_AS_STRING(data), (size_t)PyBytes_GET_SIZE(data), &h) < 0) {
        return NULL;
    }
    if (h.flags & ~(unsigned)(RAW | TIMES) || h.topics != 1) {
        return PyObject_CallOneArg((PyObject *)frame_type, data);
    }
    PyObject *frame = frame_type->tp_alloc(frame_type, 0);
    if (frame != NULL && (fill_header(frame, data, &h) < 0 || fill_plain(frame, data, &h) < 0)) {
        Py_CLEAR(frame);
    }
    return frame;
}

/* For the short way in: borrowed. */
PyObject *
mm_protocol_error(void)
{
    return protocol_error;
}

PyObject *
mm_frame_topics(PyObject *frame)
{
    return get_slot(frame, frame_slots[F_TOPICS]);
}

PyObject *
mm_frame_stop(PyObject *frame)
{
    return get_slot(frame, frame_slots[F_STOP]);
}

PyObject *
mm_frame_count(PyObject *frame)
{
    return get_slot(frame, frame_slots[F_COUNT]);
}

/* --- batches and events --- */

/* set_up_batches(Batch, Event): once, at import. */
PyObject *
mm_set_up_batches(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *batch, *event;
    if (!PyArg_ParseTuple(args, "O!O", &PyType_Type, &batch, &event)
        || mm_find_slots(batch, batch_names, B_SLOTS, batch_slots) < 0) {
        return NULL;
    }
    Py_XSETREF(batch_type, (PyTypeObject *)Py_NewRef(batch));
    Py_XSETREF(event_type, Py_NewRef(event));
    Py_RETURN_NONE;
}

/* whole_batch(frame, stream, codec): `Batch(frame, stream, codec)`, by the shortest way. */
PyObject *
mm_whole_batch(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 3 || batch_type == NULL || frame_type == NULL
        || !PyObject_TypeCheck(args[0], frame_type)) {
        PyErr_SetString(PyExc_TypeError, "whole_batch(frame: Frame, stream: str, codec: Codec)");
        return NULL;
    }
    PyObject *count = get_slot(args[0], frame_slots[F_COUNT]);
    if (count == NULL) {
        PyErr_SetString(PyExc_AttributeError, "a frame that was not read has no count");
        return NULL;
    }
    PyObject *batch = batch_type->tp_alloc(batch_type, 0);
    if (batch == NULL) {
        return NULL;
    }
    if (SET_BATCH(B_FRAME, Py_NewRef(args[0])) < 0 || SET_BATCH(B_STREAM, Py_NewRef(args[1])) < 0
        || SET_BATCH(B_CODEC, Py_NewRef(args[2])) < 0 || SET_BATCH(B_LO, PyLong_FromLong(0)) < 0
        || SET_BATCH(B_HI, Py_NewRef(count)) < 0
        || SET_BATCH(B_KEEP, Py_NewRef(Py_None)) < 0 || SET_BATCH(B_DATA, Py_NewRef(Py_None)) < 0
        || SET_BATCH(B_PAYLOADS, Py_NewRef(Py_None)) < 0) {
        Py_CLEAR(batch);
    }
    return batch;
}

static int
places_of(PyObject *column, PyObject **data, Places *p)
{
    PyObject *args[5];
    static const int slots[] = {C_DATA, C_OFFSETS_AT, C_BLOB_AT, C_BLOB_STOP, C_COUNT};
    if (column_type == NULL || !PyObject_TypeCheck(column, column_type)) {
        PyErr_SetString(PyExc_TypeError, "not a column");
        return -1;
    }
    for (int i = 0; i < 5; i++) {
        args[i] = get_slot(column, column_slots[slots[i]]);
        if (args[i] == NULL) {
            PyErr_SetString(PyExc_AttributeError, "the column is empty");
            return -1;
        }
    }
    *data = args[0];
    return read_places(args, p);
}

/* raw_events(Event, batch, column, lo, hi): Event(payload, batch, index) for each, in a list. */
PyObject *
mm_raw_events(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    Places p;
    PyObject *data;
    if (nargs != 5) {
        PyErr_SetString(PyExc_TypeError, "raw_events() takes 5 arguments");
        return NULL;
    }
    Py_ssize_t lo = PyLong_AsSsize_t(args[3]), hi = PyLong_AsSsize_t(args[4]);
    if (PyErr_Occurred() || places_of(args[2], &data, &p) < 0 || check_items(&p, lo, hi) < 0) {
        return NULL;
    }
    PyObject *events = PyList_New(hi - lo);
    for (Py_ssize_t i = lo; events != NULL && i < hi; i++) {
        PyObject *payload = item_at(data, &p, i), *index = PyLong_FromSsize_t(i), *event = NULL;
        if (payload != NULL && index != NULL) {
            PyObject *fields[] = {payload, args[1], index};
            event = PyObject_Vectorcall(args[0], fields, 3, NULL);
        }
        Py_XDECREF(payload);
        Py_XDECREF(index);
        if (event == NULL) {
            Py_CLEAR(events);
        } else {
            PyList_SET_ITEM(events, i - lo, event);
        }
    }
    return events;
}

/* For the short way in: `Batch.events` of a whole frame of bytes; NULL without an error for others. */
PyObject *
mm_bytes_events(PyObject *batch, PyObject *frame)
{
    PyObject *flags = get_slot(frame, frame_slots[F_FLAGS]);
    PyObject *encodings = get_slot(frame, frame_slots[F_ENCODINGS]);
    PyObject *payloads = get_slot(frame, frame_slots[F_PAYLOADS]);
    PyObject *lo = get_slot(batch, batch_slots[B_LO]), *hi = get_slot(batch, batch_slots[B_HI]);
    if (flags == NULL || !PyLong_Check(flags) || !(PyLong_AsLong(flags) & RAW) || encodings == NULL
        || PyObject_IsTrue(encodings) != 0 || payloads == NULL || lo == NULL || hi == NULL) {
        return NULL;
    }
    PyObject *args[] = {event_type, batch, payloads, lo, hi};
    return mm_raw_events(NULL, args, 5);
}

/* make_events(Event, batch, values, lo): Event(value, batch, index) for each, in a list. */
PyObject *
mm_make_events(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 4 || !PyList_CheckExact(args[2])) {
        PyErr_SetString(PyExc_TypeError, "make_events(Event, batch, values: list, lo: int)");
        return NULL;
    }
    PyObject *type = args[0], *batch = args[1], *values = args[2];
    Py_ssize_t lo = PyLong_AsSsize_t(args[3]), count = PyList_GET_SIZE(values);
    if (lo == -1 && PyErr_Occurred()) {
        return NULL;
    }
    PyObject *events = PyList_New(count);
    for (Py_ssize_t i = 0; events != NULL && i < count; i++) {
        PyObject *index = PyLong_FromSsize_t(lo + i), *event = NULL;
        if (index != NULL && i < PyList_GET_SIZE(values)) {
            PyObject *value = Py_NewRef(PyList_GET_ITEM(values, i));
            PyObject *fields[] = {value, batch, index};
            event = PyObject_Vectorcall(type, fields, 3, NULL);
            Py_DECREF(value);
        }
        Py_XDECREF(index);
        if (event == NULL) {
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_RuntimeError, "the values changed while they were read");
            }
            Py_CLEAR(events);
        } else {
            PyList_SET_ITEM(events, i, event);
        }
    }
    return events;
}
