"""Measure the Spark source beside Spark's own parquet source, with the same rows in the same run.

    python benchmarks/spark.py [--quick] [--json FILE] [--check] [--no-docs]

Every way is a streaming query in batches of a million rows, several times in turn.  The first batch
of a query warms it up; of the others the median counts.  The table is in docs/benchmarks/spark.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import msgspec
from rich.console import Console

from benchmarks import page
from benchmarks.machine import Neighbours, this_machine
from meshmsg._wire.control import stream_wire_id
from meshmsg._wire.frame import encode_frame
from meshmsg.recovery.log.appender import LogSettings
from meshmsg.recovery.log.writer import LogWriter

STREAM = "bench/events.**"
TOPIC = "events.log"
FRAME_EVENTS = 2048
#: Rows of the batches whose fixed cost is measured.
SMALL = 10
SMALL_BATCHES = 30

FILES, PEERS, TYPED, PARQUET = "log files", "replay service", "typed columns", "parquet files"
#: As versions wrote `publish` that kept no tail.
SINGLE = "typed columns, a frame for each event"
WAYS = (PARQUET, FILES, PEERS, TYPED, SINGLE)
#: Each way in turn, and all of them again: what slows the machine down slows down all of them.
ROUNDS = 3
COLUMNS = (
    "id BIGINT, symbol STRING, price DOUBLE, size INT, live BOOLEAN, at TIMESTAMP, "
    "venue STRUCT<name: STRING, fee: DOUBLE>"
)

SERVER = """
import sys
from meshmsg import Peer, Stream
with Peer("bench", streams=[Stream("events.**", durability="log")], data_dir=sys.argv[1]) as peer:
    print(peer.address, flush=True)
    sys.stdin.read()
