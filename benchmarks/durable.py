"""Measure durable streams through `Peer`: beside volatile ones, by threads, and under replay.

    python benchmarks/durable.py [--quick] [--rounds N] [--consumers N] [--json FILE] [--check]

- `publish_many` on a durable stream (fsync=batch) and on a volatile one, each to one subscriber in
  a process of its own, round by round.
- Single events, published by many threads at once.
- Live delivery at a steady rate while consumers that were away read all they missed from the log:
  what the live subscriber gets a second then, beside what it gets alone.  Every consumer sees to it
  that no event is missing or comes twice.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from rich.console import Console

from benchmarks.machine import Neighbours, this_machine
from meshmsg import Peer, Stream

TOPIC = "events.log"
PAYLOADS = [b"%08d" % n + bytes(56) for n in range(1000)]
START_S = 60.0
LIVE_RATIO_MIN = 0.7


# --- the consumers' side ---


def consume(kind: str, address: str) -> int:
    """Read for ever; say how far we are, ten times a second, and stop at what is not next."""
    start = "earliest" if kind == "late" else "live"
    with Peer(kind, connect=address) as peer, peer.subscribe(TOPIC, start=start) as events:
        seen, told_at, told = 0, 0.0, -1
        expected: int | None = 0 if kind == "late" else None
        while True:
            for batch in events.batches(timeout=0.1):
                first = batch.frame.first + batch.lo
                if expected is not None and first != expected:
                    _say({"problem": f"{first} after {expected}"})
                    return 1
                seen += len(batch)
                expected = first + len(batch)
                if time.time() - told_at > 0.1:
                    break
            if seen != told:
                told_at, told = time.time(), seen
                _say({"at": told_at, "seen": seen, "next": expected or 0})


def _say(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


class Consumer:
    """Such a process, as the publisher's side sees it."""

    def __init__(self, kind: str, address: str) -> None:
        command = [sys.executable, "-W", "ignore", __file__, "--consume", kind, address]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.points: list[tuple[float, int]] = []
        self.next = 0
        self.problem = ""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            self.problem = said.get("problem", self.problem)
            if "at" in said:
                self.points.append((said["at"], said["seen"]))
                self.next = said["next"]

    def rate(self, began: float, ended: float) -> float:
        """Events a second between two times."""
        points = [point for point in self.points if began <= point[0] <= ended]
        if len(points) < 2 or points[-1][0] == points[0][0]:
            return 0.0
        return (points[-1][1] - points[0][1]) / (points[-1][0] - points[0][0])

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        self._thread.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


def stream_of(durable: bool, fsync: str = "batch") -> Stream:
    return Stream(TOPIC, durability="log", fsync=fsync) if durable else Stream(TOPIC)


# --- what is measured ---


def publish_many(durable: bool, seconds: float) -> float:
    """Events a second to one subscriber."""
    with (
        tempfile.TemporaryDirectory(prefix="meshmsg-bench-") as folder,
        Peer("publisher", streams=[stream_of(durable)], data_dir=folder) as peer,
    ):
        consumer = Consumer("live", peer.address)
        try:
            peer.wait_for_subscribers(TOPIC, 1, timeout=START_S)
            ended = time.time() + seconds
            while time.time() < ended:
                peer.publish_many(TOPIC, PAYLOADS)
            peer.flush(timeout=START_S)
            return consumer.rate(ended - seconds, ended)
        finally:
            consumer.close()


def single_events(threads: int, fsync: str, seconds: float) -> float:
    """Events a second that so many threads publish one by one; nobody subscribes."""
    counts = [0] * threads
    stopped = threading.Event()
    with (
        tempfile.TemporaryDirectory(prefix="meshmsg-bench-") as folder,
        Peer("publisher", streams=[stream_of(True, fsync)], data_dir=folder) as peer,
    ):

        def work(number: int) -> None:
            publish, payload = peer.publish, PAYLOADS[0]
            while not stopped.is_set():
                for _ in range(10):
                    publish(TOPIC, payload)
                counts[number] += 10

        crew = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
        for thread in crew:
            thread.start()
        time.sleep(seconds / 4)
        before, began = sum(counts), time.perf_counter()
        time.sleep(seconds)
        after, ended = sum(counts), time.perf_counter()
        stopped.set()
        for thread in crew:
            thread.join()
    return (after - before) / (ended - began)


