"""Is everything in the table, once?  Its rows are counted by position and compared with the log.

Belongs here: reading what was written without Spark, as any other reader would.  It believes the
table's files, and its journal only where the log no longer has the events.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from meshmsg import ConfigError, Loss
from meshmsg._topics import TopicFilter
from meshmsg.spark_sink.columns import gather
from meshmsg.spark_sink.log_source import LogSource
from meshmsg.spark_sink.positions import Range
from meshmsg.spark_sink.sink_config import Output
from meshmsg.spark_sink.sink_delta import partition_values
from meshmsg.spark_sink.sink_journal import FOLDER, read_about, read_commits

POSITION = ["stream", "epoch", "seq"]
Key = tuple[str, int]

# What is known of a position.
NONE, WANTED, FOUND, ASIDE, LOST = 0, 1, 2, 4, 8


class _Epoch:
    """The positions of one epoch, a byte for each."""

    def __init__(self, first: int, stop: int) -> None:
        self.first, self.stop = first, stop
        self.marks = np.zeros(max(0, stop - first), np.uint8)
        self.duplicates = self.out_of_range = self.rows = self.unverified = 0

    def mark(self, seqs: Any, what: int) -> None:
        """These positions were seen as rows."""
        self.rows += len(seqs) if what == FOUND else 0
        inside = (seqs >= self.first) & (seqs < self.stop)
        self.out_of_range += int(len(seqs) - inside.sum())
        at = seqs[inside] - self.first
        unique = np.unique(at)
        self.duplicates += len(at) - len(unique)
        self.duplicates += int((self.marks[unique] & (FOUND | ASIDE) != 0).sum())
        self.marks[unique] |= what

    def mark_range(self, first: int, stop: int, what: int) -> None:
        """These positions are wanted, or are lost."""
        low, high = max(first, self.first) - self.first, min(stop, self.stop) - self.first
        if high > low:
            self.marks[low:high] |= what

    def want(self, seqs: Any) -> None:
        """The log has these, and the table should."""
        inside = seqs[(seqs >= self.first) & (seqs < self.stop)] - self.first
        self.marks[inside] |= WANTED

    def count(self, mask: int, value: int) -> int:
        """Positions whose marks under a mask are these."""
        return int((self.marks & mask == value).sum())


def check_output(output: Output, log_path: str) -> dict[str, Any]:
    """Compare a table with a log; raises `ConfigError` if there is no such table.

    `good` is whether nothing is missing, twice, or where it does not belong.
    """
    about = read_about(output.out)
    if about is None:
        problem = f"{output.out} is not a table that meshmsg sink wrote (it has no {FOLDER}/)"
        raise ConfigError("out", problem)
    epochs = _journal_epochs(output)
    found: dict[str, Any] = {"output": output.name, "problems": []}
    roots = (("out", FOUND), ("quarantine", ASIDE))
    shaped = bool(about.get("shaped"))
    by_position = True
    for root, what in roots:
        by_position &= _mark_rows(output, root, what, epochs, found["problems"])
    for row in _losses(output):
        epoch = epochs.get((row["stream"], row["epoch"]))
        if epoch is not None:
            epoch.mark_range(row["first"], row["stop"], LOST)
    _mark_wanted(epochs, log_path, tuple(about["topics"]), found["problems"])
    rows = [_row(key, epoch, exact=by_position and not shaped) for key, epoch in epochs.items()]
    totals = {
        name: sum(row[name] for row in rows)
        for name in ("missing", "duplicates", "out_of_range", "lost", "quarantined", "unverified")
    }
    counted = _counted(output, found["problems"])
    good = not found["problems"] and not any(
        totals[name] for name in ("missing", "duplicates", "out_of_range")
    )
    return {**found, **totals, "rows": counted, "epochs": rows, "shaped": shaped, "good": good}


def _journal_epochs(output: Output) -> dict[Key, _Epoch]:
    """What the journal says is in the table."""
    spans: dict[Key, tuple[int, int]] = {}
    for commit in read_commits(output.out):
        for r in commit.ranges:
            key = (r.stream, r.epoch)
            first, stop = spans.get(key, (r.first, r.stop))
            spans[key] = (min(first, r.first), max(stop, r.stop))
    return {key: _Epoch(*span) for key, span in sorted(spans.items())}


def data_files(folder: str) -> Iterator[str]:
    """The parquet files of a folder, as a reader that knows nothing of us sees them."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(f for f in folders if not f.startswith(("_", ".")))
        for name in sorted(names):
            if name.endswith(".parquet") and not name.startswith(("_", ".")):
                yield f"{parent}/{name}"


def table_files(output: Output, root: str) -> Iterable[str]:
    """The files that are part of a table, by its own format."""
    if root == "out" and output.format == "delta":
        import deltalake

        if not deltalake.DeltaTable.is_deltatable(output.out):
            return []
        return [os.path.join(output.out, path) for path in _delta_paths(output.out)]
    if root == "out" and output.format == "iceberg":
        from meshmsg.spark_sink.sink_iceberg import open_catalog

        catalog = open_catalog(output)
        if not catalog.table_exists(output.table):
            return []
        tasks = catalog.load_table(output.table).scan().plan_files()
        return [task.file.file_path.removeprefix("file://") for task in tasks]
    return data_files(output.out if root == "out" else getattr(output, root))


