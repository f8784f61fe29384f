"""The tail of a log: its newest events in mapped memory, before they make a frame of a segment.

An event outlives the process once it is in the page cache; that takes neither a system call nor a
frame of its own.  So single events are copied into a small mapped file, `tail`, and gather there,
at whatever rate they come, until they make a full frame.  That frame becomes one record of the
segment, and the file has two areas, so that publishing goes on in the other one meanwhile.

| at this point of a turn | after a crash of the process |
|---|---|
| the new area has no head | the old area has its events |
| the new area has its head | the old area has them, and the new one goes on behind them |
| the frame is in the segment | the segment and the old area have them |

Where events come so fast that an area is full within 20 ms, areas are larger: a turn costs about as
much whatever they hold, and who publishes meanwhile soon waits for the next one.  The file is made
anew for that, when segments have all that it has.

An area whose events were called durable, because the tail was synced, is not written over before
the segment that has them was synced: else a power failure could take both.

Belongs here: the areas of the file, and reading them.  Does not belong here: an entry's bytes
(`meshmsg._wire.tail_frame`), and when the tail is stored or synced (`appender`).
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from meshmsg._model.errors import LogError
from meshmsg._wire.frame import encode_frame
from meshmsg._wire.tail_frame import TailEntry, TailFrame, pass_over, read_entries, read_entry
from meshmsg.recovery.log.files import File, Files, write_all

TAIL_FILE = "tail"
AREAS = 2
AREA_HEAD = Struct("<8sQQQ8s20xI")
AREA_MAGIC = b"MMTAIL\x00\x01"
#: Areas are large while a small one would be full within this time.
FILLS_NS = 20_000_000
#: An area is wiped in pieces of this size.
ZEROS = bytes(64 * 1024)
#: The file is never larger, whatever is found under its name.
TAIL_BYTES_MAX = AREAS * 16 * 1024 * 1024


class AreaHead(NamedTuple):
    """What an area says of itself."""

    wire_id: int
    epoch: int
    first: int
    salt: bytes

    def encode(self) -> bytes:
        """The first bytes of an area."""
        body = AREA_HEAD.pack(AREA_MAGIC, *self, 0)[:-4]
        return body + crc32c(body).to_bytes(4, "little")


def read_area_head(data: bytes) -> AreaHead | None:
    """The head of an area; `None` if it has none."""
    if len(data) < AREA_HEAD.size:
        return None
    magic, wire_id, epoch, first, salt, check = AREA_HEAD.unpack_from(data)
    if magic != AREA_MAGIC or crc32c(data[: AREA_HEAD.size - 4]) != check:
        return None
    return AreaHead(wire_id, epoch, first, salt)


def _wipe(memory: memoryview) -> None:
    """Zero it, piece by piece: so many zeros at once would be fresh pages each time."""
    for at in range(0, len(memory), len(ZEROS)):
        memory[at : at + len(ZEROS)] = ZEROS[: len(memory) - at]


class _Area:
    """One half of the file, as its writer knows it."""

    def __init__(self) -> None:
        self.used = 0  #: bytes that are not zero
        self.stop = 0  #: one past its last event, once it was left
        self.claimed = False  #: some of its events were called durable because of it


class Tail:
    """The tail of the epoch that is written; its owner's lock guards all but `frame.add`."""

    def __init__(
        self,
        files: Files,
        path: str,
        wire_id: int,
        epoch: int,
        first: int,
        *,
        area_bytes: int,
        area_bytes_max: int,
    ) -> None:
        self.frame = TailFrame(first)  #: what events are added to
        self.in_use = False  #: events can be added
        self._area_bytes = self._room = area_bytes  # of the first kind, and in the file
        self._area_bytes_max = area_bytes_max
        self._files = files
        self._path = f"{path}/{TAIL_FILE}"
        self._wire_id = wire_id
        self._epoch = epoch
        self._file: File | None = None
        self._memory = memoryview(b"")
        self._areas = [_Area() for _ in range(AREAS)]
        self._at = 0

    def leave(self) -> None:
        """What was added is stored, or something else comes next: go on after another `turn`."""
        self.in_use = False
        self.frame.release()

    def may_grow(self) -> bool:
        """Whether the file has smaller areas than it may."""
        return self._file is not None and self._room < self._area_bytes_max

    def grow(self) -> None:
        """Have the next `turn` make a file of large areas: all events are in segments."""
        self.close()
        self._room = self._area_bytes_max

    def fills_within(self, took_ns: int) -> bool:
        """Whether a small area would be full within this time."""
        return 0 <= took_ns * self._area_bytes < FILLS_NS * self.frame.at

    def turn(self, *, large: bool) -> None:
        """Go on in the other area, from the frame's next number on; the frame stays shut.

        Raises `OSError`, and then nothing has changed.
        """
        if self._file is None:
            self._create()
        else:
            left = self._areas[self._at]
            left.used, left.stop = self.frame.at, self.frame.first
        self._at = (self._at + 1) % AREAS
        area = self._areas[self._at]
        head = AreaHead(self._wire_id, self._epoch, self.frame.first, self._files.random_bytes(8))
        start = self._at * self._room
        memory = self._memory[start : start + (self._room if large else self._area_bytes)]
        _wipe(self._memory[start : start + area.used])
        memory[: AREA_HEAD.size] = head.encode()
        area.claimed = False
        self.frame.use(memory, AREA_HEAD.size, crc32c(head.salt))
        self.in_use = True

    def _create(self) -> None:
        if self._room > self._area_bytes:
            try:
                self._make_file(AREAS * self._room)
                return
            except OSError:  # there may be space for small ones
                self._room = self._area_bytes_max = self._area_bytes
        self._make_file(AREAS * self._room)

    def _make_file(self, size: int) -> None:
        self._files.remove(self._path)
        file = self._files.open(self._path, create=True)
        try:
            # Bytes, not a reservation: a full disk is found here, not by a signal later.
            write_all(file, [bytes(size)], 0)
            self._memory = file.map(size)
        except BaseException:
            file.close()
            self._files.remove(self._path)
            raise
        self._file = file

    def wants_safe(self) -> int:
        """Up to which event segments have to be safe before the next `turn`."""
        area = self._areas[(self._at + 1) % AREAS]
        return area.stop if area.claimed else 0

    def claim(self) -> None:
        """Its events are about to be called durable."""
        self._areas[self._at].claimed = True

    def sync(self) -> None:
        """Return when it is on the disk; raises `OSError`."""
        if self._file is not None:
            self._file.sync()

    def drop(self) -> None:
        """Remove the file: all events are in segments.  Raises `OSError`."""
        self.close()
        self._files.remove(self._path)

    def close(self) -> None:
        """Let go of the file."""
        file, self._file = self._file, None
        if file is None:
            return
        self.leave()
        self._memory.release()
        self._memory = memoryview(b"")
        self._areas = [_Area() for _ in range(AREAS)]
        file.close()


