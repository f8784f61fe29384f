/* `OpenFrame`: events of a stream that have their numbers and are not encoded yet.  What
 * `FrameBuilder` in `_wire/frame_builder.py` is, with the fields that publishing looks at beside it.
 *
 * A number is given in `mm_append` and passed over in `reserve`, each without any Python code from the
 * first to the last step: no lock is needed, and Ctrl-C comes before or after.
 */
#include "speed.h"

#define CAPACITY_MIN 64
#define CAPACITY_MAX 4096

/* --- rows --- */

static void
free_rows(Rows *rows, Py_ssize_t count)
{
    Row *all = rows->rows;
    rows->rows = NULL;
    rows->capacity = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_DECREF(all[i].topic);
        Py_DECREF(all[i].payload);
    }
    PyMem_Free(all);
}

static int
make_rows(Rows *rows, Py_ssize_t capacity)
{
    rows->rows = PyMem_Malloc((size_t)capacity * sizeof(Row));
    if (rows->rows == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    rows->capacity = capacity;
    return 0;
}

/* --- adding --- */

/* 1: there is room for one more; 0: the frame is full; -1: an error. */
int
mm_make_room(OpenFrame *self)
{
    if (self->open.rows == NULL && make_rows(&self->open, self->capacity) < 0) {
        return -1;
    }
    return self->count < self->open.capacity;
}

/* Append an event where there is room.  Topic and payload are of exactly these types, never of a
 * subclass: nothing that touches a row ever runs Python code. */
void
mm_append(OpenFrame *self, PyObject *topic, PyObject *payload, int64_t time, int raw)
{
    assert(PyUnicode_CheckExact(topic) && PyBytes_CheckExact(payload));
    Row *row = &self->open.rows[self->count];
    row->topic = Py_NewRef(topic);
    row->payload = Py_NewRef(payload);
    row->time = time;
    row->raw = (char)raw;
    self->count++;
}

static PyObject *
add(OpenFrame *self, PyObject *args, PyObject *named)
{
    static char *names[] = {"topic", "payload", "time_ns", "raw", NULL};
    PyObject *topic, *payload;
    long long time;
    int raw = 1;
    if (!PyArg_ParseTupleAndKeywords(args, named, "UOL|$p", names, &topic, &payload, &time, &raw)) {
        return NULL;
    }
    if (!PyUnicode_CheckExact(topic) || !PyBytes_CheckExact(payload)) {
        PyErr_SetString(PyExc_TypeError, "an event has a topic that is a str and a payload of bytes");
        return NULL;
    }
    int room = mm_make_room(self);
    if (room != 1) {
        if (room == 0) {
            PyErr_SetString(PyExc_IndexError, "the open frame is full");
        }
        return NULL;
    }
    mm_append(self, topic, payload, time, raw);
    return PyLong_FromLongLong(self->first + self->count - 1);
}

/* Give the event that is added next its key and headers. */
int
mm_note(OpenFrame *self, PyObject *note)
{
    PyObject *number = PyLong_FromLongLong(self->first + self->count);
    int bad = number == NULL || PyDict_SetItem(self->notes, number, note) < 0;
    Py_XDECREF(number);
    return bad ? -1 : 0;
}

static PyObject *
annotate(OpenFrame *self, PyObject *args)
{
    PyObject *key, *headers;
    if (!PyArg_ParseTuple(args, "OO", &key, &headers)) {
        return NULL;
    }
    PyObject *number = PyLong_FromLongLong(self->first + self->count - 1);
    PyObject *note = PyTuple_Pack(2, key, headers);
    int bad = number == NULL || note == NULL || PyDict_SetItem(self->notes, number, note) < 0;
    Py_XDECREF(number);
    Py_XDECREF(note);
    return bad ? NULL : Py_NewRef(Py_None);
}

static PyObject *
reserve(OpenFrame *self, PyObject *count)
{
    long long events = PyLong_AsLongLong(count);
    if (events == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (self->count) {
        Py_RETURN_FALSE;
    }
    self->first += events;
    Py_RETURN_TRUE;
}

/* --- sealing: one thread at a time, by the publisher's lock --- */

static PyObject *
begin(OpenFrame *self, PyObject *Py_UNUSED(none))
{
    if (!self->has_taken) {
        self->taken = self->open;
        self->taken_first = self->first;
        self->taken_count = self->count;
        self->has_taken = 1;
        self->open = self->spare; /* without rows if there is none: made when an event comes */
        self->spare = (Rows){0};
        self->first += self->count;
        self->count = 0;
        self->size = 0;
    }
    return Py_BuildValue("(Ln)", self->taken_first, self->taken_count);
}

/* Which of the notes are of this frame, as two arrays; none where no event has any. */
static int
find_notes(OpenFrame *self, PyObject ***keys, PyObject ***headers)
{
    PyObject *number, *note;
    Py_ssize_t at = 0;
    while (PyDict_Next(self->notes, &at, &number, &note)) {
        long long index = PyLong_AsLongLong(number) - self->taken_first;
        if (index < 0 || index >= self->taken_count) {
            continue;
        }
        for (int which = 0; which < 2; which++) {
            PyObject *value = PyTuple_GET_ITEM(note, which), ***items = which ? headers : keys;
            if (value == Py_None) {
                continue;
            }
            if (*items == NULL) {
                *items = PyMem_Calloc((size_t)self->taken_count, sizeof **items);
                if (*items == NULL) {
                    PyErr_NoMemory();
                    return -1;
                }
            }
            (*items)[index] = value;
        }
    }
    return PyErr_Occurred() ? -1 : 0;
}

static void
describe(OpenFrame *self, Events *events)
{
    Row *rows = self->taken.rows;
    events->count = self->taken_count;
    events->topics = &rows->topic;
    events->payloads = &rows->payload;
    events->times = &rows->time;
    events->raws = &rows->raw;
    events->topics_step = events->payloads_step = sizeof(Row);
    events->times_step = events->raws_step = sizeof(Row);
    events->raw = rows->raw;
    for (Py_ssize_t i = 1; i < events->count && events->raw >= 0; i++) {
        if (rows[i].raw != rows->raw) {
            events->raw = -1;
        }
    }
}

static PyObject *
encode_taken(OpenFrame *self, Events *events)
{
    PyObject *ids = NULL, *frame = NULL;
    describe(self, events);
    if (mm_wants_topic_ids(events)) {
        ids = PyDict_New(); /* may run finalizers, and what was borrowed is read again after it */
        if (ids == NULL) {
            return NULL;
        }
        if (!self->has_taken || self->taken_count == 0) {
            Py_DECREF(ids);
            PyErr_SetString(PyExc_AssertionError, "the frame was finished meanwhile");
            return NULL;
        }
        describe(self, events);
    }
    if (find_notes(self, &events->keys, &events->headers) == 0) {
        frame = mm_encode_events(events, ids);
    }
    PyMem_Free(events->keys);
    PyMem_Free(events->headers);
    Py_XDECREF(ids);
    return frame;
}

static PyObject *
encode(OpenFrame *self, PyObject *args)
{
    Events events = {0};
    PyObject *first = Py_None;
    unsigned long long stream, epoch;
    if (!PyArg_ParseTuple(args, "KK|O", &stream, &epoch, &first)) {
        return NULL;
    }
    if (!self->has_taken || self->taken_count == 0) {
        PyErr_SetString(PyExc_AssertionError, "nothing was begun");
        return NULL;
    }
    events.stream = stream;
    events.epoch = epoch;
    events.first = (uint64_t)self->taken_first;
    if (first != Py_None) {
        events.first = PyLong_AsUnsignedLongLong(first);
        if (PyErr_Occurred()) {
            return NULL;
        }
    }
    return encode_taken(self, &events);
}

static int
forget_notes(OpenFrame *self, long long stop)
{
    if (PyDict_GET_SIZE(self->notes) == 0) {
        return 0;
    }
    PyObject *numbers = PyDict_Keys(self->notes);
    if (numbers == NULL) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(numbers); i++) {
        PyObject *number = PyList_GET_ITEM(numbers, i);
        if (PyLong_AsLongLong(number) < stop && PyDict_DelItem(self->notes, number) < 0) {
            PyErr_Clear(); /* it has gone already */
        }
    }
    Py_DECREF(numbers);
    return 0;
}

static PyObject *
finish(OpenFrame *self, PyObject *Py_UNUSED(none))
{
    if (!self->has_taken) {
        Py_RETURN_NONE;
    }
    Rows rows = self->taken;
    Py_ssize_t count = self->taken_count;
    self->taken = (Rows){0};
    self->taken_count = 0;
    self->has_taken = 0;
    if (count == self->capacity && self->capacity < CAPACITY_MAX) {
        self->capacity *= 4; /* it was full: the next ones are larger */
    }
    if (rows.rows != NULL && rows.capacity >= self->capacity && self->spare.rows == NULL) {
        for (Py_ssize_t i = 0; i < count; i++) {
            Py_DECREF(rows.rows[i].topic);
            Py_DECREF(rows.rows[i].payload);
        }
        self->spare = rows;
    } else {
        free_rows(&rows, count);
    }
    return forget_notes(self, self->taken_first + count) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *
seal(OpenFrame *self, PyObject *args)
{
    PyObject *begun = begin(self, NULL);
    Py_XDECREF(begun);
    PyObject *frame = begun == NULL ? NULL : encode(self, args);
    PyObject *done = frame == NULL ? NULL : finish(self, NULL);
    if (done == NULL) {
        Py_CLEAR(frame);
    }
    Py_XDECREF(done);
    return frame;
}

/* --- looking --- */

static PyObject *
is_open(OpenFrame *self, PyObject *Py_UNUSED(none))
{
    return PyBool_FromLong(self->count > 0 || self->has_taken);
}

static PyObject *
first_at(OpenFrame *self, PyObject *time_ns)
{
    long long time = PyLong_AsLongLong(time_ns);
    if (time == -1 && PyErr_Occurred()) {
        return NULL;
    }
    Py_ssize_t index = 0;
    while (index < self->count && self->open.rows[index].time < time) {
        index++;
    }
    return PyLong_FromSsize_t(index);
}

static PyObject *
get_next(OpenFrame *self, void *Py_UNUSED(closure))
{
    return PyLong_FromLongLong(self->first + self->count);
}

static PyObject *
get_tail(OpenFrame *self, void *Py_UNUSED(closure))
{
    return Py_NewRef(self->tail == NULL ? Py_None : (PyObject *)self->tail);
}

static int
set_tail(OpenFrame *self, PyObject *tail, void *Py_UNUSED(closure))
{
    if (tail == NULL || (tail != Py_None && !PyObject_TypeCheck(tail, &TailFrame_Type))) {
        PyErr_SetString(PyExc_TypeError, "a tail is a TailFrame or None");
        return -1;
    }
    TailFrame *old = self->tail;
    self->tail = tail == Py_None ? NULL : (TailFrame *)Py_NewRef(tail);
    Py_XDECREF(old);
    return 0;
}

static Py_ssize_t
length(OpenFrame *self)
{
    return self->count;
}

/* --- lifetime --- */

static PyObject *
open_frame_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(named))
{
    OpenFrame *self = (OpenFrame *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->capacity = CAPACITY_MIN;
    self->size_max = self->large_max = PY_SSIZE_T_MAX;
    self->notes = PyDict_New();
    if (self->notes == NULL) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static int
open_frame_init(OpenFrame *self, PyObject *args, PyObject *named)
{
    static char *names[] = {"first", NULL};
    long long first = 0;
    if (!PyArg_ParseTupleAndKeywords(args, named, "|L", names, &first)) {
        return -1;
    }
    self->first = first;
    return 0;
}

static int
open_frame_traverse(OpenFrame *self, visitproc visit, void *arg)
{
    Py_VISIT(self->notes); /* rows hold plain strings, which are in no cycle */
    Py_VISIT(self->stream);
    Py_VISIT(self->epoch);
    Py_VISIT(self->tail);
    return 0;
}

static int
open_frame_clear(OpenFrame *self)
{
    Py_CLEAR(self->stream);
    Py_CLEAR(self->epoch);
    Py_CLEAR(self->tail);
    return 0; /* the notes stay: methods rest on them, and they are in no cycle of their own */
}

static void
open_frame_dealloc(OpenFrame *self)
{
    PyObject_GC_UnTrack(self);
    open_frame_clear(self);
    Py_CLEAR(self->notes);
    free_rows(&self->open, self->count);
    free_rows(&self->taken, self->taken_count);
    free_rows(&self->spare, 0);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

#define METHOD(name, function, kind, text) {name, (PyCFunction)(void (*)(void))function, kind, text}

static PyMethodDef methods[] = {
    METHOD("add", add, METH_VARARGS | METH_KEYWORDS, "Append an event; returns its number."),
    METHOD("annotate", annotate, METH_VARARGS, "Give the event just added a key or headers."),
    METHOD("reserve", reserve, METH_O, "Pass over numbers; False if there are events."),
    METHOD("is_open", is_open, METH_NOARGS, "Whether there are events to be sealed."),
    METHOD("first_at", first_at, METH_O, "Index of the first event at or after a time."),
    METHOD("begin", begin, METH_NOARGS, "Take what is to be sealed: first number and count."),
    METHOD("encode", encode, METH_VARARGS, "The bytes of what `begin` took."),
    METHOD("finish", finish, METH_NOARGS, "What `begin` took is sealed: let it go."),
    METHOD("seal", seal, METH_VARARGS, "All in one."),
    {0},
};

#define FIELD(type, name, flags) {#name, type, offsetof(OpenFrame, name), flags, NULL}

static PyMemberDef members[] = {
    FIELD(T_LONGLONG, first, 0),
    FIELD(T_PYSSIZET, count, READONLY),
    FIELD(T_LONGLONG, size, 0),
    FIELD(T_OBJECT, notes, READONLY),
    FIELD(T_OBJECT, stream, 0),
    FIELD(T_OBJECT, epoch, 0),
    FIELD(T_LONGLONG, due_ns, 0),
    FIELD(T_LONGLONG, sent_ns, 0),
    FIELD(T_PYSSIZET, size_max, 0),
    FIELD(T_PYSSIZET, large_max, 0),
    FIELD(T_BOOL, gated, 0),
    FIELD(T_BOOL, dirty, 0),
    FIELD(T_BOOL, holds, 0),
    {0},
};

static PyGetSetDef getters[] = {
    {"next", (getter)get_next, NULL, "The number that the next event gets.", NULL},
    {"tail", (getter)get_tail, (setter)set_tail, "Where a durable stream's events go too.", NULL},
    {0},
};

static PySequenceMethods as_sequence = {.sq_length = (lenfunc)length};

PyTypeObject OpenFrame_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "meshmsg._speed.OpenFrame",
    .tp_doc = "The open frame of a stream, and what publishing looks at.",
    .tp_basicsize = sizeof(OpenFrame),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_new = open_frame_new,
    .tp_init = (initproc)open_frame_init,
    .tp_traverse = (traverseproc)open_frame_traverse,
    .tp_clear = (inquiry)open_frame_clear,
    .tp_dealloc = (destructor)open_frame_dealloc,
    .tp_as_sequence = &as_sequence,
    .tp_methods = methods,
    .tp_members = members,
    .tp_getset = getters,
};
