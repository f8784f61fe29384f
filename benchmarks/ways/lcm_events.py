"""LCM by its Python binding: one message an event, over multicast on loopback.

It repairs nothing: what was lost is counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import lcm

from benchmarks.meter import Meter
from benchmarks.space import GROUP
from benchmarks.task import READY, Report, Task, latencies, payloads
from benchmarks.ways.datagrams import BUFFER_BYTES, END, say_end

CHANNEL = "bench"
ENDS = "end"


def _lcm(port: int) -> lcm.LCM:
    return lcm.LCM(f"udpm://{GROUP}:{port}?ttl=0&recv_buf_size={BUFFER_BYTES}")


def publish(task: Task, boss: Connection) -> None:
    """Send everything to everyone."""
    boss.send("")
    boss.recv()
    link = _lcm(task.port)
    boss.send(READY)
    boss.recv()
    send = link.publish
    pool = payloads(task.size_bytes)
    with Meter(task) as meter:
        with meter.loop():
            for _ in range(task.count // len(pool)):
                for payload in pool:
                    send(CHANNEL, payload)
        say_end(lambda: send(ENDS, END), boss)
    boss.send(meter.add_to(Report(events=task.count)))
    boss.recv()


def receive(task: Task, boss: Connection) -> None:
    """Take what comes."""
    boss.send("")
    boss.recv()
    link = _lcm(task.port)
    events = octets = began_ns = ended_ns = timed = 0
    ended = False

    def take(channel: str, payload: bytes) -> None:
        nonlocal events, octets, began_ns, ended_ns, timed
        events += 1
        octets += len(payload)
        if events == 1:
            began_ns = time.monotonic_ns()
        elif not events % 100:
            ended_ns, timed = time.monotonic_ns(), events

    def end(channel: str, payload: bytes) -> None:
        nonlocal ended
        ended = True

    _subscribe(link, CHANNEL, take)
    _subscribe(link, ENDS, end)
    boss.send(READY)
    handle = link.handle
    with Meter(task) as meter, meter.loop():
        while not ended:
            handle()
    report = Report(events=events, first=1, began_ns=began_ns, ended_ns=ended_ns, timed=timed)
    report.lost = task.count - events
    boss.send(meter.add_to(report))
    boss.recv()


def _subscribe(link: lcm.LCM, channel: str, handler: Callable[[str, bytes], None]) -> None:
    link.subscribe(channel, handler).set_queue_capacity(0)  # no bound but memory


def ping(task: Task, boss: Connection) -> None:
    """Send one message, wait for the one that comes back, and so on."""
    boss.send("")
    boss.recv()
    out, into = _lcm(task.port), _lcm(task.port + 2)
    _subscribe(into, CHANNEL, lambda channel, payload: None)
    boss.send(READY)
    boss.recv()
    payload = payloads(task.size_bytes)[1]
    trips_ns = []
    with Meter(task) as meter, meter.loop():
        for _ in range(task.count):
            began_ns = time.perf_counter_ns()
            out.publish(CHANNEL, payload)
            into.handle()
            trips_ns.append(time.perf_counter_ns() - began_ns)
    boss.recv()
    boss.send(meter.add_to(latencies(trips_ns, task)))
    boss.recv()


def echo(task: Task, boss: Connection) -> None:
    """Send back what comes."""
    boss.send("")
    boss.recv()
    out, into = _lcm(task.port + 2), _lcm(task.port)
    _subscribe(into, CHANNEL, lambda channel, payload: out.publish(CHANNEL, payload))
    boss.send(READY)
    with Meter(task) as meter, meter.loop():
        for _ in range(task.count):
            into.handle()
    boss.send(meter.add_to(Report(events=task.count)))
    boss.recv()
