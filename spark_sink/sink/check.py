"""Is everything in the table, once?  Its rows are counted by position and compared with the log.

Belongs here: reading what was written without Spark, as any other reader would.  It believes the
table's files, and its journal only where the log no longer has the events.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from meshmsg import ConfigError, Loss
from meshmsg._model.topics import TopicFilter
from meshmsg.spark_sink.sink.config import Output
from meshmsg.spark_sink.sink.delta import partition_values
from meshmsg.spark_sink.sink.journal import FOLDER, Commit, read_about, read_commits
from meshmsg.spark_sink.source.columns import gather
from meshmsg.spark_sink.source.log_source import LogSource
from meshmsg.spark_sink.source.positions import Range, Survey

POSITION = ["stream", "epoch", "seq"]
ROOTS = ("out", "losses", "quarantine")
Key = tuple[str, int]

# What is known of a position; the last two: by the table of losses, and by the log.
NONE, WANTED, FOUND, ASIDE, LOST, GONE = 0, 1, 2, 4, 8, 16

#: A daemon that runs needs a moment to give the files of its newest commit their names.
FINISH_S = 30.0
_SLICE = 1 << 24


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
        parts = range(0, len(self.marks), _SLICE)  # a copy of all would be as large again
        return sum(int((self.marks[n : n + _SLICE] & mask == value).sum()) for n in parts)


def check_output(output: Output, log_path: str) -> dict[str, Any]:
    """Compare a table with a log; raises `ConfigError` if there is no such table.

    `good` is whether nothing is missing, twice, or where it does not belong.
    """
    about = read_about(output.out)
    if about is None:
        problem = f"{output.out} is not a table that meshmsg sink wrote (it has no {FOLDER}/)"
        raise ConfigError("out", problem)
    # The table's own word for it: --check is often asked without the flags that it was made with.
    output = dataclasses.replace(output, format=about["format"])
    problems: list[str] = []
    commits = list(read_commits(output.out))
    _await_names(output, commits, problems)
    files = _files_at(output, commits[-1].number if commits else 0, problems)
    source = LogSource(log_path)
    survey = source.survey()
    epochs = _epochs(commits, survey)
    waiting = _waiting(epochs, survey)
    shaped = bool(about.get("shaped"))
    by_position = True
    for root, what in (("out", FOUND), ("quarantine", ASIDE)):
        by_position &= _mark_rows(_top(output, root), files[root], what, epochs, problems)
    for row in _losses(files["losses"], problems):
        epoch = epochs.get((row["stream"], row["epoch"]))
        if epoch is not None:
            epoch.mark_range(row["first"], row["stop"], LOST)
    _mark_wanted(epochs, source, survey, tuple(about["topics"]), problems)
    for (stream, number), epoch in epochs.items():
        untold = epoch.count(GONE | LOST | FOUND | ASIDE, GONE)
        if untold:
            where = f"are not in the table of losses ({output.losses})"
            problems.append(f"{untold:,} lost events of {stream} epoch {number} {where}")
    rows = [_row(key, epoch, exact=by_position and not shaped) for key, epoch in epochs.items()]
    totals = {
        name: sum(row[name] for row in rows)
        for name in ("missing", "duplicates", "out_of_range", "lost", "quarantined", "unverified")
    }
    listed = _files_of(output, commits)
    counted = {root: _counted(output, root, files[root], listed[root], problems) for root in ROOTS}
    good = not problems and not any(
        totals[name] for name in ("missing", "duplicates", "out_of_range")
    )
    found = {"output": output.name, "problems": problems, **totals, "rows": counted["out"]}
    return {**found, "waiting": waiting, "epochs": rows, "shaped": shaped, "good": good}


def _top(output: Output, root: str) -> str:
    return {"out": output.out, "losses": output.losses, "quarantine": output.quarantine}[root]


def _await_names(output: Output, commits: list[Commit], problems: list[str]) -> None:
    """The files of the newest commit get their names behind it: by a daemon that runs, soon."""
    if not commits:
        return
    deadline = time.monotonic() + FINISH_S
    while any(os.path.exists(f"{output.staging}/{f.staged}") for f in commits[-1].files):
        if time.monotonic() > deadline:
            text = f"commit {commits[-1].number} is not finished: start the sink, it will do it"
            problems.append(text)
            return
        time.sleep(0.1)


def _files_at(output: Output, number: int, problems: list[str]) -> dict[str, list[str]]:
    """The files that are there, without those of later commits: a daemon that runs goes on."""
    files = {root: list(table_files(output, root, problems)) for root in ROOTS}
    later = _files_of(output, (c for c in read_commits(output.out) if c.number > number))
    return {root: [p for p in paths if p not in later[root]] for root, paths in files.items()}


def _files_of(output: Output, commits: Iterable[Commit]) -> dict[str, dict[str, int]]:
    """The rows of each file of some commits."""
    found: dict[str, dict[str, int]] = {root: {} for root in ROOTS}
    for commit in commits:
        for file in commit.files:
            found[file.root][f"{_top(output, file.root)}/{file.path}"] = file.rows
    return found


def _epochs(commits: Iterable[Commit], survey: Survey) -> dict[Key, _Epoch]:
    """What the journal says is in the table, and what the log has before that."""
    spans: dict[Key, tuple[int, int]] = {}

    def cover(r: Range) -> None:
        first, stop = spans.get((r.stream, r.epoch), (r.first, r.stop))
        spans[r.stream, r.epoch] = (min(first, r.first), max(stop, r.stop))

    for commit in commits:
        for done in commit.ranges:
            cover(done)
    newest = _newest(spans)
    for stream, state in survey.streams.items():
        for known in state.epochs:
            # Epochs are written in order: before the newest there is nothing that may still come.
            if known.epoch < newest.get(stream, 0) and known.stop > known.first:
                done_to = spans.get((stream, known.epoch), (0, known.first))[1]
                cover(Range(stream, known.epoch, min(done_to, known.stop), known.stop))
    return {key: _Epoch(*span) for key, span in sorted(spans.items())}


def _newest(keys: Iterable[Key]) -> dict[str, int]:
    """The newest epoch of each stream."""
    found: dict[str, int] = {}
    for stream, epoch in keys:
        found[stream] = max(epoch, found.get(stream, 0))
    return found


def _waiting(epochs: dict[Key, _Epoch], survey: Survey) -> int:
    """Events that are in the log, of whatever topic, behind all that was written."""
    newest = _newest(epochs)
    count = 0
    for stream, state in survey.streams.items():
        for known in state.epochs:
            if known.epoch >= newest.get(stream, 0):
                done = epochs.get((stream, known.epoch))
                count += max(0, known.stop - max(known.first, 0 if done is None else done.stop))
    return count


def data_files(folder: str) -> Iterator[str]:
    """The parquet files of a folder, as a reader that knows nothing of us sees them."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(f for f in folders if not f.startswith(("_", ".")))
        for name in sorted(names):
            if name.endswith(".parquet") and not name.startswith(("_", ".")):
                yield f"{parent}/{name}"


