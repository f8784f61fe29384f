"""pynng: PUB and SUB over tcp, with the longest queues that it allows.

A full queue loses messages and says nothing: how many is counted.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import pynng

from benchmarks.meter import Meter
from benchmarks.task import READY, Report, Task, latencies, payloads
from benchmarks.ways.datagrams import END, say_end

QUEUE_MESSAGES = 8192
WAIT_S = 30.0
SETTLE_S = 0.3


@contextmanager
def pub(port: int) -> Iterator[Any]:
    with pynng.Pub0(send_buffer_size=QUEUE_MESSAGES) as out:
        out.listen(f"tcp://127.0.0.1:{port}")
        yield out


@contextmanager
def sub(port: int) -> Iterator[Any]:
    with pynng.Sub0(recv_buffer_size=QUEUE_MESSAGES, topics=b"") as into:
        into.recv_max_size = 0
        into.dial(f"tcp://127.0.0.1:{port}", block=True)
        yield into


def wait_for_pipes(out: Any, count: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while len(out.pipes) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"only {len(out.pipes)} of {count} subscribers")
        time.sleep(0.01)
    time.sleep(SETTLE_S)  # its subscription follows, and nothing tells when


def publish(task: Task, boss: Connection) -> None:
    """Send everything to everyone."""
    with pub(task.port) as out:
        boss.send("")
        boss.recv()
        wait_for_pipes(out, task.subscribers)
        boss.send(READY)
        boss.recv()
        send, pool = out.send, payloads(task.size_bytes)
        with Meter(task) as meter:
            with meter.loop():
                for _ in range(task.count // len(pool)):
                    for payload in pool:
                        send(payload)
            say_end(lambda: send(END), boss)
        boss.send(meter.add_to(Report(events=task.count)))
        boss.recv()


def receive(task: Task, boss: Connection) -> None:
    """Take what comes."""
    boss.send("")
    boss.recv()
    with sub(task.port) as into:
        boss.send(READY)
        recv = into.recv
        with Meter(task) as meter, meter.loop():
            events, octets = 1, len(recv())
            began_ns = ended_ns = time.monotonic_ns()
            while (size := len(recv())) != len(END):
                octets += size
                events += 1
                if not events % 100:
                    ended_ns = time.monotonic_ns()
        timed = events - events % 100
        report = Report(events=events, first=1, began_ns=began_ns, ended_ns=ended_ns, timed=timed)
        report.lost = task.count - events
        boss.send(meter.add_to(report))
        boss.recv()


def ping(task: Task, boss: Connection) -> None:
    """Send one message, wait for it to come back, and so on."""
    with pub(task.port) as out:
        boss.send("")
        boss.recv()
        wait_for_pipes(out, 1)
        with sub(task.port + 1) as into:
            boss.send(READY)
            boss.recv()
            payload = payloads(task.size_bytes)[1]
            trips_ns = []
            time.sleep(SETTLE_S)
            with Meter(task) as meter, meter.loop():
                for _ in range(task.count):
                    began_ns = time.perf_counter_ns()
                    out.send(payload)
                    into.recv()
                    trips_ns.append(time.perf_counter_ns() - began_ns)
            boss.recv()
            boss.send(meter.add_to(latencies(trips_ns, task)))
            boss.recv()


def echo(task: Task, boss: Connection) -> None:
    """Send back what comes."""
    with pub(task.port + 1) as out:
        boss.send("")
        boss.recv()
        with sub(task.port) as into:
            wait_for_pipes(out, 1)
            boss.send(READY)
            with Meter(task) as meter, meter.loop():
                for _ in range(task.count):
                    out.send(into.recv())
            boss.send(meter.add_to(Report(events=task.count)))
            boss.recv()
