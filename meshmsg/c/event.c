/* What a consumer pays once an event: `Event.data`, as the property in `_model/batch.py`, and taking the
 * next one, as `Subscription._iterate`; both without running Python code.
 */
#include "speed.h"

static Py_ssize_t data_place;
static PyTypeObject *undecodable_type;
static PyObject *read_slowly;

static PyObject *
read_data(PyObject *event, void *Py_UNUSED(closure))
{
    PyObject *data = *(PyObject **)((char *)event + data_place);
    if (data == NULL || Py_TYPE(data) == undecodable_type) {
        return PyObject_CallOneArg(read_slowly, event); /* says what is wrong */
    }
    return Py_NewRef(data);
}

static PyGetSetDef data_definition = {
    "data", read_data, NULL, "The decoded payload; raises `PayloadError` if it does not decode.",
    NULL};

/* data_of(Event, Undecodable, slow): the attribute; once, at import. */
PyObject *
mm_data_of(PyObject *Py_UNUSED(module), PyObject *args)
{
    static const char *const names[] = {"_data"};
    PyObject *event, *undecodable, *slow;
    if (!PyArg_ParseTuple(args, "O!O!O", &PyType_Type, &event, &PyType_Type, &undecodable, &slow)
        || mm_find_slots(event, names, 1, &data_place) < 0) {
        return NULL;
    }
    Py_XSETREF(undecodable_type, (PyTypeObject *)Py_NewRef(undecodable));
    Py_XSETREF(read_slowly, Py_NewRef(slow));
    return PyDescr_NewGetSet((PyTypeObject *)event, &data_definition);
}

/* --- Iteration: what `Subscription._iterate` does, event after event --- */

typedef struct {
    PyObject_HEAD
    PyObject *intake; /* has the `iterator` of the batch that is being taken */
    PyObject *next;   /* function(): waits for the next batch; `None` at the end */
    PyObject *iterator; /* that one, until it is exhausted */
} Iteration;

static PyObject *name_iterator;

static PyObject *
iteration_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    PyObject *intake, *next;
    if (names != NULL && PyDict_GET_SIZE(names)) {
        PyErr_SetString(PyExc_TypeError, "Iteration() takes no keyword arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "OO", &intake, &next)) {
        return NULL;
    }
    Iteration *self = (Iteration *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->intake = Py_NewRef(intake);
        self->next = Py_NewRef(next);
    }
    return (PyObject *)self;
}

static PyObject *
iteration_next(PyObject *object)
{
    Iteration *self = (Iteration *)object;
    for (;;) {
        PyObject *iterator = self->iterator;
        if (iterator != NULL) {
            Py_INCREF(iterator); /* another thread may come meanwhile */
            PyObject *event = Py_TYPE(iterator)->tp_iternext(iterator);
            Py_DECREF(iterator);
            if (event != NULL) {
                return event;
            }
            if (PyErr_Occurred()) {
                if (!PyErr_ExceptionMatches(PyExc_StopIteration)) {
                    return NULL;
                }
                PyErr_Clear();
            }
            Py_CLEAR(self->iterator);
            PyObject *batch = PyObject_CallNoArgs(self->next);
            Py_XDECREF(batch);
            if (batch == NULL || batch == Py_None) {
                return NULL; /* without an exception: the end */
            }
        }
        PyObject *found = PyObject_GetAttr(self->intake, name_iterator);
        if (found == NULL || !PyIter_Check(found)) {
            Py_XDECREF(found);
            return NULL;
        }
        Py_XSETREF(self->iterator, found);
    }
}

static int
iteration_traverse(PyObject *object, visitproc visit, void *arg)
{
    Iteration *self = (Iteration *)object;
    Py_VISIT(self->intake);
    Py_VISIT(self->next);
    Py_VISIT(self->iterator);
    return 0;
}

static int
iteration_clear(PyObject *object)
{
    Iteration *self = (Iteration *)object;
    Py_CLEAR(self->intake);
    Py_CLEAR(self->next);
    Py_CLEAR(self->iterator);
    return 0;
}

static void
iteration_dealloc(PyObject *object)
{
    PyObject_GC_UnTrack(object);
    (void)iteration_clear(object);
    Py_TYPE(object)->tp_free(object);
}

PyTypeObject Iteration_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "meshmsg._speed.Iteration",
    .tp_doc = "Event after event, until the subscription or its peer is closed.",
    .tp_basicsize = sizeof(Iteration),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = iteration_new,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = iteration_next,
    .tp_traverse = iteration_traverse,
    .tp_clear = iteration_clear,
    .tp_dealloc = iteration_dealloc,
};

int
mm_ready_event(void)
{
    return (name_iterator = PyUnicode_InternFromString("iterator")) == NULL
        ? -1 : PyType_Ready(&Iteration_Type);
}
