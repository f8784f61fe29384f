"""MoldUDP64 packets, byte by byte: sessions, sequence numbers, message blocks.  No sockets here.

Nasdaq's framing for multicast feeds.  A downstream packet has a head of 20 bytes (session, sequence
number of its first message, count of messages) and its messages, each behind a length of two bytes.
Count 0 is a heartbeat, whose number is the next one; 0xFFFF ends the session.  A request is a head
alone, sent to a re-request server, which answers with downstream packets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple

from meshmsg._model.errors import ConfigError, ProtocolError

HEAD = Struct(">10sQH")
HEAD_BYTES = HEAD.size
SESSION_BYTES = 10
LENGTH = Struct(">H")
LENGTH_BYTES = LENGTH.size
HEARTBEAT = 0
END_OF_SESSION = 0xFFFF
COUNT_MAX = 0xFFFE
MESSAGE_BYTES_MAX = 0xFFFF
#: What fits an Ethernet frame, behind the heads of IP and UDP.
PACKET_BYTES = 1472
#: Sequence numbers start here.
FIRST = 1
NUMBER_MAX = 2**64 - 1


class MoldPacket(NamedTuple):
    """A downstream packet: messages `first` and following, none in a heartbeat."""

    session: str
    first: int
    messages: tuple[bytes, ...]
    ends: bool = False

    @property
    def stop(self) -> int:
        """One past its last message: the next number of the session."""
        return self.first + len(self.messages)


class MoldRequest(NamedTuple):
    """A request for messages `first` to `stop` (half-open) again."""

    session: str
    first: int
    stop: int


def check_session(session: str) -> str:
    """A session's name is up to ten printable ASCII characters; raises `ConfigError`."""
    good = isinstance(session, str) and session.isascii() and session.isprintable()
    if not good or not 1 <= len(session.strip()) <= SESSION_BYTES or len(session) > SESSION_BYTES:
        raise ConfigError("session", f"{session!r} is not 1 to 10 printable ASCII characters")
    return session.rstrip(" ")


def encode_head(session: str, first: int, count: int) -> bytes:
    """A head alone: a heartbeat, an end of session, or a request."""
    return HEAD.pack(session.encode("ascii").ljust(SESSION_BYTES), first, count)


def encode_packets(
    session: str, first: int, messages: Sequence[bytes], packet_bytes: int = PACKET_BYTES
) -> Iterator[bytes]:
    """Messages in as few packets as they need; one too large for a packet has its own.

    Raises `ConfigError` for a message that MoldUDP64 has no room for.
    """
    parts: list[bytes] = []
    size = HEAD_BYTES
    number = first
    for message in messages:
        if len(message) > MESSAGE_BYTES_MAX - HEAD_BYTES - LENGTH_BYTES - 28:
            raise ConfigError("message", f"{len(message):,} bytes do not fit a UDP packet")
        need = LENGTH_BYTES + len(message)
        if parts and (size + need > packet_bytes or len(parts) >= 2 * COUNT_MAX):
            count = len(parts) // 2
            yield b"".join((encode_head(session, number, count), *parts))
            number += count
            parts, size = [], HEAD_BYTES
        parts += (LENGTH.pack(len(message)), message)
        size += need
    if parts:
        yield b"".join((encode_head(session, number, len(parts) // 2), *parts))


def decode_packet(data: bytes) -> MoldPacket:
    """A downstream packet; raises `ProtocolError` if it is none, or not whole."""
    session, first, count = _head(data)
    if count in (HEARTBEAT, END_OF_SESSION):
        if len(data) != HEAD_BYTES:
            raise ProtocolError("a heartbeat or end of session with something behind it")
        return MoldPacket(session, first, (), count == END_OF_SESSION)
    if first + count > NUMBER_MAX:
        raise ProtocolError(f"messages beyond the last number: {first} and {count}")
    messages: list[bytes] = []
    at, end = HEAD_BYTES, len(data)
    for _ in range(count):
        start = at + LENGTH_BYTES
        if start > end:
            raise ProtocolError(f"a packet of {len(messages)} messages says that it has {count}")
        at = start + LENGTH.unpack_from(data, at)[0]
        messages.append(data[start:at])
    if at != end:
        raise ProtocolError(f"{count} messages take {at} bytes and the packet has {end}")
    return MoldPacket(session, first, tuple(messages))


def decode_request(data: bytes) -> MoldRequest:
    """A request; raises `ProtocolError` if it is none."""
    session, first, count = _head(data)
    if len(data) != HEAD_BYTES or not 0 < count < END_OF_SESSION:
        raise ProtocolError("not a request for messages")
    return MoldRequest(session, first, first + count)


def _head(data: bytes) -> tuple[str, int, int]:
    if len(data) < HEAD_BYTES:
        raise ProtocolError(f"{len(data)} bytes are no MoldUDP64 packet")
    session, first, count = HEAD.unpack_from(data)
    if first < FIRST or not session.isascii():
        raise ProtocolError("a session that is no text, or number 0")
    return session.decode("ascii").rstrip(" "), first, count
