/* `Port`: whole messages in and out of a ZeroMQ socket that pyzmq has made.
 *
 * pyzmq lets go of the GIL around each call and copies each message that it sends.  To receive what
 * is there already the first does not pay: whoever wants the GIL meanwhile is woken and finds it
 * taken again; and a copy of a large frame costs as much as making it.  Here the GIL is held to
 * receive, and a large message that is sent lends its bytes to ZeroMQ until it has left.
 *
 * The functions are those of the library that pyzmq itself was linked with, found through it: there
 * must not be two of them in a process.  Their interface is the same in all versions since 4.0.
 */
#include "speed.h"

#if defined(__unix__) || defined(__APPLE__)
#include <dlfcn.h>
#define HAS_DLOPEN 1
#else
#define HAS_DLOPEN 0
#endif
#include <errno.h>
#include <stdatomic.h>

#define DONT_WAIT 1
#define LEND_BYTES_MIN 8192
#define MESSAGE_COST 64 /* as in transports/zmq/unread_limit.py */

typedef struct {
    _Alignas(void *) unsigned char room[64];
} Message;

typedef void Release(void *data, void *hint);

static struct {
    int (*init)(Message *);
    int (*init_size)(Message *, size_t);
    int (*init_data)(Message *, void *, size_t, Release *, void *);
    int (*send)(Message *, void *, int);
    int (*recv)(Message *, void *, int);
    void *(*data)(Message *);
    size_t (*size)(const Message *);
    int (*close)(Message *);
    int (*error)(void);
} zmq;

/* --- bytes that are lent: ZeroMQ's own threads give them back, and know no GIL --- */

typedef struct Loan {
    struct Loan *next;
    PyObject *bytes;
} Loan;

static _Atomic(Loan *) given_back;

static void
give_back(void *Py_UNUSED(data), void *hint)
{
    Loan *loan = hint;
    loan->next = atomic_load(&given_back);
    while (!atomic_compare_exchange_weak(&given_back, &loan->next, loan)) {
    }
}

static void
settle_loans(void)
{
    if (atomic_load_explicit(&given_back, memory_order_relaxed) == NULL) {
        return;
    }
    Loan *loan = atomic_exchange(&given_back, NULL);
    while (loan != NULL) {
        Loan *next = loan->next;
        Py_DECREF(loan->bytes);
        free(loan);
        loan = next;
    }
}

/* settle_loans(): let go of bytes that have left; a send does so too. */
PyObject *
mm_settle_loans(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(args))
{
    settle_loans();
    Py_RETURN_NONE;
}

/* --- the port --- */

typedef struct {
    PyObject_HEAD
    void *handle;     /* NULL once it is closed */
    PyObject *socket; /* which owns the handle */
    unsigned long long got_bytes; /* received, with what ZeroMQ puts around, about */
    unsigned long long emptied;   /* how often there was nothing to receive */
} Port;

static PyObject *
fail(int error)
{
    errno = error;
    return PyErr_SetFromErrno(PyExc_OSError);
}

/* recv(): the next message as bytes, or None when there is none now. */
static PyObject *
port_recv(Port *self, PyObject *Py_UNUSED(args))
{
    Message message;
    if (self->handle == NULL) {
        return fail(ENOTSOCK);
    }
    zmq.init(&message);
    if (zmq.recv(&message, self->handle, DONT_WAIT) < 0) {
        int error = zmq.error();
        zmq.close(&message);
        if (error == EAGAIN) {
            self->emptied++;
        }
        if (error == EAGAIN || error == EINTR) {
            Py_RETURN_NONE;
        }
        return fail(error);
    }
    self->got_bytes += zmq.size(&message) + MESSAGE_COST;
    PyObject *data
        = PyBytes_FromStringAndSize(zmq.data(&message), (Py_ssize_t)zmq.size(&message));
    zmq.close(&message);
    return data;
}

