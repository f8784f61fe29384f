/* `TailFrame`: the newest events of a durable stream, as rows that become one frame of the log, and
 * as bytes in the mapped memory of the log's tail (docs/log.md, "The tail").  The same in Python is in
 * `_wire/tail_frame.py`.
 *
 * An event is added without any Python code from the first to the last step, so publishing needs no
 * lock here either.  `shut` keeps everybody out while the log moves what is there.
 */
#include "speed.h"

#define ENTRY_BYTES 40
#define ROWS_MIN 64
#define ROWS_MAX 16384

static int
grow_rows(TailFrame *self)
{
    Rows *open = &self->frame.open;
    Py_ssize_t capacity = open->capacity ? 4 * open->capacity : ROWS_MIN;
    if (capacity > ROWS_MAX) {
        return 0;
    }
    Row *rows = PyMem_Realloc(open->rows, (size_t)capacity * sizeof(Row));
    if (rows == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    *open = (Rows){rows, capacity};
    return 1;
}

/* Find the bytes of an event; -1 for text that UTF-8 cannot carry. */
int
mm_tail_entry(TailEntry *entry, PyObject *topic, PyObject *payload, PyObject *note)
{
    *entry = (TailEntry){.topic = topic, .payload = payload};
    entry->topic_text = PyUnicode_AsUTF8AndSize(topic, &entry->topic_bytes);
    if (entry->topic_text == NULL) {
        return -1;
    }
    if (note != NULL) {
        PyObject *key = PyTuple_GET_ITEM(note, 0), *headers = PyTuple_GET_ITEM(note, 1);
        if (key != Py_None) {
            entry->key_text = PyUnicode_AsUTF8AndSize(key, &entry->key_bytes);
            if (entry->key_text == NULL) {
                return -1;
            }
        }
        entry->headers = headers == Py_None ? NULL : headers;
    }
    size_t used = ENTRY_BYTES + (size_t)entry->topic_bytes + (size_t)entry->key_bytes
                + (size_t)PyBytes_GET_SIZE(payload)
                + (entry->headers == NULL ? 0 : (size_t)PyBytes_GET_SIZE(entry->headers));
    entry->used = used;
    return 0;
}

/* 1: there is room for the event; 0: there is none; -1: an error. */
int
mm_tail_fits(TailFrame *self, const TailEntry *entry)
{
    if (self->area.buf == NULL || entry->topic_bytes > UINT16_MAX
        || entry->used > (size_t)self->area.len
        || self->at > self->area.len - (Py_ssize_t)padded(entry->used)) {
        return 0;
    }
    return self->frame.count < self->frame.open.capacity ? 1 : grow_rows(self);
}

static char *
put_bytes(char *at, const char *bytes, Py_ssize_t size)
{
    copy_item(at, bytes, (size_t)size);
    return at + size;
}

/* Add an event that fits.  The length stands first and is written last: whoever reads the memory
 * meanwhile finds the entry whole or finds none. */
void
mm_tail_append(TailFrame *self, const TailEntry *entry, int64_t time, int raw)
{
    char *start = (char *)self->area.buf + self->at, *at = start + ENTRY_BYTES;
    Py_ssize_t payload = PyBytes_GET_SIZE(entry->payload);
    Py_ssize_t headers = entry->headers == NULL ? 0 : PyBytes_GET_SIZE(entry->headers);
    put64(start + 8, (uint64_t)time);
    put32(start + 16, (uint32_t)self->frame.count);
    put32(start + 20, (uint32_t)payload);
    put32(start + 24, entry->key_text == NULL ? 0 : (uint32_t)entry->key_bytes + 1);
    put32(start + 28, entry->headers == NULL ? 0 : (uint32_t)headers + 1);
    put16(start + 32, (uint16_t)entry->topic_bytes);
    put16(start + 34, (uint16_t)raw);
    put32(start + 36, 0);
    at = put_bytes(at, entry->topic_text, entry->topic_bytes);
    if (entry->key_text != NULL) {
        at = put_bytes(at, entry->key_text, entry->key_bytes);
    }
    if (entry->headers != NULL) {
        at = put_bytes(at, PyBytes_AS_STRING(entry->headers), headers);
    }
    put_bytes(at, PyBytes_AS_STRING(entry->payload), payload);
    put32(start + 4, mm_crc32c(self->salt, start + 8, entry->used - 8));
    __atomic_store_n((uint32_t *)(void *)start, (uint32_t)entry->used, __ATOMIC_RELEASE);
    self->at += (Py_ssize_t)padded(entry->used);
    mm_append(&self->frame, entry->topic, entry->payload, time, raw);
}

/* The topic of the entry before, if this one has the same; else NULL, without an exception. */
static PyObject *
same_topic(PyObject *before, const char *text, size_t bytes)
{
    Py_ssize_t size = 0;
    const char *known = before == NULL ? NULL : PyUnicode_AsUTF8AndSize(before, &size);
    return known != NULL && (size_t)size == bytes && memcmp(known, text, bytes) == 0
         ? Py_NewRef(before) : NULL;
}

/* The entry at `at`, as a tuple of that type; NULL without an exception where none is there, whole and
 * unharmed, that has this number.  `before` is the
 * topic of the entry before, if any: most are the same. */
static PyObject *
entry_at(PyTypeObject *type, PyObject *data, Py_ssize_t at, uint32_t salt, uint32_t number,
         PyObject *before)
{
    const char *start = PyBytes_AS_STRING(data) + at;
    Py_ssize_t left = PyBytes_GET_SIZE(data) - at;
    if (left < ENTRY_BYTES) {
        return NULL;
    }
    uint64_t used = get32(start), payload = get32(start + 20), key = get32(start + 24);
    uint64_t headers = get32(start + 28), topic = get16(start + 32);
    uint64_t names = key ? key - 1 : 0, notes = headers ? headers - 1 : 0;
    unsigned raw = get16(start + 34);
    if (used != ENTRY_BYTES + topic + names + notes + payload || used > (uint64_t)left || raw > 1
        || get32(start + 36) != 0 || get32(start + 16) != number
        || mm_crc32c(salt, start + 8, (size_t)used - 8) != get32(start + 4)) {
        return NULL;
    }
    const char *text = start + ENTRY_BYTES, *name = text + topic, *note = name + names;
    PyObject *said = same_topic(before, text, (size_t)topic), *named = NULL;
    if (said != NULL || (said = PyUnicode_DecodeUTF8(text, (Py_ssize_t)topic, NULL)) != NULL) {
        named = key ? PyUnicode_DecodeUTF8(name, (Py_ssize_t)names, NULL) : Py_NewRef(Py_None);
    }
    if (named == NULL) {
        if (PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) {
            PyErr_Clear();
        }
        Py_XDECREF(said);
        return NULL;
    }
    PyObject *entry = type->tp_alloc(type, 8);
    if (entry == NULL) {
        Py_DECREF(said);
        Py_DECREF(named);
        return NULL;
    }
    PyTuple_SET_ITEM(entry, 1, said);
    PyTuple_SET_ITEM(entry, 4, Py_NewRef(raw ? Py_True : Py_False));
    PyTuple_SET_ITEM(entry, 5, named);
    PyObject *body = PyBytes_FromStringAndSize(note + notes, (Py_ssize_t)payload);
    PyTuple_SET_ITEM(entry, 2, body);
    PyObject *extra = body == NULL ? NULL
                    : headers ? PyBytes_FromStringAndSize(note, (Py_ssize_t)notes)
                              : Py_NewRef(Py_None);
    PyTuple_SET_ITEM(entry, 6, extra);
    const int64_t numbers[] = {number, (int64_t)get64(start + 8),
                               (int64_t)at + (int64_t)padded((size_t)used)};
    const int places[] = {0, 3, 7};
    for (int i = 0; extra != NULL && i < 3; i++) {
        extra = PyLong_FromLongLong(numbers[i]);
        PyTuple_SET_ITEM(entry, places[i], extra);
    }
    if (extra == NULL) {
        Py_DECREF(entry);
        return NULL;
    }
    return entry;
}

/* tail_entries(type, data, at, salt, number): consecutive entries from an offset on, that of a number
 * first, each as a tuple of that type; up to the first that is not there, or not whole. */
PyObject *
mm_tail_entries(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 5 || !PyType_Check(args[0])
        || !PyType_IsSubtype((PyTypeObject *)args[0], &PyTuple_Type) || !PyBytes_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "tail_entries() takes a type, bytes and three numbers");
        return NULL;
    }
    Py_ssize_t at = PyLong_AsSsize_t(args[2]);
    unsigned long salt = PyLong_AsUnsignedLong(args[3]), number = PyLong_AsUnsignedLong(args[4]);
    if (PyErr_Occurred()) {
        return NULL;
    }
    if (at < 0 || number > UINT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "tail_entries() of a place that there is not");
        return NULL;
    }
    PyObject *found = PyList_New(0), *before = NULL;
    while (found != NULL && number <= UINT32_MAX) {
        PyObject *entry = entry_at((PyTypeObject *)args[0], args[1], at, (uint32_t)salt,
                                   (uint32_t)number, before);
        if (entry == NULL) {
            break;
        }
        int failed = PyList_Append(found, entry);
        at = PyLong_AsSsize_t(PyTuple_GET_ITEM(entry, 7));
        before = PyTuple_GET_ITEM(entry, 1); /* the list keeps it */
        Py_DECREF(entry);
        number++;
        if (failed) {
            break;
        }
    }
    if (PyErr_Occurred()) {
        Py_CLEAR(found);
    }
    return found;
}

