/* `take_next`: the short way in for a frame that is next in order.  `subscription_io.py` has the
 * same in Python, and says what it is for; the steps here are the steps there.
 *
 * The objects belong to Python code, which may come to look otherwise: their slots are looked up by
 * name, once for each type.
 */
#include "speed.h"

typedef struct {
    PyTypeObject *type;
    Py_ssize_t places[8];
} Slots;

enum { S_RECEIVER, S_BOOKS, S_CODEC, S_KEEPS, S_DATA_AT, S_UNREPORTED, S_REPORT_AT, S_SLOTS };
static const char *const source_names[] = {"receiver", "books", "codec", "keeps", "data_at",
                                           "unreported_bytes", "report_bytes"};
enum { R_EPOCH, R_NEXT, R_HIGH, R_HINT, R_HINT_SINCE, R_PENDING, R_SLOTS };
static const char *const receiver_names[] = {"epoch", "next", "high", "_hint", "_hint_since",
                                             "_pending"};
enum { K_STREAM, K_DELIVERED, K_CONSUMED, K_SLOTS };
static const char *const books_names[] = {"stream", "delivered", "consumed"};

static Slots sources, receivers, all_books;
static PyObject *name_ready, *name_by_wire, *name_lock, *name_acquire, *name_release;
static PyObject *name_current_books, *name_current, *name_iterator, *name_note, *name_events;
static PyObject *word_all, *never;

static int
know(PyObject *object, Slots *slots, const char *const *names, int count)
{
    if (Py_TYPE(object) == slots->type) {
        return 0;
    }
    if (mm_find_slots((PyObject *)Py_TYPE(object), names, count, slots->places) < 0) {
        return -1;
    }
    Py_XSETREF(slots->type, (PyTypeObject *)Py_NewRef((PyObject *)Py_TYPE(object)));
    return 0;
}

static inline PyObject **
slot(PyObject *object, const Slots *slots, int which)
{
    return (PyObject **)((char *)object + slots->places[which]);
}

/* Takes `value` over. */
static int
put(PyObject *object, const Slots *slots, int which, PyObject *value)
{
    if (value == NULL) {
        return -1;
    }
    Py_XSETREF(*slot(object, slots, which), value);
    return 0;
}

static int
is_number(PyObject *number, uint64_t value)
{
    return number != NULL && PyLong_Check(number) && PyLong_AsUnsignedLongLong(number) == value;
}

/* What a frame is handed on with; all owned. */
typedef struct {
    PyObject *source, *receiver, *books, *frame, *batch, *iterator;
} Hand;

static void
drop_hand(Hand *hand)
{
    Py_XDECREF(hand->source);
    Py_XDECREF(hand->receiver);
    Py_XDECREF(hand->books);
    Py_XDECREF(hand->frame);
    Py_XDECREF(hand->batch);
    Py_XDECREF(hand->iterator);
}

/* Each of these: 1 to go on, 0 for the long way, -1 for an error. */

