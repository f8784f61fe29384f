/* Small frames of a log as one larger frame: what each frame costs on its way is paid once for
 * thousands of events.  `recovery/log/join.py` says what is joined, and has the same in Python.
 *
 * A log may be damaged, and what a recorder wrote came from the network: every number is checked
 * against the bytes that are there before it is used.  The walk ends at the first record that is odd
 * in any way; who reads one record after the other finds out what it is.
 */
#include "speed.h"

#include <stddef.h>

#define RECORD_HEAD_BYTES 40
/* Names and numbers of `recovery/log/join.py`. */
#define SMALL_BYTES_MAX (16 * 1024)
#define JOIN_BYTES_MAX (256 * 1024)
#define JOIN_EVENTS_MAX 8192
#define JOIN_TOPICS_MAX 512
#define PARTS_MAX (JOIN_BYTES_MAX / HEADER_BYTES)
#define SLOTS (4 * JOIN_TOPICS_MAX)

/* A column of byte strings; of a nullable one, `bits` says which items there are. */
typedef struct {
    const char *bits, *offsets, *blob;
} Column;

/* One frame, whose sections lie inside of the data. */
typedef struct {
    const char *table, *ids, *times, *encodings;
    Column keys, headers, payloads;
    size_t table_bytes;
    uint32_t count;
    unsigned topics, raw;
    int64_t time;
} Part;

typedef struct {
    const char *at;
    size_t size;
} Topic;

typedef struct {
    uint64_t first, next;
    int64_t time, latest; /* of the first event; of all records */
    size_t count, bytes;
    size_t table_bytes, key_bytes, header_bytes, payload_bytes;
    unsigned topic_count, keys, headers, raws, times_differ;
    size_t part_count;
    Topic topics[JOIN_TOPICS_MAX];
    uint16_t slots[SLOTS]; /* a topic's number and 1, by its hash */
    uint16_t ids[JOIN_EVENTS_MAX];
    Part parts[PARTS_MAX];
} Join;

/* --- reading: 0 for what is odd --- */

typedef struct {
    const char *at;
    size_t left;
} Rest;

/* The next section, and 8-byte padding behind it; NULL if it is not there. */
static const char *
section(Rest *rest, size_t size)
{
    const char *at = rest->at;
    if (padded(size) > rest->left) {
        return NULL;
    }
    rest->at += padded(size);
    rest->left -= padded(size);
    return at;
}

static int
offsets_fit(const char *offsets, uint32_t count, size_t blob)
{
    uint32_t before = get32(offsets), falling = before;
    for (uint32_t i = 1; i <= count; i++) {
        uint32_t offset = get32(offsets + 4 * (size_t)i);
        falling |= offset < before;
        before = offset;
    }
    return !falling && before == blob;
}

static int
has(const Column *column, uint32_t index)
{
    return column->bits != NULL && column->bits[index >> 3] >> (index & 7) & 1;
}

static size_t
item_of(const Column *column, uint32_t index, const char **at)
{
    uint32_t from = get32(column->offsets + 4 * (size_t)index);
    *at = column->blob + from;
    return get32(column->offsets + 4 * (size_t)index + 4) - from;
}

static int
read_nullable(Rest *rest, uint32_t count, size_t blob, Column *column)
{
    column->bits = section(rest, (count + 7) / 8);
    column->offsets = column->bits == NULL ? NULL : section(rest, 4 * ((size_t)count + 1));
    column->blob = column->offsets == NULL ? NULL : section(rest, blob);
    return column->blob != NULL && offsets_fit(column->offsets, count, blob);
}

static int
are_maps(const Column *headers, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const char *at;
        size_t size = item_of(headers, i, &at);
        if (has(headers, i) && !mm_is_map(at, size)) { /* none is too large in a small frame */
            return 0;
        }
    }
    return 1;
}

