"""Plain TCP in Python with batches: what is left when nothing is promised.

Events are gathered into msgpack lists of about 64 KiB, which one call in C takes apart.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

import msgpack

from benchmarks.meter import Meter
from benchmarks.task import READY, Report, Task, latencies, payloads, taken

BATCH_BYTES = 64 * 1024
WAIT_S = 60.0


@contextmanager
def listening() -> Iterator[tuple[socket.socket, tuple[str, int]]]:
    """A socket that others connect to, and where."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        door.settimeout(WAIT_S)
        yield door, door.getsockname()


def accepted(door: socket.socket) -> socket.socket:
    """The next one that connects."""
    line, _ = door.accept()
    line.settimeout(None)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return line


def connected(address: tuple[str, int]) -> socket.socket:
    """A line to a process that listens."""
    line = socket.create_connection(address, WAIT_S)
    line.settimeout(None)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return line


def publish(task: Task, boss: Connection) -> None:
    """Send everything to everyone."""
    with listening() as (door, address):
        boss.send(address)
        boss.recv()
        lines = [accepted(door) for _ in range(task.subscribers)]
        boss.send(READY)
        boss.recv()
        pool, pack = payloads(task.size_bytes), msgpack.Packer().pack
        step = max(1, BATCH_BYTES // (task.size_bytes + 2))
        with Meter(task) as meter:
            with meter.loop():
                for _ in range(task.count // len(pool)):
                    for at in range(0, len(pool), step):
                        batch = pack(pool[at : at + step])
                        for line in lines:
                            line.sendall(batch)
            boss.recv()
        boss.send(meter.add_to(Report(events=task.count)))
        boss.recv()


def receive(task: Task, boss: Connection) -> None:
    """Take everything."""
    boss.send("")
    with connected(boss.recv()[0]) as line:
        boss.send(READY)
        unpacker = msgpack.Unpacker(max_buffer_size=1 << 30)
        recv, feed = line.recv, unpacker.feed
        events = first = octets = began_ns = 0
        with Meter(task) as meter, meter.loop():
            while events < task.count:
                feed(recv(4 * BATCH_BYTES))
                for batch in unpacker:
                    octets += sum(map(len, batch))
                    events += len(batch)
                if not began_ns and events:
                    first, began_ns = events, time.monotonic_ns()
            ended_ns = time.monotonic_ns()
        boss.send(meter.add_to(taken(events, first, began_ns, ended_ns, octets, task)))
        boss.recv()


def ping(task: Task, boss: Connection) -> None:
    """Send one event, wait for it to come back, and so on."""
    with listening() as (door, address):
        boss.send(address)
        boss.recv()
        with accepted(door) as line:
            boss.send(READY)
            boss.recv()
            payload = payloads(task.size_bytes)[1]
            trips_ns = []
            with Meter(task) as meter, meter.loop():
                for _ in range(task.count):
                    began_ns = time.perf_counter_ns()
                    line.sendall(payload)
                    line.recv(65536)
                    trips_ns.append(time.perf_counter_ns() - began_ns)
            boss.recv()
            boss.send(meter.add_to(latencies(trips_ns, task)))
            boss.recv()


def echo(task: Task, boss: Connection) -> None:
    """Send back what comes."""
    boss.send("")
    with connected(boss.recv()[0]) as line:
        boss.send(READY)
        with Meter(task) as meter, meter.loop():
            for _ in range(task.count):
                line.sendall(line.recv(65536))
        boss.send(meter.add_to(Report(events=task.count)))
        boss.recv()
