"""meshmsg over multicast: event by event, or in batches.  Order, repair and books are on."""

from __future__ import annotations

from contextlib import nullcontext
from multiprocessing.connection import Connection

from benchmarks.accounts import check_subscription
from benchmarks.meter import Meter
from benchmarks.space import GROUP
from benchmarks.task import PONG, READY, TOPIC, Task
from benchmarks.ways.sync import (
    START_S,
    publish_all,
    report_published,
    send_back,
    take,
    time_trips,
)
from meshmsg import Multicast, Peer, Security, Stream, Subscription
from meshmsg.testing import lose_packets

SEED = 7
MESH_KEY = "Known_To_All_Who_Read_This_7f3a9c1e5b2d8046"


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
        report_published(task, boss, peer, meter)


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
            report = take(task, events)
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
        time_trips(task, boss, peer, answers)


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
        send_back(task, boss, peer, events)
