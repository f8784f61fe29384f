/* `Datagrams`: what a UDP socket has, taken by calls that never wait and keep the GIL.
 *
 * Python's own sockets let go of the GIL around each call.  To receive what is there already this
 * costs more than it gives: where another thread wants the GIL, the one that receives goes to sleep
 * after each datagram.  `transports/udp/multicast.py` has the same in Python.  Linux only.
 */
#include "speed.h"

#ifdef __linux__
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define DATAGRAM_BYTES_MAX 65535
#define SHORT_BYTES_MAX 2048
#define SHORTS_MIN 8 /* in a row, until the next one is expected to be short, too */
#ifndef SOL_UDP
#define SOL_UDP 17
#endif
#define SEGMENT 103 /* UDP_SEGMENT, UDP_GRO: newer than some headers */
#define OFFLOAD 104
#define DROPS 40 /* SO_RXQ_OVFL */

typedef struct {
    PyObject_HEAD
    int fd;             /* -1 once it is closed */
    unsigned int drops; /* as the kernel said last */
    int shorts;         /* so many in a row were short */
    PyTypeObject *kind; /* what is returned: a tuple of data, packet_bytes, source */
    PyObject *source;   /* where the last one came from */
    socklen_t from_size;
    struct sockaddr_storage from;
    char room[DATAGRAM_BYTES_MAX];
} Datagrams;

/* As Python's sockets name it. */
static PyObject *
name_source(const struct sockaddr_storage *from)
{
    char host[INET6_ADDRSTRLEN];
    if (from->ss_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)from;
        inet_ntop(AF_INET, &in->sin_addr, host, sizeof host);
        return Py_BuildValue("(si)", host, (int)ntohs(in->sin_port));
    }
    if (from->ss_family == AF_INET6) {
        const struct sockaddr_in6 *in = (const struct sockaddr_in6 *)from;
        inet_ntop(AF_INET6, &in->sin6_addr, host, sizeof host);
        return Py_BuildValue("(siII)", host, (int)ntohs(in->sin6_port),
                             (unsigned int)ntohl(in->sin6_flowinfo),
                             (unsigned int)in->sin6_scope_id);
    }
    return PyTuple_New(0);
}

static PyObject *
find_source(Datagrams *self, const struct msghdr *message)
{
    if (self->source == NULL || message->msg_namelen != self->from_size
        || memcmp(&self->from, message->msg_name, message->msg_namelen) != 0) {
        PyObject *source = name_source(message->msg_name);
        if (source == NULL) {
            return NULL;
        }
        Py_XSETREF(self->source, source);
        self->from_size = message->msg_namelen;
        memcpy(&self->from, message->msg_name, message->msg_namelen);
    }
    return Py_NewRef(self->source);
}

/* The size of the packets in it, by its control messages. */
static Py_ssize_t
read_control(Datagrams *self, struct msghdr *message, Py_ssize_t size)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c != NULL; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level == SOL_UDP && c->cmsg_type == OFFLOAD) {
            int step;
            memcpy(&step, CMSG_DATA(c), sizeof step);
            size = step;
        } else if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == DROPS) {
            memcpy(&self->drops, CMSG_DATA(c), sizeof self->drops);
        }
    }
    return size > 0 ? size : 1;
}

static uint64_t
now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Ask again and again, without the GIL: others may have it meanwhile. */
static ssize_t
spin(int fd, struct msghdr *message, uint64_t spin_ns)
{
    const struct msghdr as_it_was = *message;
    const uint64_t until = now_ns() + spin_ns;
    ssize_t size;
    Py_BEGIN_ALLOW_THREADS
    do {
        sched_yield();
        *message = as_it_was;
        size = recvmsg(fd, message, MSG_DONTWAIT);
    } while (size < 0 && now_ns() < until);
    Py_END_ALLOW_THREADS
    return size;
}