static int
read_topics(Rest *rest, unsigned flags, Part *part)
{
    unsigned found = 1;
    part->table = section(rest, part->table_bytes);
    for (size_t i = 0; part->table != NULL && i < part->table_bytes; i++) {
        found += part->table[i] == '\n';
    }
    if (part->table == NULL || found != part->topics || part->topics > part->count
        || part->table_bytes > part->topics * (TOPIC_BYTES_MAX + (size_t)1)) {
        return 0;
    }
    if (!(flags & TOPIC_INDEX)) {
        return part->topics == 1;
    }
    part->ids = section(rest, 2 * (size_t)part->count);
    for (uint32_t i = 0; part->ids != NULL && i < part->count; i++) {
        if (get16(part->ids + 2 * (size_t)i) >= part->topics) {
            return 0;
        }
    }
    return part->ids != NULL;
}

static int
read_encodings(Rest *rest, Part *part)
{
    part->encodings = section(rest, part->count);
    for (uint32_t i = 0; part->encodings != NULL && i < part->count; i++) {
        if ((unsigned char)part->encodings[i] > 1) {
            return 0;
        }
    }
    return part->encodings != NULL;
}

/* What `Frame` takes, and only that; the header's numbers were compared with the record's. */
static int
read_part(const char *frame, size_t size, Part *part)
{
    unsigned flags = get16(frame + 48);
    memset(part, 0, sizeof *part);
    part->count = get32(frame + 20);
    part->time = (int64_t)get64(frame + 40);
    part->raw = (flags & RAW) != 0;
    part->topics = get16(frame + 50);
    part->table_bytes = get32(frame + 52);
    size_t keys = get32(frame + 56), headers = get32(frame + 60);
    if (flags & ~(unsigned)KNOWN_FLAGS || part->count > JOIN_EVENTS_MAX || part->table_bytes > size
        || keys > size || headers > size) {
        return 0;
    }
    Rest rest = {frame + HEADER_BYTES, size - HEADER_BYTES};
    if (!read_topics(&rest, flags, part)
        || (flags & TIMES && !(part->times = section(&rest, 8 * (size_t)part->count)))
        || (flags & ENCODINGS && !read_encodings(&rest, part))
        || (flags & KEYS && !read_nullable(&rest, part->count, keys, &part->keys))
        || (flags & HEADERS
            && (!read_nullable(&rest, part->count, headers, &part->headers)
                || !are_maps(&part->headers, part->count)))) {
        return 0;
    }
    part->payloads.offsets = section(&rest, 4 * ((size_t)part->count + 1));
    part->payloads.blob = rest.at;
    return part->payloads.offsets && offsets_fit(part->payloads.offsets, part->count, rest.left);
}

typedef struct {
    const char *data;
    size_t size;
    uint64_t offset, stream, epoch, first, limit; /* offset: of the data, in the file */
    uint32_t salt;
} Walk;

/* The record at `at`, if its frame is whole, small and goes on from `join`; its size in the file. */
static size_t
read_record(const Walk *walk, size_t at, const Join *join, Part *part, int64_t *time)
{
    if (walk->size - at < RECORD_HEAD_BYTES + HEADER_BYTES) {
        return 0;
    }
    const char *head = walk->data + at, *frame = head + RECORD_HEAD_BYTES;
    size_t length = get32(head + 8);
    uint64_t first = get64(head + 16), stop = get64(head + 24), offset = walk->offset + at;
    /* Kind 1 and a zero behind it. */
    if (memcmp(head, "MMR1", 4) != 0 || get32(head + 12) != 1 || length < HEADER_BYTES
        || length > SMALL_BYTES_MAX || length > walk->size - at - RECORD_HEAD_BYTES
        || first >= stop || stop > (uint64_t)INT64_MAX || first >= walk->limit) {
        return 0;
    }
    if (join == NULL ? first > walk->first || walk->first >= stop : first != join->next) {
        return 0;
    }
    uint32_t check = mm_crc32c(walk->salt, &offset, 8);
    if (mm_crc32c(check, head + 8, RECORD_HEAD_BYTES - 8) != get32(head + 4)) {
        return 0;
    }
    if (memcmp(frame + 8, "MMF1", 4) != 0 || get32(frame + 16) != length
        || get64(frame) != walk->stream || get64(frame + 24) != walk->epoch
        || walk->epoch > (uint64_t)INT64_MAX || get64(frame + 32) != first
        || get32(frame + 20) != stop - first) {
        return 0;
    }
    check = mm_crc32c(0, frame, CHECK_AT);
    if (mm_crc32c(check, frame + CHECK_AT + 4, length - CHECK_AT - 4) != get32(frame + CHECK_AT)) {
        return 0;
    }
    *time = (int64_t)get64(head + 32);
    return read_part(frame, length, part) ? RECORD_HEAD_BYTES + padded(length) : 0;
}

