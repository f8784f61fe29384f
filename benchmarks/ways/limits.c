/* The limits of this machine: the same work in C, where nothing is promised and nothing is Python.
 * Compiled by compiled.py when it is measured.  Every payload is touched. */

#define _GNU_SOURCE
#include <netinet/in.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <time.h>

enum { BATCH = 65536, HEAD = 4, BUFFER = 1 << 18, SEGMENT = 103 };

struct taken {
    int64_t events, first, octets, began_ns, ended_ns, sum;
};

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int send_whole(int fd, const char *data, size_t size)
{
    while (size) {
        ssize_t sent = send(fd, data, size, 0);
        if (sent <= 0)
            return -1;
        data += sent;
        size -= (size_t)sent;
    }
    return 0;
}

/* `pool` holds events of `size` bytes; each goes out behind its length, 64 KiB at a time. */
int tcp_send(const int *fds, int lines, const char *pool, int64_t kept, int64_t count, int64_t size)
{
    int64_t each = HEAD + size, step = each < BATCH ? BATCH / each : 1;
    char *batch = malloc((size_t)(step * each));
    if (!batch)
        return -1;
    for (int64_t n = 0; n < count;) {
        int64_t run = count - n < step ? count - n : step;
        for (int64_t i = 0; i < run; i++) {
            uint32_t length = (uint32_t)size;
            memcpy(batch + i * each, &length, HEAD);
            memcpy(batch + i * each + HEAD, pool + (n + i) % kept * size, (size_t)size);
        }
        for (int line = 0; line < lines; line++)
            if (send_whole(fds[line], batch, (size_t)(run * each))) {
                free(batch);
                return -1;
            }
        n += run;
    }
    free(batch);
    return 0;
}

int tcp_receive(int fd, int64_t count, struct taken *report)
{
    size_t room = BUFFER, have = 0;
    char *buffer = malloc(room);
    memset(report, 0, sizeof *report);
    while (buffer && report->events < count) {
        ssize_t got = recv(fd, buffer + have, room - have, 0);
        if (got <= 0)
            break;
        have += (size_t)got;
        size_t at = 0;
        uint32_t length;
        while (have - at >= HEAD) {
            memcpy(&length, buffer + at, HEAD);
            if (have - at < HEAD + length)
                break;
            report->sum += buffer[at + HEAD] + buffer[at + HEAD + length - 1];
            report->octets += length;
            report->events++;
            at += HEAD + length;
        }
        memmove(buffer, buffer + at, have - at);
        have -= at;
        if (!report->began_ns && report->events) {
            report->began_ns = now_ns();
            report->first = report->events;
        }
    }
    report->ended_ns = now_ns();
    free(buffer);
    return report->events == count ? 0 : -1;
}

/* As many datagrams a call as the kernel takes apart in one; the socket is connected. */
int udp_send(int fd, const char *pool, int64_t kept, int64_t count, int64_t size)
{
    int64_t step = 65000 / size < 64 ? 65000 / size : 64;
    char control[CMSG_SPACE(sizeof(uint16_t))] = {0};
    for (int64_t n = 0; n < count;) {
        int64_t at = n % kept, run = kept - at < step ? kept - at : step;
        if (run > count - n)
            run = count - n;
        struct iovec part = {(char *)pool + at * size, (size_t)(run * size)};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
        message.msg_control = control;
        message.msg_controllen = sizeof control;
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = IPPROTO_UDP;
        head->cmsg_type = SEGMENT;
        head->cmsg_len = CMSG_LEN(sizeof(uint16_t));
        uint16_t segment = (uint16_t)size;
        memcpy(CMSG_DATA(head), &segment, sizeof segment);
        if (sendmsg(fd, &message, 0) < 0)
            return -1;
        n += run;
    }
    return 0;
}

/* Until something shorter than an event comes. */
int udp_receive(int fd, int64_t size, struct taken *report)
{
    char buffer[65536];
    memset(report, 0, sizeof *report);
    for (;;) {
        ssize_t got = recv(fd, buffer, sizeof buffer, 0);
        if (got < size)
            return got < 0 ? -1 : 0;
        for (ssize_t at = 0; at + size <= got; at += size) {
            report->sum += buffer[at] + buffer[at + size - 1];
            report->octets += size;
            report->events++;
        }
        report->ended_ns = now_ns();
        if (!report->began_ns) {
            report->began_ns = report->ended_ns;
            report->first = report->events;
        }
    }
}

/* One there, one back; `into` and `out` may be the same. */
int ping(int out, int into, const char *payload, int64_t size, int64_t count, int64_t *trips_ns)
{
    char buffer[65536];
    for (int64_t n = 0; n < count; n++) {
        int64_t began = now_ns();
        if (send(out, payload, (size_t)size, 0) != size || recv(into, buffer, sizeof buffer, 0) <= 0)
            return -1;
        trips_ns[n] = now_ns() - began;
    }
    return 0;
}

int echo(int out, int into, int64_t count)
{
    char buffer[65536];
    for (int64_t n = 0; n < count; n++) {
        ssize_t got = recv(into, buffer, sizeof buffer, 0);
        if (got <= 0 || send(out, buffer, (size_t)got, 0) != got)
            return -1;
    }
    return 0;
}
