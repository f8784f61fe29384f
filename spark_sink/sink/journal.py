"""What a table says of itself: which positions are in it, and the files of each commit.

The journal lies in the table's folder, under `_meshmsg/`, which readers of tables pass over.  It is
the one truth about what has been written: a batch that Spark runs again, with the same limit or
another, is compared with it by position.

A commit is one line with a check, appended and made safe *before* its files get their names in the
table.  A crash before that line leaves only staged files, which are swept; a crash behind it is
finished by the next start, from the line.  So a reader that knows nothing of us never sees an event
twice.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

from meshmsg import ConfigError, LogError, Position
from meshmsg.recovery.log.files import REAL, replace_small
from meshmsg.recovery.log.folder import VERSION, decode_checked, encode_checked
from meshmsg.spark_sink.source.positions import (
    EPOCHS_KEPT,
    Positions,
    Range,
    by_stream,
    in_order,
    key_of,
)

log = logging.getLogger("meshmsg.spark_sink")

FOLDER = "_meshmsg"
ABOUT = "table.json"
LOCK = "lock"
PUBLISHED = "published"
#: A new file is begun after so many commits: only the newest is read at a start.
COMMITS_A_FILE = 1000
LOCK_WAIT_S = 30.0


class Staged(NamedTuple):
    """A file that becomes part of a table: `root` is `out`, `losses` or `quarantine`."""

    root: str
    staged: str
    path: str
    rows: int
    size: int


class Commit(NamedTuple):
    """One step of a table, from one set of positions to the next."""

    number: int
    batch: int
    ranges: list[Range]
    files: list[Staged]
    rows: int = 0
    quarantined: int = 0
    lost: int = 0
    time_ns: int = 0

    def encode(self) -> bytes:
        """One line, with a check."""
        fields = self._asdict() | {"version": VERSION}
        fields["ranges"] = [list(r) for r in self.ranges]
        fields["files"] = [list(f) for f in self.files]
        return encode_checked(fields)


def decode_commit(fields: dict[str, Any]) -> Commit:
    """What `Commit.encode` wrote."""
    values = {name: fields[name] for name in Commit._fields}
    values["ranges"] = [Range(*r) for r in values["ranges"]]
    values["files"] = [Staged(*f) for f in values["files"]]
    return Commit(**values)


class Journal:
    """The journal of one table; `open` makes this process its one writer."""

    def __init__(self, table: str) -> None:
        self.table = table
        self.folder = f"{table}/{FOLDER}"
        self.about: dict[str, Any] = {}
        self.positions: Positions = {}
        self.last: Commit | None = None
        self.published = 0  #: the number of a commit whose files surely had their names
        self._lock = -1
        self._file = -1
        self._count = 0

    # --- life ---

    def open(self, about: dict[str, Any], *, wait_s: float = LOCK_WAIT_S) -> None:
        """Lock it, read it, claim it; raises `ConfigError` if it is something else, `LogError`."""
        try:
            self._open(about, wait_s)
        except OSError as error:
            self.close()
            if isinstance(error, LogError):
                raise
            raise LogError(self.folder, f"cannot be used: {error.strerror or error}") from error
        except BaseException:
            self.close()
            raise

    def check(self, about: dict[str, Any]) -> dict[str, Any] | None:
        """Return what the table says of itself; raises `ConfigError` if it is something else."""
        known = read_about(self.table)
        if known is None:
            if _has_files(self.table):
                problem = (
                    f"{self.table} has files and was not made by meshmsg sink, so what is in it is "
                    f"not known: name an empty folder"
                )
                raise ConfigError("out", problem)
            return None
        for key, value in about.items():
            if known.get(key) != value:
                problem = (
                    f"{self.table} was begun with {key} = {known.get(key)!r} and is now to have "
                    f"{value!r}: name another folder, or go on as before"
                )
                raise ConfigError(key, problem)
        return known

    def _open(self, about: dict[str, Any], wait_s: float) -> None:
        self.check(about)
        REAL.make_folder(self.folder)
        self._take_lock(wait_s)
        known = self.check(about)
        if known is None:
            known = {**about, "id": uuid.uuid4().hex, "version": VERSION}
            replace_small(REAL, self.folder, ABOUT, encode_checked(known))
        self.about = known
        self._read_newest()
        self.published = self._read_published()

    def _read_published(self) -> int:
        try:
            with open(f"{self.folder}/{PUBLISHED}", "rb") as file:
                fields = decode_checked(file.read())
        except FileNotFoundError:
            return 0
        ours = fields is not None and fields["id"] == self.about["id"]
        return int(fields["number"]) if fields is not None and ours else 0

    def note_published(self, number: int) -> None:
        """All files of a commit have their names.  A help only: nothing is lost if this is."""
        fields = {"version": VERSION, "id": self.about["id"], "number": number}
        path = f"{self.folder}/{PUBLISHED}"
        try:
            with open(f"{path}.new", "wb") as file:
                file.write(encode_checked(fields))
            os.replace(f"{path}.new", path)
        except OSError as error:
            log.warning("%s: %s", path, error)
        self.published = number

    def _take_lock(self, wait_s: float) -> None:
        """One writer: that of a daemon which was just killed may need a moment to end."""
        self._lock = os.open(f"{self.folder}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    problem = f"another sink writes {self.table}: stop it, or name another folder"
                    raise ConfigError("out", problem) from None
                time.sleep(0.1)

    def close(self) -> None:
        """Let the lock go."""
        for handle in (self._file, self._lock):
            if handle >= 0:
                os.close(handle)
        self._file = self._lock = -1

    # --- reading ---

    def _read_newest(self) -> None:
        names = journal_files(self.folder)
        if not names:
            return
        path = f"{self.folder}/{names[-1]}"
        good = 0
        self._count = 0
        for fields, end in read_lines(path):
            good = end
            if "base" in fields:
                self.positions = dict(fields["base"])
                self.last = decode_commit(fields["last"]) if fields.get("last") else None
                continue
            self.last = decode_commit(fields)
            self._apply(self.last)
            self._count += 1
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        if os.fstat(self._file).st_size != good:  # the line that a crash cut off
            os.ftruncate(self._file, good)
            os.fsync(self._file)
        os.lseek(self._file, 0, os.SEEK_END)
        if not good:  # not even its first line: it never counted
            os.close(self._file)
            self._file = -1
            os.remove(path)
            self._read_newest()

    def _apply(self, commit: Commit) -> None:
        for done in commit.ranges:
            key = key_of(done.stream, done.epoch)
            self.positions[key] = max(self.positions.get(key, 0), done.stop)

    # --- writing ---

    @property
    def next_number(self) -> int:
        """The number of the next commit."""
        return 1 if self.last is None else self.last.number + 1

    def append(self, commit: Commit) -> None:
        """When this returns, the commit counts, whatever happens; raises `OSError`."""
        if self._file < 0 or self._count >= COMMITS_A_FILE:
            self._roll(commit.number)
        at = os.lseek(self._file, 0, os.SEEK_END)
        try:
            write_all(self._file, commit.encode())
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, at)  # or half a line would stand before the next one
            raise
        self._count += 1
        self.last = commit
        self._apply(commit)

    def _roll(self, number: int) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self.positions = _pruned(self.positions)
        last = None if self.last is None else decode_checked(self.last.encode())
        base = {"version": VERSION, "base": self.positions, "last": last}
        name = f"commits-{number:012d}.jsonl"
        replace_small(REAL, self.folder, name, encode_checked(base))
        self._file = os.open(f"{self.folder}/{name}", os.O_RDWR | os.O_CLOEXEC)
        self._count = 0

    def commits(self) -> Iterator[Commit]:
        """All of them, oldest first."""
        yield from read_commits(self.table)


def _pruned(positions: Positions) -> Positions:
    kept = dict(positions)
    for stream, epochs in by_stream(positions).items():
        for epoch in sorted(epochs)[:-EPOCHS_KEPT]:
            del kept[key_of(stream, epoch)]
    return in_order(kept)


def read_about(table: str) -> dict[str, Any] | None:
    """What a table says of itself; `None` if it was not made by us.  Raises `LogError`."""
    path = f"{table}/{FOLDER}/{ABOUT}"
    try:
        with open(path, "rb") as file:
            found = decode_checked(file.read())
    except (FileNotFoundError, NotADirectoryError):
        return None
    if found is None:
        raise LogError(path, "is damaged: put it back from a copy")
    return found


def read_positions(table: str) -> Positions:
    """What is in a table, by anyone and without its lock; raises `LogError`."""
    folder = f"{table}/{FOLDER}"
    for name in reversed(journal_files(folder)):
        reader, lines = Journal(table), 0
        for fields, _ in read_lines(f"{folder}/{name}"):
            lines += 1
            if "base" in fields:
                reader.positions = dict(fields["base"])
            else:
                reader._apply(decode_commit(fields))
        if lines:
            return reader.positions
    return {}


def read_commits(table: str) -> Iterator[Commit]:
    """All commits of a table, oldest first, by anyone; raises `LogError`."""
    folder = f"{table}/{FOLDER}"
    for name in journal_files(folder):
        for fields, _ in read_lines(f"{folder}/{name}"):
            if "base" not in fields:
                yield decode_commit(fields)


def find_commit(table: str, position: Position) -> Commit | None:
    """The commit that an event of a table came with, by anyone; `None` if it is not in it.

    Raises `ConfigError` where it is no table of ours, `LogError`.
    """
    if read_about(table) is None:
        raise ConfigError("table", f"{table} is not a table that meshmsg sink has written")
    stream, epoch, seq = position.stream, position.epoch, position.seq
    for commit in read_commits(table):
        for one in commit.ranges:
            if (one.stream, one.epoch) == (stream, epoch) and one.first <= seq < one.stop:
                return commit
    return None


def journal_files(folder: str) -> list[str]:
    """The files of a journal, oldest first."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return sorted(n for n in names if n.startswith("commits-") and n.endswith(".jsonl"))


def read_lines(path: str) -> Iterator[tuple[dict[str, Any], int]]:
    """Each whole line and where it ends; a last one that was cut off is left out."""
    end = 0
    with open(path, "rb") as file:
        for line in file:
            fields = decode_checked(line)
            if fields is None:
                if file.read(1):
                    raise LogError(path, f"is damaged at byte {end}: put it back from a copy")
                return
            end += len(line)
            yield fields, end


def _has_files(folder: str) -> bool:
    try:
        return any(name != FOLDER for name in os.listdir(folder))
    except FileNotFoundError:
        return False
    except NotADirectoryError:
        raise ConfigError("out", f"{folder} is a file: name a folder") from None


def write_all(handle: int, data: bytes) -> None:
    """Write all of it; raises `OSError`."""
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]