static int
find_source(PyObject *intake, PyObject *data, Hand *hand)
{
    PyObject *ready = PyObject_GetAttr(intake, name_ready);
    Py_ssize_t waiting = ready == NULL ? -1 : PyObject_Size(ready);
    Py_XDECREF(ready);
    if (waiting != 0) {
        return waiting < 0 ? -1 : 0;
    }
    PyObject *by_wire = PyObject_GetAttr(intake, name_by_wire);
    PyObject *stream = PyLong_FromUnsignedLongLong(get64(PyBytes_AS_STRING(data)));
    if (by_wire != NULL && stream != NULL && PyDict_Check(by_wire)) {
        hand->source = Py_XNewRef(PyDict_GetItemWithError(by_wire, stream));
    }
    Py_XDECREF(by_wire);
    Py_XDECREF(stream);
    if (hand->source == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    if (know(hand->source, &sources, source_names, S_SLOTS) < 0) {
        return -1;
    }
    hand->receiver = Py_XNewRef(*slot(hand->source, &sources, S_RECEIVER));
    hand->books = Py_XNewRef(*slot(hand->source, &sources, S_BOOKS));
    if (hand->receiver == NULL || hand->receiver == Py_None || hand->books == NULL) {
        return 0;
    }
    return know(hand->receiver, &receivers, receiver_names, R_SLOTS) < 0
        || know(hand->books, &all_books, books_names, K_SLOTS) < 0 ? -1 : 1;
}

static int
read_data(PyObject *data, Hand *hand)
{
    hand->frame = mm_new_frame(NULL, data);
    if (hand->frame != NULL) {
        return 1;
    }
    if (!PyErr_ExceptionMatches(mm_protocol_error())) {
        return -1;
    }
    PyErr_Clear(); /* the long way says what is wrong, and counts it */
    return 0;
}

static int
is_next(PyObject *data, Hand *hand)
{
    const char *at = PyBytes_AS_STRING(data);
    uint64_t epoch = get64(at + 24), first = get64(at + 32), stop = first + get32(at + 20);
    PyObject *receiver = hand->receiver;
    PyObject *hint = *slot(receiver, &receivers, R_HINT);
    PyObject *pending = *slot(receiver, &receivers, R_PENDING);
    PyObject *keeps = *slot(hand->source, &sources, S_KEEPS);
    if (!is_number(*slot(receiver, &receivers, R_EPOCH), epoch)
        || !is_number(*slot(receiver, &receivers, R_NEXT), first)
        || !is_number(*slot(receiver, &receivers, R_HIGH), first) || hint == NULL
        || !PyLong_Check(hint) || PyLong_AsUnsignedLongLong(hint) > stop || pending == NULL
        || !PyList_Check(pending) || PyList_GET_SIZE(pending) != 0 || keeps == NULL
        || !PyDict_Check(keeps)) {
        return PyErr_Occurred() ? -1 : 0;
    }
    PyObject *verdict = PyDict_GetItemWithError(keeps, mm_frame_topics(hand->frame));
    if (verdict == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    return PyUnicode_Check(verdict) && PyUnicode_Compare(verdict, word_all) == 0;
}

static int
open_batch(Hand *hand, int as_events)
{
    PyObject *codec = *slot(hand->source, &sources, S_CODEC);
    PyObject *args[] = {hand->frame, *slot(hand->books, &all_books, K_STREAM), codec};
    if (args[1] == NULL || codec == NULL) {
        return 0;
    }
    hand->batch = mm_whole_batch(NULL, args, 3);
    if (hand->batch == NULL) {
        return -1;
    }
    PyObject *events = as_events ? mm_bytes_events(hand->batch, hand->frame) : PyTuple_New(0);
    if (events == NULL && !PyErr_Occurred()) {
        events = PyObject_CallMethodNoArgs(hand->batch, name_events);
    }
    hand->iterator = events == NULL ? NULL : PyObject_GetIter(events);
    Py_XDECREF(events);
    return hand->iterator == NULL ? -1 : 1;
}

static PyObject *
sum(PyObject *number, PyObject *more)
{
    return number == NULL ? NULL : PyNumber_Add(number, more);
}

static int
enter(PyObject *intake, Hand *hand, PyObject *now)
{
    PyObject *stop = mm_frame_stop(hand->frame), *count = mm_frame_count(hand->frame);
    PyObject *delivered = *slot(hand->books, &all_books, K_DELIVERED);
    return put(hand->receiver, &receivers, R_NEXT, Py_NewRef(stop)) < 0
        || put(hand->receiver, &receivers, R_HIGH, Py_NewRef(stop)) < 0
        || put(hand->receiver, &receivers, R_HINT_SINCE, Py_NewRef(never)) < 0
        || put(hand->source, &sources, S_DATA_AT, Py_NewRef(now)) < 0
        || put(hand->books, &all_books, K_DELIVERED, sum(delivered, count)) < 0
        || put(hand->books, &all_books, K_CONSUMED, Py_NewRef(stop)) < 0
        || PyObject_SetAttr(intake, name_current_books, hand->books) < 0
        || PyObject_SetAttr(intake, name_current, hand->batch) < 0
        || PyObject_SetAttr(intake, name_iterator, hand->iterator) < 0 ? -1 : 1;
}

static int
enter_locked(PyObject *intake, Hand *hand, PyObject *now)
{
    PyObject *lock = PyObject_GetAttr(intake, name_lock);
    PyObject *taken = lock == NULL ? NULL : PyObject_CallMethodNoArgs(lock, name_acquire);
    if (taken == NULL) {
        Py_XDECREF(lock);
        return -1;
    }
    Py_DECREF(taken);
    int entered = enter(intake, hand, now);
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *released = PyObject_CallMethodNoArgs(lock, name_release);
    Py_DECREF(lock);
    if (released == NULL) {
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(trace);
        return -1;
    }
    Py_DECREF(released);
    PyErr_Restore(type, value, trace);
    return entered;
}

static int
note_consumed(PyObject *intake, Hand *hand, PyObject *data)
{
    PyObject *before = *slot(hand->source, &sources, S_UNREPORTED);
    PyObject *report_at = *slot(hand->source, &sources, S_REPORT_AT);
    PyObject *size = PyLong_FromSsize_t(PyBytes_GET_SIZE(data));
    PyObject *after = size == NULL ? NULL : sum(before, size);
    int is_less = after == NULL || report_at == NULL
        ? -1 : PyObject_RichCompareBool(after, report_at, Py_LT);
    int done = -1;
    if (is_less > 0) {
        done = put(hand->source, &sources, S_UNREPORTED, Py_NewRef(after)) < 0 ? -1 : 1;
    } else if (is_less == 0) { /* rare, and the same in Python */
        PyObject *args[] = {intake, hand->source, size};
        PyObject *result = PyObject_VectorcallMethod(name_note, args, 3, NULL);
        done = result == NULL ? -1 : 1;
        Py_XDECREF(result);
    }
    Py_XDECREF(after);
    Py_XDECREF(size);
    return done;
}

/* take_next(intake, data, now, as_events=True): see `subscription_io.take_next`. */
PyObject *
mm_take_next(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    int as_events = nargs == 4 ? PyObject_IsTrue(args[3]) : 1;
    if (nargs < 3 || nargs > 4 || !PyBytes_Check(args[1]) || as_events < 0) {
        PyErr_SetString(PyExc_TypeError,
                        "take_next(intake: Intake, data: bytes, now: float, as_events: bool)");
        return NULL;
    }
    PyObject *intake = args[0], *data = args[1];
    if (PyBytes_GET_SIZE(data) < HEADER_BYTES || memcmp(PyBytes_AS_STRING(data) + 8, "MMF1", 4)) {
        Py_RETURN_FALSE;
    }
    Hand hand = {0};
    int went = find_source(intake, data, &hand);
    went = went == 1 ? read_data(data, &hand) : went;
    went = went == 1 ? is_next(data, &hand) : went;
    went = went == 1 ? open_batch(&hand, as_events) : went;
    went = went == 1 ? enter_locked(intake, &hand, args[2]) : went;
    went = went == 1 ? note_consumed(intake, &hand, data) : went;
    drop_hand(&hand);
    return went < 0 ? NULL : PyBool_FromLong(went);
}

int
mm_ready_shortcut(void)
{
    return (name_ready = PyUnicode_InternFromString("_ready"))
        && (name_by_wire = PyUnicode_InternFromString("_by_wire"))
        && (name_lock = PyUnicode_InternFromString("_books_lock"))
        && (name_acquire = PyUnicode_InternFromString("acquire"))
        && (name_release = PyUnicode_InternFromString("release"))
        && (name_current_books = PyUnicode_InternFromString("_current_books"))
        && (name_current = PyUnicode_InternFromString("current"))
        && (name_iterator = PyUnicode_InternFromString("iterator"))
        && (name_note = PyUnicode_InternFromString("_note_consumed"))
        && (name_events = PyUnicode_InternFromString("events"))
        && (word_all = PyUnicode_InternFromString("all"))
        && (never = PyFloat_FromDouble(Py_HUGE_VAL)) ? 0 : -1;
}