static PyObject *
receive(Datagrams *self, uint64_t spin_ns)
{
    struct sockaddr_storage from;
    _Alignas(struct cmsghdr) char control[128];
    if (self->fd < 0) {
        Py_RETURN_NONE;
    }
    /* Short ones are copied out of here; to make room for the longest each time costs more. */
    PyObject *data = NULL;
    struct iovec into = {self->room, sizeof self->room};
    if (self->shorts < SHORTS_MIN) {
        data = PyBytes_FromStringAndSize(NULL, DATAGRAM_BYTES_MAX);
        if (data == NULL) {
            return NULL;
        }
        into = (struct iovec){PyBytes_AS_STRING(data), DATAGRAM_BYTES_MAX};
    }
    struct msghdr message = {
        .msg_name = &from,
        .msg_namelen = sizeof from,
        .msg_iov = &into,
        .msg_iovlen = 1,
        .msg_control = control,
        .msg_controllen = sizeof control,
    };
    ssize_t size = recvmsg(self->fd, &message, MSG_DONTWAIT);
    if (size < 0 && spin_ns > 0) {
        message.msg_namelen = sizeof from;
        message.msg_controllen = sizeof control;
        size = spin(self->fd, &message, spin_ns);
    }
    if (size < 0) { /* nothing there, or an earlier packet of ours was refused (ICMP) */
        Py_XDECREF(data);
        Py_RETURN_NONE;
    }
    if (size > SHORT_BYTES_MAX) {
        self->shorts = 0;
    } else if (self->shorts < SHORTS_MIN) {
        self->shorts++;
    }
    if (data == NULL) {
        data = PyBytes_FromStringAndSize(self->room, size);
    } else {
        _PyBytes_Resize(&data, size); /* sets data to NULL where it fails */
    }
    if (data == NULL) {
        return NULL;
    }
    PyObject *step = PyLong_FromSsize_t(read_control(self, &message, size));
    PyObject *source = find_source(self, &message);
    PyObject *made = step && source ? self->kind->tp_alloc(self->kind, 3) : NULL;
    if (made == NULL) {
        Py_DECREF(data);
        Py_XDECREF(step);
        Py_XDECREF(source);
        return NULL;
    }
    PyTuple_SET_ITEM(made, 0, data);
    PyTuple_SET_ITEM(made, 1, step);
    PyTuple_SET_ITEM(made, 2, source);
    return made;
}

/* recv(): what is there now as `kind`, or None. */
static PyObject *
datagrams_recv(Datagrams *self, PyObject *Py_UNUSED(args))
{
    return receive(self, 0);
}

/* look(spin_ns): what comes within that time, which is spent looking for it. */
static PyObject *
datagrams_look(Datagrams *self, PyObject *spin_ns)
{
    uint64_t value = PyLong_AsUnsignedLongLong(spin_ns);
    return value == (uint64_t)-1 && PyErr_Occurred() ? NULL : receive(self, value);
}

/* send(data, packet_bytes, to): packets, cut by the kernel if there are several; False if that
 * would mean to wait. */
