"""Why the slow round trips are slow: which thread held what, and for how long.

    python benchmarks/tails.py [--trips 10000] [--take "get(timeout=)"] [--slowest 5]

Two peers, each pinned to a processor that is kept awake, send an event back and forth.  In both
processes the turns of the I/O thread and of the garbage collector are timed, and Linux tells how
long each thread was ready and did not run.  Each of the slowest trips (one in a hundred) is put
down to whatever took most of what it took longer than the median.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WARM_UP = 500
START_S = 30.0
PROCESSES = get_context("spawn")
clock = time.perf_counter_ns

READY = "a thread was ready and did not run: another program, or the hypervisor"
TURN = "a turn of an I/O thread"
COLLECTOR = "the garbage collector"
ELSEWHERE = "none of them: kernel, host"
Span = tuple[int, int]


@dataclass(slots=True)
class Trace:
    """What one process has seen."""

    trips: list[tuple[int, int, int]] = field(default_factory=list)
    """Of each: begun, what was published has left, the answer is there."""
    waits_ns: list[int] = field(default_factory=list)
    """How long its threads were ready meanwhile, without running."""
    turns: list[Span] = field(default_factory=list)
    collections: list[Span] = field(default_factory=list)


class Ready:
    """How long the threads that are on the way of an event were ready, and did not run."""

    def __init__(self) -> None:
        io = next(t.native_id for t in threading.enumerate() if t.name.startswith("meshmsg-"))
        tasks = [task for task in os.listdir("/proc/self/task") if int(task) != io]
        self._files = [os.open(f"/proc/self/task/{task}/schedstat", os.O_RDONLY) for task in tasks]

    def ns(self) -> int:
        """In all, so far."""
        return sum(int(os.pread(file, 64, 0).split()[1]) for file in self._files)


def _watch(trace: Trace) -> None:
    """Time the turns of the I/O thread, from one wait to the next, and the collector's."""
    from meshmsg.transports.zmq.context import Poller

    wait, began = Poller.wait, 0

    def timed(self: Poller, timeout_s: float) -> list[Any]:
        nonlocal began
        if began:
            trace.turns.append((began, clock()))
        found = wait(self, timeout_s)
        began = clock()
        return found

    def collected(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            trace.collections.append((clock(), 0))
        else:
            trace.collections[-1] = (trace.collections[-1][0], clock())

    Poller.wait = timed  # type: ignore[method-assign]
    gc.callbacks.append(collected)


def work(role: int, trips: int, take: str, boss: Connection) -> None:
    """Send and wait, or wait and send back."""
    sys.path.insert(0, str(ROOT))
    from benchmarks.machine import cores
    from benchmarks.task import Task
    from benchmarks.ways.sync import taker
    from meshmsg import Peer, Stream

    os.sched_setaffinity(0, {cores()[role % len(cores())]})
    trace = Trace()
    _watch(trace)
    mine, theirs = ("ping", "pong") if role == 0 else ("pong", "ping")
    connect = boss.recv()
    with (
        Peer(mine, streams=Stream(mine), connect=connect) as peer,
        peer.subscribe(theirs) as events,
    ):
        boss.send(peer.address)
        peer.wait_for_subscribers(mine, timeout=START_S)
        events.wait_for_publishers(timeout=START_S)
        boss.send("ready")
        boss.recv()
        get, ready = taker(Task(mine, "sync", 64, trips, take=take), events), Ready()
        payload = bytes(64)
        for _ in range(trips + WARM_UP):
            waited_ns, began = ready.ns(), clock()
            if role == 0:
                peer.publish(mine, payload)
                sent = clock()
                get()
            else:
                payload = get()
                sent = clock()
                peer.publish(mine, payload)
            trace.trips.append((began, sent, clock()))
            trace.waits_ns.append(ready.ns() - waited_ns)
        boss.send(trace)
        boss.recv()


def measure(trips: int, take: str) -> tuple[Trace, Trace]:
    """The traces of both processes."""
    lines = [PROCESSES.Pipe() for _ in range(2)]
    processes = [
        PROCESSES.Process(target=work, args=(role, trips, take, line[1]), daemon=True)
        for role, line in enumerate(lines)
    ]
    for process in processes:
        process.start()
    try:
        (ping, _), (pong, _) = lines
        ping.send(())
        pong.send(ping.recv())
        pong.recv()
        for line in (ping, pong):
            assert line.recv() == "ready"
        for line in (pong, ping):
            line.send("go")
        return ping.recv(), pong.recv()
    finally:
        for process in processes:
            process.kill()


def _overlap(spans: Sequence[Span], first: int, last: int) -> int:
    return sum(max(0, min(end, last) - max(begin, first)) for begin, end in spans)


def causes(number: int, ping: Trace, pong: Trace) -> dict[str, int]:
    """What there was in the time of one trip, in ns."""
    first, _, last = ping.trips[number]
    turns = _overlap([*ping.turns, *pong.turns], first, last)
    return {
        COLLECTOR: _overlap([*ping.collections, *pong.collections], first, last),
        TURN: turns,
        READY: ping.waits_ns[number] + pong.waits_ns[number] - turns,  # who waits for a turn, too
    }


def report(ping: Trace, pong: Trace, slowest: int) -> None:
    """Print percentiles, and what the slow trips are put down to."""
    every = enumerate(ping.trips)
    times = sorted((last - first, n) for n, (first, _, last) in every if n >= WARM_UP)
    count = len(times)
    median = times[count // 2][0]
    marks = (50.0, 90.0, 99.0, 99.9)
    print("  ".join(f"p{p:g} {times[int(count * p / 100)][0] / 1e3:.0f} us" for p in marks))
    found: dict[str, list[int]] = defaultdict(list)
    slow = times[int(count * 0.99) :]
    for ns, n in slow:
        excess = ns - median
        cause, part = max(causes(n, ping, pong).items(), key=lambda item: item[1])
        found[cause if part * 2 > excess else ELSEWHERE].append(excess)
    print(f"\nThe slowest {len(slow)} of {count}, by what took most of their excess:")
    for cause, excess_ns in sorted(found.items(), key=lambda item: -sum(item[1])):
        mean, most = sum(excess_ns) / len(excess_ns) / 1e3, max(excess_ns) / 1e3
        print(f"  {len(excess_ns):5}  {mean:7.0f} us more (at most {most:7.0f})  {cause}")
    for ns, n in times[-slowest:][::-1]:
        found_us = {
            cause.partition(":")[0]: ns / 1e3 for cause, ns in causes(n, ping, pong).items()
        }
        print(f"  trip {n}: {ns / 1e3:.0f} us", {what: round(us) for what, us in found_us.items()})


def main(arguments: Sequence[str] | None = None) -> int:
    """Trace round trips, and tell."""
    sys.path.insert(0, str(ROOT))
    from benchmarks.case import TAKES
    from benchmarks.machine import kept_awake

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trips", type=int, default=10_000)
    parser.add_argument("--take", choices=TAKES, default=TAKES[0])
    parser.add_argument("--slowest", type=int, default=5, metavar="N", help="shown one by one")
    options = parser.parse_args(arguments)
    with kept_awake():
        ping, pong = measure(options.trips, options.take)
    report(ping, pong, options.slowest)
    return 0


if __name__ == "__main__":
    sys.exit(main())