/* --- gathering --- */

/* The number of a topic; -1 if there are too many. */
static int
number_of(Join *join, const char *at, size_t size)
{
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < size; i++) {
        hash = (hash ^ (unsigned char)at[i]) * 16777619u;
    }
    for (unsigned slot = hash % SLOTS;; slot = (slot + 1) % SLOTS) {
        unsigned number = join->slots[slot];
        if (number == 0) {
            if (join->topic_count == JOIN_TOPICS_MAX) {
                return -1;
            }
            join->topics[join->topic_count] = (Topic){at, size};
            join->slots[slot] = (uint16_t)++join->topic_count;
            return (int)join->topic_count - 1;
        }
        const Topic *topic = &join->topics[number - 1];
        if (topic->size == size && memcmp(topic->at, at, size) == 0) {
            return (int)number - 1;
        }
    }
}

/* Where the topics of a table are. */
static void
find_topics(const Part *part, Topic *topics)
{
    const char *at = part->table, *stop = part->table + part->table_bytes;
    for (unsigned i = 0; i < part->topics; i++) {
        const char *end = memchr(at, '\n', (size_t)(stop - at));
        end = end == NULL ? stop : end;
        topics[i] = (Topic){at, (size_t)(end - at)};
        at = end == stop ? stop : end + 1;
    }
}

/* Give each event of a frame its topic; 0 if there are too many topics. */
static int
add_topics(Join *join, const Part *part)
{
    Topic topics[JOIN_TOPICS_MAX];
    unsigned known = join->topic_count, last = JOIN_TOPICS_MAX;
    int number = 0;
    if (part->topics > JOIN_TOPICS_MAX) {
        return 0;
    }
    find_topics(part, topics);
    for (uint32_t i = 0; i < part->count; i++) {
        unsigned id = part->ids == NULL ? 0 : get16(part->ids + 2 * (size_t)i);
        if (id != last) {
            number = number_of(join, topics[id].at, topics[id].size);
            last = id;
        }
        if (number < 0) {
            join->topic_count = known; /* as before: nothing is looked for any more */
            return 0;
        }
        join->ids[join->count + i] = (uint16_t)number;
    }
    return 1;
}

static int64_t
time_of(const Part *part, uint32_t index)
{
    return part->times == NULL ? part->time : (int64_t)get64(part->times + 8 * (size_t)index);
}

static unsigned
raw_of(const Part *part, uint32_t index)
{
    return part->encodings == NULL ? part->raw : (unsigned char)part->encodings[index];
}

static unsigned
count_notes(const Column *column, uint32_t count, size_t *bytes)
{
    unsigned found = 0;
    const char *at;
    for (uint32_t i = 0; column->bits != NULL && i < count; i++) {
        if (has(column, i)) {
            found++;
            *bytes += item_of(column, i, &at);
        }
    }
    return found;
}

static int
add_part(Join *join, const Part *part, size_t size, int64_t time)
{
    if (join->count + part->count > JOIN_EVENTS_MAX || join->bytes + size > JOIN_BYTES_MAX
        || join->part_count == PARTS_MAX || !add_topics(join, part)) {
        return 0;
    }
    if (join->part_count == 0) {
        join->time = time_of(part, 0);
        join->latest = time;
    }
    for (uint32_t i = 0; i < part->count; i++) {
        join->times_differ |= time_of(part, i) != join->time;
        join->raws += raw_of(part, i);
    }
    join->keys += count_notes(&part->keys, part->count, &join->key_bytes);
    join->headers += count_notes(&part->headers, part->count, &join->header_bytes);
    join->payload_bytes += get32(part->payloads.offsets + 4 * (size_t)part->count);
    join->latest = time > join->latest ? time : join->latest;
    join->parts[join->part_count++] = *part;
    join->count += part->count;
    join->next += part->count;
    join->bytes += size;
    return 1;
}

