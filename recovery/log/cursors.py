"""Named places in a log: how far a consumer has come, kept across restarts.

A cursor is one small file with a check, replaced as a whole.  A damaged one is reported and counts
as not there, with one exception: retention must assume that it holds everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meshmsg._model.errors import LogError
from meshmsg.recovery.log.files import Files, files_here, read_small, replace_small
from meshmsg.recovery.log.folder import VERSION, decode_checked, encode_checked, escape
from meshmsg.recovery.log.format import NUMBER_MAX

ENDING = ".cursor"
CURSOR_BYTES_MAX = 16 * 1024
CURSORS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Cursor:
    """Everything before event `seq` of `epoch` has been handled."""

    name: str
    stream: str
    epoch: int
    seq: int
    hold: bool = False
    """Retention keeps what comes from here on."""
    time_ns: int = 0
    """When it was set."""

    def encode(self) -> bytes:
        """As JSON, with a check."""
        return encode_checked(
            {
                "version": VERSION,
                "name": self.name,
                "stream": self.stream,
                "epoch": self.epoch,
                "seq": self.seq,
                "hold": self.hold,
                "time_ns": self.time_ns,
            }
        )


def decode_cursor(data: bytes) -> Cursor | None:
    """A cursor, if it is whole and makes sense."""
    fields = decode_checked(data)
    if fields is None:
        return None
    fields.pop("version")
    kinds: dict[str, type] = {"name": str, "stream": str, "hold": bool}
    kinds |= {"epoch": int, "seq": int, "time_ns": int}
    if set(fields) != set(kinds) or any(type(fields[key]) is not kinds[key] for key in kinds):
        return None
    good = 0 <= fields["epoch"] <= NUMBER_MAX and 0 <= fields["seq"] <= NUMBER_MAX
    return Cursor(**fields) if good else None


class Cursors:
    """The cursors in one folder.

    >>> cursors = Cursors("data/pricing%2Forders.%2A%2A/cursors")              # doctest: +SKIP
    >>> cursors.set(Cursor("audit", "pricing/orders.**", epoch=7, seq=41))     # doctest: +SKIP
    """

    def __init__(self, path: str, *, files: Files | None = None) -> None:
        self.path = self._path = path
        self.files = files or files_here()
        self._made = False
        self.problems: list[str] = []  #: what was found damaged when it was read last, in words

    def get(self, name: str, stream: str) -> Cursor | None:
        """One cursor; `None` if it is not there or damaged, which `problems` tells apart."""
        self.problems = []
        return self._read(self._file(name, stream), (name, stream))

    def set(self, cursor: Cursor) -> None:
        """Set a cursor; when this returns it survives a crash.  Raises `LogError`."""
        file = self._file(cursor.name, cursor.stream)
        try:
            if not self._made:
                self.files.make_folder(self._path)
                self._made = True
            replace_small(self.files, self._path, file, cursor.encode())
        except OSError as error:
            problem = f"the cursor could not be set: {error.strerror or error}"
            raise LogError(f"{self._path}/{file}", problem) from error

    def remove(self, name: str, stream: str) -> None:
        """Forget a cursor; raises `LogError`."""
        file = self._file(name, stream)
        try:
            self.files.remove(f"{self._path}/{file}")
            self.files.sync_folder(self._path)
        except OSError as error:
            problem = f"the cursor could not be removed: {error.strerror or error}"
            raise LogError(f"{self._path}/{file}", problem) from error

    def all(self) -> list[Cursor]:
        """All that can be read; `problems` names the others."""
        self.problems = []
        files = sorted(f for f in self.files.names(self._path) if f.endswith(ENDING))
        if len(files) > CURSORS_MAX:
            self.problems.append(f"{len(files):,} cursors: {CURSORS_MAX:,} are looked at")
        found = [self._read(file, None) for file in files[:CURSORS_MAX]]
        return [cursor for cursor in found if cursor is not None]

    def held(self) -> tuple[int, int] | None:
        """The lowest epoch and number that a cursor holds; all, if one cannot be read."""
        places = [(cursor.epoch, cursor.seq) for cursor in self.all() if cursor.hold]
        if self.problems:
            places.append((0, 0))
        return min(places, default=None)

    def _file(self, name: str, stream: str) -> str:
        return escape(f"{name}@{stream}") + ENDING

    def _read(self, file: str, wanted: tuple[str, str] | None) -> Cursor | None:
        path = f"{self._path}/{file}"
        data: bytes | None
        try:
            data = read_small(self.files, path, CURSOR_BYTES_MAX)
        except OSError as error:
            self.problems.append(f"{path}: the cursor cannot be read: {error.strerror}")
            return None
        if data is None:
            return None
        cursor = decode_cursor(data)
        named: Any = None if cursor is None else (cursor.name, cursor.stream)
        if cursor is None or self._file(*named) != file or wanted not in (None, named):
            self.problems.append(f"{path}: the cursor is damaged")
            return None
        return cursor
