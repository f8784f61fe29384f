"""A table as a sink writes it: staged files, a commit in the journal, then files in their places.

Belongs here: what all formats share, and plain parquet, where a file in its place is all there is.
Formats with a log of their own (`delta`, `iceberg`) add one step, which names the number
of the commit so that it is never done twice.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from meshmsg import ConfigError, LogError
from meshmsg.spark_sink.sink.config import Output
from meshmsg.spark_sink.sink.journal import Commit, Journal, Staged
from meshmsg.spark_sink.source.columns import LOSS_COLUMNS
from meshmsg.spark_sink.source.positions import Positions, Range

log = logging.getLogger("meshmsg.spark_sink")


class Table:
    """A table of parquet files.  One thread uses it."""

    def __init__(self, output: Output) -> None:
        self.output = output
        self.journal = Journal(output.out)
        self.roots = {
            "out": output.out,
            "losses": output.losses,
            "quarantine": output.quarantine,
        }
        self._made: set[str] = set()
        self._unfinished: Commit | None = None  #: it counts, and not all its files have names

    # --- life ---

    def open(self, schema: str = "", *, wait_s: float = 30.0) -> None:
        """Become its one writer, and finish what a crash left undone.

        Raises `ConfigError` if it is another table or another sink writes it, and `LogError`.
        """
        about = self._about()
        if schema:
            about["schema"] = schema
        self.journal.open(about, wait_s=wait_s)
        try:
            self._check_disk()
            os.makedirs(self.output.staging, exist_ok=True)
            self._take_up(self.journal.last)
            self.sweep()
        except BaseException:
            self.close()
            raise

    def check(self) -> None:
        """Raise `ConfigError` if it cannot be opened as what it is to be; touches nothing."""
        self.journal.check(self._about())
        self._check_disk()

    def _about(self) -> dict[str, Any]:
        output = self.output
        return {
            "format": output.format,
            "partition_by": list(output.partition_by),
            "payload": output.payload,
            "topics": list(output.topics),
            "shaped": output.shaped,
        }

    def _take_up(self, last: Commit | None) -> None:
        """Finish the newest commit.

        Of one that is known to be whole, files may be gone by now: compacted, or removed by a user.
        """
        if last is not None and self.journal.published >= last.number:
            self.register(last)
            return
        self._unfinished = last
        self.finish()

    def close(self) -> None:
        """Let others write."""
        self.journal.close()

    @property
    def positions(self) -> Positions:
        """What is in the table: everything before these."""
        return self.journal.positions

    def _check_disk(self) -> None:
        """Files are moved, so all must be on one file system."""
        place = _device(self.output.staging)
        for option, root in self.roots.items():
            if _device(root) != place:
                problem = f"{root} is on another file system than {self.output.out}: files could"
                raise ConfigError(option, f"{problem} not be moved there at once")

    def sweep(self) -> None:
        """Remove what was staged and never committed."""
        for name in os.listdir(self.output.staging):
            shutil.rmtree(f"{self.output.staging}/{name}", ignore_errors=True)

    # --- writing ---

    def stage(self) -> str:
        """The path of a new folder in which files can be made; never the same twice."""
        return f"{self.output.staging}/{uuid.uuid4().hex}"

    def commit(
        self,
        batch: int,
        ranges: list[Range],
        folder: str,
        *,
        rows: int = 0,
        lost: int = 0,
        quarantined: int = 0,
    ) -> Commit:
        """Make the files in a staged folder part of the table, all or none; raises `OSError`.

        `folder` has `out/`, and where there are such rows `losses/` and `quarantine/`.  What could
        not be committed is removed: a disk that is full would only become fuller.
        """
        self.finish()
        before = self.journal.last
        try:
            commit = self._append(batch, ranges, folder, rows, lost, quarantined)
        except Exception:
            if self.journal.last is before:
                self.discard(folder)
            raise
        self.finish()
        self.discard(folder)
        return commit

    def _append(
        self, batch: int, ranges: list[Range], folder: str, rows: int, lost: int, quarantined: int
    ) -> Commit:
        """From here on it counts; its files have no names yet."""
        number = self.journal.next_number
        files = list(self._files(folder, number))
        staged = sum(file.rows for file in files if file.root == "out")
        if not self.output.shaped and staged != rows:  # nothing of it counts yet: it is tried again
            raise RuntimeError(f"Spark read {rows:,} rows of batch {batch} and wrote {staged:,}")
        for file in files:
            sync(f"{self.output.staging}/{file.staged}")
        commit = Commit(
            number, batch, ranges, files, rows, quarantined, lost, time_ns=time.time_ns()
        )
        self.journal.append(commit)
        self._unfinished = commit
        return commit

    def finish(self) -> None:
        """Publish the commit that a crash or a full disk left half done; nothing if there is none.

        Before anything else is committed: only the newest commit is looked at by the next start.
        """
        if self._unfinished is not None:
            self._publish(self._unfinished)
            self.journal.note_published(self._unfinished.number)
            self._unfinished = None

    @staticmethod
    def discard(folder: str) -> None:
        """Remove a staged folder."""
        shutil.rmtree(folder, ignore_errors=True)

    def _files(self, folder: str, number: int) -> Iterator[Staged]:
        """The staged files that have rows, with the names that they will have."""
        for root in self.roots:
            count = 0
            for parent, folders, names in os.walk(f"{folder}/{root}"):
                folders.sort()
                for name in sorted(names):
                    if not name.endswith(".parquet") or name.startswith((".", "_")):
                        continue
                    path = f"{parent}/{name}"
                    rows = pq.read_metadata(path).num_rows
                    if not rows:
                        continue
                    under = os.path.relpath(parent, f"{folder}/{root}")
                    inside = "" if under == "." else f"{under}/"
                    final = f"{inside}part-{number:010d}-{count:04d}.parquet"
                    staged = os.path.relpath(path, self.output.staging)
                    yield Staged(root, staged, final, rows, os.path.getsize(path))
                    count += 1

    def _publish(self, commit: Commit) -> None:
        """Give the files their names; to do it again changes nothing.  Raises `LogError`."""
        changed = set()
        for file in commit.files:
            target = f"{self.roots[file.root]}/{file.path}"
            source = f"{self.output.staging}/{file.staged}"
            parent = os.path.dirname(target)
            if parent not in self._made:
                make_folders(parent)
                self._made.add(parent)
            try:
                _move(source, target)
            except FileNotFoundError:
                if not os.path.exists(target):
                    problem = f"is in commit {commit.number} and gone: put it back from a copy"
                    raise LogError(target, problem) from None
            changed.add(parent)
        for parent in changed:
            sync(parent)
        self.register(commit)

    def register(self, commit: Commit) -> None:
        """Where the format has a log of its own: enter the files, unless that is done."""


def _move(source: str, target: str) -> None:
    """Rename a file, also if somebody has removed the folder since it was made."""
    try:
        os.rename(source, target)
    except FileNotFoundError:
        if not os.path.exists(source):
            raise
        make_folders(os.path.dirname(target))
        os.rename(source, target)


def make_folders(path: str) -> None:
    """Make a folder and those above, safely."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        os.makedirs(folder, exist_ok=True)
        sync(os.path.dirname(folder))


def sync(path: str) -> None:
    """Wait until a file or a folder is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


LOSS_SCHEMA = pa.schema(
    [(name, pa.string() if kind == "STRING" else pa.int64()) for name, kind in LOSS_COLUMNS.items()]
)


def write_losses(folder: str, rows: list[tuple[Any, ...]]) -> None:
    """Losses as a staged file."""
    columns = list(zip(*rows, strict=True))
    arrays = [pa.array(list(c), f.type) for c, f in zip(columns, LOSS_SCHEMA, strict=True)]
    os.makedirs(folder, exist_ok=True)
    pq.write_table(pa.Table.from_arrays(arrays, schema=LOSS_SCHEMA), f"{folder}/rows.parquet")


def _device(path: str) -> int:
    """Return the file system that a folder is, or will be, on."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return os.stat(path).st_dev