class Piece(NamedTuple):
    """Consecutive events of the tail as a frame."""

    first: int
    stop: int
    time_ns: int
    data: bytes


class TailReader:
    """Reads the tail of a log while it is written, or as a crash left it."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = f"{path}/{TAIL_FILE}"
        self._seen = (b"", 0, 0)  # the salt of an area, the next number there, and its offset
        self.is_ahead = False  #: by the last look, the tail begins behind what was asked for

    def read(self, wire_id: int | None, epoch: int, next_: int) -> Piece | None:
        """The events from `next_` on, as far as they go; `None` if there is none.

        Raises `LogError` if it may not be read.
        """
        found = self._find(wire_id, epoch, next_)
        if found is None:
            return None
        head, data, at = found
        entries = _walk(head, data, at, next_ - head.first)
        if not entries:
            return None
        self._seen = (head.salt, next_ + len(entries), entries[-1].end)
        return piece_of(head, entries)

    def stop(self, epoch: int, next_: int) -> int:
        """One past the newest event, where `next_` is that of the segments."""
        while True:
            found = self._find(None, epoch, next_)
            if found is None:
                return next_
            head, data, at = found
            before = next_
            next_ += len(_walk(head, data, at, next_ - head.first))
            if next_ == before:
                return next_

    def pieces(self, wire_id: int, epoch: int) -> Iterator[Piece]:
        """All that a crash left, in order, passing over what is damaged.  Raises `OSError`."""
        try:
            file = self._files.open(self._path)
        except FileNotFoundError:
            return
        try:
            areas = [(head, data) for head, data in _areas(file) if head.wire_id == wire_id]
        finally:
            file.close()
        for head, data in sorted(areas, key=lambda area: area[0].first):
            if head.epoch == epoch:
                yield from _salvage(head, data)

    def _find(
        self, wire_id: int | None, epoch: int, next_: int
    ) -> tuple[AreaHead, bytes, int] | None:
        """The area that has an event, its bytes, and the event's offset."""
        self.is_ahead = False
        try:
            file = self._files.open(self._path)
        except FileNotFoundError:
            return None
        except PermissionError as error:
            raise LogError(self._path, "may not be read") from error
        except OSError:
            return None
        try:
            areas = [
                (head, data)
                for head, data in _areas(file)
                if head.epoch == epoch and wire_id in (None, 0, head.wire_id)
            ]
        except OSError:
            return None
        finally:
            file.close()
        known = [area for area in areas if area[0].first <= next_]
        self.is_ahead = bool(areas) and not known
        for head, data in sorted(known, key=lambda area: area[0].first, reverse=True):
            at = self._offset(head, data, next_)
            if at is not None:
                return head, data, at
        return None

    def _offset(self, head: AreaHead, data: bytes, next_: int) -> int | None:
        """Where an event stands in an area; `None` if it is not there."""
        salt, number, at = self._seen
        if salt != head.salt or number > next_:
            number, at = head.first, AREA_HEAD.size
        place = pass_over(data, at, next_ - number)
        if place is None or read_entry(data, place, crc32c(head.salt)) is None:
            return None
        return place