/* --- writing: each returns where the next section starts --- */

static char *
pad(char *at, size_t size)
{
    size_t rest = padded(size) - size;
    memset(at, 0, rest);
    return at + rest;
}

static char *
put_topics(char *at, const Join *join)
{
    for (unsigned i = 0; i < join->topic_count; i++) {
        if (i > 0) {
            *at++ = '\n';
        }
        memcpy(at, join->topics[i].at, join->topics[i].size);
        at += join->topics[i].size;
    }
    at = pad(at, join->table_bytes);
    if (join->topic_count > 1) {
        memcpy(at, join->ids, 2 * join->count);
        at = pad(at + 2 * join->count, 2 * join->count);
    }
    return at;
}

static char *
put_columns(char *at, const Join *join, unsigned flags)
{
    for (size_t p = 0; flags & TIMES && p < join->part_count; p++) {
        for (uint32_t i = 0; i < join->parts[p].count; i++, at += 8) {
            put64(at, (uint64_t)time_of(&join->parts[p], i));
        }
    }
    for (size_t p = 0; flags & ENCODINGS && p < join->part_count; p++) {
        for (uint32_t i = 0; i < join->parts[p].count; i++) {
            *at++ = (char)raw_of(&join->parts[p], i);
        }
    }
    return flags & ENCODINGS ? pad(at, join->count) : at;
}

/* The keys, or the headers. */
static char *
put_notes(char *at, const Join *join, size_t place)
{
    size_t bits_size = (join->count + 7) / 8, offsets_size = 4 * (join->count + 1), index = 0;
    char *bits = at, *offsets = pad(at + bits_size, bits_size);
    char *blob = pad(offsets + offsets_size, offsets_size);
    memset(bits, 0, bits_size);
    at = blob;
    for (size_t p = 0; p < join->part_count; p++) {
        const Part *part = &join->parts[p];
        const Column *column = (const Column *)((const char *)part + place);
        for (uint32_t i = 0; i < part->count; i++, index++) {
            put32(offsets + 4 * index, (uint32_t)(at - blob));
            if (has(column, i)) {
                const char *from;
                size_t size = item_of(column, i, &from);
                bits[index >> 3] = (char)(bits[index >> 3] | 1 << (index & 7));
                memcpy(at, from, size);
                at += size;
            }
        }
    }
    put32(offsets + 4 * index, (uint32_t)(at - blob));
    return pad(at, (size_t)(at - blob));
}

static char *
put_payloads(char *at, const Join *join)
{
    char *offsets = at, *blob = pad(at + 4 * (join->count + 1), 4 * (join->count + 1));
    at = blob;
    for (size_t p = 0; p < join->part_count; p++) {
        const Part *part = &join->parts[p];
        uint32_t base = (uint32_t)(at - blob);
        for (uint32_t i = 0; i < part->count; i++, offsets += 4) {
            put32(offsets, base + get32(part->payloads.offsets + 4 * (size_t)i));
        }
        size_t size = get32(part->payloads.offsets + 4 * (size_t)part->count);
        copy_item(at, part->payloads.blob, size);
        at += size;
    }
    put32(offsets, (uint32_t)(at - blob));
    return at;
}

static unsigned
flags_of(const Join *join)
{
    return (join->topic_count > 1 ? TOPIC_INDEX : 0) | (join->times_differ ? TIMES : 0)
        | (join->raws == join->count ? RAW : join->raws ? ENCODINGS : 0)
        | (join->keys ? KEYS : 0) | (join->headers ? HEADERS : 0);
}

static size_t
size_of(const Join *join, unsigned flags)
{
    size_t count = join->count, offsets = padded(4 * (count + 1));
    size_t notes = padded((count + 7) / 8) + offsets;
    return HEADER_BYTES + padded(join->table_bytes) + offsets + join->payload_bytes
        + (flags & TOPIC_INDEX ? padded(2 * count) : 0) + (flags & TIMES ? 8 * count : 0)
        + (flags & ENCODINGS ? padded(count) : 0)
        + (flags & KEYS ? notes + padded(join->key_bytes) : 0)
        + (flags & HEADERS ? notes + padded(join->header_bytes) : 0);
}

