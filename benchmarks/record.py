"""`Record`: every measurement is written down when it is made, so that a run can be taken up again.

A line of JSON for each: a run that was broken off has lost nothing, and `--resume` goes on.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.case import Case
from benchmarks.results import Results
from benchmarks.trial import Effort, Measurement


class Record:
    """A file of measurements of one run."""

    def __init__(self, path: Path, effort: Effort) -> None:
        self._path = path
        self._scale = effort.scale

    def clear(self) -> None:
        """Begin anew."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.unlink(missing_ok=True)

    def add(self, measurement: Measurement) -> None:
        """Write one down."""
        entry = {**asdict(measurement), "case": measurement.case.id, "scale": self._scale}
        entry["times_us"] = [round(us, 1) for us in measurement.times_us]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def read_into(self, results: Results, cases: Sequence[Case]) -> int:
        """Take up what was measured of these cases with the same effort; says how many."""
        by_id = {case.id: case for case in cases}
        found = 0
        for entry in self._entries():
            case = by_id.get(entry.pop("case", ""))
            if case is not None and entry.pop("scale", None) == self._scale:
                results.add(Measurement(case, **entry))
                found += 1
        return found

    def _entries(self) -> list[dict[str, Any]]:
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        entries = []
        for line in lines:
            try:
                entries.append(json.loads(line))
            except ValueError:  # the last one, broken off
                continue
        return entries