def _areas(file: File) -> Iterator[tuple[AreaHead, bytes]]:
    size = min(file.size(), TAIL_BYTES_MAX) // AREAS
    for at in range(AREAS):
        data = file.read_at(size, at * size)
        head = read_area_head(data)
        if head is not None:
            yield head, data


def _walk(head: AreaHead, data: bytes, at: int, index: int) -> list[TailEntry]:
    """Entries from an offset on, up to the first that is not there, or not whole."""
    return read_entries(data, at, crc32c(head.salt), index)


def _salvage(head: AreaHead, data: bytes) -> Iterator[Piece]:
    """All entries that are whole, wherever they stand."""
    salt = crc32c(head.salt)
    used = len(data.rstrip(b"\0"))
    at, index = AREA_HEAD.size, 0
    while True:
        entries = _walk(head, data, at, index)
        if entries:
            yield piece_of(head, entries)
            at, index = entries[-1].end, entries[-1].number + 1
        following = None
        while at < used and following is None:
            at += 8
            following = read_entry(data, at, salt)
            if following is not None and following.number < index:
                following = None
        if following is None:
            return
        index = following.number


def piece_of(head: AreaHead, entries: list[TailEntry]) -> Piece:
    """Entries that follow each other as a frame."""
    first = head.first + entries[0].number
    topics = [entry.topic for entry in entries]
    raws = bytes(entry.raw for entry in entries)
    times = [entry.time_ns for entry in entries]
    data = encode_frame(
        head.wire_id,
        head.epoch,
        first,
        topics[0] if topics.count(topics[0]) == len(topics) else topics,
        [entry.payload for entry in entries],
        times,
        raw=bool(raws[0]) if raws.count(raws[0]) == len(raws) else raws,
        keys={n: entry.key for n, entry in enumerate(entries) if entry.key is not None},
        headers={n: entry.headers for n, entry in enumerate(entries) if entry.headers is not None},
    )
    return Piece(first, first + len(entries), max(times[0], times[-1]), data)
