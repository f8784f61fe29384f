"""NATS: nats-py and a nats-server between the two, which the others do without.

The server is started by the process that sends, and what it uses of the processor counts.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import nats

from benchmarks.group_rivals import Nats
from benchmarks.meter import Meter
from benchmarks.task import READY, Report, Task, latencies, payloads, taken

SUBJECT = "bench.events"
BACK = "bench.back"
#: It cuts off who is this far behind; nobody here is to be cut off.
PENDING_BYTES = 1 << 30


class CoreNats(Nats):
    """The server without what stores anything."""

    def _start(self, program: str, folder: str) -> tuple[list[str], dict[str, str]]:
        settings = Path(folder, "nats.conf")
        settings.write_text(f"max_pending: {PENDING_BYTES}\nwrite_deadline: '60s'\n")
        words = [program, "-c", str(settings), "-a", "127.0.0.1", "-p", str(self.port)]
        return words, {}

    @property
    def cpu_s(self) -> float:
        """User and system time so far."""
        assert self._process is not None
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _connect(address: str) -> Any:
    async def say_nothing(error: Exception) -> None:
        """The server ends with the run."""

    return await nats.connect(
        f"nats://{address}",
        allow_reconnect=False,
        error_cb=say_nothing,
    )


async def _subscribe(client: Any, subject: str, take: Callable[..., Coroutine[Any, Any, None]]):
    await client.subscribe(subject, cb=take, pending_msgs_limit=-1, pending_bytes_limit=-1)
    await client.flush()


async def _hear(boss: Connection) -> Any:
    return await asyncio.to_thread(boss.recv)


def publish(task: Task, boss: Connection) -> None:
    """Start the server, and send everything to everyone."""
    with CoreNats() as server:
        asyncio.run(_publish(task, boss, server))


async def _publish(task: Task, boss: Connection, server: CoreNats) -> None:
    client = await _connect(server.address)
    boss.send(server.address)
    await _hear(boss)
    boss.send(READY)
    await _hear(boss)
    send, pool = client.publish, payloads(task.size_bytes)
    served_s = server.cpu_s
    with Meter(task) as meter:
        with meter.loop():
            for _ in range(task.count // len(pool)):
                for payload in pool:
                    await send(SUBJECT, payload)
            await client.flush(60)
        await _hear(boss)
    report = meter.add_to(Report(events=task.count))
    report.cpu_s += server.cpu_s - served_s
    boss.send(report)
    await _hear(boss)


def receive(task: Task, boss: Connection) -> None:
    """Take everything."""
    boss.send("")
    asyncio.run(_receive(task, boss, boss.recv()[0]))


async def _receive(task: Task, boss: Connection, address: str) -> None:
    client = await _connect(address)
    events = octets = began_ns = 0
    everything = asyncio.Event()

    async def take(message: Any) -> None:
        nonlocal events, octets, began_ns
        events += 1
        octets += len(message.data)
        if events == 1:
            began_ns = time.monotonic_ns()
        elif events == task.count:
            everything.set()

    await _subscribe(client, SUBJECT, take)
    boss.send(READY)
    with Meter(task) as meter, meter.loop():
        await everything.wait()
        ended_ns = time.monotonic_ns()
    boss.send(meter.add_to(taken(events, 1, began_ns, ended_ns, octets, task)))
    await _hear(boss)


def ping(task: Task, boss: Connection) -> None:
    """Start the server; publish one message, wait for the answer, and so on."""
    with CoreNats() as server:
        asyncio.run(_ping(task, boss, server.address))


async def _ping(task: Task, boss: Connection, address: str) -> None:
    client = await _connect(address)
    answers = await client.subscribe(BACK)
    await client.flush()
    boss.send(address)
    await _hear(boss)
    boss.send(READY)
    await _hear(boss)
    payload = payloads(task.size_bytes)[1]
    trips_ns = []
    with Meter(task) as meter, meter.loop():
        for _ in range(task.count):
            began_ns = time.perf_counter_ns()
            await client.publish(SUBJECT, payload)
            await answers.next_msg(timeout=30)
            trips_ns.append(time.perf_counter_ns() - began_ns)
    await _hear(boss)
    boss.send(meter.add_to(latencies(trips_ns, task)))
    await _hear(boss)


def echo(task: Task, boss: Connection) -> None:
    """Publish what comes."""
    boss.send("")
    asyncio.run(_echo(task, boss, boss.recv()[0]))


async def _echo(task: Task, boss: Connection, address: str) -> None:
    client = await _connect(address)
    left = task.count
    everything = asyncio.Event()

    async def back(message: Any) -> None:
        nonlocal left
        await client.publish(BACK, message.data)
        left -= 1
        if not left:
            everything.set()

    await _subscribe(client, SUBJECT, back)
    boss.send(READY)
    with Meter(task) as meter, meter.loop():
        await everything.wait()
        await client.flush()
    boss.send(meter.add_to(Report(events=task.count)))
    await _hear(boss)