static PyObject *
put_frame(Join *join, const Walk *walk)
{
    join->table_bytes = join->topic_count - 1;
    for (unsigned i = 0; i < join->topic_count; i++) {
        join->table_bytes += join->topics[i].size;
    }
    unsigned flags = flags_of(join);
    size_t size = size_of(join, flags);
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (bytes == NULL) {
        return NULL;
    }
    char *frame = PyBytes_AS_STRING(bytes);
    char *at = put_columns(put_topics(frame + HEADER_BYTES, join), join, flags);
    at = flags & KEYS ? put_notes(at, join, offsetof(Part, keys)) : at;
    at = flags & HEADERS ? put_notes(at, join, offsetof(Part, headers)) : at;
    at = put_payloads(at, join);
    assert((size_t)(at - frame) == size);
    put64(frame, walk->stream);
    memcpy(frame + 8, "MMF1", 4);
    put32(frame + 16, (uint32_t)size);
    put32(frame + 20, (uint32_t)join->count);
    put64(frame + 24, walk->epoch);
    put64(frame + 32, join->first);
    put64(frame + 40, (uint64_t)join->time);
    put16(frame + 48, (uint16_t)flags);
    put16(frame + 50, (uint16_t)join->topic_count);
    put32(frame + 52, (uint32_t)join->table_bytes);
    put32(frame + 56, (uint32_t)join->key_bytes);
    put32(frame + 60, (uint32_t)join->header_bytes);
    uint32_t check = mm_crc32c(0, frame, CHECK_AT);
    put32(frame + CHECK_AT, mm_crc32c(check, frame + CHECK_AT + 4, size - CHECK_AT - 4));
    return bytes;
}

/* --- the door --- */

static PyObject *
join_walk(const Walk *walk, size_t at, Join *join)
{
    Part part;
    int64_t time;
    size_t start = at, size = read_record(walk, at, NULL, &part, &time);
    join->first = join->next = get64(walk->data + at + 16);
    while (size != 0 && add_part(join, &part, size, time)) {
        at += size; /* the padding of the last record need not be there */
        size = at < walk->size ? read_record(walk, at, join, &part, &time) : 0;
    }
    if (join->part_count < 2) {
        Py_RETURN_NONE;
    }
    PyObject *frame = put_frame(join, walk);
    return frame == NULL ? NULL
                         : Py_BuildValue("(NKKLn)", frame, (unsigned long long)join->first,
                                         (unsigned long long)join->next, (long long)join->latest,
                                         (Py_ssize_t)(at - start));
}

/* join_records(data, at, offset, salt, stream, epoch, first, limit): the frame that the records from
 * `data[at]` on make, its first, stop and latest time, and the bytes of those records; None if there
 * are not two that can be joined. */
PyObject *
mm_join_records(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 8 || !PyBytes_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "join_records() takes bytes and 7 numbers");
        return NULL;
    }
    Py_ssize_t size = PyBytes_GET_SIZE(args[0]), at = PyLong_AsSsize_t(args[1]);
    uint64_t numbers[6];
    for (int i = 0; !PyErr_Occurred() && i < 6; i++) {
        numbers[i] = PyLong_AsUnsignedLongLong(args[2 + i]);
    }
    if (PyErr_Occurred()) {
        return NULL;
    }
    Walk walk = {.data = PyBytes_AS_STRING(args[0]),
                 .size = (size_t)size,
                 .offset = numbers[0] - (uint64_t)at,
                 .salt = (uint32_t)numbers[1],
                 .stream = numbers[2],
                 .epoch = numbers[3],
                 .first = numbers[4],
                 .limit = numbers[5]};
    Part part;
    int64_t time;
    if (at < 0 || at >= size || !read_record(&walk, (size_t)at, NULL, &part, &time)) {
        Py_RETURN_NONE; /* most are large: that is to cost nothing */
    }
    Join *join = PyMem_Malloc(sizeof *join);
    if (join == NULL) {
        return PyErr_NoMemory();
    }
    memset(join, 0, offsetof(Join, ids));
    PyObject *found = join_walk(&walk, (size_t)at, join);
    PyMem_Free(join);
    return found;
}
