"""Measure what a user types first: `publish` on a durable stream, one event at a time.

    python benchmarks/single.py [--quick] [--rounds N] [--json FILE] [--check]

- `publish` with `durability="log"` and `fsync="batch"` beside a volatile stream, with as many
  threads; nobody subscribes.
- Replay to a subscriber that comes late, in a process of its own, of logs that were written in
  different ways, beside one of `publish_many`.  `FRAMES` are logs as versions before this one
  wrote them: a frame for each event.
- Bytes an event in the log, averaged over all that was published.

A log of events at 1,000 a second is published at that rate, once; to have enough of it to replay,
its frames are written again and again.  Live delivery beside raw pyzmq is the case
`throughput/64B/1-1/durable` of `benchmarks/run.py`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from rich.console import Console

from benchmarks.machine import Neighbours, this_machine
from meshmsg import Loss, Peer, Stream
from meshmsg._wire.control import stream_wire_id
from meshmsg._wire.frame import encode_frame
from meshmsg.recovery.log.appender import LogSettings
from meshmsg.recovery.log.folder import LogFolder
from meshmsg.recovery.log.reader import LogReader
from meshmsg.recovery.log.verify import verify
from meshmsg.recovery.log.writer import LogWriter

TOPIC = "events.log"
NAME = "publisher"
STREAM = f"{NAME}/{TOPIC}"
PAYLOAD_BYTES = 64
PAYLOADS = [b"%08d" % n + bytes(PAYLOAD_BYTES - 8) for n in range(1000)]
THREADS = (1, 8)
RATE = 1000
WAIT_S = 60.0
#: Of an event in the log, beside its payload.
OVERHEAD_BYTES_MAX = 24

MANY, FLAT_OUT, PACED = "publish_many", "publish flat out", f"publish at {RATE:,}/s"
FRAMES = "a frame for each event"
context = multiprocessing.get_context("spawn")


def publish(durable: bool, threads: int) -> str:
    """The name of a figure."""
    crew = f"{threads} thread{'s' * (threads > 1)}"
    return f"publish, {'durable, fsync=batch' if durable else 'volatile'}, {crew}"


def replay(log: str) -> str:
    """The name of a figure."""
    return f"replay of {log}"


def size(log: str) -> str:
    """The name of a figure."""
    return f"bytes an event of {log}"


@dataclass(frozen=True, slots=True)
class Goal:
    """What has to be reached: a ratio to what is beside it, or a figure by itself."""

    what: str
    bound: float
    beside: str = ""
    at_most: bool = False

    @property
    def wanted(self) -> str:
        """The bound, for people."""
        times = "x" if self.beside else ""
        return f"{'at most' if self.at_most else 'at least'} {self.bound:,}{times}"

    def reached(self, found: dict[str, list[float]]) -> float:
        """The median of the rounds."""
        figures = found[self.what]
        if self.beside:
            return median(a / b for a, b in zip(figures, found[self.beside], strict=True))
        return median(figures)

    def is_met(self, found: dict[str, list[float]]) -> bool:
        """Whether that is good enough."""
        reached = self.reached(found)
        return reached <= self.bound if self.at_most else reached >= self.bound


SIZE_MAX = PAYLOAD_BYTES + OVERHEAD_BYTES_MAX
GOALS = (
    *(Goal(publish(True, n), 0.5, publish(False, n)) for n in THREADS),
    *(Goal(replay(log), 5_000_000) for log in (FLAT_OUT, PACED)),
    Goal(replay(FRAMES), 1_000_000),
    *(Goal(size(log), SIZE_MAX, at_most=True) for log in (FLAT_OUT, PACED)),
)


# --- publishing ---


@contextmanager
def publisher(folder: Path, durable: bool = True) -> Iterator[Peer]:
    """A peer as a user makes it."""
    stream = Stream(TOPIC, durability="log") if durable else Stream(TOPIC)
    with Peer(NAME, streams=[stream], data_dir=folder) as peer:
        yield peer


def publish_rate(folder: Path, durable: bool, threads: int, seconds: float) -> float:
    """Events a second that so many threads publish."""
    counts = [0] * threads
    stopped = threading.Event()
    with publisher(folder, durable) as peer:

        def work(number: int) -> None:
            publish = peer.publish
            while not stopped.is_set():
                for payload in PAYLOADS[:100]:
                    publish(TOPIC, payload)
                counts[number] += 100

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


def write_many(folder: Path, count: int) -> None:
    """With `publish_many`."""
    with publisher(folder) as peer:
        for _ in range(count // len(PAYLOADS)):
            peer.publish_many(TOPIC, PAYLOADS)


def write_flat_out(folder: Path, count: int) -> None:
    """One after the other."""
    with publisher(folder) as peer:
        for _, payload in zip(range(count), cycle(PAYLOADS), strict=False):
            peer.publish(TOPIC, payload)


def write_paced(folder: Path, count: int) -> None:
    """At a steady rate."""
    with publisher(folder) as peer:
        began = time.perf_counter()
        for number, payload in zip(range(count), cycle(PAYLOADS), strict=False):
            time.sleep(max(0.0, began + number / RATE - time.perf_counter()))
            peer.publish(TOPIC, payload)


def write_frames(folder: Path, count: int, sizes: Sequence[int] = (1,)) -> None:
    """Frames of so many events, again and again; events are a millisecond apart."""
    wire_id = stream_wire_id("default", STREAM)
    first, frames = 0, 0
    with LogWriter(str(folder), STREAM, settings=LogSettings(fsync="never", tail_bytes=0)) as log:
        epoch = log.begin(1)
        for events in cycle(sizes):
            if first >= count:
                break
            payloads = (PAYLOADS * (events // len(PAYLOADS) + 1))[:events]
            times = [(first + n) * 1_000_000 for n in range(events)]
            log.append(
                encode_frame(wire_id, epoch, first, TOPIC, payloads, times), first, first + events
            )
            first, frames = first + events, frames + 1
    written = verify(LogFolder.of(str(folder), STREAM)).frames
    if written != frames:
        raise AssertionError(f"{written:,} frames were written, {frames:,} were meant")


def frame_sizes(folder: Path) -> list[int]:
    """Events in each frame of a log."""
    with LogReader(LogFolder.of(str(folder), STREAM), joins=False) as reader:
        reader.seek_earliest()
        entries = list(reader.entries())
    return [entry.stop - entry.first for entry in entries if not isinstance(entry, Loss)]


def bytes_of(folder: Path) -> int:
    """All files of a log."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


