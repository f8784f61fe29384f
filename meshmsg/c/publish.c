/* `Publish`: publishing one event, the path that is paid once an event.  What `PublisherSide.publish`
 * does in Python, step by step; everything rare is a call of that object's own methods.
 */
#include "speed.h"
#include <time.h>

#define EVENT_COST 14 /* what an event costs in a frame beside its payload, as in `_publish/publisher.py` */

static PyObject *name_topic, *name_data, *name_key, *name_headers, *name_timeout, *name_on_gate;
static PyObject *name_route, *name_encode, *name_large, *name_idle, *name_full, *name_due;
static PyObject *name_dirty, *name_pass, *name_tail, *name_safe;

static int
make_names(void)
{
    return (name_topic = PyUnicode_InternFromString("topic"))
        && (name_data = PyUnicode_InternFromString("data"))
        && (name_key = PyUnicode_InternFromString("key"))
        && (name_headers = PyUnicode_InternFromString("headers"))
        && (name_timeout = PyUnicode_InternFromString("timeout"))
        && (name_on_gate = PyUnicode_InternFromString("on_gate"))
        && (name_route = PyUnicode_InternFromString("_route"))
        && (name_encode = PyUnicode_InternFromString("_encode"))
        && (name_large = PyUnicode_InternFromString("_publish_large"))
        && (name_idle = PyUnicode_InternFromString("_publish_idle"))
        && (name_full = PyUnicode_InternFromString("_send_full"))
        && (name_due = PyUnicode_InternFromString("_on_due"))
        && (name_dirty = PyUnicode_InternFromString("_mark_dirty"))
        && (name_pass = PyUnicode_InternFromString("_pass"))
        && (name_tail = PyUnicode_InternFromString("_make_room"))
        && (name_safe = PyUnicode_InternFromString("_wait_safe"));
}

/* --- arguments --- */

static PyObject **
place_of(Call *call, PyObject *name)
{
    PyObject *const names[] = {name_topic, name_data, name_key, name_headers, name_timeout,
                               name_on_gate};
    PyObject **places[] = {&call->topic, &call->data, &call->key, &call->headers, &call->timeout,
                           &call->on_gate};
    for (int i = 0; i < 6; i++) {
        if (name == names[i] || PyUnicode_Compare(name, names[i]) == 0) {
            return places[i];
        }
    }
    return NULL;
}

/* (topic, data, *, key=None, headers=None, timeout=None, on_gate=None), borrowed. */
int
mm_read_call(Call *call, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    *call = (Call){NULL, NULL, Py_None, Py_None, Py_None, Py_None};
    if (nargs > 2) {
        PyErr_Format(PyExc_TypeError, "publish() takes 2 positional arguments but %zd were given",
                     nargs);
        return -1;
    }
    call->topic = nargs > 0 ? args[0] : NULL;
    call->data = nargs > 1 ? args[1] : NULL;
    Py_ssize_t named = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    for (Py_ssize_t i = 0; i < named; i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i), **place = place_of(call, name);
        if (place == NULL) {
            PyErr_Format(PyExc_TypeError, "publish() got an unexpected keyword argument '%U'", name);
            return -1;
        }
        if ((place == &call->topic || place == &call->data) && *place != NULL) {
            PyErr_Format(PyExc_TypeError, "publish() got multiple values for argument '%U'", name);
            return -1;
        }
        *place = args[nargs + i];
    }
    if (call->topic == NULL || call->data == NULL) {
        PyErr_Format(PyExc_TypeError, "publish() missing a required argument: '%s'",
                     call->topic == NULL ? "topic" : "data");
        return -1;
    }
    return 0;
}

/* --- the event: what is published, and owned while it is --- */

typedef struct {
    OpenFrame *outlet;
    PyObject *topic, *data, *note;
    Py_ssize_t size;
    int raw;
} Draft;

static void
drop_draft(Draft *draft)
{
    Py_XDECREF(draft->outlet);
    Py_XDECREF(draft->topic);
    Py_XDECREF(draft->data);
    Py_XDECREF(draft->note);
}

