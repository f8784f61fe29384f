/* What `AsyncPeer.publish` and `async for` hand out: an object that is awaited like a coroutine, and
 * is done at the first step whenever nothing has to be waited for.  A coroutine written in Python
 * costs as much as publishing itself.
 *
 * As with a coroutine, nothing happens before it is awaited, so one that is cancelled before it ran
 * has published or taken nothing.  Where something has to be waited for, a coroutine written in
 * Python goes on, and every step is handed to it.
 */
#include "speed.h"

/* A loop that only publishes lets the others run once in so many events. */
#define TURN_EVENTS 4096

typedef enum { FRESH, YIELDED, WAITING, DONE } State;

typedef struct {
    PyObject_HEAD
    State state;
    int running;
    PyObject *owner;  /* an AsyncPublish or an AsyncEvents */
    PyObject *topic, *data, *key, *headers, *timeout;
    PyObject *inner;  /* WAITING: the coroutine that goes on; YIELDED: the result */
} Coroutine;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *publish;  /* a Publish */
    PyObject *closed;   /* on_gate: rung for nobody */
    PyObject *gated;    /* coroutine function(topic, data, key, headers, timeout) */
} AsyncPublish;

typedef struct {
    PyObject_HEAD
    PyObject *intake;   /* has the `iterator` of the batch that is being taken */
    PyObject *next;     /* coroutine function(): the next event when that one is exhausted */
    PyObject *iterator; /* that one, until it is exhausted */
} AsyncEvents;

static PyObject *name_throw, *name_close, *name_iterator;

#define FREE_MAX 16
static Coroutine *free_list[FREE_MAX];
static int free_count;

/* --- making one --- */

static Coroutine *
make_coroutine(PyObject *owner)
{
    Coroutine *self;
    if (free_count) {
        self = free_list[--free_count];
        (void)PyObject_INIT((PyObject *)self, &Coroutine_Type);
    } else {
        self = PyObject_GC_New(Coroutine, &Coroutine_Type);
        if (self == NULL) {
            return NULL;
        }
    }
    self->state = FRESH;
    self->running = 0;
    self->owner = Py_NewRef(owner);
    self->topic = self->data = self->key = self->headers = self->timeout = self->inner = NULL;
    PyObject_GC_Track(self);
    return self;
}

static PyObject *
async_publish_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names)
{
    Call call;
    if (mm_read_call(&call, args, PyVectorcall_NARGS(nargsf), names) < 0) {
        return NULL;
    }
    if (call.on_gate != Py_None) {
        PyErr_SetString(PyExc_TypeError,
                        "publish() got an unexpected keyword argument 'on_gate'");
        return NULL;
    }
    Coroutine *made = make_coroutine(self);
    if (made != NULL) {
        made->topic = Py_NewRef(call.topic);
        made->data = Py_NewRef(call.data);
        made->key = Py_NewRef(call.key);
        made->headers = Py_NewRef(call.headers);
        made->timeout = Py_NewRef(call.timeout);
    }
    return (PyObject *)made;
}

static PyObject *
async_events_next(PyObject *self)
{
    return (PyObject *)make_coroutine(self);
}

/* --- running it --- */

static PySendResult
go_on(Coroutine *self, PyObject *value, PyObject **result)
{
    PySendResult sent = PyIter_Send(self->inner, value, result);
    if (sent != PYGEN_NEXT) {
        self->state = DONE;
        Py_CLEAR(self->inner);
    }
    return sent;
}

static PySendResult
wait_for(Coroutine *self, PyObject *coroutine, PyObject **result)
{
    if (coroutine == NULL) {
        self->state = DONE;
        return PYGEN_ERROR;
    }
    self->inner = coroutine;
    self->state = WAITING;
    return go_on(self, Py_None, result);
}

static PySendResult
start_publish(Coroutine *self, AsyncPublish *owner, PyObject **result)
{
    Call call = {self->topic, self->data, self->key, self->headers, Py_None, owner->closed};
    long long seq = 1;
    PyObject *position = mm_publish((Publish *)owner->publish, &call, &seq);
    if (position == Py_None) {
        Py_DECREF(position);
        PyObject *args[] = {self->topic, self->data, self->key, self->headers, self->timeout};
        return wait_for(self, PyObject_Vectorcall(owner->gated, args, 5, NULL), result);
    }
    if (position != NULL && seq % TURN_EVENTS == 0) {
        self->state = YIELDED;
        self->inner = position;
        *result = Py_NewRef(Py_None);
        return PYGEN_NEXT;
    }
    self->state = DONE;
    *result = position;
    return position == NULL ? PYGEN_ERROR : PYGEN_RETURN;
}

