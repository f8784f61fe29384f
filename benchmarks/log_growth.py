"""Measure whether a log costs more, the larger it is: append, start-up, the newest, replay.

    python benchmarks/log_growth.py [--gb 0.2 --gb 1 ...] [--dir DIR] [--json FILE]

One log is grown from size to size (by default 1, 5 and 20 GB; what the disk has no room for is said
and left out).  At each of them: what appending the last part cost, how long opening it takes, how
long it takes to find and read the newest thousand events, and what a replay of its oldest part
gives a second.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks.log import STREAM, TOPIC, WIRE_ID, load_of
from benchmarks.machine import this_machine
from meshmsg._model.event import Loss
from meshmsg._wire.frame import encode_frame
from meshmsg.recovery.log.reader import LogReader
from meshmsg.recovery.log.writer import LogWriter

SIZE_BYTES = 1024
DEFAULT_GB = (1.0, 5.0, 20.0)
#: The last part of each step, which is timed.
TIMED_BYTES = 200_000_000
NEWEST = 1000
#: Of the free room, the part that may be used.
ROOM = 0.6


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and show; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="benchmarks/log_growth.py", description=__doc__.split("\n")[0]
    )
    add = parser.add_argument
    add("--gb", type=float, action="append", metavar="N", help="a size; may be given again")
    add("--dir", type=Path, default=None, help="where to write; the system's temporary folder")
    add("--json", type=Path, metavar="FILE", help="write all measurements as JSON")
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="meshmsg-bench-", dir=options.dir))
    try:
        found = measure(folder, sorted(options.gb or DEFAULT_GB))
    finally:
        shutil.rmtree(folder)
    for row in found["sizes"]:
        print(words(row), flush=True)
    for text in found["left_out"]:
        print(text)
    if options.json is not None:
        data = {"machine": this_machine().as_dict(), **found}
        options.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return 0


def words(row: dict[str, float]) -> str:
    return (
        f"{row['gb']:g} GB: append {row['append_ns']:,.0f} ns/event, open {row['open_ms']:,.0f} "
        f"ms, the newest {NEWEST} after {row['newest_ms']:,.1f} ms, replay {row['replay_ns']:,.0f} "
        "ns/event"
    )


def measure(folder: Path, sizes_gb: Sequence[float]) -> dict[str, Any]:
    """One log, grown from size to size."""
    free_gb = shutil.disk_usage(folder).free / 1e9
    found: dict[str, Any] = {"sizes": [], "left_out": [], "event_bytes": SIZE_BYTES}
    written = 0
    for gb in sizes_gb:
        if gb > free_gb * ROOM:
            text = f"{gb:g} GB: not available: the disk has {free_gb:.0f} GB free"
            found["left_out"].append(text)
            continue
        row = {"gb": gb}
        written, row["append_ns"] = grow(folder, written, round(gb * 1e9))
        row |= look(folder)
        found["sizes"].append(row)
    return found


def grow(folder: Path, written: int, until_bytes: int) -> tuple[int, float]:
    """Append up to a size; bytes of payload, and ns for an event of the last part."""
    load = load_of(SIZE_BYTES, TIMED_BYTES)
    payloads, step = load.payloads(), load.batch_events * SIZE_BYTES
    timed_from = max(written, until_bytes - TIMED_BYTES)
    began, timed = 0.0, 0
    with LogWriter(str(folder), STREAM) as writer:
        epoch, first = writer.begin(1), writer.next
        while written < until_bytes:
            if not began and written >= timed_from:
                writer.flush()
                began = time.perf_counter()
            now = time.time_ns()
            frame = encode_frame(WIRE_ID, epoch, first, TOPIC, payloads, now, length=SIZE_BYTES)
            stop = first + load.batch_events
            writer.append(frame, first, stop, now)
            timed += load.batch_events if began else 0
            first, written = stop, written + step
        writer.flush()
        took = time.perf_counter() - began
    return written, took * 1e9 / max(1, timed)


def look(folder: Path) -> dict[str, float]:
    """What opening and reading cost now."""
    began = time.perf_counter()
    with LogWriter(str(folder), STREAM) as writer:
        open_ms = (time.perf_counter() - began) * 1e3
        last, where = writer.recovery.next, writer.folder
    began = time.perf_counter()
    with LogReader(where) as reader:
        reader.seek_last(NEWEST)
        newest = sum(_events(reader, NEWEST))
        newest_ms = (time.perf_counter() - began) * 1e3
    if newest < NEWEST:
        raise AssertionError(f"{newest} of the newest {NEWEST} events, up to {last}")
    with LogReader(where) as reader:
        reader.seek_earliest()
        began = time.perf_counter()
        events = sum(_events(reader, TIMED_BYTES // SIZE_BYTES))
        replay_ns = (time.perf_counter() - began) * 1e9 / events
    return {"open_ms": open_ms, "newest_ms": newest_ms, "replay_ns": replay_ns}


def _events(reader: LogReader, count: int) -> Any:
    """Run by run, until there are enough."""
    seen = 0
    for item in reader.runs():
        if isinstance(item, Loss):
            raise AssertionError(str(item))
        run = len(item.frame.payloads.split(item.lo, item.hi))
        seen += run
        yield run
        if seen >= count:
            return


if __name__ == "__main__":
    sys.exit(main())
