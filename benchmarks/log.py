"""Measure the durable log: appending beside SQLite, LMDB and a plain write; replay; start-up.

    python benchmarks/log.py [--quick] [--rounds N] [--dir DIR] [--json FILE] [--check]

Everybody writes the same events in the same batches and ends with all of them on the disk.  The
ways take turns, and ratios are taken round by round: the machine is not the same from one minute to
the next.  A plain sequential `write` of the very bytes that the log writes, already encoded, with
one fsync at the end, is the limit.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from rich.console import Console
from rich.table import Table

from benchmarks.case import THROUGHPUT, Case
from benchmarks.machine import Neighbours, this_machine
from benchmarks.trial import Effort, run_trial
from benchmarks.way import RAW
from meshmsg._model.event import Loss
from meshmsg._wire.control import stream_wire_id
from meshmsg._wire.frame import encode_frame
from meshmsg.recovery.log.appender import LogSettings
from meshmsg.recovery.log.format import SegmentName, record_size
from meshmsg.recovery.log.reader import LogReader
from meshmsg.recovery.log.writer import LogWriter

STREAM = "bench/events.**"
TOPIC = "events.log"
WIRE_ID = stream_wire_id("default", STREAM)
#: What a frame under load holds.
FRAME_BYTES = 128 * 1024
LARGE_LOG_BYTES = 10 * 10**9

PLAIN = "plain write"
LOG = "meshmsg log, fsync=batch"
LOG_ALWAYS = "meshmsg log, fsync=always"
SQLITE_NORMAL = "SQLite WAL, synchronous=NORMAL"
SQLITE_FULL = "SQLite WAL, synchronous=FULL"
LMDB_LATER = "LMDB, one sync at the end"
LMDB_EACH = "LMDB, a sync for each batch"


@dataclass(frozen=True, slots=True)
class Load:
    """Events to be written, in batches."""

    size_bytes: int
    batches: int
    batch_events: int

    @property
    def events(self) -> int:
        """All events."""
        return self.batches * self.batch_events

    def payloads(self) -> list[bytes]:
        """Those of a batch."""
        size = self.size_bytes
        return [(b"%08d" % n + bytes(range(256)) * 5)[:size] for n in range(self.batch_events)]


def load_of(size_bytes: int, total_bytes: int) -> Load:
    """Batches of about a frame."""
    events = FRAME_BYTES // (size_bytes + 4)
    return Load(size_bytes, max(1, total_bytes // (events * size_bytes)), events)


# --- ways to append ---


def plain(folder: Path, load: Load) -> float:
    """The bytes of the log, ready made."""
    size = len(encode_frame(WIRE_ID, 1, 0, TOPIC, load.payloads(), 1, length=load.size_bytes))
    block = os.urandom(record_size(size))
    fd = os.open(folder / "plain", os.O_WRONLY | os.O_CREAT)
    began = time.perf_counter()
    for _ in range(load.batches):
        os.write(fd, block)
    os.fdatasync(fd)
    took = time.perf_counter() - began
    os.close(fd)
    return took


def log(folder: Path, load: Load, fsync: str = "batch") -> float:
    """From payloads to frames to the disk."""
    payloads = load.payloads()
    with LogWriter(str(folder), STREAM, settings=LogSettings(fsync=fsync)) as writer:
        epoch = writer.begin(1)
        began = time.perf_counter()
        first = 0
        for _ in range(load.batches):
            now = time.time_ns()
            frame = encode_frame(
                WIRE_ID, epoch, first, TOPIC, payloads, now, length=load.size_bytes
            )
            stop = first + load.batch_events
            writer.append(frame, first, stop, now)
            first = stop
        writer.flush()
        return time.perf_counter() - began


def log_always(folder: Path, load: Load) -> float:
    """A sync for each batch."""
    return log(folder, load, "always")


def sqlite(folder: Path, load: Load, synchronous: str = "NORMAL") -> float:
    """A transaction for each batch."""
    payloads = load.payloads()
    base = sqlite3.connect(folder / "events.db", isolation_level=None)
    base.execute("PRAGMA journal_mode=WAL")
    base.execute(f"PRAGMA synchronous={synchronous}")
    base.execute("CREATE TABLE events (seq INTEGER PRIMARY KEY, payload BLOB)")
    began = time.perf_counter()
    first = 0
    for _ in range(load.batches):
        base.execute("BEGIN")
        base.executemany("INSERT INTO events VALUES (?, ?)", enumerate(payloads, first))
        base.execute("COMMIT")
        first += load.batch_events
    base.execute("PRAGMA wal_checkpoint(FULL)")
    took = time.perf_counter() - began
    base.close()
    return took


def sqlite_full(folder: Path, load: Load) -> float:
    """A sync for each transaction."""
    return sqlite(folder, load, "FULL")


def lmdb_later(folder: Path, load: Load, each: bool = False) -> float:
    """A transaction for each batch, keys in order."""
    import lmdb

    payloads = load.payloads()
    room = load.events * (load.size_bytes + 200) * 2 + (64 << 20)
    env = lmdb.open(str(folder / "lmdb"), map_size=room, sync=each, metasync=each)
    began = time.perf_counter()
    first = 0
    for _ in range(load.batches):
        keys = [n.to_bytes(8, "big") for n in range(first, first + load.batch_events)]
        with env.begin(write=True) as txn, txn.cursor() as cursor:
            cursor.putmulti(list(zip(keys, payloads, strict=True)), append=True)
        first += load.batch_events
    env.sync(True)
    took = time.perf_counter() - began
    env.close()
    return took


def lmdb_each(folder: Path, load: Load) -> float:
    """A sync for each transaction."""
    return lmdb_later(folder, load, True)


WAYS: dict[str, Callable[[Path, Load], float]] = {
    PLAIN: plain,
    LOG: log,
    SQLITE_NORMAL: sqlite,
    LMDB_LATER: lmdb_later,
    LOG_ALWAYS: log_always,
    SQLITE_FULL: sqlite_full,
    LMDB_EACH: lmdb_each,
}


# --- replay and start-up ---


def replay(folder: Path, load: Load) -> float:
    """Events a second, read as batches, every payload made a Python object."""
    log(folder, load)
    with LogReader(LogWriter(str(folder), STREAM).folder) as reader:
        reader.seek_earliest()
        events = 0
        began = time.perf_counter()
        for item in reader.runs():
            if isinstance(item, Loss):
                raise AssertionError(str(item))
            events += len(item.frame.payloads.split(item.lo, item.hi))
        took = time.perf_counter() - began
    if events != load.events:
        raise AssertionError(f"{events:,} events of {load.events:,}")
    return events / took


def raw_rate() -> float:
    """Events a second through raw pyzmq, now."""
    return run_trial(Case(THROUGHPUT, RAW, 64, 1), Effort(rounds=1, scale=0.4), 0).rate


def start_up(folder: Path) -> float:
    """Seconds to open a log of 10 GB whose last segment was not closed."""
    writer = LogWriter(str(folder), STREAM, background=False)
    writer.open()
    epoch = writer.begin(7)
    payloads = [b"x" * 64] * 1900
    while writer.next < 400_000:
        first = writer.next
        frame = encode_frame(WIRE_ID, epoch, first, TOPIC, payloads, 1, length=64)
        writer.write(frame, first, first + 1900)
    writer.flush()
    writer._open()._active.close()
    writer._release()
    path = Path(writer.folder.path)
    head = next(path.glob("*.seg")).read_bytes()[:4096]
    segment_bytes = 64 * 1024 * 1024
    for n in range(LARGE_LOG_BYTES // segment_bytes + 1):
        with open(path / SegmentName(6, 0, n * 1000).file, "wb") as file:
            file.write(head)
            file.truncate(segment_bytes)  # not a byte of these may be read
    began = time.perf_counter()
    with LogWriter(str(folder), STREAM) as again:
        took = time.perf_counter() - began
        if again.recovery.next < 400_000:
            raise AssertionError("the tail was not found")
    return took


# --- the command ---


class Figures:
    """Everything measured, by round."""

    def __init__(self) -> None:
        self.seconds: dict[tuple[int, str], list[float]] = {}
        self.loads: dict[int, Load] = {}
        self.replay: list[float] = []
        self.raw: list[float] = []
        self.start_up: list[float] = []

    def rate(self, size: int, way: str) -> float:
        """Events a second, the median."""
        return self.loads[size].events / median(self.seconds[size, way])

    def ratio(self, size: int, way: str, base: str) -> float:
        """How much faster than another way, the median of the rounds."""
        pairs = zip(self.seconds[size, way], self.seconds[size, base], strict=True)
        return median(other / mine for mine, other in pairs)

    def targets(self) -> list[tuple[str, float, float]]:
        """What should be reached: words, the bound, and what was; more is better."""
        found = [("1 KiB, log of a plain write", 0.5, self.ratio(1024, LOG, PLAIN))]
        for size in self.loads:
            for other in (SQLITE_NORMAL, SQLITE_FULL, LMDB_LATER, LMDB_EACH):
                found.append((f"{size} B, log of {other}", 1.0, self.ratio(size, LOG, other)))
        found.append(("replay, events/s", 1_500_000, median(self.replay)))
        found.append(("start-ups a second with 10 GB", 1.0, 1 / median(self.start_up)))
        return found


def measure(options: argparse.Namespace, console: Console) -> Figures:
    """Every way in every round, each in a folder of its own."""
    figures = Figures()
    total = 20_000_000 if options.quick else 200_000_000
    for size in (64, 1024):
        figures.loads[size] = load_of(size, total // (3 if size == 64 else 1))
    ways = list(WAYS)
    with console.status("starting") as status:
        for number in range(options.rounds):
            at = number % len(ways)
            for size, load in figures.loads.items():
                for way in ways[at:] + ways[:at]:
                    status.update(f"round {number + 1} of {options.rounds}: {size} B, {way}")
                    took = _in_folder(options.dir, lambda f, w=way, x=load: WAYS[w](f, x))
                    figures.seconds.setdefault((size, way), []).append(took)
            status.update(f"round {number + 1} of {options.rounds}: replay")
            load = figures.loads[64]
            figures.replay.append(_in_folder(options.dir, lambda f, x=load: replay(f, x)))
            figures.raw.append(raw_rate())
            figures.start_up.append(_in_folder(options.dir, start_up))
    return figures


def _in_folder(parent: Path | None, run: Callable[[Path], float]) -> float:
    folder = Path(tempfile.mkdtemp(prefix="meshmsg-bench-", dir=parent))
    try:
        return run(folder)
    finally:
        shutil.rmtree(folder)


def show(figures: Figures, console: Console) -> None:
    """Tables."""
    for size, load in figures.loads.items():
        rows = Table(title=f"append, {size} B, {load.batch_events} a batch", box=None)
        for column in ("way", "events/s", "MB/s", "of a plain write"):
            rows.add_column(column, justify="left" if column == "way" else "right")
        for way in WAYS:
            rate = figures.rate(size, way)
            ratio = figures.ratio(size, way, PLAIN)
            rows.add_row(way, f"{rate:,.0f}", f"{rate * size / 1e6:,.0f}", f"{ratio:.2f}")
        console.print(rows)
    ratio = median(a / b for a, b in zip(figures.replay, figures.raw, strict=True))
    console.print(
        f"replay, 64 B, batches: {median(figures.replay):,.0f} events/s, "
        f"{ratio:.1f}x of raw pyzmq ({median(figures.raw):,.0f}/s)"
    )
    console.print(f"start-up with 10 GB: {median(figures.start_up) * 1e3:,.0f} ms")
    for text, bound, reached in figures.targets():
        word = "met" if reached >= bound else "MISSED"
        console.print(f"{word}: {text}: {reached:,.2f}, wanted {bound:,g}")


def plain_data(figures: Figures) -> dict[str, Any]:
    """Everything, for JSON."""
    return {
        "machine": this_machine().as_dict(),
        "append_s": {f"{size}/{way}": took for (size, way), took in figures.seconds.items()},
        "events": {str(size): load.events for size, load in figures.loads.items()},
        "replay_events_per_s": figures.replay,
        "raw_pyzmq_events_per_s": figures.raw,
        "start_up_s": figures.start_up,
        "targets": [
            {"text": text, "wanted": bound, "reached": reached, "met": reached >= bound}
            for text, bound, reached in figures.targets()
        ],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and show; returns the exit status."""
    parser = argparse.ArgumentParser(prog="benchmarks/log.py", description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--quick", action="store_true", help="a tenth of the bytes, one round")
    add("--rounds", type=int, default=None, metavar="N", help="measure everything N times")
    add("--dir", type=Path, default=None, help="where to write; the system's temporary folder")
    add("--json", type=Path, metavar="FILE", help="write all measurements as JSON")
    add("--check", action="store_true", help="exit with 1 if a target was missed")
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (1 if options.quick else 5)
    console = Console(highlight=False, emoji=False, markup=False)
    neighbours = Neighbours()
    figures = measure(options, console)
    show(figures, console)
    console.print(f"{this_machine().text()} {neighbours.text()}")
    if options.json is not None:
        options.json.write_text(json.dumps(plain_data(figures), indent=1) + "\n", encoding="utf-8")
    missed = any(reached < bound for _, bound, reached in figures.targets())
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