static PySendResult
start_next(Coroutine *self, AsyncEvents *owner, PyObject **result)
{
    if (owner->iterator == NULL) {
        PyObject *found = PyObject_GetAttr(owner->intake, name_iterator);
        if (found != NULL && PyIter_Check(found)) {
            owner->iterator = found;
        } else {
            Py_XDECREF(found);
        }
    }
    PyObject *iterator = owner->iterator, *event = NULL;
    if (iterator != NULL) {
        Py_INCREF(iterator); /* what it decodes may come back here */
        event = Py_TYPE(iterator)->tp_iternext(iterator);
        Py_DECREF(iterator);
    }
    if (event != NULL) {
        self->state = DONE;
        *result = event;
        return PYGEN_RETURN;
    }
    Py_CLEAR(owner->iterator);
    if (PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_StopIteration)) {
            self->state = DONE;
            return PYGEN_ERROR;
        }
        PyErr_Clear();
    }
    return wait_for(self, PyObject_CallNoArgs(owner->next), result);
}

static PySendResult
step(Coroutine *self, PyObject *value, PyObject **result)
{
    switch (self->state) {
    case FRESH:
        if (value != NULL && value != Py_None) {
            PyErr_SetString(PyExc_TypeError,
                            "can't send non-None value to a just-started coroutine");
            return PYGEN_ERROR;
        }
        if (Py_IS_TYPE(self->owner, &AsyncPublish_Type)) {
            return start_publish(self, (AsyncPublish *)self->owner, result);
        }
        return start_next(self, (AsyncEvents *)self->owner, result);
    case YIELDED:
        self->state = DONE;
        *result = self->inner;
        self->inner = NULL;
        return PYGEN_RETURN;
    case WAITING:
        return go_on(self, value == NULL ? Py_None : value, result);
    default:
        PyErr_SetString(PyExc_RuntimeError, "cannot reuse already awaited coroutine");
        return PYGEN_ERROR;
    }
}

static int
enter(Coroutine *self)
{
    if (self->running) {
        PyErr_SetString(PyExc_ValueError, "coroutine already executing");
        return -1;
    }
    self->running = 1;
    return 0;
}

static PySendResult
coroutine_am_send(PyObject *object, PyObject *value, PyObject **result)
{
    Coroutine *self = (Coroutine *)object;
    *result = NULL;
    if (enter(self) < 0) {
        return PYGEN_ERROR;
    }
    PySendResult sent = step(self, value, result);
    self->running = 0;
    return sent;
}

/* A result as the exception that iterators end with. */
static PyObject *
as_stop(PySendResult sent, PyObject *result)
{
    if (sent == PYGEN_RETURN) {
        PyObject *stop = PyObject_CallOneArg(PyExc_StopIteration, result);
        if (stop != NULL) {
            PyErr_SetObject(PyExc_StopIteration, stop);
            Py_DECREF(stop);
        }
        Py_CLEAR(result);
    }
    return result;
}

static PyObject *
coroutine_send(PyObject *self, PyObject *value)
{
    PyObject *result;
    PySendResult sent = coroutine_am_send(self, value, &result);
    return as_stop(sent, result);
}

static PyObject *
coroutine_iternext(PyObject *self)
{
    return coroutine_send(self, Py_None);
}

/* --- throwing into it --- */

/* Raise what `throw` was given: an exception, or a type with an optional value and traceback. */
static void
raise_given(PyObject *const *args, Py_ssize_t nargs)
{
    PyObject *error = args[0], *made = NULL;
    PyObject *value = nargs > 1 && args[1] != Py_None ? args[1] : NULL;
    if (PyExceptionInstance_Check(error)) {
        made = Py_NewRef(error);
    } else if (PyExceptionClass_Check(error)) {
        made = value == NULL ? PyObject_CallNoArgs(error)
             : PyExceptionInstance_Check(value) ? Py_NewRef(value)
                                                : PyObject_CallOneArg(error, value);
    } else {
        PyErr_SetString(PyExc_TypeError, "exceptions must be classes or instances deriving from "
                                         "BaseException");
    }
    if (made == NULL) {
        return;
    }
    if (nargs > 2 && args[2] != Py_None && PyException_SetTraceback(made, args[2]) < 0) {
        Py_DECREF(made);
        return;
    }
    PyErr_SetObject((PyObject *)Py_TYPE(made), made);
    Py_DECREF(made);
}

static PyObject *
throw_on(Coroutine *self, PyObject *const *args, Py_ssize_t nargs)
{
    PyObject *call[4] = {self->inner};
    for (Py_ssize_t i = 0; i < nargs; i++) {
        call[i + 1] = args[i];
    }
    PyObject *result = PyObject_VectorcallMethod(name_throw, call, (size_t)nargs + 1, NULL);
    if (result == NULL) {
        self->state = DONE;
        Py_CLEAR(self->inner);
    }
    return result;
}

