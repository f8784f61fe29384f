/* CRC-32C (Castagnoli), the checksum of frames: with the processor's own instruction where it has
 * one, else by tables.
 *
 * The instruction takes three cycles and can start every cycle, so long data are read as three
 * lanes at once, and the lanes' checksums are joined: a checksum followed by n zero bytes is a
 * linear map of its 32 bits, kept as four tables of 256 for the one n that lanes have.
 */
#include "speed.h"

#define POLYNOMIAL 0x82F63B78u /* reflected */
#define LONG_LANE 2048
#define SHORT_LANE 256

#if defined(__x86_64__) && defined(__GNUC__)
#define HAS_INSTRUCTION 1
#define TARGET __attribute__((target("sse4.2")))
#include <nmmintrin.h>
static inline TARGET uint64_t step8(uint64_t crc, uint64_t v) { return _mm_crc32_u64(crc, v); }
static inline TARGET uint32_t step1(uint32_t crc, uint8_t v) { return _mm_crc32_u8(crc, v); }
static int has_instruction(void) { return __builtin_cpu_supports("sse4.2"); }
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#define HAS_INSTRUCTION 1
#define TARGET
#include <arm_acle.h>
static inline uint64_t step8(uint64_t crc, uint64_t v) { return __crc32cd((uint32_t)crc, v); }
static inline uint32_t step1(uint32_t crc, uint8_t v) { return __crc32cb(crc, v); }
static int has_instruction(void) { return 1; }
#else
#define HAS_INSTRUCTION 0
static int has_instruction(void) { return 0; }
#endif

static uint32_t byte_table[8][256];
static int use_instruction;

static void
make_byte_tables(void)
{
    for (uint32_t n = 0; n < 256; n++) {
        uint32_t crc = n;
        for (int bit = 0; bit < 8; bit++) {
            crc = crc & 1 ? (crc >> 1) ^ POLYNOMIAL : crc >> 1;
        }
        byte_table[0][n] = crc;
    }
    for (uint32_t n = 0; n < 256; n++) {
        for (int k = 1; k < 8; k++) {
            uint32_t before = byte_table[k - 1][n];
            byte_table[k][n] = byte_table[0][before & 0xff] ^ (before >> 8);
        }
    }
}

static uint32_t
by_table(uint32_t crc, const unsigned char *at, size_t size)
{
    while (size >= 8) {
        uint64_t v = get64((const char *)at) ^ crc;
        crc = byte_table[7][v & 0xff] ^ byte_table[6][v >> 8 & 0xff]
            ^ byte_table[5][v >> 16 & 0xff] ^ byte_table[4][v >> 24 & 0xff]
            ^ byte_table[3][v >> 32 & 0xff] ^ byte_table[2][v >> 40 & 0xff]
            ^ byte_table[1][v >> 48 & 0xff] ^ byte_table[0][v >> 56];
        at += 8;
        size -= 8;
    }
    while (size--) {
        crc = byte_table[0][(crc ^ *at++) & 0xff] ^ (crc >> 8);
    }
    return crc;
}

#if HAS_INSTRUCTION

typedef uint32_t Shift[4][256];
static Shift long_shift, short_shift;

static void
make_shift(Shift shift, size_t zeros)
{
    uint32_t image[32];
    for (int bit = 0; bit < 32; bit++) {
        uint32_t crc = 1u << bit;
        for (size_t n = 0; n < zeros; n++) {
            crc = byte_table[0][crc & 0xff] ^ (crc >> 8);
        }
        image[bit] = crc;
    }
    for (int k = 0; k < 4; k++) {
        for (int n = 0; n < 256; n++) {
            shift[k][n] = 0;
            for (int bit = 0; bit < 8; bit++) {
                shift[k][n] ^= n >> bit & 1 ? image[8 * k + bit] : 0;
            }
        }
    }
}

static inline uint32_t
shifted(Shift shift, uint32_t crc)
{
    return shift[0][crc & 0xff] ^ shift[1][crc >> 8 & 0xff] ^ shift[2][crc >> 16 & 0xff]
         ^ shift[3][crc >> 24];
}

static inline TARGET uint32_t
three_lanes(uint32_t crc, const char *at, size_t lane, Shift shift)
{
    uint64_t a = crc, b = 0, c = 0;
    for (const char *end = at + lane; at < end; at += 8) {
        a = step8(a, get64(at));
        b = step8(b, get64(at + lane));
        c = step8(c, get64(at + 2 * lane));
    }
    crc = shifted(shift, (uint32_t)a) ^ (uint32_t)b;
    return shifted(shift, crc) ^ (uint32_t)c;
}

static TARGET uint32_t
by_instruction(uint32_t crc, const char *at, size_t size)
{
    for (; size >= 3 * LONG_LANE; at += 3 * LONG_LANE, size -= 3 * LONG_LANE) {
        crc = three_lanes(crc, at, LONG_LANE, long_shift);
    }
    for (; size >= 3 * SHORT_LANE; at += 3 * SHORT_LANE, size -= 3 * SHORT_LANE) {
        crc = three_lanes(crc, at, SHORT_LANE, short_shift);
    }
    for (; size >= 8; at += 8, size -= 8) {
        crc = (uint32_t)step8(crc, get64(at));
    }
    for (; size; at++, size--) {
        crc = step1(crc, (uint8_t)*at);
    }
    return crc;
}

#endif

void
mm_crc32c_init(void)
{
    make_byte_tables();
    use_instruction = has_instruction();
#if HAS_INSTRUCTION
    make_shift(long_shift, LONG_LANE);
    make_shift(short_shift, SHORT_LANE);
#endif
}

/* Goes on from `crc`, 0 at first, like the `crc32c` package. */
uint32_t
mm_crc32c(uint32_t crc, const void *data, size_t size)
{
#if HAS_INSTRUCTION
    if (use_instruction) {
        return ~by_instruction(~crc, data, size);
    }
#endif
    return ~by_table(~crc, data, size);
}

/* For tests: crc32c(data, by_table). */
PyObject *
mm_crc32c_py(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2 || !PyBytes_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "crc32c(data: bytes, by_table: bool)");
        return NULL;
    }
    const char *data = PyBytes_AS_STRING(args[0]);
    size_t size = (size_t)PyBytes_GET_SIZE(args[0]);
    uint32_t crc = args[1] == Py_True ? ~by_table(~0u, (const unsigned char *)data, size)
                                      : mm_crc32c(0, data, size);
    return PyLong_FromUnsignedLong(crc);
}
