"""The multicast sender's memory: frames by the numbers of the packets they travel in.

Holds the frames as they were sealed (the same bytes objects that the stream's own buffer holds) and
cuts packets out of them when they are sent, live or again.  Bounded by bytes and by age.
"""

from __future__ import annotations

from bisect import bisect_right
from struct import Struct

from meshmsg._wire.packet import DATA, DATA_HEAD, PACKET_MAGIC, REPAIR

Data = bytes

#: `DATA_HEAD` in pieces: magic, kind and flags; the place; stream and epoch; the number; the frame.
_HEAD_PARTS = Struct("<6sH16sQ16s")
_FRONTS = {kind: PACKET_MAGIC + bytes((kind, 0)) for kind in (DATA, REPAIR)}
_IDS_PART = Struct("<QQ")
_FRAME_PART = Struct("<QIHH")
assert _HEAD_PARTS.size == DATA_HEAD.size


class StoredFrame:
    """One frame and the packets it is cut into."""

    __slots__ = ("data", "events", "first", "first_event", "kept_at", "packets")

    def __init__(
        self, first: int, packets: int, data: Data, first_event: int, events: int, kept_at: float
    ) -> None:
        self.first = first  #: its first packet
        self.packets = packets
        self.data = data
        self.first_event = first_event
        self.events = events
        self.kept_at = kept_at


class PacketStore:
    """Frames in order of their packets."""

    __slots__ = (
        "_age_s",
        "_bytes_max",
        "_firsts",
        "_frames",
        "_head",
        "_ids",
        "bytes",
        "next",
        "next_event",
        "packet_bytes",
        "payload_bytes",
    )

    def __init__(
        self, stream: int, epoch: int, packet_bytes: int, bytes_max: int, age_s: float
    ) -> None:
        self._ids = _IDS_PART.pack(stream, epoch)
        self.packet_bytes = packet_bytes
        self.payload_bytes = packet_bytes - DATA_HEAD.size
        self._bytes_max = bytes_max
        self._age_s = age_s
        self._firsts: list[int] = []
        self._frames: list[StoredFrame | None] = []
        self._head = 0
        self.bytes = 0
        self.next = 0  #: the number that the next packet gets
        self.next_event = 0

    def __len__(self) -> int:
        return len(self._firsts) - self._head

    @property
    def first(self) -> int:
        """The oldest packet that is still there; `next` if there is none."""
        return self._firsts[self._head] if self._head < len(self._firsts) else self.next

    @property
    def first_event(self) -> int:
        """The oldest event that is still there."""
        frame = self._frames[self._head] if self._head < len(self._frames) else None
        return self.next_event if frame is None else frame.first_event

    def append(self, data: Data, first_event: int, stop_event: int, *, now: float) -> StoredFrame:
        """Number a frame's packets and keep it."""
        packets = -(-len(data) // self.payload_bytes)
        frame = StoredFrame(self.next, packets, data, first_event, stop_event - first_event, now)
        self._firsts.append(self.next)
        self._frames.append(frame)
        self.bytes += len(data)
        self.next += packets
        self.next_event = stop_event
        return frame

    @property
    def is_full(self) -> bool:
        """Whether it holds more bytes than it should."""
        return self.bytes > self._bytes_max

    def find(self, number: int) -> StoredFrame | None:
        """The frame that a packet belongs to, if it is there."""
        index = bisect_right(self._firsts, number) - 1
        if index < self._head or number >= self.next:
            return None
        return self._frames[index]

    def trim(self, *, now: float, keep_from: int) -> None:
        """Let go of what is too old or too much, but of nothing from packet `keep_from` on."""
        while len(self) > 1:
            frame = self._frames[self._head]
            assert frame is not None
            old = self.bytes > self._bytes_max or now - frame.kept_at > self._age_s
            if not old or frame.first + frame.packets > keep_from:
                break
            self._frames[self._head] = None
            self.bytes -= len(frame.data)
            self._head += 1
        if self._head > 1024 and self._head * 2 > len(self._firsts):
            del self._firsts[: self._head], self._frames[: self._head]
            self._head = 0

    def cut(self, frame: StoredFrame, lo: int, hi: int, kind: int) -> bytes:
        """Packets `lo` to `hi` of a frame, one behind the other, each of `packet_bytes`."""
        # What differs from packet to packet is packed; the rest is packed once.
        pack, front, middle = _HEAD_PARTS.pack, _FRONTS[kind], self._ids
        rest = _FRAME_PART.pack(frame.first_event, len(frame.data), frame.packets, frame.events)
        first, size = frame.first, self.payload_bytes
        if frame.packets == 1:
            return pack(front, 0, middle, first, rest) + frame.data
        view = memoryview(frame.data)
        parts: list[bytes | memoryview] = []
        put = parts.append
        at = lo * size
        for place in range(lo, hi):
            put(pack(front, place, middle, first + place, rest))
            put(view[at : at + size])
            at += size
        return b"".join(parts)
