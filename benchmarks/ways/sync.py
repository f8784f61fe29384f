"""meshmsg through `Peer`: event by event, or in batches.  All guarantees are on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.accounts import check_publisher, check_subscription, frames_of
from benchmarks.meter import Meter
from benchmarks.pace import Pace, age_ns
from benchmarks.task import PONG, READY, TOPIC, Report, Task, latencies, payloads, taken
from meshmsg import Peer, Stream, Subscription

START_S = 30.0
ANSWER_S = 30.0


def publish(task: Task, boss: Connection) -> None:
    """Send everything to everyone, then look at the ledger."""
    topics = topics_of(task)
    with Peer("publisher", streams=streams_of(task, topics)) as peer:
        publish_through(task, boss, peer, topics)


def publish_through(task: Task, boss: Connection, peer: Peer, topics: Sequence[str]) -> None:
    """What `publish` does with its peer."""
    boss.send(peer.address)
    boss.recv()
    for topic in topics if task.streams > 1 else topics[:1]:
        peer.wait_for_subscribers(topic, task.subscribers, timeout=START_S)
    boss.send(READY)
    boss.recv()
    with Meter(task) as meter:
        with meter.loop():
            if len(topics) > 1:
                publish_in_turn(task, peer, topics)
            else:
                publish_all(task, peer)
        boss.recv()
    report_published(task, boss, peer, meter)


def report_published(task: Task, boss: Connection, peer: Peer, meter: Meter) -> None:
    """Say what it took, when all is handed over and the ledger was looked at."""
    report = meter.add_to(Report(events=task.count))
    peer.flush(timeout=ANSWER_S)
    report.frames = frames_of(peer.stats())
    report.problems += check_publisher(peer.ledger(), task)
    boss.send(report)
    boss.recv()


def topics_of(task: Task) -> list[str]:
    """Those that are published to in turn."""
    count = max(task.streams, task.topics)
    return [f"{TOPIC}.t{n}" for n in range(count)] if count > 1 else [TOPIC]


def pattern_of(task: Task) -> str:
    """What a subscriber of everything asks for."""
    return f"{TOPIC}.**" if max(task.streams, task.topics) > 1 else TOPIC


def streams_of(task: Task, topics: Sequence[str]) -> list[Stream]:
    """One for each topic, or one for all of them."""
    if task.streams > 1:
        return [Stream(topic) for topic in topics]
    return [Stream(pattern_of(task))]


def publish_in_turn(task: Task, peer: Peer, topics: Sequence[str]) -> None:
    """Another topic for each event."""
    publish, pool = peer.publish, payloads(task.size_bytes)
    turns = cycle(topics)
    for _ in range(task.count // len(pool)):
        for payload in pool:
            publish(next(turns), payload)


def publish_all(task: Task, peer: Peer) -> None:
    publish = peer.publish
    if task.rate:
        for payload in Pace(task):
            publish(TOPIC, payload)
        return
    pool = payloads(task.size_bytes)
    for _ in range(task.count // len(pool)):
        if task.batches:
            peer.publish_many(TOPIC, pool)
        else:
            for payload in pool:
                publish(TOPIC, payload)


def receive(task: Task, boss: Connection) -> None:
    """Take everything, and look for losses."""
    boss.send("")
    with (
        Peer("subscriber", connect=boss.recv()[0]) as peer,
        peer.subscribe(pattern_of(task)) as events,
    ):
        if task.streams > 1:
            events.wait_for_publishers(task.streams, timeout=START_S)
        boss.send(READY)
        with Meter(task) as meter, meter.loop():
            report = take(task, events)
        report.problems += check_subscription(events)
        boss.send(meter.add_to(report))
        boss.recv()


def take(task: Task, events: Subscription) -> Report:
    """Everything, as the task wants it taken."""
    if task.rate:
        return take_times(task, events)
    if task.batches:
        return take_batches(task, events)
    return take_events(task, events)


def take_events(task: Task, events: Subscription) -> Report:
    stream = iter(events)
    octets = len(next(stream).data)
    began_ns = time.monotonic_ns()
    for event in islice(stream, task.count - 1):
        octets += len(event.data)
    return taken(task.count, 1, began_ns, time.monotonic_ns(), octets, task)


def take_batches(task: Task, events: Subscription) -> Report:
    seen = first = octets = began_ns = 0
    for batch in events.batches():
        octets += sum(map(len, batch.payloads))
        seen += len(batch)
        if not first:
            first, began_ns = seen, time.monotonic_ns()
        if seen >= task.count:
            break
    return taken(seen, first, began_ns, time.monotonic_ns(), octets, task)


def take_times(task: Task, events: Subscription) -> Report:
    return latencies([age_ns(event.data) for event in islice(events, task.count)], task)


def ping(task: Task, boss: Connection) -> None:
    """Publish one event, wait for the answer, and so on."""
    with Peer("ping", streams=Stream(TOPIC)) as peer, peer.subscribe(PONG) as answers:
        boss.send(peer.address)
        boss.recv()
        peer.wait_for_subscribers(TOPIC, timeout=START_S)
        time_trips(task, boss, peer, answers)


def time_trips(task: Task, boss: Connection, peer: Peer, answers: Subscription) -> None:
    """What `ping` does when both sides have found each other."""
    boss.send(READY)
    boss.recv()
    payload = payloads(task.size_bytes)[1]
    take = taker(task, answers)
    trips_ns = []
    with Meter(task) as meter, meter.loop():
        for _ in range(task.count):
            began_ns = time.perf_counter_ns()
            peer.publish(TOPIC, payload)
            take()
            trips_ns.append(time.perf_counter_ns() - began_ns)
    boss.recv()
    report = meter.add_to(latencies(trips_ns, task))
    report.problems += check_subscription(answers)
    boss.send(report)
    boss.recv()


def taker(task: Task, events: Subscription) -> Callable[[], Any]:
    """What takes the payload of the next event, by the verb that the task names."""
    if task.take == "for event in":
        each = iter(events)
        return lambda: next(each).data
    if task.take == "batches":
        batches = events.batches(timeout=ANSWER_S)
        return lambda: next(batches).payloads[0]
    if task.take == "get_many":
        return lambda: events.get_many(100, timeout=ANSWER_S)[0].data

    def get() -> Any:
        event = events.get(timeout=ANSWER_S)
        assert event is not None
        return event.data

    return get


def echo(task: Task, boss: Connection) -> None:
    """Publish what comes."""
    boss.send("")
    with (
        Peer("echo", streams=Stream(PONG), connect=boss.recv()[0]) as peer,
        peer.subscribe(TOPIC) as events,
    ):
        peer.wait_for_subscribers(PONG, timeout=START_S)
        send_back(task, boss, peer, events)


def send_back(task: Task, boss: Connection, peer: Peer, events: Subscription) -> None:
    """What `echo` does when both sides have found each other."""
    boss.send(READY)
    take = taker(task, events)
    with Meter(task) as meter, meter.loop():
        for _ in range(task.count):
            peer.publish(PONG, take())
    report = meter.add_to(Report(events=task.count))
    report.problems += check_subscription(events)
    boss.send(report)
    boss.recv()