static int
find_outlet(Publish *self, const Call *call, Draft *draft)
{
    PyObject *found = PyDict_GetItemWithError(self->routes, call->topic);
    if (found != NULL) {
        Py_INCREF(found);
    } else {
        if (PyErr_Occurred()) {
            if (!PyErr_ExceptionMatches(PyExc_TypeError)) {
                return -1;
            }
            PyErr_Clear(); /* no hash: `_route` says what a topic is */
        }
        found = PyObject_CallMethodOneArg(self->side, name_route, call->topic);
        if (found == NULL) {
            return -1;
        }
    }
    if (!PyObject_TypeCheck(found, &OpenFrame_Type)) {
        Py_DECREF(found);
        PyErr_SetString(PyExc_TypeError, "a route leads to an outlet");
        return -1;
    }
    draft->outlet = (OpenFrame *)found;
    draft->topic = PyUnicode_FromObject(call->topic); /* itself, unless it is of a subclass */
    return draft->topic == NULL ? -1 : 0;
}

static int
plain_bytes(PyObject *data, Draft *draft)
{
    if (PyBytes_CheckExact(data)) {
        draft->data = Py_NewRef(data);
    } else if (PyBytes_Check(data)) {
        draft->data = PyBytes_FromStringAndSize(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data));
    } else {
        PyErr_SetString(PyExc_TypeError, "a payload is bytes");
    }
    return draft->data == NULL ? -1 : 0;
}

static int
encode_data(Publish *self, const Call *call, Draft *draft)
{
    if (PyBytes_CheckExact(call->data)) {
        draft->data = Py_NewRef(call->data);
        draft->raw = 1;
        return 0;
    }
    PyObject *args[] = {self->side, (PyObject *)draft->outlet, call->data};
    PyObject *pair = PyObject_VectorcallMethod(name_encode, args, 3, NULL);
    if (pair == NULL) {
        return -1;
    }
    PyObject *data, *raw;
    int bad = !PyArg_ParseTuple(pair, "OO", &data, &raw) || plain_bytes(data, draft) < 0;
    draft->raw = !bad && raw == Py_True;
    Py_DECREF(pair);
    return bad ? -1 : 0;
}

static int
add_notes(Publish *self, const Call *call, Draft *draft)
{
    if (call->key == Py_None && call->headers == Py_None) {
        return 0;
    }
    PyObject *args[] = {call->key, call->headers};
    PyObject *packed = PyObject_Vectorcall(self->check_notes, args, 2, NULL);
    if (packed == NULL) {
        return -1;
    }
    draft->note = PyTuple_Pack(2, call->key, packed);
    if (call->key != Py_None) {
        draft->size += 4 * PyUnicode_GET_LENGTH(call->key);
    }
    if (packed != Py_None) {
        draft->size += PyBytes_GET_SIZE(packed);
    }
    Py_DECREF(packed);
    return draft->note == NULL ? -1 : 0;
}

static int
make_draft(Publish *self, const Call *call, Draft *draft)
{
    if (find_outlet(self, call, draft) < 0 || encode_data(self, call, draft) < 0) {
        return -1;
    }
    draft->size = PyBytes_GET_SIZE(draft->data);
    return add_notes(self, call, draft);
}

/* --- calls back --- */

static PyObject *
publish_large(Publish *self, const Call *call, Draft *draft)
{
    PyObject *args[] = {self->side,
                        (PyObject *)draft->outlet,
                        draft->topic,
                        draft->data,
                        draft->raw ? Py_True : Py_False,
                        draft->note ? draft->note : Py_None,
                        call->timeout,
                        call->on_gate};
    return PyObject_VectorcallMethod(name_large, args, 8, NULL);
}

static PyObject *
publish_idle(Publish *self, Draft *draft, int64_t now_ns)
{
    PyObject *now = PyLong_FromLongLong(now_ns);
    if (now == NULL) {
        return NULL;
    }
    PyObject *args[] = {self->side, (PyObject *)draft->outlet, draft->topic, draft->data, now,
                        draft->raw ? Py_True : Py_False};
    PyObject *position = PyObject_VectorcallMethod(name_idle, args, 6, NULL);
    Py_DECREF(now);
    return position;
}