static PyObject *
add(TailFrame *self, PyObject *args, PyObject *named)
{
    static char *names[] = {"topic", "payload", "time_ns", "raw", "key", "headers", NULL};
    PyObject *topic, *payload, *key = Py_None, *headers = Py_None, *note = NULL;
    long long time;
    int raw = 1;
    if (!PyArg_ParseTupleAndKeywords(args, named, "USL|$pOO", names, &topic, &payload, &time, &raw,
                                     &key, &headers)) {
        return NULL;
    }
    if (!PyUnicode_CheckExact(topic) || !PyBytes_CheckExact(payload)
        || (key != Py_None && !PyUnicode_Check(key))
        || (headers != Py_None && !PyBytes_CheckExact(headers))) {
        PyErr_SetString(PyExc_TypeError, "an event has a str topic, bytes, and maybe a key and headers");
        return NULL;
    }
    if (key != Py_None || headers != Py_None) {
        note = PyTuple_Pack(2, key, headers);
        if (note == NULL) {
            return NULL;
        }
    }
    TailEntry entry;
    int fits = mm_tail_entry(&entry, topic, payload, note) < 0 ? -1 : mm_tail_fits(self, &entry);
    if (fits == 1 && (note == NULL || mm_note(&self->frame, note) == 0)) {
        mm_tail_append(self, &entry, time, raw);
    } else if (fits == 1) {
        fits = -1;
    }
    Py_XDECREF(note);
    return fits < 0 ? NULL : PyBool_FromLong(fits);
}

