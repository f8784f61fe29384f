"""Plain multicast in Python with the kernel's batching: many datagrams a call, both ways.

Nothing holds the sender back, so what the receiver's buffer has no room for is lost, and counted.
"""

from __future__ import annotations

import socket
import struct
import time
from functools import cache
from multiprocessing.connection import Connection

from benchmarks.meter import Meter
from benchmarks.space import GROUP
from benchmarks.task import READY, Report, Task, payloads
from benchmarks.ways.datagrams import END, line_in, line_out, say_end

UDP_SEGMENT, UDP_GRO = 103, 104
CALL_DATAGRAMS = 64
CALL_BYTES = 65_000


def calls_of(task: Task) -> list[bytes]:
    """The pool of payloads, as many joined as one call takes."""
    pool = payloads(task.size_bytes)
    step = min(CALL_DATAGRAMS, CALL_BYTES // task.size_bytes)
    return [b"".join(pool[at : at + step]) for at in range(0, len(pool), step)]


def publish(task: Task, boss: Connection) -> None:
    """Send everything to everyone."""
    to = (GROUP, task.port)
    boss.send("")
    boss.recv()
    boss.send(READY)
    boss.recv()
    calls = calls_of(task)
    control = [(socket.IPPROTO_UDP, UDP_SEGMENT, struct.pack("H", task.size_bytes))]
    with line_out() as out:
        send = out.sendmsg
        with Meter(task) as meter:
            with meter.loop():
                for _ in range(task.count // len(payloads(task.size_bytes))):
                    for call in calls:
                        send([call], control, 0, to)
            say_end(lambda: out.sendto(END, to), boss)
    boss.send(meter.add_to(Report(events=task.count)))
    boss.recv()


@cache
def _split(size_bytes: int, count: int) -> struct.Struct:
    return struct.Struct(f"{size_bytes}s" * count)


def receive(task: Task, boss: Connection) -> None:
    """Take what comes, each payload as bytes of its own."""
    boss.send("")
    boss.recv()
    with line_in(task.port) as into:
        into.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
        boss.send(READY)
        size, recv = task.size_bytes, into.recv
        events = octets = began_ns = ended_ns = first = 0
        with Meter(task) as meter, meter.loop():
            while len(data := recv(65_536)) != len(END):
                count = len(data) // size
                octets += sum(map(len, _split(size, count).unpack(data[: count * size])))
                events += count
                ended_ns = time.monotonic_ns()
                if not began_ns:
                    first, began_ns = events, ended_ns
        report = Report(events=events, first=first, began_ns=began_ns, ended_ns=ended_ns)
        report.lost = task.count - events
        boss.send(meter.add_to(report))
        boss.recv()