static int
lend(Message *message, PyObject *data)
{
    Loan *loan = malloc(sizeof *loan);
    if (loan == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    loan->bytes = Py_NewRef(data);
    if (zmq.init_data(message, PyBytes_AS_STRING(data), (size_t)PyBytes_GET_SIZE(data), give_back,
                      loan)
        < 0) {
        Py_DECREF(data);
        free(loan);
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

static int
copy(Message *message, PyObject *data)
{
    size_t size = (size_t)PyBytes_GET_SIZE(data);
    if (zmq.init_size(message, size) < 0) {
        PyErr_NoMemory();
        return -1;
    }
    memcpy(zmq.data(message), PyBytes_AS_STRING(data), size);
    return 0;
}

/* send(data): whether ZeroMQ has taken it; False where that would mean to wait. */
static PyObject *
port_send(Port *self, PyObject *data)
{
    Message message;
    if (!PyBytes_Check(data)) {
        PyErr_SetString(PyExc_TypeError, "send(data: bytes)");
        return NULL;
    }
    if (self->handle == NULL) {
        return fail(ENOTSOCK);
    }
    settle_loans();
    if ((PyBytes_GET_SIZE(data) >= LEND_BYTES_MIN ? lend : copy)(&message, data) < 0) {
        return NULL;
    }
    /* A thread that is always busy has to let the others run now and then. */
    int error = 0;
    void *handle = self->handle;
    Py_BEGIN_ALLOW_THREADS
    if (zmq.send(&message, handle, DONT_WAIT) < 0) {
        error = zmq.error();
    }
    Py_END_ALLOW_THREADS
    if (error == 0) {
        Py_RETURN_TRUE;
    }
    zmq.close(&message);
    if (error == EAGAIN || error == EINTR) {
        Py_RETURN_FALSE;
    }
    return fail(error);
}

/* close(): before the socket is; no call gets to it from then on. */
static PyObject *
port_close(Port *self, PyObject *Py_UNUSED(args))
{
    self->handle = NULL;
    Py_CLEAR(self->socket);
    settle_loans();
    Py_RETURN_NONE;
}

static int
find_functions(const char *path)
{
#if HAS_DLOPEN
    const struct {
        const char *name;
        void *place;
    } wanted[] = {
        {"zmq_msg_init", &zmq.init},           {"zmq_msg_init_size", &zmq.init_size},
        {"zmq_msg_init_data", &zmq.init_data}, {"zmq_msg_send", &zmq.send},
        {"zmq_msg_recv", &zmq.recv},           {"zmq_msg_data", &zmq.data},
        {"zmq_msg_size", &zmq.size},           {"zmq_msg_close", &zmq.close},
        {"zmq_errno", &zmq.error},
    };
    if (zmq.error != NULL) {
        return 0;
    }
    void *library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    for (size_t i = 0; library != NULL && i < sizeof wanted / sizeof *wanted; i++) {
        void *function = dlsym(library, wanted[i].name);
        if (function == NULL) {
            library = NULL;
        }
        memcpy(wanted[i].place, &function, sizeof function);
    }
    if (library != NULL) {
        return 0;
    }
    zmq.error = NULL;
#endif
    PyErr_Format(PyExc_OSError, "%s does not lead to libzmq", path);
    return -1;
}

/* Port(socket, handle, library): raises OSError where the library's functions cannot be found. */
static PyObject *
port_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *socket;
    unsigned long long handle;
    const char *path;
    if (!PyArg_ParseTuple(args, "OKs", &socket, &handle, &path) || find_functions(path) < 0) {
        return NULL;
    }
    Port *self = (Port *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->handle = (void *)(uintptr_t)handle;
        self->socket = Py_NewRef(socket);
    }
    return (PyObject *)self;
}

static int
port_traverse(Port *self, visitproc visit, void *arg)
{
    Py_VISIT(self->socket);
    return 0;
}

static int
port_clear(Port *self)
{
    self->handle = NULL;
    Py_CLEAR(self->socket);
    return 0;
}

static void
port_dealloc(Port *self)
{
    PyObject_GC_UnTrack(self);
    port_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef port_methods[] = {
    {"recv", (PyCFunction)port_recv, METH_NOARGS, NULL},
    {"send", (PyCFunction)port_send, METH_O, NULL},
    {"close", (PyCFunction)port_close, METH_NOARGS, NULL},
    {0},
};

static PyMemberDef port_members[] = {
    {"got_bytes", T_ULONGLONG, offsetof(Port, got_bytes), 0, NULL},
    {"emptied", T_ULONGLONG, offsetof(Port, emptied), 0, NULL},
    {0},
};

PyTypeObject Port_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "meshmsg._speed.Port",
    .tp_basicsize = sizeof(Port),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = port_new,
    .tp_dealloc = (destructor)port_dealloc,
    .tp_traverse = (traverseproc)port_traverse,
    .tp_clear = (inquiry)port_clear,
    .tp_methods = port_methods,
    .tp_members = port_members,
};
