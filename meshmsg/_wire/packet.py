"""The packet codec of the multicast transport: how frames travel in datagrams.

A frame is cut into packets that fit the path's MTU, numbered one after the other per (stream,
epoch); beside them go heartbeats, repair requests (NACKs), their confirmations, receivers' status
reports and parity packets.  docs/wire-format.md is the specification; the names here are the names
there.  All integers are little-endian.

Belongs here: bytes to fields and back, and the refusal of what cannot be.  Does not belong here:
what a number means for loss, or when to send what (`recovery`), and sockets (`transports`).
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from struct import error as struct_error
from typing import NamedTuple

from crc32c import crc32c

from meshmsg._model.errors import ProtocolError
from meshmsg._wire.frame import FRAME_BYTES_MAX

PACKET_MAGIC = b"MMP1"
SEALED_MAGIC = b"MME1"
#: Kinds of packets.
DATA = 1
REPAIR = 2
HEARTBEAT = 3
NACK = 4
CONFIRM = 5
STATUS = 6
PARITY = 7

#: Flags of a heartbeat: nothing more will come; it answers a request.
ENDS = 1
ANSWERS = 2
#: Flag of a status: the receiver leaves.
LEAVES = 1

#: Every packet: magic, kind, flags, extra, stream, epoch, number.
HEAD = Struct("<4sBBHQQQ")
#: A sealed packet in the clear: magic; kind, flags and extra; stream, sender, generation and count.
SEALED_HEAD = Struct("<4s4sQQQ")
TAG_BYTES = 16
#: So much longer is a packet when it is sealed: sender, generation and count, and the tag.
SEAL_BYTES = 16 + TAG_BYTES
#: Data and repair: the head, then first event, frame bytes, packets of the frame, its events.
DATA_HEAD = Struct("<4sBBHQQQQIHH")
_BEAT = Struct("<QQQ")
_STATUS = Struct("<QIH")
_PARITY = Struct("<HHHH")
_RANGE = Struct("<QI")
_CHECK = Struct("<I")

#: Where the stream's id stands, by which a datagram finds its receiver.
STREAM_AT = 8
RANGES_MAX = 100
RANGE_PACKETS_MAX = 0xFFFFFFFF
NUMBER_MAX = 1 << 62
#: Parity protects at most this many packets together; the code has room for 256 blocks in all.
PARITY_DATA_MAX = 128
PARITY_EXTRA_MAX = 64
#: In a parity block each packet is preceded by its length.
LENGTH = Struct("<H")
#: So a parity packet is longer than the longest packet that it protects, by this much.
PARITY_MORE_BYTES = HEAD.size + _PARITY.size + LENGTH.size

Range = tuple[int, int]


class DataHead(NamedTuple):
    """The fields of a data or repair packet."""

    magic: bytes
    kind: int
    flags: int
    place: int  # of the packet in its frame
    stream: int
    epoch: int
    number: int
    first: int  # event of the frame
    frame_bytes: int
    packets: int  # of the frame
    events: int  # of the frame


class PacketBeat(NamedTuple):
    """A heartbeat: what can still be asked for, in packets and in events."""

    stream: int
    epoch: int
    next: int  # packet
    first: int  # packet
    first_event: int
    next_event: int
    receivers: int  # that the sender knows of: the size of the group
    flags: int

    def encode(self) -> bytes:
        """The bytes on the wire."""
        receivers = min(self.receivers, 0xFFFF)
        head = HEAD.pack(
            PACKET_MAGIC, HEARTBEAT, self.flags, receivers, self.stream, self.epoch, self.next
        )
        return _checked(head + _BEAT.pack(self.first, self.first_event, self.next_event))


class PacketRequest(NamedTuple):
    """A repair request, or the sender's confirmation of one."""

    kind: int  # NACK or CONFIRM
    stream: int
    epoch: int
    asker: int  # the receiver's id; in a confirmation how many receivers the sender knows of
    ranges: Sequence[Range]

    def encode(self) -> bytes:
        """The bytes on the wire."""
        head = HEAD.pack(
            PACKET_MAGIC, self.kind, 0, len(self.ranges), self.stream, self.epoch, self.asker
        )
        body = b"".join(
            _RANGE.pack(first, min(stop - first, RANGE_PACKETS_MAX)) for first, stop in self.ranges
        )
        return _checked(head + body)


class PacketStatus(NamedTuple):
    """A receiver's report: it has all packets before `next`, and room for so many bytes more."""

    stream: int
    epoch: int
    next: int
    receiver: int
    window_bytes: int
    flags: int = 0

    def encode(self) -> bytes:
        """The bytes on the wire."""
        head = HEAD.pack(PACKET_MAGIC, STATUS, self.flags, 0, self.stream, self.epoch, self.next)
        window = min(self.window_bytes, 0xFFFFFFFF)
        return _checked(head + _STATUS.pack(self.receiver, window, 0))