static PyObject *
datagrams_send(Datagrams *self, PyObject *const *args, Py_ssize_t nargs)
{
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(uint16_t))] = {0};
    Py_buffer data;
    if (nargs != 3 || !PyBytes_Check(args[2])) {
        PyErr_SetString(PyExc_TypeError, "send(data, packet_bytes, to: bytes)");
        return NULL;
    }
    Py_ssize_t step = PyLong_AsSsize_t(args[1]);
    if (step == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (step < 1 || step > UINT16_MAX) {
        PyErr_SetString(PyExc_ValueError, "packets have 1 to 65535 bytes");
        return NULL;
    }
    if (PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    struct iovec from = {data.buf, (size_t)data.len};
    struct msghdr message = {
        .msg_name = PyBytes_AS_STRING(args[2]),
        .msg_namelen = (socklen_t)PyBytes_GET_SIZE(args[2]),
        .msg_iov = &from,
        .msg_iovlen = 1,
    };
    if (data.len > step) {
        uint16_t value = (uint16_t)step;
        message.msg_control = control;
        message.msg_controllen = sizeof control;
        struct cmsghdr *c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_UDP;
        c->cmsg_type = SEGMENT;
        c->cmsg_len = CMSG_LEN(sizeof value);
        memcpy(CMSG_DATA(c), &value, sizeof value);
    }
    /* On this machine a packet goes all the way to its receivers within the call; and a thread that
     * is always busy has to let another see to requests for repair now and then. */
    int error = EBADF;
    if (self->fd >= 0) {
        int fd = self->fd;
        Py_BEGIN_ALLOW_THREADS
        error = sendmsg(fd, &message, MSG_DONTWAIT) < 0 ? errno : 0;
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&data);
    if (error == EAGAIN || error == EINTR) {
        Py_RETURN_FALSE;
    }
    if (error == 0) {
        Py_RETURN_TRUE;
    }
    errno = error;
    return PyErr_SetFromErrno(PyExc_OSError);
}

/* poke(fd): what `os.eventfd_write(fd, 1)` does, and the GIL stays where it is: who is woken wants it,
 * and would have it before we could go on. */
static PyObject *
poke(PyObject *Py_UNUSED(module), PyObject *number)
{
    uint64_t one = 1;
    long fd = PyLong_AsLong(number);
    if (fd == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (write((int)fd, &one, sizeof one) < 0 && errno != EAGAIN) {
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    Py_RETURN_NONE;
}

/* close(): before the socket is; its number is soon somebody else's. */
static PyObject *
datagrams_close(Datagrams *self, PyObject *Py_UNUSED(args))
{
    self->fd = -1;
    Py_RETURN_NONE;
}

/* Datagrams(fd, kind): of a socket that somebody else keeps open. */
static PyObject *
datagrams_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    int fd;
    PyTypeObject *kind;
    if (!PyArg_ParseTuple(args, "iO!", &fd, &PyType_Type, &kind)) {
        return NULL;
    }
    if (!PyType_IsSubtype(kind, &PyTuple_Type) || kind->tp_itemsize != sizeof(PyObject *)) {
        PyErr_SetString(PyExc_TypeError, "kind is a tuple of three");
        return NULL;
    }
    Datagrams *self = (Datagrams *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->fd = fd;
        self->kind = (PyTypeObject *)Py_NewRef((PyObject *)kind);
    }
    return (PyObject *)self;
}

static void
datagrams_dealloc(Datagrams *self)
{
    Py_XDECREF(self->source);
    Py_XDECREF(self->kind);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef datagrams_methods[] = {
    {"recv", (PyCFunction)datagrams_recv, METH_NOARGS, NULL},
    {"look", (PyCFunction)datagrams_look, METH_O, NULL},
    {"send", (PyCFunction)(void (*)(void))datagrams_send, METH_FASTCALL, NULL},
    {"close", (PyCFunction)datagrams_close, METH_NOARGS, NULL},
    {0},
};

static PyMemberDef datagrams_members[] = {
    {"drops", T_UINT, offsetof(Datagrams, drops), READONLY, NULL},
    {0},
};

static PyTypeObject Datagrams_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "meshmsg._speed.Datagrams",
    .tp_basicsize = sizeof(Datagrams),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = datagrams_new,
    .tp_dealloc = (destructor)datagrams_dealloc,
    .tp_methods = datagrams_methods,
    .tp_members = datagrams_members,
};

static PyMethodDef functions[] = {{"poke", poke, METH_O, NULL}, {0}};

int
mm_add_datagrams(PyObject *module)
{
    return PyModule_AddFunctions(module, functions) < 0 ? -1
                                                        : PyModule_AddType(module, &Datagrams_Type);
}

#else

int
mm_add_datagrams(PyObject *Py_UNUSED(module))
{
    return 0;
}

#endif
