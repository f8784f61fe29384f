"""What control messages say of multicast streams: where they are sent, and how they are sealed."""

from __future__ import annotations

from typing import Annotated

import msgspec

from meshmsg._model.message_fields import U64, Id, Name, Port

#: What `setsockopt` takes for a buffer.
RECEIVE_BUFFER_MAX = (1 << 31) - 1
#: Lines that one stream comes by.
LINES_MAX = 2
#: Keys in one message: the one in use, and the next.
SEAL_KEYS_MAX = 8

Seconds = Annotated[float, msgspec.Meta(ge=0, le=86400)]


class MulticastInfo(msgspec.Struct, frozen=True):
    """Where a multicast stream is sent, and how its receivers behave."""

    group: Name
    request_port: Port
    sources: Annotated[list[tuple[Name, Port]], msgspec.Meta(max_length=LINES_MAX)]
    packet_bytes: Annotated[int, msgspec.Meta(ge=64, le=65535)]
    nack_delay_s: Seconds
    nack_backoff_s: Seconds
    nack_retry_s: Annotated[float, msgspec.Meta(gt=0, le=86400)]
    nack_deadline_s: Annotated[float, msgspec.Meta(gt=0, le=86400)]
    status_interval_s: Annotated[float, msgspec.Meta(ge=0.001, le=86400)]
    receiver_timeout_s: Annotated[float, msgspec.Meta(gt=0, le=86400)]
    receive_buffer_bytes: Annotated[int, msgspec.Meta(ge=1, le=RECEIVE_BUFFER_MAX)]
    second: Name = ""
    parity: bool = False
    reach_bytes: U64 = 0  # how far the sender goes ahead of a receiver; 0: not said


SealKey = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
SealKeys = Annotated[list[tuple[U64, SealKey]], msgspec.Meta(max_length=SEAL_KEYS_MAX)]


class SealInfo(msgspec.Struct, frozen=True):
    """How the packets of a stream are sealed from now on."""

    sender: Id  # its id in packets
    counter: U64  # of its next packet
    generation: U64
    keys: SealKeys = []  # by generation; none where they come from the mesh key