static int
call_back(PyObject *result)
{
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

static int
pass_gate(Publish *self, const Call *call, Draft *draft)
{
    PyObject *args[] = {self->side, (PyObject *)draft->outlet, call->timeout, call->on_gate};
    PyObject *passed = PyObject_VectorcallMethod(name_pass, args, 4, NULL);
    int truth = passed == NULL ? -1 : PyObject_IsTrue(passed);
    Py_XDECREF(passed);
    return truth;
}

/* A method of the side with the outlet and a number: when, or which event. */
static int
call_with(Publish *self, PyObject *method, Draft *draft, long long value)
{
    PyObject *number = PyLong_FromLongLong(value);
    if (number == NULL) {
        return -1;
    }
    PyObject *args[] = {self->side, (PyObject *)draft->outlet, number};
    int bad = call_back(PyObject_VectorcallMethod(method, args, 3, NULL));
    Py_DECREF(number);
    return bad;
}

/* --- publishing --- */

/* The time, of the system or of the world that the peer runs in; -1 with an exception. */
static int64_t
clock_ns(Publish *self)
{
    struct timespec now;
    if (self->time_ns != NULL) {
        PyObject *told = PyObject_CallNoArgs(self->time_ns);
        int64_t ns = told == NULL ? -1 : PyLong_AsLongLong(told);
        Py_XDECREF(told);
        return ns;
    }
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Give the event its number: 1, or what is full: 0 the open frame, 2 the log's tail, with the bytes
 * that are needed there instead of a number.  No Python code runs in here, so both have the event or
 * neither. */
static int
number(Draft *draft, int64_t now_ns, long long *seq)
{
    OpenFrame *outlet = draft->outlet;
    TailFrame *tail = outlet->tail;
    TailEntry entry;
    int room = mm_make_room(outlet);
    if (room != 1) {
        return room;
    }
    if (tail != NULL) {
        if (mm_tail_entry(&entry, draft->topic, draft->data, draft->note) < 0) {
            return -1;
        }
        /* Else publishing many was interrupted (Ctrl-C) when only the tail had its events. */
        int even = tail->frame.first + tail->frame.count == outlet->first + outlet->count;
        room = tail->shut || tail->keepers || !even ? 0 : mm_tail_fits(tail, &entry);
        if (room != 1) {
            *seq = (long long)entry.used;
            return room < 0 ? -1 : 2;
        }
    }
    if (draft->note != NULL && (mm_note(outlet, draft->note) < 0
                                || (tail != NULL && mm_note(&tail->frame, draft->note) < 0))) {
        return -1;
    }
    *seq = outlet->first + outlet->count;
    if (tail != NULL) {
        mm_tail_append(tail, &entry, now_ns, draft->raw);
    }
    mm_append(outlet, draft->topic, draft->data, now_ns, draft->raw);
    outlet->size += draft->size + EVENT_COST;
    return 1;
}

/* Until the event has its number: 1, 0 if the gate is closed, -1 for an error; or, where it was
 * sent at once, 2 and its position. */
static int
let_in(Publish *self, const Call *call, Draft *draft, int64_t *now_ns, long long *seq,
       PyObject **position)
{
    OpenFrame *outlet = draft->outlet;
    while (1) {
        *now_ns = clock_ns(self);
        if (*now_ns < 0) {
            return -1;
        }
        if (*now_ns > outlet->due_ns && outlet->count == 0 && draft->note == NULL
            && outlet->tail == NULL) {
            *position = publish_idle(self, draft, *now_ns);
            *seq = outlet->first - 1;
            if (*position != Py_None) {
                return *position == NULL ? -1 : 2;
            }
            Py_DECREF(*position);
        }
        if (outlet->gated) {
            int passed = pass_gate(self, call, draft);
            if (passed != 1) {
                return passed;
            }
            continue;
        }
        int added = number(draft, *now_ns, seq);
        if (added == 1 || added < 0) {
            return added;
        }
        if (added == 2 ? call_with(self, name_tail, draft, *seq)
                       : call_back(PyObject_CallMethodOneArg(self->side, name_full,
                                                             (PyObject *)outlet))) {
            return -1;
        }
    }
}

static PyObject *
position_of(Publish *self, OpenFrame *outlet, long long seq)
{
    PyObject *at = PyLong_FromLongLong(seq);
    if (at == NULL) {
        return NULL;
    }
    PyObject *args[] = {outlet->stream, outlet->epoch, at};
    PyObject *position = PyObject_Vectorcall(self->position, args, 3, NULL);
    Py_DECREF(at);
    return position;
}

static PyObject *
publish_draft(Publish *self, const Call *call, Draft *draft, long long *seq)
{
    OpenFrame *outlet = draft->outlet;
    if (draft->size > outlet->large_max) {
        PyObject *position = publish_large(self, call, draft);
        *seq = outlet->first - 1;
        return position;
    }
    PyObject *position = NULL;
    int64_t now_ns;
    int done = let_in(self, call, draft, &now_ns, seq, &position);
    if (done != 1) {
        return done == 0 ? Py_NewRef(Py_None) : done == 2 ? position : NULL;
    }
    int bad = 0;
    if (outlet->holds) {
        bad = call_with(self, name_safe, draft, *seq);
    } else if (now_ns > outlet->due_ns || outlet->size > outlet->size_max) {
        bad = call_with(self, name_due, draft, now_ns);
    } else if (!outlet->dirty) {
        bad = call_back(PyObject_CallMethodOneArg(self->side, name_dirty, (PyObject *)outlet));
    }
    return bad ? NULL : position_of(self, outlet, *seq);
}

/* The position, or None where the gate is closed and `on_gate` was given; and the event's number
 * (about: of an event that went out by itself, that of the last one). */
PyObject *
mm_publish(Publish *self, const Call *call, long long *seq)
{
    Draft draft = {0};
    PyObject *position = NULL;
    if (make_draft(self, call, &draft) == 0) {
        position = publish_draft(self, call, &draft, seq);
    }
    drop_draft(&draft);
    return position;
}

static PyObject *
publish_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names)
{
    Call call;
    long long seq;
    if (mm_read_call(&call, args, PyVectorcall_NARGS(nargsf), names) < 0) {
        return NULL;
    }
    return mm_publish((Publish *)self, &call, &seq);
}

/* --- lifetime --- */

static PyObject *
publish_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(named))
{
    PyObject *side, *routes, *check_notes, *position, *time_ns = NULL;
    if (!PyArg_ParseTuple(args, "OO!OO|O", &side, &PyDict_Type, &routes, &check_notes, &position,
                          &time_ns)) {
        return NULL;
    }
    Publish *self = (Publish *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->vectorcall = publish_call;
        self->side = Py_NewRef(side);
        self->routes = Py_NewRef(routes);
        self->check_notes = Py_NewRef(check_notes);
        self->position = Py_NewRef(position);
        self->time_ns = time_ns == Py_None ? NULL : Py_XNewRef(time_ns);
    }
    return (PyObject *)self;
}

static int
publish_traverse(Publish *self, visitproc visit, void *arg)
{
    Py_VISIT(self->side);
    Py_VISIT(self->routes);
    Py_VISIT(self->check_notes);
    Py_VISIT(self->position);
    Py_VISIT(self->time_ns);
    return 0;
}

static int
publish_clear(Publish *self)
{
    Py_CLEAR(self->side);
    Py_CLEAR(self->routes);
    Py_CLEAR(self->check_notes);
    Py_CLEAR(self->position);
    Py_CLEAR(self->time_ns);
    return 0;
}

static void
publish_dealloc(Publish *self)
{
    PyObject_GC_UnTrack(self);
    publish_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

PyTypeObject Publish_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "meshmsg._speed.Publish",
    .tp_doc = "Publish(side, routes, check_notes, position): publishes one event a call.",
    .tp_basicsize = sizeof(Publish),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Publish, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = publish_new,
    .tp_traverse = (traverseproc)publish_traverse,
    .tp_clear = (inquiry)publish_clear,
    .tp_dealloc = (destructor)publish_dealloc,
};

int
mm_ready_publish(void)
{
    return make_names() ? PyType_Ready(&Publish_Type) : -1;
}
