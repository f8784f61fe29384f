"""`TailFrame`: the newest events of a durable stream, as one frame and in the log's mapped tail.

Belongs here: the bytes of one entry of the tail, and adding an event.  Does not belong here: where
the memory comes from, and when what is there moves into a segment (`recovery.log.tail`).

Compiled where the compiled core is in use; here is the same in Python, which its caller has to
guard by a lock.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

from meshmsg._native import COMPILED
from meshmsg._wire.frame import FrameBuilder

if COMPILED:
    from meshmsg import _speed

#: Length of the entry (written last), check, time, index, lengths of payload, key and headers (each
#: of the latter two plus one, 0: none), length of the topic, whether the payload is raw, zero.
ENTRY = Struct("<IIqIIIIHHI")
TAIL_ROWS_MAX = 16384
_WORD = Struct("<I")


class TailEntry(NamedTuple):
    """One event of the tail; `number` counts from the first one of its area."""

    number: int
    topic: str
    payload: bytes
    time_ns: int
    raw: bool
    key: str | None
    headers: bytes | None
    end: int
    """Where the next entry begins."""


def padded(size: int) -> int:
    """Return the next multiple of 8."""
    return size + (-size & 7)


def read_entry(data: bytes, at: int, salt: int) -> TailEntry | None:
    """Return the entry at an offset; `None` if none is there, whole and unharmed."""
    if len(data) - at < ENTRY.size:
        return None
    used, check, time_ns, number, payload, key, headers, topic, raw, zero = ENTRY.unpack_from(
        data, at
    )
    ends = [at + ENTRY.size, topic, max(key - 1, 0), max(headers - 1, 0), payload]
    if used != sum(ends) - at or at + used > len(data) or raw > 1 or zero:
        return None
    if crc32c(data[at + 8 : at + used], salt) != check:
        return None
    parts = []
    start = ends[0]
    for size in ends[1:]:
        parts.append(data[start : start + size])
        start += size
    try:
        return TailEntry(
            number,
            parts[0].decode(),
            parts[3],
            time_ns,
            bool(raw),
            parts[1].decode() if key else None,
            parts[2] if headers else None,
            at + padded(used),
        )
    except UnicodeDecodeError:
        return None


def read_entries(data: bytes, at: int, salt: int, number: int) -> list[TailEntry]:
    """Return consecutive entries from an offset on, that of a number first.

    They end before the first that is not there, or not whole.  An area has thousands of them, and
    whoever publishes waits for the interpreter's lock meanwhile: so this is compiled.
    """
    if COMPILED:
        return _speed.tail_entries(TailEntry, data, at, salt, number)
    found: list[TailEntry] = []
    while (entry := read_entry(data, at, salt)) is not None and entry.number == number:
        found.append(entry)
        at, number = entry.end, number + 1
    return found


def pass_over(data: bytes, at: int, count: int) -> int | None:
    """Return where the entry stands that comes so many later; `None` if it is not there.

    The entries in between are not looked at: one that is reached by them says its number.
    """
    for _ in range(count):
        if len(data) - at < ENTRY.size:
            return None
        (used,) = _WORD.unpack_from(data, at)
        if used < ENTRY.size:
            return None
        at += padded(used)
    return at


if TYPE_CHECKING or not COMPILED:

    class TailFrame(FrameBuilder):
        """A frame builder whose events stand in mapped memory, too."""

        __slots__ = ("_area", "_salt", "at", "keepers", "shut")

        CAPACITY_MIN = TAIL_ROWS_MAX
        CAPACITY_MAX = TAIL_ROWS_MAX

        def __init__(self, first: int = 0) -> None:
            super().__init__(first)
            self._area = memoryview(bytearray())
            self._salt = 0
            self.at = 0  #: where the next entry goes
            self.shut = True  #: only the log itself adds events
            self.keepers = 0  #: how many keep out all but the log

        def use(self, area: memoryview, at: int, salt: int) -> None:
            """Write to this memory from here on, with this salt; the frame stays shut."""
            self.release()
            self._area, self.at, self._salt = area, at, salt

        def release(self) -> None:
            """Let go of the memory; the frame is shut."""
            self.shut = True
            self._area = memoryview(bytearray())

        def has_room(self, needed: int) -> bool:
            """Whether an event of so many bytes could be added now."""
            room = len(self._area) - self.at
            return not self.shut and padded(needed) <= room and self.count < TAIL_ROWS_MAX

        def __enter__(self) -> TailFrame:
            """Keep out all but the log: compiled publishing, which takes no lock."""
            self.keepers += 1
            return self

        def __exit__(self, *_: object) -> None:
            """Let them in again."""
            self.keepers -= 1

        def add(
            self,
            topic: str,
            payload: bytes,
            time_ns: int,
            *,
            raw: bool = True,
            key: str | None = None,
            headers: bytes | None = None,
        ) -> bool:
            """Add an event; `False` if there is no room for it."""
            text = topic.encode()
            name = b"" if key is None else key.encode()
            body = b"".join((text, name, headers or b"", payload))
            used = ENTRY.size + len(body)
            at, area = self.at, self._area
            if at + padded(used) > len(area) or self.count == TAIL_ROWS_MAX:
                return False
            names = 0 if key is None else len(name) + 1
            notes = 0 if headers is None else len(headers) + 1
            sizes = (len(payload), names, notes, len(text))
            head = ENTRY.pack(0, 0, time_ns, self.count, *sizes, raw, 0)
            body = head[8:] + body
            area[at + 4 : at + used] = _WORD.pack(crc32c(body, self._salt)) + body
            place, length, end = slice(at, at + 4), _WORD.pack(used), at + padded(used)
            note = (key, headers)
            # From here to `count` there is no call (`FrameBuilder.add` is written out), so Ctrl-C
            # comes before all of it or after.
            index = self.count
            area[place] = length  # last of the entry: who reads meanwhile finds it whole
            self.at = end
            self.topics[index] = topic
            self.payloads[index] = payload
            self.times[index] = time_ns
            self.raws[index] = raw
            if key is not None or headers is not None:
                self.notes[self.first + index] = note
            self.count = index + 1
            return True

else:
    from meshmsg._speed import TailFrame

__all__ = [
    "ENTRY",
    "TAIL_ROWS_MAX",
    "TailEntry",
    "TailFrame",
    "padded",
    "pass_over",
    "read_entries",
    "read_entry",
]
