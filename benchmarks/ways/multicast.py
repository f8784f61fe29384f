"""meshmsg over multicast: event by event, or in batches.  Order, repair and books are on."""

from __future__ import annotations

import time
from contextlib import nullcontext
from multiprocessing.connection import Connection

from benchmarks.accounts import check_publisher, check_subscription, frames_of
from benchmarks.meter import Meter
from benchmarks.space import GROUP
from benchmarks.task import PONG, READY, TOPIC, Report, Task, latencies, payloads
from benchmarks.ways.sync import (
    ANSWER_S,
    START_S,
    publish_all,
    take_batches,
    take_events,
    take_times,
)
from meshmsg import Event, Multicast, Peer, Security, Stream, Subscription
from meshmsg.testing import lose_packets

SEED = 7
MESH_KEY = "known to all who read this: 7f3a9c1e5b2d8046"


def _security(task: Task) -> Security | None:
    return Security(mesh_key=MESH_KEY) if task.sealed else None


def _stream(topic: str, task: Task, port: int) -> Stream:
    return Stream(topic, transport=Multicast(f"{GROUP}:{port}", parity=task.parity or None))


def publish(task: Task, boss: Connection) -> None:
    """Send everything to everyone, then look at the ledger."""
    stream = _stream(TOPIC, task, task.port)
    with Peer("publisher", streams=stream, security=_security(task)) as peer:
        boss.send(peer.address)
        boss.recv()
        peer.wait_for_subscribers(TOPIC, task.subscribers, timeout=START_S)
        boss.send(READY)
        boss.recv()
        with Meter(task) as meter:
            with meter.loop():
                publish_all(task, peer)
            boss.recv()
        report = meter.add_to(Report(events=task.count))
        peer.flush(timeout=ANSWER_S)
        report.frames = frames_of(peer.stats())
        report.problems += check_publisher(peer.ledger(), task)
        boss.send(report)
        boss.recv()


def receive(task: Task, boss: Connection) -> None:
    """Take everything, and look for losses."""
    boss.send("")
    with (
        Peer("subscriber", connect=boss.recv()[0], security=_security(task)) as peer,
        peer.subscribe(TOPIC) as events,
    ):
        events.wait_for_publishers(timeout=START_S)
        losing = lose_packets(peer, task.loss, SEED) if task.loss else nullcontext()
        boss.send(READY)
        with Meter(task) as meter, meter.loop(), losing:
            if task.rate:
                report = take_times(task, events)
            elif task.batches:
                report = take_batches(task, events)
            else:
                report = take_events(task, events)
        report.problems += check_subscription(events)
        report.notes = _notes(events)
        boss.send(meter.add_to(report))
        boss.recv()


def _notes(events: Subscription) -> dict[str, int]:
    """What the recovery did."""
    figures = events.stats()["sources"][0]["multicast"]
    names = ("packets", "repaired", "computed", "duplicates", "nacks")
    dropped = sum(line.get("kernel_drops", 0) for line in figures["lines"])
    injected = sum(line.get("injected_drops", 0) for line in figures["lines"])
    return {
        **{name: figures.get(name, 0) for name in names},
        "kernel_drops": dropped,
        "injected_drops": injected,
    }


def ping(task: Task, boss: Connection) -> None:
    """Publish one event, wait for the answer, and so on."""
    with (
        Peer("ping", streams=_stream(TOPIC, task, task.port), security=_security(task)) as peer,
        peer.subscribe(PONG) as answers,
    ):
        boss.send(peer.address)
        boss.recv()
        peer.wait_for_subscribers(TOPIC, timeout=START_S)
        answers.wait_for_publishers(timeout=START_S)
        boss.send(READY)
        boss.recv()
        payload = payloads(task.size_bytes)[1]
        trips_ns = []
        with Meter(task) as meter, meter.loop():
            for _ in range(task.count):
                began_ns = time.perf_counter_ns()
                peer.publish(TOPIC, payload)
                answers.get()
                trips_ns.append(time.perf_counter_ns() - began_ns)
        boss.recv()
        report = meter.add_to(latencies(trips_ns, task))
        report.problems += check_subscription(answers)
        boss.send(report)
        boss.recv()


def echo(task: Task, boss: Connection) -> None:
    """Publish what comes."""
    boss.send("")
    with (
        Peer(
            "echo",
            streams=_stream(PONG, task, task.port + 2),
            connect=boss.recv()[0],
            security=_security(task),
        ) as peer,
        peer.subscribe(TOPIC) as events,
    ):
        peer.wait_for_subscribers(PONG, timeout=START_S)
        events.wait_for_publishers(timeout=START_S)
        boss.send(READY)
        with Meter(task) as meter, meter.loop():
            for _ in range(task.count):
                event = events.get()
                assert isinstance(event, Event)
                peer.publish(PONG, event.data)
        report = meter.add_to(Report(events=task.count))
        report.problems += check_subscription(events)
        boss.send(report)
        boss.recv()