class PacketParity(NamedTuple):
    """One of the parity blocks over `packets` packets from number `first` on."""

    stream: int
    epoch: int
    first: int
    place: int  # which of the parity blocks
    packets: int  # that are protected
    extra: int  # parity blocks there are
    block: bytes

    def encode(self) -> bytes:
        """The bytes on the wire."""
        head = HEAD.pack(PACKET_MAGIC, PARITY, 0, self.place, self.stream, self.epoch, self.first)
        return head + _PARITY.pack(self.packets, self.extra, len(self.block), 0) + self.block


Packet = PacketBeat | PacketRequest | PacketStatus | PacketParity


def packet_kind(data: bytes) -> int:
    """The kind of a packet, sealed or not, 0 for a datagram that is none of ours."""
    ours = len(data) >= HEAD.size and data[:4] in (PACKET_MAGIC, SEALED_MAGIC)
    return data[4] if ours else 0


def check_data_head(head: DataHead, payload_bytes: int) -> None:
    """Refuse what a data packet cannot be; raises `ProtocolError`."""
    _, _, _, place, _, epoch, number, first, frame_bytes, packets, events = head
    if (
        place >= packets
        or not events
        or not payload_bytes
        or number < place
        or number + packets >= NUMBER_MAX
        or first + events >= NUMBER_MAX
        or epoch >= 1 << 63
        or frame_bytes > FRAME_BYTES_MAX
        or not packets <= frame_bytes <= packets * 65536
        or payload_bytes > frame_bytes
    ):
        raise ProtocolError("data packet out of range")


def decode_packet(data: bytes) -> Packet:
    """Read a packet that is not data; raises `ProtocolError`."""
    try:
        magic, kind, flags, extra, stream, epoch, number = HEAD.unpack_from(data)
        if magic != PACKET_MAGIC or epoch >= 1 << 63:
            raise ProtocolError("not a packet")
        if kind == PARITY:
            return _decode_parity(data, stream, epoch, number, extra)
        if kind in (HEARTBEAT, NACK, CONFIRM, STATUS):
            (check,) = _CHECK.unpack_from(data, len(data) - 4)
            if crc32c(data[:-4]) != check:
                raise ProtocolError("checksum differs")
        if kind in (NACK, CONFIRM):
            return _decode_request(data, kind, stream, epoch, number, extra)
        if number >= NUMBER_MAX:
            raise ProtocolError("packet number out of range")
        if kind == HEARTBEAT:
            first, first_event, next_event = _BEAT.unpack_from(data, HEAD.size)
            size = HEAD.size + _BEAT.size + 4
            if len(data) != size or first > number or not first_event <= next_event < NUMBER_MAX:
                raise ProtocolError("heartbeat out of range")
            return PacketBeat(stream, epoch, number, first, first_event, next_event, extra, flags)
        if kind == STATUS:
            receiver, window, _ = _STATUS.unpack_from(data, HEAD.size)
            if len(data) != HEAD.size + _STATUS.size + 4:
                raise ProtocolError("a status of another size")
            return PacketStatus(stream, epoch, number, receiver, window, flags)
    except struct_error:
        raise ProtocolError(f"a packet of {len(data)} bytes") from None
    raise ProtocolError(f"packet of unknown kind {kind}")


def _decode_request(
    data: bytes, kind: int, stream: int, epoch: int, asker: int, count: int
) -> PacketRequest:
    if not 0 < count <= RANGES_MAX or len(data) != HEAD.size + _RANGE.size * count + 4:
        raise ProtocolError(f"a request of {count} ranges in {len(data)} bytes")
    body = memoryview(data)[HEAD.size : -4]
    ranges = [(first, first + length) for first, length in _RANGE.iter_unpack(body)]
    if any(first == stop or stop >= NUMBER_MAX for first, stop in ranges):
        raise ProtocolError("ranges out of range")
    return PacketRequest(kind, stream, epoch, asker, ranges)


def _decode_parity(data: bytes, stream: int, epoch: int, first: int, index: int) -> PacketParity:
    count, extra, length, _ = _PARITY.unpack_from(data, HEAD.size)
    block = data[HEAD.size + _PARITY.size :]
    if (
        not 0 < count <= PARITY_DATA_MAX
        or not index < extra <= PARITY_EXTRA_MAX
        or length != len(block)
        or length <= LENGTH.size
        or first + count >= NUMBER_MAX
    ):
        raise ProtocolError("parity out of range")
    return PacketParity(stream, epoch, first, index, count, extra, block)


def _checked(body: bytes) -> bytes:
    return body + _CHECK.pack(crc32c(body))
