/* What the files of the compiled core share.  Here: declarations and the smallest helpers, no code
 * that does anything.  The core is optional: all of it is written in Python too (`_wire.frame`,
 * `_publish.publisher`, `_model.batch`, `_peer.async_peer`), and tests hold the two against each other.
 *
 * Everything runs with the GIL held from the first to the last step of giving a number, so it is
 * atomic as long as nothing in between runs Python code or allocates a container (which may collect
 * garbage, and finalizers are Python code).  Functions that rest on this say so.
 */
#ifndef MESHMSG_SPEED_H
#define MESHMSG_SPEED_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <stdint.h>
#include <string.h>

#ifdef Py_GIL_DISABLED
#error "the compiled core needs the GIL; without it the locked Python path is used"
#endif
#if !PY_LITTLE_ENDIAN
#error "the compiled core copies little-endian columns as they are"
#endif

/* Names and numbers of docs/wire-format.md and of `_wire/frame.py`. */
#define HEADER_BYTES 64
#define CHECK_AT 12
#define FRAME_BYTES_MAX (32 * 1024 * 1024)
#define FRAME_EVENTS_MAX 65535
#define TOPIC_BYTES_MAX 255
#define HEADERS_READ_BYTES_MAX 1048576
enum { TOPIC_INDEX = 1, TIMES = 2, ENCODINGS = 4, RAW = 8, KEYS = 16, HEADERS = 32 };
#define KNOWN_FLAGS (TOPIC_INDEX | TIMES | ENCODINGS | RAW | KEYS | HEADERS)

static inline size_t padded(size_t size) { return (size + 7) & ~(size_t)7; }

static inline void put16(char *at, uint16_t value) { memcpy(at, &value, 2); }
static inline void put32(char *at, uint32_t value) { memcpy(at, &value, 4); }
static inline void put64(char *at, uint64_t value) { memcpy(at, &value, 8); }
static inline uint16_t get16(const char *at) { uint16_t v; memcpy(&v, at, 2); return v; }
static inline uint32_t get32(const char *at) { uint32_t v; memcpy(&v, at, 4); return v; }
static inline uint64_t get64(const char *at) { uint64_t v; memcpy(&v, at, 8); return v; }

/* For items of a few bytes up to some cache lines: cheaper than a call. */
static inline void
copy_item(char *to, const char *from, size_t size)
{
    if (size < 16 || size > 256) {
        memcpy(to, from, size);
        return;
    }
    for (size_t at = 0; at + 16 < size; at += 16) {
        memcpy(to + at, from + at, 16);
    }
    memcpy(to + size - 16, from + size - 16, 16); /* over what is there already, where it is odd */
}

/* crc32c.c */
void mm_crc32c_init(void);
uint32_t mm_crc32c(uint32_t crc, const void *data, size_t size);
PyObject *mm_crc32c_py(PyObject *module, PyObject *const *args, Py_ssize_t nargs);

/* encode.c: events of a frame, wherever they lie.  A column is its first item and the distance to
 * the next one; `topics` and `times` without a column have one value for all events. */
typedef struct {
    uint64_t stream, epoch, first;
    Py_ssize_t count;
    PyObject *topic;
    PyObject *const *topics;
    size_t topics_step;
    PyObject *const *payloads;
    size_t payloads_step;
    int64_t time;
    const int64_t *times;
    size_t times_step;
    int raw;                /* 0 or 1 for all, -1: by column */
    const char *raws;
    size_t raws_step;
    PyObject **keys;        /* by index, NULL where there is none; or no array at all */
    PyObject **headers;
} Events;

PyObject *mm_encode_events(Events *events, PyObject *ids);
int mm_wants_topic_ids(const Events *events);
PyObject *mm_encode_frame(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
                          PyObject *names);
PyObject *mm_scan(PyObject *module, PyObject *chunk);

