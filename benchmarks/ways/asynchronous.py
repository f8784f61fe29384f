"""meshmsg through `AsyncPeer`: the same measurements as in `sync`, on an event loop."""

from __future__ import annotations

import asyncio
import time
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.accounts import check_publisher, check_subscription, frames_of
from benchmarks.meter import Meter
from benchmarks.pace import Pace, age_ns
from benchmarks.task import PONG, READY, TOPIC, Report, Task, latencies, payloads, taken
from meshmsg import AsyncPeer, AsyncSubscription, Event, Stream

START_S = 30.0
ANSWER_S = 30.0


async def _hear(boss: Connection) -> Any:
    """What we are told; the loop goes on meanwhile."""
    return await asyncio.to_thread(boss.recv)


def publish(task: Task, boss: Connection) -> None:
    """Send everything to everyone, then look at the ledger."""
    asyncio.run(_publish(task, boss))


async def _publish(task: Task, boss: Connection) -> None:
    async with AsyncPeer("publisher", streams=Stream(TOPIC)) as peer:
        boss.send(peer.address)
        await _hear(boss)
        await peer.wait_for_subscribers(TOPIC, task.subscribers, timeout=START_S)
        boss.send(READY)
        await _hear(boss)
        with Meter(task) as meter:
            with meter.loop():
                await _publish_all(task, peer)
            await _hear(boss)
        report = meter.add_to(Report(events=task.count))
        await peer.flush(timeout=ANSWER_S)
        report.frames = frames_of(peer.stats())
        report.problems += check_publisher(await peer.ledger(), task)
        boss.send(report)
        await _hear(boss)


async def _publish_all(task: Task, peer: AsyncPeer) -> None:
    publish = peer.publish
    if task.rate:
        async for payload in Pace(task):
            await publish(TOPIC, payload)
        return
    pool = payloads(task.size_bytes)
    for _ in range(task.count // len(pool)):
        if task.batches:
            await peer.publish_many(TOPIC, pool)
        else:
            for payload in pool:
                await publish(TOPIC, payload)


def receive(task: Task, boss: Connection) -> None:
    """Take everything, and look for losses."""
    asyncio.run(_receive(task, boss))


async def _receive(task: Task, boss: Connection) -> None:
    boss.send("")
    (address,) = await _hear(boss)
    async with (
        AsyncPeer("subscriber", connect=address) as peer,
        peer.subscribe(TOPIC) as events,
    ):
        boss.send(READY)
        with Meter(task) as meter, meter.loop():
            if task.rate:
                report = await _take_times(task, events)
            elif task.batches:
                report = await _take_batches(task, events)
            else:
                report = await _take_events(task, events)
        report.problems += check_subscription(events)
        boss.send(meter.add_to(report))
        await _hear(boss)


async def _take_events(task: Task, events: AsyncSubscription) -> Report:
    octets = began_ns = 0
    left = task.count
    async for event in events:
        octets += len(event.data)
        left -= 1
        if not began_ns:
            began_ns = time.monotonic_ns()
        if not left:
            break
    return taken(task.count - left, 1, began_ns, time.monotonic_ns(), octets, task)


async def _take_batches(task: Task, events: AsyncSubscription) -> Report:
    seen = first = octets = began_ns = 0
    async for batch in events.batches():
        octets += sum(map(len, batch.payloads))
        seen += len(batch)
        if not first:
            first, began_ns = seen, time.monotonic_ns()
        if seen >= task.count:
            break
    return taken(seen, first, began_ns, time.monotonic_ns(), octets, task)


async def _take_times(task: Task, events: AsyncSubscription) -> Report:
    times_ns = []
    async for event in events:
        times_ns.append(age_ns(event.data))
        if len(times_ns) == task.count:
            break
    return latencies(times_ns, task)


def ping(task: Task, boss: Connection) -> None:
    """Publish one event, wait for the answer, and so on."""
    asyncio.run(_ping(task, boss))


async def _ping(task: Task, boss: Connection) -> None:
    async with (
        AsyncPeer("ping", streams=Stream(TOPIC)) as peer,
        peer.subscribe(PONG) as answers,
    ):
        boss.send(peer.address)
        await _hear(boss)
        await peer.wait_for_subscribers(TOPIC, timeout=START_S)
        boss.send(READY)
        await _hear(boss)
        payload = payloads(task.size_bytes)[1]
        trips_ns = []
        with Meter(task) as meter, meter.loop():
            for _ in range(task.count):
                began_ns = time.perf_counter_ns()
                await peer.publish(TOPIC, payload)
                await answers.get()
                trips_ns.append(time.perf_counter_ns() - began_ns)
        await _hear(boss)
        report = meter.add_to(latencies(trips_ns, task))
        report.problems += check_subscription(answers)
        boss.send(report)
        await _hear(boss)


def echo(task: Task, boss: Connection) -> None:
    """Publish what comes."""
    asyncio.run(_echo(task, boss))


async def _echo(task: Task, boss: Connection) -> None:
    boss.send("")
    (address,) = await _hear(boss)
    async with (
        AsyncPeer("echo", streams=Stream(PONG), connect=address) as peer,
        peer.subscribe(TOPIC) as events,
    ):
        await peer.wait_for_subscribers(PONG, timeout=START_S)
        boss.send(READY)
        with Meter(task) as meter, meter.loop():
            for _ in range(task.count):
                event = await events.get()
                assert isinstance(event, Event)
                await peer.publish(PONG, event.data)
        report = meter.add_to(Report(events=task.count))
        report.problems += check_subscription(events)
        boss.send(report)
        await _hear(boss)
