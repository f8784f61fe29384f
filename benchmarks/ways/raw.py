"""Raw pyzmq, which meshmsg is measured against: one message an event over PUB/SUB.

XPUB_NODROP makes the publisher wait where ZeroMQ would lose messages, so both sides of the
comparison deliver everything.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import zmq

from benchmarks.meter import Meter
from benchmarks.pace import Pace, age_ns
from benchmarks.task import READY, Report, Task, latencies, payloads, taken

QUEUE_MESSAGES = 10_000
#: Of large messages fewer, or the queue is what is measured.
QUEUE_BYTES = 64_000_000
Boss = Connection
Socket = zmq.Socket[bytes]


@contextmanager
def sockets(size_bytes: int, *kinds: int) -> Iterator[list[Socket]]:
    """Sockets of these kinds, closed with the block; XPUB ones are bound to a free port."""
    context: zmq.Context[Socket] = zmq.Context()
    made = [_socket(context, kind, size_bytes) for kind in kinds]
    try:
        yield made
    finally:
        context.destroy(linger=0)


def _socket(context: zmq.Context[Socket], kind: int, size_bytes: int) -> Socket:
    socket = context.socket(kind)
    queue = min(QUEUE_MESSAGES, max(10, QUEUE_BYTES // size_bytes))
    socket.setsockopt(zmq.SNDHWM, queue)
    socket.setsockopt(zmq.RCVHWM, queue)
    if kind == zmq.XPUB:
        socket.setsockopt(zmq.XPUB_NODROP, 1)
        socket.setsockopt(zmq.XPUB_VERBOSE, 1)  # the same subscription again is seen again
        socket.bind("tcp://127.0.0.1:*")
    else:
        socket.setsockopt(zmq.SUBSCRIBE, b"")
    return socket


def address_of(socket: Socket) -> Any:
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)


def wait_for_subscribers(socket: Socket, count: int) -> None:
    for _ in range(count):
        socket.recv()


def publish(task: Task, boss: Boss) -> None:
    """Send everything to everyone."""
    with sockets(task.size_bytes, zmq.XPUB) as (out,):
        boss.send(address_of(out))
        boss.recv()
        wait_for_subscribers(out, task.subscribers)
        boss.send(READY)
        boss.recv()
        with Meter(task) as meter:
            with meter.loop():
                _send_all(task, out)
            boss.recv()
        boss.send(meter.add_to(Report(events=task.count)))
        boss.recv()


def _send_all(task: Task, out: Socket) -> None:
    send = out.send
    if task.rate:
        for payload in Pace(task):
            send(payload)
        return
    pool = payloads(task.size_bytes)
    for _ in range(task.count // len(pool)):
        for payload in pool:
            send(payload)


def receive(task: Task, boss: Boss) -> None:
    """Take everything."""
    with sockets(task.size_bytes, zmq.SUB) as (into,):
        boss.send("")
        into.connect(boss.recv()[0])
        boss.send(READY)
        with Meter(task) as meter, meter.loop():
            report = _take_times(task, into) if task.rate else _take_all(task, into)
        boss.send(meter.add_to(report))
        boss.recv()


def _take_all(task: Task, into: Socket) -> Report:
    recv = into.recv
    octets = len(recv())
    began_ns = time.monotonic_ns()
    for _ in range(task.count - 1):
        octets += len(recv())
    return taken(task.count, 1, began_ns, time.monotonic_ns(), octets, task)


def _take_times(task: Task, into: Socket) -> Report:
    return latencies([age_ns(into.recv()) for _ in range(task.count)], task)


def ping(task: Task, boss: Boss) -> None:
    """Send one message, wait for it to come back, and so on."""
    with sockets(task.size_bytes, zmq.XPUB, zmq.SUB) as (out, into):
        boss.send(address_of(out))
        into.connect(boss.recv()[0])
        wait_for_subscribers(out, 1)
        boss.send(READY)
        boss.recv()
        payload = payloads(task.size_bytes)[1]
        trips_ns = []
        with Meter(task) as meter, meter.loop():
            for _ in range(task.count):
                began_ns = time.perf_counter_ns()
                out.send(payload)
                into.recv()
                trips_ns.append(time.perf_counter_ns() - began_ns)
        boss.recv()
        boss.send(meter.add_to(latencies(trips_ns, task)))
        boss.recv()


def echo(task: Task, boss: Boss) -> None:
    """Send back what comes."""
    with sockets(task.size_bytes, zmq.XPUB, zmq.SUB) as (out, into):
        boss.send(address_of(out))
        into.connect(boss.recv()[0])
        wait_for_subscribers(out, 1)
        boss.send(READY)
        with Meter(task) as meter, meter.loop():
            for _ in range(task.count):
                out.send(into.recv())
        boss.send(meter.add_to(Report(events=task.count)))
        boss.recv()
