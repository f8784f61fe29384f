"""A stream's heartbeat over ZeroMQ: what can still be asked for."""

from __future__ import annotations

import msgspec

from meshmsg._model.errors import ProtocolError
from meshmsg._wire.frame_layout import CHECK_AT, HEARTBEAT, HEARTBEAT_MAGIC, check_of


class Heartbeat(msgspec.Struct, frozen=True, gc=False):
    """What a stream has: events `first` to `next` (half-open) can still be asked for."""

    stream: int
    epoch: int
    first: int
    next: int

    def encode(self) -> bytes:
        """The 40 bytes on the wire."""
        body = HEARTBEAT.pack(self.stream, HEARTBEAT_MAGIC, 0, self.epoch, self.first, self.next)
        check = check_of(body).to_bytes(4, "little")
        return b"".join((body[:CHECK_AT], check, body[CHECK_AT + 4 :]))

    @classmethod
    def decode(cls, data: bytes) -> Heartbeat:
        """Read one; raises `ProtocolError`."""
        if len(data) != HEARTBEAT.size:
            raise ProtocolError(f"a heartbeat of {len(data)} bytes")
        stream, magic, check, epoch, first, next_ = HEARTBEAT.unpack(data)
        if magic != HEARTBEAT_MAGIC or check_of(data) != check:
            raise ProtocolError("not a heartbeat")
        if first > next_ or next_ >= 1 << 63 or epoch >= 1 << 63:
            raise ProtocolError("heartbeat out of range")
        return cls(stream, epoch, first, next_)
