"""Spark's part in `meshmsg demo market`: every event as a row, and bars made by Spark, compared.

Spark runs in a worker of its own, `meshmsg.spark_sink.market`, which is only named here: nothing
but spark_sink imports pyspark.  Where it is not installed the demo says so and goes on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from meshmsg._errors import ConfigError
from meshmsg.cli._workers import Worker, WorkerFailed
from meshmsg.market.bars import Bars, bars_from, different_bars

MODULE = "meshmsg.spark_sink.market"


def why_not() -> str | None:
    """Why Spark cannot take part, `None` if it can."""
    if find_spec("pyspark") is None:
        return "PySpark is not installed: pip install 'meshmsg[spark]'"
    try:
        found = find_spec(MODULE) and find_spec("meshmsg.spark_sink.session")
    except (ImportError, ConfigError) as error:  # the room says what it misses
        return str(error)
    return None if found is not None else "this meshmsg has no Spark sink yet"


class Spark:
    """The worker, what it said, and what came of it; `None` means: if it can."""

    def __init__(self, wanted: bool | None) -> None:
        self.reason = why_not() if wanted is not False else "not asked for"
        if wanted and self.reason is not None:
            raise ConfigError("--spark", self.reason)
        self._wanted = wanted
        self.report: dict[str, Any] = {}
        self.rows: int | None = None
        self.rows_wanted = 0
        self.bars: int | None = None
        self.bars_wanted = 0
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

    def start(self, data_dir: Path) -> None:
        """Start it, if it can be: it takes its time."""
        if self.reason is None:
            self._final = data_dir.with_suffix(".json")
            settings = {"data_dir": str(data_dir), "final": str(self._final)}
            self._worker = Worker("Spark", MODULE, settings)

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

    def compare(self, ours: Bars, rows: int) -> None:
        """Its rows and bars beside those of the simulator's own record."""
        self.rows_wanted, self.bars_wanted = rows, len(ours)
        if not self.done:
            return
        theirs = bars_from(self.report["bars"])
        self.rows, self.bars = int(self.report["rows"]), len(theirs)
        self.wrong_bars = different_bars(ours, theirs)

    def end(self) -> None:
        """Have it ended."""
        if self._worker is not None:
            self._worker.end()
            self._worker = None