/* Without a lock this is as good as a look at two fields gets; who adds an event looks again. */
static PyObject *
has_room(TailFrame *self, PyObject *bytes)
{
    Py_ssize_t needed = PyLong_AsSsize_t(bytes);
    if (needed == -1 && PyErr_Occurred()) {
        return NULL;
    }
    Py_ssize_t room = self->area.len - self->at;
    return PyBool_FromLong(!self->shut && needed <= room
                           && (Py_ssize_t)padded((size_t)needed) <= room
                           && self->frame.count < ROWS_MAX);
}

static PyObject *
release(TailFrame *self, PyObject *Py_UNUSED(none))
{
    self->shut = 1;
    Py_buffer area = self->area;
    self->area = (Py_buffer){0};
    PyBuffer_Release(&area);
    Py_RETURN_NONE;
}

static PyObject *
use(TailFrame *self, PyObject *args)
{
    PyObject *buffer;
    Py_ssize_t at;
    unsigned int salt;
    Py_buffer area;
    if (!PyArg_ParseTuple(args, "OnI", &buffer, &at, &salt)
        || PyObject_GetBuffer(buffer, &area, PyBUF_WRITABLE) < 0) {
        return NULL;
    }
    if (at < 0 || at % 8 || at > area.len || area.len > UINT32_MAX || (uintptr_t)area.buf % 4) {
        PyBuffer_Release(&area);
        PyErr_SetString(PyExc_ValueError, "entries start at a multiple of 8 within the area");
        return NULL;
    }
    PyObject *done = release(self, NULL);
    self->area = area;
    self->at = at;
    self->salt = salt;
    return done;
}

/* In C: Ctrl-C cannot come between a `with` block and these, and leave everybody shut out. */
static PyObject *
keep_out(TailFrame *self, PyObject *Py_UNUSED(none))
{
    self->keepers++;
    return Py_NewRef(self);
}

static PyObject *
let_in_again(TailFrame *self, PyObject *Py_UNUSED(error))
{
    self->keepers--;
    Py_RETURN_NONE;
}

static PyObject *
tail_frame_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    TailFrame *self = (TailFrame *)OpenFrame_Type.tp_new(type, args, named);
    if (self != NULL) {
        self->shut = 1;
    }
    return (PyObject *)self;
}

static void
tail_frame_dealloc(TailFrame *self)
{
    PyObject_GC_UnTrack(self);
    PyBuffer_Release(&self->area);
    OpenFrame_Type.tp_dealloc((PyObject *)self);
}

#define METHOD(name, function, kind, text) {name, (PyCFunction)(void (*)(void))function, kind, text}

static PyMethodDef methods[] = {
    METHOD("add", add, METH_VARARGS | METH_KEYWORDS, "Add an event; False if there is no room."),
    METHOD("has_room", has_room, METH_O, "Whether an event of so many bytes could be added."),
    METHOD("use", use, METH_VARARGS, "Write to this memory from here on, with this salt; shut."),
    METHOD("__enter__", keep_out, METH_NOARGS, "Keep publishers out."),
    METHOD("__exit__", let_in_again, METH_VARARGS, "Let them in again."),
    METHOD("release", release, METH_NOARGS, "Let go of the memory; shut."),
    {0},
};

static PyMemberDef members[] = {
    {"at", T_PYSSIZET, offsetof(TailFrame, at), READONLY, "Where the next entry goes."},
    {"keepers", T_INT, offsetof(TailFrame, keepers), READONLY, "How many keep publishers out."},
    {"shut", T_BOOL, offsetof(TailFrame, shut), 0, "Nothing can be added."},
    {0},
};

PyTypeObject TailFrame_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "meshmsg._speed.TailFrame",
    .tp_doc = "The newest events of a durable stream, in mapped memory.",
    .tp_basicsize = sizeof(TailFrame),
    .tp_base = &OpenFrame_Type,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = tail_frame_new,
    .tp_dealloc = (destructor)tail_frame_dealloc,
    .tp_methods = methods,
    .tp_members = members,
};
