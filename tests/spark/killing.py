"""A sink daemon that is killed again and again while events are published into it.

Belongs here: the publisher, the killing, and what must hold afterwards, for tests of any length.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import psutil

from meshmsg.spark_sink.sink.process import SinkProcess
from tests.support.remote import RemotePeer

READY_S = 500.0


class Killing:
    """One daemon through all its lives."""

    def __init__(self, folder: Path, seed: int, *options: str) -> None:
        self.out = str(folder / "lake" / "quotes")
        self.log = str(folder / "lake" / "quotes.sink" / "log")
        self.random = random.Random(seed)
        self.seen: set[psutil.Process] = set()
        self.kills: list[str] = []
        self.expected = 0
        self.status = -1
        self._options = options
        self._data = folder / "publisher"
        stream = {"topics": "quotes.**", "durability": "log", "overflow": "block"}
        self.publisher = RemotePeer("pricing", streams=[stream], data_dir=str(self._data))
        self.publisher.use("loads")
        self.publisher.run("paced = start_pacing()")
        self.sink = self._new()

    def _new(self) -> SinkProcess:
        return SinkProcess(
            self.out,
            *("--topics", "quotes.**", "--connect", self.publisher.address),
            *("--trigger", "200ms", "--every", "100ms", "--partition-by", "topic"),
            *("--max-events", "20000", "--master", "local[2]"),
            *self._options,
        )

    def publish(self, count: int, rate: int) -> None:
        """Begin to publish so many more; it goes on whatever happens to the daemon."""
        self.expected += count
        self.publisher.run(f"paced.put({count}, {rate})")

    # --- killing ---

    def family(self) -> dict[str, list[psutil.Process]]:
        """The daemon's processes by what they are."""
        found: dict[str, list[psutil.Process]] = {"recorder": [], "driver": [], "java": []}
        found["worker"] = []
        try:
            main = psutil.Process(self.sink.pid)
            found["recorder"] = [main]
            for child in main.children(recursive=True):
                words = " ".join(child.cmdline())
                kind = "worker"
                if "sink_driver" in words:
                    kind = "driver"
                elif "pyspark.daemon" not in words and "java" in words.split(" ")[0]:
                    kind = "java"
                found[kind].append(child)
        except psutil.Error:
            pass
        self.seen |= {process for group in found.values() for process in group}
        return found

    def wait_commit(self) -> None:
        """Until another batch is written."""
        before = self.sink.output().get("commits", 0)
        self.sink.wait_for(lambda: self.sink.output().get("commits", 0) > before, READY_S)

    def kill(self, what: str) -> None:
        """SIGKILL to some of the family; the recorder is what systemd would start again."""
        time.sleep(self.random.random() * 0.5)
        family = self.family()
        kinds = ("recorder", "driver", "java", "worker") if what == "all" else (what,)
        victims = [process for kind in kinds for process in family[kind]]
        if what == "worker":
            victims = victims[-1:]
        for process in victims:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                pass
        self.kills.append(f"{what} ({len(victims)})")
        if "recorder" in kinds:
            self.sink.join()
            self.sink = self._new().start()

    def run(self, count: int, kills: Sequence[str]) -> None:
        """Kill these in turn, each while events come and are written, then let it finish."""
        share = count // (len(kills) + 1)
        self.sink.start()
        try:
            for what in kills:
                # Slowly enough that the kill comes in the middle of it.
                self.publish(share, rate=max(1, share // 4))
                self.wait_commit()
                self.kill(what)
            self.publish(count - share * len(kills), rate=share)
            self.sink.wait_for(self.caught_up, READY_S)
        finally:
            self.status = self.sink.stop()

    def caught_up(self) -> bool:
        """Whether all that was published is in the table."""
        self.family()
        return self.sink.rows() >= self.expected

    def left(self) -> list[Any]:
        """Processes of the daemon that are still there."""
        psutil.wait_procs(list(self.seen), timeout=30)
        return [p for p in self.seen if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]

    def close(self) -> None:
        self.publisher.close()


def seen_by_duckdb(out: str) -> tuple[int, int, int]:
    """Rows, different positions, and the sum of the numbers in them."""
    found = duckdb.sql(
        f"SELECT count(*), count(DISTINCT (stream, epoch, seq)), sum(seq)::BIGINT "
        f"FROM read_parquet('{out}/**/*.parquet', hive_partitioning = true)"
    ).fetchall()[0]
    return found
