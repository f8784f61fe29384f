"""How far work groups have come on a durable stream, kept beside its log across restarts.

A group is one small file with a check, replaced as a whole: everything before its floor is settled,
and so are some ranges beyond it; events that were tried more than once stand there with their
attempts, and so do its members, who know what was done since it was saved.  Its floor is kept as a
cursor, too, which holds retention, and is a second chance: a group whose file is damaged goes on
from there, and some work is done twice, none of it never.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from meshmsg._model.errors import LogError
from meshmsg.recovery.log.cursors import Cursor, Cursors
from meshmsg.recovery.log.files import Files, read_small, replace_small
from meshmsg.recovery.log.folder import (
    CURSORS_FOLDER,
    VERSION,
    LogFolder,
    decode_checked,
    encode_checked,
    escape,
    unescape,
)
from meshmsg.recovery.log.format import NUMBER_MAX

GROUPS_FOLDER = "groups"
ENDING = ".group"
#: Ranges beyond the floor that are remembered, the lowest first: more than a group makes, unless
#: members hold very much.  Of others, the members are not told that it is kept.
RANGES_MAX = 200_000
ATTEMPTS_MAX = 10_000
MEMBERS_MAX = 10_000
GROUP_BYTES_MAX = 16 * 1024 * 1024
GROUPS_MAX = 1000
#: A cursor with a space in its name is none that a user can set.
CURSOR_PREFIX = "group "

Place = tuple[int, int]
Piece = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """One group as it is remembered; places are epochs and numbers."""

    name: str
    floor: Place
    settled: list[Piece] = field(default_factory=list)
    """Epoch, first, stop: settled beyond the floor."""
    attempts: list[Piece] = field(default_factory=list)
    """Epoch, number, attempt: not settled, and not for the first time."""
    order: str = "none"
    max_attempts: int = 5
    patterns: tuple[str, ...] = ("**",)
    members: tuple[int, ...] = ()
    """Who may have work, or have done it: they are waited for after a restart."""
    dealt: Place | None = None
    """Nothing from here on was given to anybody; earlier releases did not say."""
    spared: list[Piece] = field(default_factory=list)
    """Epoch, number, attempts that do not count."""
    doubtful: list[Piece] = field(default_factory=list)
    """Epoch, first, stop: not settled, and may have been given to members that are not back."""
    generation: int = 0
    """Rises when the group is reset: what members had in an earlier one is not theirs."""
    paused: bool = False
    """By an operator: nothing is dealt out, until an operator lets it go on."""
    redriven: Place = (0, 0)
    """Of the stream of its dead letters: those before this place were sent again."""

    @property
    def whole(self) -> bool:
        """Whether all that is settled fits into the file."""
        return len(self.settled) <= RANGES_MAX

    def encode(self) -> bytes:
        """As JSON, with a check."""
        return encode_checked(
            {
                "version": VERSION,
                "name": self.name,
                "floor": self.floor,
                "settled": self.settled[:RANGES_MAX],
                "attempts": self.attempts[:ATTEMPTS_MAX],
                "order": self.order,
                "max_attempts": self.max_attempts,
                "patterns": self.patterns,
                "members": self.members[:MEMBERS_MAX],
                "dealt": self.dealt,
                "spared": self.spared[:ATTEMPTS_MAX],
                "doubtful": self.doubtful[:RANGES_MAX],
                "generation": self.generation,
                "paused": self.paused,
                "redriven": self.redriven,
            }
        )


def decode_record(data: bytes) -> GroupRecord | None:
    """A group, if it is whole and makes sense."""
    fields = decode_checked(data)
    if fields is None:
        return None
    name, order, limit = (fields.get(key) for key in ("name", "order", "max_attempts"))
    floor, patterns = fields.get("floor"), fields.get("patterns")
    settled, attempts = fields.get("settled"), fields.get("attempts")
    # What earlier releases did not say:
    members, dealt = fields.get("members", []), fields.get("dealt")
    spared, doubtful = fields.get("spared", []), fields.get("doubtful", [])
    generation, paused = fields.get("generation", 0), fields.get("paused", False)
    redriven = fields.get("redriven", [0, 0])
    good = (
        isinstance(name, str)
        and order in ("none", "key")
        and type(limit) is int
        and limit > 0
        and _are_numbers(floor, 2)
        and isinstance(patterns, list)
        and all(isinstance(pattern, str) for pattern in patterns)
        and isinstance(members, list)
        and _are_numbers(members, len(members))
        and (dealt is None or _are_numbers(dealt, 2))
        and _are_numbers([generation], 1)
        and isinstance(paused, bool)
        and _are_numbers(redriven, 2)
    )
    for rows in (settled, attempts, spared, doubtful):
        good = good and isinstance(rows, list) and all(_are_numbers(row, 3) for row in rows)
    if not good or any(first >= stop for _, first, stop in [*settled, *doubtful]):  # type: ignore[misc]
        return None
    return GroupRecord(
        name,  # type: ignore[arg-type]
        tuple(floor),  # type: ignore[arg-type]
        [tuple(row) for row in settled],  # type: ignore[union-attr]
        [tuple(row) for row in attempts],  # type: ignore[union-attr]
        order,  # type: ignore[arg-type]
        limit,  # type: ignore[arg-type]
        tuple(patterns),  # type: ignore[arg-type]
        tuple(members),
        None if dealt is None else tuple(dealt),
        [tuple(row) for row in spared],
        [tuple(row) for row in doubtful],
        generation,
        paused,
        tuple(redriven),
    )


def _are_numbers(row: Any, count: int) -> bool:
    if not isinstance(row, list) or len(row) != count:
        return False
    return all(type(value) is int and 0 <= value <= NUMBER_MAX for value in row)


class GroupStore:
    """The groups of one log.

    >>> store = GroupStore(LogFolder("data/shop%2Fjobs.%2A%2A"), "shop/jobs.**")  # doctest: +SKIP
    >>> store.save(GroupRecord("workers", floor=(7, 41)))                         # doctest: +SKIP
    """

    def __init__(self, folder: LogFolder, stream: str) -> None:
        self._files: Files = folder.files
        self._path = f"{folder.path}/{GROUPS_FOLDER}"
        self._stream = stream
        self._cursors = Cursors(f"{folder.path}/{CURSORS_FOLDER}", files=folder.files)
        self.problems: list[str] = []  #: what `load` found damaged, in words

    def save(self, record: GroupRecord) -> None:
        """Remember a group; when this returns it survives a crash.  Raises `LogError`."""
        file = escape(record.name) + ENDING
        try:
            self._files.make_folder(self._path)
            replace_small(self._files, self._path, file, record.encode())
        except OSError as error:
            problem = f"the group could not be saved: {error.strerror or error}"
            raise LogError(f"{self._path}/{file}", problem) from error

    def has(self, name: str) -> bool:
        """Whether a group is remembered, be it damaged."""
        return escape(name) + ENDING in self._files.names(self._path)

    def hold(self, name: str, floor: Place, time_ns: int) -> None:
        """Have retention keep what the group has yet to do.  Raises `LogError`."""
        epoch, seq = floor
        cursor = Cursor(CURSOR_PREFIX + name, self._stream, epoch, seq, True, time_ns)
        self._cursors.set(cursor)

    def remove(self, name: str) -> None:
        """Forget a group.  Raises `LogError`."""
        file = escape(name) + ENDING
        try:
            self._files.remove(f"{self._path}/{file}")
            self._files.sync_folder(self._path)
        except OSError as error:
            problem = f"the group could not be removed: {error.strerror or error}"
            raise LogError(f"{self._path}/{file}", problem) from error
        self._cursors.remove(CURSOR_PREFIX + name, self._stream)

    def load(self) -> list[GroupRecord]:
        """All groups, those included of which only the cursor or the name can be read."""
        self.problems = []
        names = [file for file in self._files.names(self._path) if file.endswith(ENDING)]
        if len(names) > GROUPS_MAX:
            self.problems.append(f"{len(names):,} groups: {GROUPS_MAX:,} are looked at")
        found = [self._load(file) for file in sorted(names)[:GROUPS_MAX]]
        return [record for record in found if record is not None]

    def _load(self, file: str) -> GroupRecord | None:
        path = f"{self._path}/{file}"
        data: bytes | None
        try:
            data = read_small(self._files, path, GROUP_BYTES_MAX)
            record = None if data is None else decode_record(data)
        except OSError as error:
            self.problems.append(f"{path}: the group cannot be read: {error.strerror}")
            record = None
        if record is not None and escape(record.name) + ENDING == file:
            return record
        name = unescape(file.removesuffix(ENDING))
        if name is None:
            self.problems.append(f"{path}: the group is damaged, and its name, too")
            return None
        cursor = self._cursors.get(CURSOR_PREFIX + name, self._stream)
        floor = (0, 0) if cursor is None else (cursor.epoch, cursor.seq)
        self.problems.append(f"{path}: the group is damaged, and goes on from {floor}")
        return GroupRecord(name, floor)