def _delta_paths(path: str) -> list[str]:
    import deltalake

    return [uri.removeprefix("file://") for uri in deltalake.DeltaTable(path).file_uris()]


def _mark_rows(
    output: Output, root: str, what: int, epochs: dict[Key, _Epoch], problems: list[str]
) -> bool:
    """Mark what the files have; `False` if rows have no positions."""
    top = output.out if root == "out" else output.quarantine
    for path in table_files(output, root):
        try:
            names = pq.read_schema(path).names
            folders = partition_values(os.path.relpath(path, top))
            if any(c not in names and c not in folders for c in POSITION):
                return False
            rows = pq.ParquetFile(path).read(columns=[c for c in POSITION if c in names])
        except (OSError, pa.ArrowException) as error:
            problems.append(f"{path} cannot be read: {error}")
            continue
        for column in POSITION:
            if column not in rows.column_names:
                text = folders[column] or ""
                value: Any = text if column == "stream" else int(text)
                rows = rows.append_column(column, pa.array([value] * len(rows)))
        _mark_table(rows, what, epochs, problems, path)
    return True


def _mark_table(
    rows: pa.Table, what: int, epochs: dict[Key, _Epoch], problems: list[str], path: str
) -> None:
    groups = rows.select(["stream", "epoch"]).group_by(["stream", "epoch"]).aggregate([])
    pairs = list(zip(groups["stream"].to_pylist(), groups["epoch"].to_pylist(), strict=True))
    for stream, number in pairs:
        if len(pairs) == 1:
            seqs = rows["seq"]
        else:
            chosen = pc.and_(pc.equal(rows["stream"], stream), pc.equal(rows["epoch"], number))
            seqs = rows.filter(chosen)["seq"]
        epoch = epochs.get((stream, number))
        if epoch is None:
            epoch = epochs[(stream, number)] = _Epoch(0, 0)
            problems.append(
                f"{path} has {stream} epoch {number}, of which the journal knows nothing"
            )
        epoch.mark(seqs.to_numpy(), what)


def _losses(output: Output) -> Iterator[dict[str, Any]]:
    for path in data_files(output.losses):
        yield from pq.read_table(path, partitioning=None).to_pylist()


def _mark_wanted(
    epochs: dict[Key, _Epoch], log_path: str, topics: tuple[str, ...], problems: list[str]
) -> None:
    """What the log has of the table's span; the part that is no longer there is not verified."""
    source = LogSource(log_path)
    survey = source.survey()
    problems += [f"{where}: {why}" for where, why in survey.problems.items()]
    wanted = TopicFilter(topics)
    everything = topics == ("**",)
    for (stream, number), epoch in epochs.items():
        state = survey.streams.get(stream)
        known = next((e for e in state.epochs if e.epoch == number), None) if state else None
        low = min(max(epoch.first, 0 if known is None else known.first), epoch.stop)
        origin = epoch.first if known is None else max(epoch.first, known.origin)
        if known is None or low > origin:
            stop = epoch.stop if known is None else low
            epoch.unverified = stop - origin
            if everything:  # then each number is wanted, log or no log
                epoch.mark_range(origin, stop, WANTED)
                epoch.unverified = 0
        if known is None or epoch.stop <= low:
            continue
        for item in gather(source.read(Range(stream, number, low, epoch.stop)), stream, wanted):
            if isinstance(item, Loss):
                epoch.mark_range(item.first, item.stop, LOST)
            else:
                epoch.want(item.columns[2].to_numpy())


def _row(key: Key, epoch: _Epoch, *, exact: bool) -> dict[str, Any]:
    """An epoch's figures.  Rows that a query shaped may be left out on purpose."""
    missing = epoch.count(WANTED | FOUND | ASIDE | LOST, WANTED) if exact else 0
    unwanted = epoch.count(WANTED | FOUND, FOUND)
    unknown = min(unwanted, epoch.unverified)
    return {
        "stream": key[0],
        "epoch": key[1],
        "first": epoch.first,
        "next": epoch.stop,
        "events": epoch.rows,
        "missing": missing,
        "duplicates": epoch.duplicates,
        "out_of_range": epoch.out_of_range + unwanted - unknown,
        "lost": epoch.count(LOST, LOST),
        "quarantined": epoch.count(ASIDE, ASIDE),
        "unverified": epoch.unverified,
    }


def _counted(output: Output, problems: list[str]) -> int:
    """Rows by the files, compared with what the journal says of each file."""
    listed: dict[str, int] = {}
    for commit in read_commits(output.out):
        for file in commit.files:
            if file.root == "out":
                listed[f"{output.out}/{file.path}"] = file.rows
    rows = 0
    here = set()
    for path in table_files(output, "out"):
        here.add(path)
        try:
            count = pq.read_metadata(path).num_rows
        except (OSError, pa.ArrowException):
            continue  # said already
        rows += count
        if path not in listed:
            problems.append(f"{path} is in the table and in no commit")
        elif listed[path] != count:
            problems.append(f"{path} has {count:,} rows and was written with {listed[path]:,}")
    for path in sorted(listed.keys() - here):
        problems.append(f"{path} is in a commit and not in the table")
    return rows