class Pacer:
    """Publishes at a steady rate, on a thread of its own."""

    def __init__(self, peer: Peer, rate: float) -> None:
        self.sent = 0
        self._peer = peer
        self._rate = rate
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        began = time.monotonic()
        skipped = 0.0
        while not self._stopped.wait(0.002):
            due = int((time.monotonic() - began - skipped) * self._rate) - self.sent
            if due > self._rate / 10:  # held up: what was missed then is not made up for
                skipped += due / self._rate
                continue
            if due > 0:
                self._peer.publish_many(TOPIC, (PAYLOADS * (due // 1000 + 1))[:due])
                self.sent += due

    def stop(self) -> None:
        """Stop, and wait for it."""
        self._stopped.set()
        self._thread.join()


def under_replay(
    away: int, consumers: int, rate: float, seconds: float, patience_s: float
) -> dict[str, Any]:
    """Live delivery alone and while consumers catch up; and whether they did."""
    with (
        tempfile.TemporaryDirectory(prefix="meshmsg-bench-") as folder,
        Peer("publisher", streams=[stream_of(True)], data_dir=folder) as peer,
    ):
        for _ in range(away // 1000):
            peer.publish_many(TOPIC, PAYLOADS)
        crew = [Consumer("live", peer.address)]
        live = crew[0]
        pacer = None
        try:
            peer.wait_for_subscribers(TOPIC, 1, timeout=START_S)
            pacer = Pacer(peer, rate)
            time.sleep(0.5)
            began = time.time()
            time.sleep(seconds)
            alone = live.rate(began, time.time())
            late = [Consumer("late", peer.address) for _ in range(consumers)]
            crew += late
            _wait(lambda: all(c.points or c.problem for c in late), START_S)
            began = time.time()
            time.sleep(seconds)
            beside = live.rate(began, time.time())
            pacer.stop()
            total = away + pacer.sent
            caught_up = _wait(lambda: all(c.next >= total or c.problem for c in late), patience_s)
            return {
                "alone": alone,
                "beside": beside,
                "caught_up": caught_up,
                "catch_up_s": time.time() - began,
                "problems": [c.problem for c in crew if c.problem],
            }
        finally:
            if pacer is not None:
                pacer.stop()
            for consumer in crew:
                consumer.close()


def _wait(condition: Any, timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


# --- the command ---


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Everything, in every round."""
    seconds = 1.0 if options.quick else 3.0
    away = options.away or (100_000 if options.quick else 1_000_000)
    found: dict[str, Any] = {"volatile": [], "durable": [], "single": {}, "replay": []}
    for number in range(options.rounds):
        for durable in (False, True) if number % 2 else (True, False):
            rate = publish_many(durable, seconds)
            found["durable" if durable else "volatile"].append(rate)
        for fsync in ("batch", "always"):
            for threads in (1, 8, 32):
                rates = found["single"].setdefault(f"{fsync}, {threads} threads", [])
                rates.append(single_events(threads, fsync, seconds / 2))
        found["replay"].append(
            under_replay(away, options.consumers, options.rate, seconds, options.patience)
        )
    return found


def targets(found: dict[str, Any]) -> list[tuple[str, float, float]]:
    """What should be reached: words, the bound, and what was; more is better."""
    replays = found["replay"]
    ratio = median(r["beside"] / max(r["alone"], 1.0) for r in replays)
    whole = all(r["caught_up"] and not r["problems"] for r in replays)
    return [
        ("live delivery while consumers catch up, of alone", LIVE_RATIO_MIN, ratio),
        ("consumers at the live edge, no gap, no duplicate", 1.0, float(whole)),
    ]


def show(found: dict[str, Any], console: Console) -> None:
    """For people."""
    durable, volatile = found["durable"], found["volatile"]
    ratio = median(d / max(v, 1.0) for d, v in zip(durable, volatile, strict=True))
    console.print(
        f"publish_many to one subscriber: volatile {median(volatile):,.0f}/s, durable "
        f"{median(durable):,.0f}/s, {ratio:.2f} of it"
    )
    for name, rates in found["single"].items():
        console.print(f"single events, fsync={name}: {median(rates):,.0f}/s")
    for replay in found["replay"]:
        console.print(
            f"live delivery: {replay['alone']:,.0f}/s alone, {replay['beside']:,.0f}/s while "
            f"consumers catch up, which took {replay['catch_up_s']:.1f} s"
        )
        for problem in replay["problems"]:
            console.print(f"  {problem}")
    for text, bound, reached in targets(found):
        word = "met" if reached >= bound else "MISSED"
        console.print(f"{word}: {text}: {reached:,.2f}, wanted {bound:,g}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and show; returns the exit status."""
    parser = argparse.ArgumentParser(prog="benchmarks/durable.py")
    add = parser.add_argument
    add("--quick", action="store_true", help="a tenth of the events, one short round")
    add("--rounds", type=int, default=None, metavar="N", help="measure everything N times")
    add("--consumers", type=int, default=10, metavar="N", help="that were away")
    add("--away", type=int, default=None, metavar="N", help="events that they missed")
    add("--rate", type=float, default=20_000, help="events a second of the live stream")
    add("--patience", type=float, default=120.0, metavar="S", help="time to catch up")
    add("--json", type=Path, metavar="FILE", help="write all measurements as JSON")
    add("--check", action="store_true", help="exit with 1 if a target was missed")
    add("--consume", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.consume:
        return consume(*options.consume)
    options.rounds = options.rounds or (1 if options.quick else 3)
    console = Console(highlight=False, emoji=False, markup=False)
    neighbours = Neighbours()
    found = measure(options)
    show(found, console)
    console.print(f"{this_machine().text()} {neighbours.text()}")
    if options.json is not None:
        data = {"machine": this_machine().as_dict(), **found}
        options.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    missed = any(reached < bound for _, bound, reached in targets(found))
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
