"""iceoryx2 by its Python binding: shared memory, on one machine only.

There is nothing to wait on but to look again, which is why it answers fastest and uses a whole
processor for it.
"""

from __future__ import annotations

import ctypes
import os
import time
from multiprocessing.connection import Connection
from typing import Any

import iceoryx2 as iox2

from benchmarks.meter import Meter
from benchmarks.task import READY, Report, Task, latencies, payloads, taken

QUEUE_SAMPLES = 1024
QUEUE_BYTES = 16_000_000
WAIT_S = 30.0
#: Looks in vain, before another process gets the processor.
SPINS = 1000


class Line:
    """One service: what is sent and received, and how much of it may wait."""

    def __init__(self, task: Task, name: str) -> None:
        iox2.set_log_level(iox2.LogLevel.Error)
        self._node = iox2.NodeBuilder.new().create(iox2.ServiceType.Ipc)
        self._queue = min(QUEUE_SAMPLES, max(8, QUEUE_BYTES // task.size_bytes))
        self.type = ctypes.c_uint8 * task.size_bytes
        self.type.__name__ = f"octets{task.size_bytes}"
        self.size_bytes = task.size_bytes
        self.service = (
            self._node.service_builder(iox2.ServiceName.new(f"bench/{task.port}/{name}"))
            .publish_subscribe(self.type)
            .enable_safe_overflow(False)
            .subscriber_max_buffer_size(self._queue)
            .max_subscribers(64)
            .max_nodes(80)
            .open_or_create()
        )

    def publisher(self) -> Any:
        """Waits where a queue is full."""
        return (
            self.service.publisher_builder()
            .backpressure_strategy(iox2.BackpressureStrategy.RetryUntilDelivered)
            .create()
        )

    def subscriber(self) -> Any:
        return self.service.subscriber_builder().buffer_size(self._queue).create()

    def wait_for(self, what: str, count: int) -> None:
        """Until there are so many publishers or subscribers."""
        deadline = time.monotonic() + WAIT_S
        while getattr(self.service.dynamic_config, f"number_of_{what}") < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"not {count} {what} in {WAIT_S:g} s")
            time.sleep(0.01)


def _next(subscriber: Any) -> Any:
    while True:
        for _ in range(SPINS):
            sample = subscriber.receive()
            if sample is not None:
                return sample
        os.sched_yield()


def publish(task: Task, boss: Connection) -> None:
    """Send everything to everyone."""
    line = Line(task, "there")
    publisher = line.publisher()
    boss.send("")
    boss.recv()
    line.wait_for("subscribers", task.subscribers)
    publisher.update_connections()
    boss.send(READY)
    boss.recv()
    pool = [line.type.from_buffer_copy(payload) for payload in payloads(task.size_bytes)]
    send = publisher.send_copy
    with Meter(task) as meter:
        with meter.loop():
            for _ in range(task.count // len(pool)):
                for payload in pool:
                    send(payload)
        boss.recv()
    boss.send(meter.add_to(Report(events=task.count)))
    boss.recv()


def receive(task: Task, boss: Connection) -> None:
    """Take everything, each payload as bytes."""
    line = Line(task, "there")
    boss.send("")
    boss.recv()
    subscriber = line.subscriber()
    boss.send(READY)
    size, copy = task.size_bytes, ctypes.string_at
    with Meter(task) as meter, meter.loop():
        octets = _take(subscriber, size)
        began_ns = time.monotonic_ns()
        left = task.count - 1
        receive = subscriber.receive
        while left:
            sample = receive()
            if sample is None:
                sample = _next(subscriber)
            octets += len(copy(sample.payload_ptr, size))
            sample.delete()
            left -= 1
        ended_ns = time.monotonic_ns()
    boss.send(meter.add_to(taken(task.count, 1, began_ns, ended_ns, octets, task)))
    boss.recv()


def _take(subscriber: Any, size: int) -> int:
    sample = _next(subscriber)
    octets = len(ctypes.string_at(sample.payload_ptr, size))
    sample.delete()
    return octets


def ping(task: Task, boss: Connection) -> None:
    """Send one sample, wait for it to come back, and so on."""
    there, back = Line(task, "there"), Line(task, "back")
    publisher, subscriber = there.publisher(), back.subscriber()
    boss.send("")
    boss.recv()
    there.wait_for("subscribers", 1)
    back.wait_for("publishers", 1)
    boss.send(READY)
    boss.recv()
    payload = there.type.from_buffer_copy(payloads(task.size_bytes)[1])
    trips_ns = []
    with Meter(task) as meter, meter.loop():
        for _ in range(task.count):
            began_ns = time.perf_counter_ns()
            publisher.send_copy(payload)
            _take(subscriber, task.size_bytes)
            trips_ns.append(time.perf_counter_ns() - began_ns)
    boss.recv()
    boss.send(meter.add_to(latencies(trips_ns, task)))
    boss.recv()


def echo(task: Task, boss: Connection) -> None:
    """Send back what comes."""
    there, back = Line(task, "there"), Line(task, "back")
    subscriber, publisher = there.subscriber(), back.publisher()
    boss.send("")
    boss.recv()
    there.wait_for("publishers", 1)
    back.wait_for("subscribers", 1)
    boss.send(READY)
    with Meter(task) as meter, meter.loop():
        for _ in range(task.count):
            sample = _next(subscriber)
            payload = ctypes.string_at(sample.payload_ptr, task.size_bytes)
            sample.delete()
            publisher.send_copy(back.type.from_buffer_copy(payload))
    boss.send(meter.add_to(Report(events=task.count)))
    boss.recv()