static PyObject *
coroutine_throw(Coroutine *self, PyObject *const *args, Py_ssize_t nargs)
{
    PyObject *result = NULL;
    if (nargs < 1 || nargs > 3) {
        PyErr_SetString(PyExc_TypeError, "throw() takes 1 to 3 arguments");
        return NULL;
    }
    if (enter(self) < 0) {
        return NULL;
    }
    if (self->state == WAITING) {
        result = throw_on(self, args, nargs);
    } else if (self->state == DONE) {
        PyErr_SetString(PyExc_RuntimeError, "cannot reuse already awaited coroutine");
    } else {
        self->state = DONE;
        Py_CLEAR(self->inner);
        raise_given(args, nargs);
    }
    self->running = 0;
    return result;
}

static PyObject *
coroutine_close(Coroutine *self, PyObject *Py_UNUSED(none))
{
    PyObject *result = NULL;
    if (enter(self) < 0) {
        return NULL;
    }
    if (self->state == WAITING) {
        result = PyObject_CallMethodNoArgs(self->inner, name_close);
    } else {
        result = Py_NewRef(Py_None);
    }
    self->state = DONE;
    Py_CLEAR(self->inner);
    self->running = 0;
    return result;
}

/* --- looking at it --- */

static PyObject *
get_name(Coroutine *self, void *Py_UNUSED(closure))
{
    int publishes = Py_IS_TYPE(self->owner, &AsyncPublish_Type);
    return PyUnicode_FromString(publishes ? "AsyncPeer.publish" : "AsyncSubscription.__anext__");
}

static PyObject *
get_running(Coroutine *self, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(self->running);
}

static PyObject *
get_await(Coroutine *self, void *Py_UNUSED(closure))
{
    return Py_NewRef(self->state == WAITING ? self->inner : Py_None);
}

static PyObject *
get_none(Coroutine *Py_UNUSED(self), void *Py_UNUSED(closure))
{
    Py_RETURN_NONE;
}

static PyObject *
coroutine_repr(Coroutine *self)
{
    PyObject *name = get_name(self, NULL);
    PyObject *text = name == NULL ? NULL : PyUnicode_FromFormat("<coroutine %U at %p>", name, self);
    Py_XDECREF(name);
    return text;
}

/* --- the end of it --- */

static void
coroutine_finalize(PyObject *object)
{
    Coroutine *self = (Coroutine *)object;
    if (self->state != FRESH || !Py_IS_TYPE(self->owner, &AsyncPublish_Type)) {
        return;
    }
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    if (PyErr_WarnEx(PyExc_RuntimeWarning, "coroutine 'AsyncPeer.publish' was never awaited", 1) < 0) {
        PyErr_WriteUnraisable(object);
    }
    PyErr_Restore(type, value, trace);
}

static int
coroutine_traverse(Coroutine *self, visitproc visit, void *arg)
{
    Py_VISIT(self->owner);
    Py_VISIT(self->topic);
    Py_VISIT(self->data);
    Py_VISIT(self->key);
    Py_VISIT(self->headers);
    Py_VISIT(self->timeout);
    Py_VISIT(self->inner);
    return 0;
}

static int
coroutine_clear(Coroutine *self)
{
    self->state = DONE;
    Py_CLEAR(self->topic);
    Py_CLEAR(self->data);
    Py_CLEAR(self->key);
    Py_CLEAR(self->headers);
    Py_CLEAR(self->timeout);
    Py_CLEAR(self->inner);
    return 0; /* the owner stays: names and steps ask it, and it is in no cycle with this */
}

static void
coroutine_dealloc(PyObject *object)
{
    Coroutine *self = (Coroutine *)object;
    if (self->state == FRESH && PyObject_CallFinalizerFromDealloc(object) < 0) {
        return;
    }
    PyObject_GC_UnTrack(object);
    coroutine_clear(self);
    Py_CLEAR(self->owner);
    /* One that was finalized is marked for good, and would not warn the next time. */
    if (free_count < FREE_MAX && !PyObject_GC_IsFinalized(object)) {
        free_list[free_count++] = self;
    } else {
        PyObject_GC_Del(self);
    }
}

static PyObject *
self_of(PyObject *self)
{
    return Py_NewRef(self);
}

#define METHOD(name, function, kind, text) {name, (PyCFunction)(void (*)(void))function, kind, text}

static PyMethodDef coroutine_methods[] = {
    METHOD("send", coroutine_send, METH_O, "Run to the next wait, or to the end."),
    METHOD("throw", coroutine_throw, METH_FASTCALL, "Raise an exception where it waits."),
    METHOD("close", coroutine_close, METH_NOARGS, "End it where it waits."),
    {0},
};