# --- replay ---


def _late(address: str, count: int, boss: Connection) -> None:
    """The subscriber's process: how fast everything comes, once the first has."""
    seen = first = began_ns = 0
    with (
        Peer("late", connect=address) as peer,
        peer.subscribe(TOPIC, start="earliest") as events,
    ):
        for batch in events.batches():
            seen += len(batch)
            if not began_ns:
                first, began_ns = seen, time.monotonic_ns()
            if seen >= count:
                break
        took_s = (time.monotonic_ns() - began_ns) / 1e9
        boss.send((seen - first, took_s, seen, events.lost))


def replay_rate(folder: Path) -> float:
    """Events a second to a subscriber that comes late."""
    count = verify(LogFolder.of(str(folder), STREAM)).events
    ours, theirs = context.Pipe()
    with publisher(folder) as peer:
        process = context.Process(target=_late, args=(peer.address, count, theirs), daemon=True)
        process.start()
        if not ours.poll(WAIT_S):
            process.kill()
            raise AssertionError(f"no {count:,} events in {WAIT_S:.0f} s")
        events, took_s, seen, lost = ours.recv()
        process.join()
    if seen != count or lost:
        raise AssertionError(f"{seen:,} events of {count:,}, {lost:,} lost")
    rate: float = events / took_s
    return rate


# --- the command ---


