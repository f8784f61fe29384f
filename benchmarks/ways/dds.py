"""Cyclone DDS by its Python binding: reliable, nothing dropped, multicast on loopback."""

# No `from __future__ import annotations` here: this binding reads the types of a class as they are.
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.meter import Meter
from benchmarks.task import READY, Report, Task, latencies, payloads, taken

CONFIG = """<CycloneDDS><Domain><General>
<Interfaces><NetworkInterface name="lo" multicast="true"/></Interfaces>
<AllowMulticast>true</AllowMulticast>
</General></Domain></CycloneDDS>"""
os.environ["CYCLONEDDS_URI"] = CONFIG  # before the library reads it

from cyclonedds.domain import DomainParticipant  # noqa: E402
from cyclonedds.idl import IdlStruct  # noqa: E402
from cyclonedds.idl.types import array, uint8  # noqa: E402
from cyclonedds.pub import DataWriter  # noqa: E402
from cyclonedds.qos import Policy, Qos  # noqa: E402
from cyclonedds.sub import DataReader  # noqa: E402
from cyclonedds.topic import Topic  # noqa: E402
from cyclonedds.util import duration  # noqa: E402

#: The writer waits when so many samples are on their way: enough to stay busy.
SAMPLES_MAX = 4000
TAKE_MAX = 1000
WAIT_S = 30.0
#: What all samples on their way take at most.
SAMPLES_BYTES = 64_000_000


@cache
def _type(size_bytes: int) -> Any:
    """An array of octets is the one type that this binding gives back as bytes: the fastest."""

    @dataclass
    class Sample(IdlStruct, typename=f"Octets{size_bytes}"):
        payload: array[uint8, size_bytes]  # type: ignore[valid-type]

    return Sample


def _qos(task: Task) -> Qos:
    samples = min(SAMPLES_MAX, max(16, SAMPLES_BYTES // task.size_bytes))
    return Qos(
        Policy.Reliability.Reliable(duration(seconds=WAIT_S)),
        Policy.History.KeepAll,
        Policy.ResourceLimits(samples, 1, samples),
    )


def _wait_for(met: Callable[[], int], count: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while met() < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"only {met()} of {count} in {WAIT_S:g} s")
        time.sleep(0.01)


def _writer(domain: DomainParticipant, task: Task, name: str) -> Any:
    topic = Topic(domain, f"{name}_{task.port}", _type(task.size_bytes))
    return DataWriter(domain, topic, qos=_qos(task))


def _reader(domain: DomainParticipant, task: Task, name: str) -> Any:
    topic = Topic(domain, f"{name}_{task.port}", _type(task.size_bytes))
    return DataReader(domain, topic, qos=_qos(task))


def _readers_of(writer: Any) -> Callable[[], int]:
    return lambda: len(writer.get_matched_subscriptions())


def _writers_of(reader: Any) -> Callable[[], int]:
    return lambda: len(reader.get_matched_publications())


def publish(task: Task, boss: Connection) -> None:
    """Send everything to everyone."""
    boss.send("")
    boss.recv()
    domain = DomainParticipant()
    writer = _writer(domain, task, "bench")
    _wait_for(_readers_of(writer), task.subscribers)
    boss.send(READY)
    boss.recv()
    sample_of = _type(task.size_bytes)
    pool = [sample_of(payload) for payload in payloads(task.size_bytes)]
    write = writer.write
    with Meter(task) as meter:
        with meter.loop():
            for _ in range(task.count // len(pool)):
                for sample in pool:
                    write(sample)
        boss.recv()
    boss.send(meter.add_to(Report(events=task.count)))
    boss.recv()


def receive(task: Task, boss: Connection) -> None:
    """Take everything."""
    boss.send("")
    boss.recv()
    domain = DomainParticipant()
    reader = _reader(domain, task, "bench")
    _wait_for(_writers_of(reader), 1)
    boss.send(READY)
    with Meter(task) as meter, meter.loop():
        report = _take_all(task, reader)
    boss.send(meter.add_to(report))
    boss.recv()


def _take_all(task: Task, reader: Any) -> Report:
    octets = len(reader.take_one(timeout=duration(seconds=WAIT_S)).payload)
    began_ns = time.monotonic_ns()
    events = 1
    while events < task.count:
        samples = reader.take(N=TAKE_MAX)
        if not samples:
            samples = [reader.take_one(timeout=duration(seconds=WAIT_S))]
        for sample in samples:
            octets += len(sample.payload)
        events += len(samples)
    return taken(events, 1, began_ns, time.monotonic_ns(), octets, task)


def ping(task: Task, boss: Connection) -> None:
    """Write one sample, wait for it to come back, and so on."""
    boss.send("")
    boss.recv()
    domain = DomainParticipant()
    writer, reader = _writer(domain, task, "ping"), _reader(domain, task, "pong")
    _wait_for(_readers_of(writer), 1)
    _wait_for(_writers_of(reader), 1)
    boss.send(READY)
    boss.recv()
    sample = _type(task.size_bytes)(payloads(task.size_bytes)[1])
    trips_ns = []
    answers = reader.take_iter(timeout=duration(seconds=WAIT_S))
    with Meter(task) as meter, meter.loop():
        for _ in range(task.count):
            began_ns = time.perf_counter_ns()
            writer.write(sample)
            next(answers)
            trips_ns.append(time.perf_counter_ns() - began_ns)
    boss.recv()
    boss.send(meter.add_to(latencies(trips_ns, task)))
    boss.recv()


def echo(task: Task, boss: Connection) -> None:
    """Write what comes."""
    boss.send("")
    boss.recv()
    domain = DomainParticipant()
    writer, reader = _writer(domain, task, "pong"), _reader(domain, task, "ping")
    _wait_for(_readers_of(writer), 1)
    _wait_for(_writers_of(reader), 1)
    boss.send(READY)
    samples = reader.take_iter(timeout=duration(seconds=WAIT_S))
    with Meter(task) as meter, meter.loop():
        for _ in range(task.count):
            writer.write(next(samples))
    boss.send(meter.add_to(Report(events=task.count)))
    boss.recv()