static PyGetSetDef coroutine_getters[] = {
    {"__name__", (getter)get_name, NULL, NULL, NULL},
    {"__qualname__", (getter)get_name, NULL, NULL, NULL},
    {"cr_running", (getter)get_running, NULL, NULL, NULL},
    {"cr_await", (getter)get_await, NULL, NULL, NULL},
    {"cr_frame", (getter)get_none, NULL, NULL, NULL},
    {"cr_code", (getter)get_none, NULL, NULL, NULL},
    {0},
};

static PyAsyncMethods coroutine_as_async = {.am_await = self_of, .am_send = coroutine_am_send};

PyTypeObject Coroutine_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "meshmsg._speed.Coroutine",
    .tp_doc = "What is awaited: to publish an event, or to take one.",
    .tp_basicsize = sizeof(Coroutine),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_traverse = (traverseproc)coroutine_traverse,
    .tp_clear = (inquiry)coroutine_clear,
    .tp_finalize = coroutine_finalize,
    .tp_dealloc = coroutine_dealloc,
    .tp_repr = (reprfunc)coroutine_repr,
    .tp_as_async = &coroutine_as_async,
    .tp_iter = self_of,
    .tp_iternext = coroutine_iternext,
    .tp_methods = coroutine_methods,
    .tp_getset = coroutine_getters,
};

/* --- AsyncPublish --- */

static PyObject *
async_publish_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(named))
{
    PyObject *publish, *closed, *gated;
    if (!PyArg_ParseTuple(args, "O!OO", &Publish_Type, &publish, &closed, &gated)) {
        return NULL;
    }
    AsyncPublish *self = (AsyncPublish *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->vectorcall = async_publish_call;
        self->publish = Py_NewRef(publish);
        self->closed = Py_NewRef(closed);
        self->gated = Py_NewRef(gated);
    }
    return (PyObject *)self;
}

static int
async_publish_traverse(AsyncPublish *self, visitproc visit, void *arg)
{
    Py_VISIT(self->publish);
    Py_VISIT(self->closed);
    Py_VISIT(self->gated);
    return 0;
}

static int
async_publish_clear(AsyncPublish *self)
{
    Py_CLEAR(self->publish);
    Py_CLEAR(self->closed);
    Py_CLEAR(self->gated);
    return 0;
}

static void
async_publish_dealloc(AsyncPublish *self)
{
    PyObject_GC_UnTrack(self);
    async_publish_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

PyTypeObject AsyncPublish_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "meshmsg._speed.AsyncPublish",
    .tp_doc = "AsyncPublish(publish, on_gate, gated): a call gives what publishes when awaited.",
    .tp_basicsize = sizeof(AsyncPublish),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(AsyncPublish, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = async_publish_new,
    .tp_traverse = (traverseproc)async_publish_traverse,
    .tp_clear = (inquiry)async_publish_clear,
    .tp_dealloc = (destructor)async_publish_dealloc,
};

/* --- AsyncEvents --- */

static PyObject *
async_events_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(named))
{
    PyObject *intake, *next;
    if (!PyArg_ParseTuple(args, "OO", &intake, &next)) {
        return NULL;
    }
    AsyncEvents *self = (AsyncEvents *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->intake = Py_NewRef(intake);
        self->next = Py_NewRef(next);
    }
    return (PyObject *)self;
}

static int
async_events_traverse(AsyncEvents *self, visitproc visit, void *arg)
{
    Py_VISIT(self->intake);
    Py_VISIT(self->next);
    Py_VISIT(self->iterator);
    return 0;
}

static int
async_events_clear(AsyncEvents *self)
{
    Py_CLEAR(self->intake);
    Py_CLEAR(self->next);
    Py_CLEAR(self->iterator);
    return 0;
}

static void
async_events_dealloc(AsyncEvents *self)
{
    PyObject_GC_UnTrack(self);
    async_events_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyAsyncMethods async_events_as_async = {.am_aiter = self_of, .am_anext = async_events_next};

PyTypeObject AsyncEvents_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "meshmsg._speed.AsyncEvents",
    .tp_doc = "AsyncEvents(intake, next): event after event, for `async for`.",
    .tp_basicsize = sizeof(AsyncEvents),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = async_events_new,
    .tp_traverse = (traverseproc)async_events_traverse,
    .tp_clear = (inquiry)async_events_clear,
    .tp_dealloc = (destructor)async_events_dealloc,
    .tp_as_async = &async_events_as_async,
};

int
mm_ready_coroutines(void)
{
    name_throw = PyUnicode_InternFromString("throw");
    name_close = PyUnicode_InternFromString("close");
    name_iterator = PyUnicode_InternFromString("iterator");
    if (name_throw == NULL || name_close == NULL || name_iterator == NULL) {
        return -1;
    }
    return PyType_Ready(&Coroutine_Type) < 0 || PyType_Ready(&AsyncPublish_Type) < 0
        || PyType_Ready(&AsyncEvents_Type) < 0 ? -1 : 0;
}
