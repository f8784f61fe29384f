"""Plain Python sockets, which the multicast transport is measured against: an event, a datagram.

Nothing is numbered, asked for again or held back; what the receiver's buffer has no room for is
lost, and counted.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

from benchmarks.meter import Meter
from benchmarks.pace import Pace, age_ns
from benchmarks.space import GROUP, INTERFACE
from benchmarks.task import READY, Report, Task, latencies, payloads

BUFFER_BYTES = 8 * 1024 * 1024
END = b"end"
#: The end is said again and again, as it may be lost, too.
END_EVERY_S = 0.002
WAIT_S = 60.0


@contextmanager
def line_out() -> Iterator[socket.socket]:
    """A socket to send with, on loopback only."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        out.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(INTERFACE))
        out.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 0)
        out.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
        yield out


@contextmanager
def line_in(port: int) -> Iterator[socket.socket]:
    """A socket that has joined the group."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as into:
        into.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        into.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        into.bind((GROUP, port))
        request = socket.inet_aton(GROUP) + socket.inet_aton(INTERFACE)
        into.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, request)
        yield into


def say_end(send: Callable[[], object], boss: Connection) -> None:
    """Say that this was all, until the receivers have heard it."""
    while not boss.poll(END_EVERY_S):
        send()
    boss.recv()


def publish(task: Task, boss: Connection) -> None:
    """Send everything to everyone."""
    to = (GROUP, task.port)
    boss.send("")
    boss.recv()
    boss.send(READY)
    boss.recv()
    with line_out() as out:
        send = out.sendto
        with Meter(task) as meter:
            with meter.loop():
                if task.rate:
                    for payload in Pace(task):
                        send(payload, to)
                else:
                    pool = payloads(task.size_bytes)
                    for _ in range(task.count // len(pool)):
                        for payload in pool:
                            send(payload, to)
            say_end(lambda: send(END, to), boss)
    boss.send(meter.add_to(Report(events=task.count)))
    boss.recv()


def receive(task: Task, boss: Connection) -> None:
    """Take what comes."""
    boss.send("")
    boss.recv()
    with line_in(task.port) as into:
        boss.send(READY)
        with Meter(task) as meter, meter.loop():
            report = _take_times(task, into) if task.rate else _take_all(into)
        report.lost = task.count - report.events
        boss.send(meter.add_to(report))
        boss.recv()


def _take_all(into: socket.socket) -> Report:
    recv = into.recv
    events, octets, ended_ns = 1, len(recv(65_536)), 0
    began_ns = time.monotonic_ns()
    while True:
        payload = recv(65_536)
        size = len(payload)
        if size == len(END):
            break
        octets += size
        events += 1
        if not events % 100:
            ended_ns = time.monotonic_ns()
    counted = events - events % 100
    return Report(events=events, first=1, began_ns=began_ns, ended_ns=ended_ns, timed=counted)


def _take_times(task: Task, into: socket.socket) -> Report:
    times_ns: list[int] = []
    while len(payload := into.recv(65_536)) != len(END):
        times_ns.append(age_ns(payload))
    return latencies(times_ns, task)


def ping(task: Task, boss: Connection) -> None:
    """Send one datagram, wait for the one that comes back, and so on."""
    boss.send("")
    boss.recv()
    to = (GROUP, task.port)
    with line_out() as out, line_in(task.port + 2) as into:
        into.settimeout(None)
        boss.send(READY)
        boss.recv()
        payload = payloads(task.size_bytes)[1]
        trips_ns = []
        with Meter(task) as meter, meter.loop():
            for _ in range(task.count):
                began_ns = time.perf_counter_ns()
                out.sendto(payload, to)
                into.recv(65_536)
                trips_ns.append(time.perf_counter_ns() - began_ns)
        boss.recv()
        boss.send(meter.add_to(latencies(trips_ns, task)))
        boss.recv()


def echo(task: Task, boss: Connection) -> None:
    """Send back what comes."""
    boss.send("")
    boss.recv()
    to = (GROUP, task.port + 2)
    with line_out() as out, line_in(task.port) as into:
        boss.send(READY)
        with Meter(task) as meter, meter.loop():
            for _ in range(task.count):
                out.sendto(into.recv(65_536), to)
        boss.send(meter.add_to(Report(events=task.count)))
        boss.recv()