def measure(options: argparse.Namespace, console: Console) -> dict[str, list[float]]:
    """Every figure in every round; the logs are written once."""
    found: dict[str, list[float]] = {}
    seconds = 0.5 if options.quick else 2.0
    with (
        tempfile.TemporaryDirectory(prefix="meshmsg-bench-", dir=options.dir) as place,
        console.status("starting") as status,
    ):
        folder = Path(place)
        status.update("writing logs")
        logs = write_logs(folder, options, found)
        for number in range(options.rounds):
            rates: list[tuple[str, Callable[[], float]]] = [
                (replay(log), lambda path=path: replay_rate(path))  # type: ignore[misc]
                for log, path in logs.items()
            ]
            for threads in THREADS:
                for durable in (False, True):
                    words = (durable, threads, seconds)
                    rates.append((publish(durable, threads), lambda w=words: _publishing(place, w)))  # type: ignore[misc]
            at = number % len(rates)
            for what, rate in rates[at:] + rates[:at]:
                status.update(f"round {number + 1} of {options.rounds}: {what}")
                found.setdefault(what, []).append(rate())
    return found


def _publishing(place: str, words: tuple[bool, int, float]) -> float:
    with tempfile.TemporaryDirectory(dir=place) as folder:
        return publish_rate(Path(folder), *words)


def write_logs(
    folder: Path, options: argparse.Namespace, found: dict[str, list[float]]
) -> dict[str, Path]:
    """The logs that are replayed, by name; what an event takes in them is found out, too."""
    logs = {log: folder / f"log-{n}" for n, log in enumerate((MANY, FLAT_OUT, PACED, FRAMES))}
    events = 200_000 if options.quick else 1_000_000
    for path in logs.values():
        path.mkdir()
    write_many(logs[MANY], events)
    write_flat_out(logs[FLAT_OUT], events)
    write_frames(logs[FRAMES], events)
    slowly = folder / "slowly"
    slowly.mkdir()
    paced = int(RATE * options.paced_s)
    write_paced(slowly, paced)
    write_frames(logs[PACED], events, frame_sizes(slowly))
    for log, path, count in (
        (MANY, logs[MANY], events),
        (FLAT_OUT, logs[FLAT_OUT], events),
        (PACED, slowly, paced),
        (FRAMES, logs[FRAMES], events),
    ):
        found[size(log)] = [bytes_of(path) / count]
    return logs


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and show; returns the exit status."""
    parser = argparse.ArgumentParser(prog="benchmarks/single.py")
    add = parser.add_argument
    add("--quick", action="store_true", help="fewer events, one round")
    add("--rounds", type=int, default=None, metavar="N", help="measure everything N times")
    add("--paced-s", type=float, default=None, metavar="S", help=f"publish {RATE:,}/s so long")
    add("--dir", type=Path, default=None, help="where to write; the system's temporary folder")
    add("--json", type=Path, metavar="FILE", help="write all measurements as JSON")
    add("--check", action="store_true", help="exit with 1 if a target was missed")
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (1 if options.quick else 3)
    options.paced_s = options.paced_s or (3.0 if options.quick else 100.0)
    console = Console(highlight=False, emoji=False, markup=False)
    neighbours = Neighbours()
    found = measure(options, console)
    for what, figures in found.items():
        console.print(f"{what}: {median(figures):,.0f}")
    for goal in GOALS:
        beside = f" of {goal.beside}" if goal.beside else ""
        word = "met" if goal.is_met(found) else "MISSED"
        console.print(
            f"{word}: {goal.what}{beside}: {goal.reached(found):,.2f}, wanted {goal.wanted}"
        )
    console.print(f"{this_machine().text()} {neighbours.text()}")
    if options.json is not None:
        data: dict[str, Any] = {"machine": this_machine().as_dict(), "figures": found}
        data["paced_events"] = int(RATE * options.paced_s)
        options.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    missed = not all(goal.is_met(found) for goal in GOALS)
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