def table_files(output: Output, root: str, problems: list[str]) -> Iterable[str]:
    """The files that are part of a table, by its own format."""
    if root == "out" and output.format == "delta":
        import deltalake

        if not deltalake.DeltaTable.is_deltatable(output.out):
            return []
        return [os.path.join(output.out, path) for path in _delta_paths(output.out)]
    if root == "out" and output.format == "iceberg":
        from meshmsg.spark_sink.sink.iceberg import open_catalog

        catalog = open_catalog(output)
        if not catalog.table_exists(output.table):
            problems.append(f"the catalog has no table {output.table}: name it with --config")
            return []
        tasks = catalog.load_table(output.table).scan().plan_files()
        return [task.file.file_path.removeprefix("file://") for task in tasks]
    return data_files(_top(output, root))


def _delta_paths(path: str) -> list[str]:
    import deltalake

    return [uri.removeprefix("file://") for uri in deltalake.DeltaTable(path).file_uris()]


def _mark_rows(
    top: str, paths: list[str], what: int, epochs: dict[Key, _Epoch], problems: list[str]
) -> bool:
    """Mark what the files have; `False` if rows have no positions."""
    for path in paths:
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


def _losses(paths: list[str], problems: list[str]) -> Iterator[dict[str, Any]]:
    for path in paths:
        try:
            yield from pq.read_table(path, partitioning=None).to_pylist()
        except (OSError, pa.ArrowException) as error:
            problems.append(f"{path} cannot be read: {error}")


def _mark_wanted(
    epochs: dict[Key, _Epoch],
    source: LogSource,
    survey: Survey,
    topics: tuple[str, ...],
    problems: list[str],
) -> None:
    """What the log has of the table's span; the part that is no longer there is not verified."""
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
            if isinstance(item, Loss) and item.reason == "expired":  # it went while we read
                epoch.unverified += 0 if everything else item.stop - item.first
                epoch.mark_range(item.first, item.stop, WANTED if everything else NONE)
            elif isinstance(item, Loss):
                epoch.mark_range(item.first, item.stop, GONE)
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
        "lost": len(epoch.marks) - epoch.count(LOST | GONE, NONE),
        "quarantined": epoch.count(ASIDE, ASIDE),
        "unverified": epoch.unverified,
    }


def _counted(
    output: Output, root: str, paths: list[str], listed: dict[str, int], problems: list[str]
) -> int:
    """Rows by the files, compared with what the journal says of each file."""
    rows = strange = 0
    found = []
    for path in paths:
        try:
            count = pq.read_metadata(path).num_rows
        except (OSError, pa.ArrowException):
            continue  # said already
        rows += count
        if path not in listed:
            strange += count
            found.append(f"{path} is in the table and in no commit")
        elif listed[path] != count:
            found.append(f"{path} has {count:,} rows and was written with {listed[path]:,}")
    absent = sorted(listed.keys() - set(paths))
    found += [f"{path} is in a commit and not in the table" for path in absent]
    own_log = root == "out" and output.format != "parquet"
    if not (own_log and strange and strange == sum(listed[path] for path in absent)):
        problems += found  # else the same rows are in other files: the table was compacted
    return rows