"""


def write_plain(folder: Path, events: int) -> None:
    """Events of 64 B."""
    payloads = [(b"%08d" % n + bytes(56))[:64] for n in range(FRAME_EVENTS)]
    _write(folder, events, payloads, raw=True)


def write_typed(folder: Path, events: int, frame_events: int = FRAME_EVENTS) -> None:
    """Events of seven fields, one of them nested."""
    encode = msgspec.msgpack.Encoder().encode
    when = datetime(2026, 11, 16, 12, tzinfo=UTC)
    payloads = [
        encode(
            {
                "id": n,
                "symbol": f"SYM{n % 100}",
                "price": n / 7,
                "size": n % 1000,
                "live": n % 2 == 0,
                "at": when,
                "venue": {"name": "XETR", "fee": 0.25},
            }
        )
        for n in range(FRAME_EVENTS)
    ]
    _write(folder, events, payloads, frame_events, raw=False)


def _write(
    folder: Path,
    events: int,
    payloads: list[bytes],
    frame_events: int = FRAME_EVENTS,
    *,
    raw: bool,
) -> None:
    wire_id = stream_wire_id("default", STREAM)
    with LogWriter(str(folder), STREAM, settings=LogSettings(fsync="never", tail_bytes=0)) as log:
        epoch = log.begin(1_700_000_000_000_000)
        for first in range(0, events, frame_events):
            count = min(frame_events, events - first)
            time_ns = 1_700_000_000_000_000_000 + first
            at = first % FRAME_EVENTS
            chosen = payloads[at : at + count]
            frame = encode_frame(wire_id, epoch, first, TOPIC, chosen, time_ns, raw=raw)
            log.append(frame, first, first + count)


class Bench:
    """One Spark, some folders, and the queries between them."""

    def __init__(self, folder: Path, rows: int, batches: int) -> None:
        from meshmsg.spark_sink import session

        self.folder = folder
        self.rows = rows
        self.batches = batches
        self.spark = session("meshmsg benchmark", config={"spark.log.level": "ERROR"})
        self._queries = 0

    def source(self, way: str, peers: str) -> Any:
        """The table of a way."""
        if way == PARQUET:
            landed = str(self.folder / "landed")
            schema = self.spark.read.parquet(landed).schema
            reader = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
            return reader.parquet(landed)
        options: dict[str, Any] = {"maxEventsPerTrigger": self.rows}
        if way in (TYPED, SINGLE):
            place = "typed" if way == TYPED else "single"
            options |= {"path": str(self.folder / place), "payload": COLUMNS}
        elif way == PEERS:
            options["peers"] = peers
        else:
            options["path"] = str(self.folder / "plain")
        return self.spark.readStream.format("meshmsg").options(**options).load()

    def run(self, table: Any, sink: str) -> list[dict[str, Any]]:
        """A query until all is read; the progress of its batches."""
        self._queries += 1
        work = self.folder / f"query{self._queries}"
        writer = table.writeStream.option("checkpointLocation", str(work / "checkpoint"))
        if sink == "parquet":
            writer = writer.option("path", str(work / "out"))
        found: list[dict[str, Any]] = []
        while True:
            query = writer.format(sink).trigger(availableNow=True).start()
            try:
                query.awaitTermination()
            except Exception as error:
                # Spark gives its Python ten seconds to start; a busy machine may take longer.
                if "failed to connect back" not in str(error):
                    raise
            found += [batch for batch in query.recentProgress if batch["numInputRows"]]
            if query.exception() is None:
                break
        shutil.rmtree(work)
        return found

    def rates(self, way: str, sink: str, peers: str) -> list[float]:
        """Rows a second, of each batch behind the first."""
        found = self.run(self.source(way, peers), sink)[1:]
        return [b["numInputRows"] / b["durationMs"]["triggerExecution"] * 1e3 for b in found]

    def fixed_ms(self, sink: str) -> float:
        """What a batch of a few rows takes."""
        options = {"path": str(self.folder / "small"), "maxEventsPerTrigger": SMALL}
        table = self.spark.readStream.format("meshmsg").options(**options).load()
        found = self.run(table, sink)[3:]
        return float(median(batch["durationMs"]["triggerExecution"] for batch in found))

    def land(self) -> None:
        """The same rows as parquet files, one a batch."""
        landed = self.folder / "landed"
        for number in range(self.batches):
            first = number * self.rows
            at = json.dumps({f"{STREAM}/1700000000000000": first})
            to = json.dumps({f"{STREAM}/1700000000000000": first + self.rows})
            table = (
                self.spark.read.format("meshmsg")
                .options(startingPosition=at, endingPosition=to, partitions=1)
                .load(str(self.folder / "plain"))
            )
            table.coalesce(1).write.mode("append").parquet(str(landed))


def measure(folder: Path, rows: int, batches: int, console: Console) -> dict[str, float]:
    """Everything, by name."""
    with console.status("writing events") as status:
        write_plain(folder / "plain", rows * batches)
        write_typed(folder / "typed", rows * batches)
        write_typed(folder / "single", rows * batches, 1)
        write_plain(folder / "small", SMALL * SMALL_BATCHES)
        status.update("starting Spark")
        bench = Bench(folder, rows, batches)
        bench.land()
        figures: dict[str, float] = {}
        server = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(folder / "plain")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert server.stdout is not None
            peers = server.stdout.readline().strip()
            for sink in ("noop", "parquet"):
                rates: dict[str, list[float]] = {way: [] for way in WAYS}
                for number in range(ROUNDS):
                    for way in WAYS:
                        status.update(f"{way} -> {sink}, round {number + 1} of {ROUNDS}")
                        rates[way] += bench.rates(way, sink, peers)
                figures |= {f"{way} -> {sink}": median(rates[way]) for way in WAYS}
                status.update(f"small batches -> {sink}")
                figures[f"fixed ms -> {sink}"] = bench.fixed_ms(sink)
        finally:
            server.communicate("", timeout=60)
            bench.spark.stop()
    return figures


def targets(figures: dict[str, float]) -> list[tuple[str, float, float, bool]]:
    """What should be reached: words, the bound, what was, and whether that is good."""
    found = []
    for text, wanted, got in (
        ("log files -> noop, rows/s", 1_200_000, figures[f"{FILES} -> noop"]),
        ("log files -> parquet, rows/s", 500_000, figures[f"{FILES} -> parquet"]),
        (
            "replay service of log files, -> noop",
            0.75,
            figures[f"{PEERS} -> noop"] / figures[f"{FILES} -> noop"],
        ),
        (
            "replay service of log files, -> parquet",
            0.75,
            figures[f"{PEERS} -> parquet"] / figures[f"{FILES} -> parquet"],
        ),
        ("typed columns -> noop, rows/s", 300_000, figures[f"{TYPED} -> noop"]),
        (
            "typed columns of a frame for each event, of large frames -> noop",
            0.7,
            figures[f"{SINGLE} -> noop"] / figures[f"{TYPED} -> noop"],
        ),
    ):
        found.append((text, wanted, got, got >= wanted))
    for sink in ("noop", "parquet"):
        cost = figures[f"fixed ms -> {sink}"]
        found.append((f"a batch of {SMALL} rows -> {sink}, ms at most", 250, cost, cost <= 250))
    return found


def markdown(figures: dict[str, float], rows: int, about: str) -> str:
    """The tables of the page."""
    lines = [
        f"Batches of {rows:,} rows; events of 64 B, typed ones of seven fields.",
        "",
        "| source | -> noop, rows/s | of parquet files | -> parquet, rows/s | of parquet files |",
        "|---|---:|---:|---:|---:|",
    ]
    for way in WAYS:
        cells = [way]
        for sink in ("noop", "parquet"):
            rate = figures[f"{way} -> {sink}"]
            cells += [f"{rate:,.0f}", f"{rate / figures[f'{PARQUET} -> {sink}']:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| target | wanted | reached | |", "|---|---:|---:|---|"]
    for text, wanted, got, good in targets(figures):
        shown = f"{got:,.0f}" if got >= 10 else f"{got:.2f}"
        lines.append(f"| {text} | {wanted:,g} | {shown} | {'met' if good else 'NOT MET'} |")
    return "\n".join([*lines, "", about])


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and show; returns the exit status."""
    parser = argparse.ArgumentParser(prog="benchmarks/spark.py", description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--quick", action="store_true", help="smaller batches; not for the page")
    add("--json", type=Path, metavar="FILE", help="write all measurements as JSON")
    add("--check", action="store_true", help="exit with 1 if a target was missed")
    add("--no-docs", action="store_true", help="leave docs/benchmarks/spark.md alone")
    options = parser.parse_args(arguments)
    rows, batches = (100_000, 3) if options.quick else (1_000_000, 4)
    console = Console(highlight=False, emoji=False, markup=False)
    neighbours = Neighbours()
    folder = Path(tempfile.mkdtemp(prefix="meshmsg-spark-"))
    try:
        figures = measure(folder, rows, batches, console)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    about = f"{this_machine().text()} {neighbours.text()}"
    text = markdown(figures, rows, about)
    console.print(text, soft_wrap=True)
    if options.json is not None:
        found = {"machine": this_machine().as_dict(), "rows": rows, "figures": figures}
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if not options.quick and not options.no_docs:
        page.write(text, page.SPARK_PAGE)
    missed = not all(good for *_, good in targets(figures))
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
