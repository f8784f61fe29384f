"""Spark's part in the demo: the sink's table and the bars, beside what they should be.

Spark runs in a worker of its own, which is only named here: where Spark is not installed the demo
says so and goes on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from market.bars import Bar, Bars, bars_from, different_bars
from market.demo.workers import Worker, WorkerFailed
from meshmsg import ConfigError

MODULE = "market.demo.parts.sink"
#: Stock, second and a `Bar`; its average price follows them.
BAR_COLUMNS = 2 + len(Bar._fields)


def why_not() -> str | None:
    """Why Spark cannot take part, `None` if it can."""
    if find_spec("pyspark") is None:
        return "PySpark is not installed: pip install 'meshmsg[spark]'"
    try:
        import_module("meshmsg.spark_sink")
    except ConfigError as error:  # the package says what it misses
        return str(error)
    return None


class Spark:
    """The worker, what it said, and what came of it; `None` means: if it can."""

    def __init__(self, wanted: bool | None) -> None:
        self.reason = why_not() if wanted is not False else "not asked for"
        if wanted and self.reason is not None:
            raise ConfigError("--spark", self.reason)
        self._wanted = wanted
        self.report: dict[str, Any] = {}
        self.rows = self.rows_wanted = 0
        self.wrong_rows: list[str] = []  #: what is wrong with the table, in words
        self.bars = self.bars_wanted = 0
        self.wrong_bars: list[tuple[str, int]] = []
        self._worker: Worker | None = None

    @property
    def running(self) -> bool:
        """Whether it takes part."""
        return self._worker is not None

    @property
    def done(self) -> bool:
        """All rows are in, and the bars are made."""
        return "bars" in self.report

    @property
    def words(self) -> str:
        """How far it is, for people."""
        if self.reason is not None:
            return f"left out: {self.reason}"
        if not self.report:
            return "starts; the sink records meanwhile"
        rows, bars = int(self.report["rows"]), int(self.report["bars_now"])
        return f"{rows:,} rows in the table, {bars:,} one-second bars"

    def start(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Start it, if it can be: it takes its time."""
        if self.reason is None:
            folder.mkdir(exist_ok=True)
            self._final = folder / "final.json"
            more = {"folder": str(folder), "final": str(self._final)}
            self._worker = Worker("Spark", MODULE, {**settings, **more})

    def hear(self) -> None:
        """Take what it said; raises `WorkerFailed`, unless it was not asked for and never began."""
        if self._worker is None:
            return
        try:
            for said in self._worker.heard():
                self.report.update(said)
        except WorkerFailed as error:
            if self._wanted or self.report:
                raise
            self.reason = f"it does not start here: {error}"
            self.end()

    def finish(self, published: Mapping[str, int]) -> None:
        """No more events: the file that the worker waits for says how many there are, by topic."""
        if self._worker is not None:
            beside = self._final.with_suffix(".new")
            beside.write_text(json.dumps(dict(published)), encoding="utf-8")
            beside.replace(self._final)

    def compare(self, ours: Bars, published: Mapping[str, int]) -> None:
        """Its rows and bars beside what was published and the simulator's own record."""
        self.rows_wanted, self.bars_wanted = sum(published.values()), len(ours)
        said = self.report
        self.rows = int(said.get("rows", 0))
        if not self.done:
            self.wrong_rows = ["it is not done"]
            return
        self.rows = sum(said["topics"].values())
        self.wrong_rows = [str(problem) for problem in said["problems"]]
        self.wrong_rows += [f"{said[name]:,} {name}" for name in ("missing", "twice") if said[name]]
        for topic in sorted(published.keys() | said["topics"].keys()):
            found, wanted = said["topics"].get(topic, 0), published.get(topic, 0)
            if found != wanted:
                self.wrong_rows.append(f"{found:,} rows of {topic}, {wanted:,} events")
        theirs = bars_from(row[:BAR_COLUMNS] for row in said["bars"])
        self.bars = len(theirs)
        wrong = different_bars(ours, theirs)
        wrong += [
            (row[0], row[1])
            for row in said["bars"]
            if row[BAR_COLUMNS] != theirs[row[0], row[1]].vwap
        ]
        self.wrong_bars = sorted(set(wrong))

    def end(self) -> None:
        """Have it ended."""
        if self._worker is not None:
            self._worker.end()
            self._worker = None