/* decode.c */
PyObject *mm_set_up_decoder(PyObject *module, PyObject *args);
PyObject *mm_read_frame(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *mm_column_length(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *mm_split(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *mm_new_frame(PyObject *module, PyObject *data);
PyObject *mm_set_up_batches(PyObject *module, PyObject *args);
PyObject *mm_whole_batch(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *mm_raw_events(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *mm_make_events(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *mm_check_headers(PyObject *module, PyObject *const *args, Py_ssize_t nargs);

int mm_find_slots(PyObject *type, const char *const *names, int count, Py_ssize_t *places);
PyObject *mm_protocol_error(void);
PyObject *mm_bytes_events(PyObject *batch, PyObject *frame);
PyObject *mm_frame_topics(PyObject *frame);
PyObject *mm_frame_stop(PyObject *frame);
PyObject *mm_frame_count(PyObject *frame);

/* join.c */
PyObject *mm_join_records(PyObject *module, PyObject *const *args, Py_ssize_t nargs);

/* msgpack.c */
int mm_is_map(const char *at, size_t size);
PyObject *mm_is_value_each(PyObject *module, PyObject *args);

/* event.c */
extern PyTypeObject Iteration_Type;
PyObject *mm_data_of(PyObject *module, PyObject *args);
int mm_ready_event(void);

/* seal.c */
PyObject *mm_seal_packets(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *mm_open_packets(PyObject *module, PyObject *const *args, Py_ssize_t nargs);

/* datagrams.c */
int mm_add_datagrams(PyObject *module);

/* packets.c */
PyObject *mm_run_length(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *mm_join_runs(PyObject *module, PyObject *runs);

/* shortcut.c */
PyObject *mm_take_next(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
int mm_ready_shortcut(void);

/* zmq_port.c */
extern PyTypeObject Port_Type;
PyObject *mm_settle_loans(PyObject *module, PyObject *args);

/* open_frame.c */
typedef struct {
    PyObject *topic, *payload;
    int64_t time;
    char raw;
} Row;

typedef struct {
    Row *rows;
    Py_ssize_t capacity;
} Rows;

typedef struct {
    PyObject_HEAD
    Rows open, taken, spare;
    Py_ssize_t count, taken_count, capacity;
    long long first, taken_first, size;
    int has_taken;
    PyObject *notes;
    /* What publishing looks at: set by the outlet. */
    PyObject *stream, *epoch;
    long long due_ns, sent_ns;
    Py_ssize_t size_max, large_max;
    char gated, dirty, holds;
    struct TailFrame *tail; /* of a durable stream */
} OpenFrame;

extern PyTypeObject OpenFrame_Type;
int mm_make_room(OpenFrame *self);
void mm_append(OpenFrame *self, PyObject *topic, PyObject *payload, int64_t time, int raw);
int mm_note(OpenFrame *self, PyObject *note);

/* tail_frame.c */
typedef struct TailFrame {
    OpenFrame frame;
    Py_buffer area; /* mapped memory */
    Py_ssize_t at;
    uint32_t salt;
    int keepers; /* who keep publishers out for a moment */
    char shut;
} TailFrame;

typedef struct {
    PyObject *topic, *payload, *headers;
    const char *topic_text, *key_text;
    Py_ssize_t topic_bytes, key_bytes;
    size_t used;
} TailEntry;

extern PyTypeObject TailFrame_Type;
int mm_tail_entry(TailEntry *entry, PyObject *topic, PyObject *payload, PyObject *note);
int mm_tail_fits(TailFrame *self, const TailEntry *entry);
void mm_tail_append(TailFrame *self, const TailEntry *entry, int64_t time, int raw);
PyObject *mm_tail_entries(PyObject *module, PyObject *const *args, Py_ssize_t nargs);

/* publish.c */
typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *side, *routes, *check_notes, *position;
    PyObject *time_ns; /* NULL: the system's clock */
} Publish;

typedef struct {
    PyObject *topic, *data, *key, *headers, *timeout, *on_gate;
} Call;

extern PyTypeObject Publish_Type;
PyObject *mm_publish(Publish *self, const Call *call, long long *seq);
int mm_read_call(Call *call, PyObject *const *args, Py_ssize_t nargs, PyObject *names);
int mm_ready_publish(void);

/* coroutines.c */
extern PyTypeObject Coroutine_Type, AsyncPublish_Type, AsyncEvents_Type;
int mm_ready_coroutines(void);

#endif
