"""What control messages say of multicast streams: where they are sent, and how they are sealed."""

from __future__ import annotations

from typing import Annotated

import msgspec

#: Keys in one message: the one in use, and the next.
SEAL_KEYS_MAX = 8

Name = Annotated[str, msgspec.Meta(max_length=1024)]
Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=86400)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]


class MulticastInfo(msgspec.Struct, frozen=True):
    """Where a multicast stream is sent, and how its receivers behave."""

    group: Name
    request_port: Port
    sources: list[tuple[Name, Port]]
    packet_bytes: Annotated[int, msgspec.Meta(ge=64, le=65535)]
    nack_delay_s: Seconds
    nack_backoff_s: Seconds
    nack_retry_s: Annotated[float, msgspec.Meta(gt=0, le=86400)]
    nack_deadline_s: Annotated[float, msgspec.Meta(gt=0, le=86400)]
    status_interval_s: Annotated[float, msgspec.Meta(ge=0.001, le=86400)]
    receiver_timeout_s: Annotated[float, msgspec.Meta(gt=0, le=86400)]
    receive_buffer_bytes: Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]
    second: Name = ""
    parity: bool = False
    reach_bytes: Number = 0  # how far the sender goes ahead of a receiver; 0: not said


SealKey = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
SealKeys = Annotated[list[tuple[Number, SealKey]], msgspec.Meta(max_length=SEAL_KEYS_MAX)]


class SealInfo(msgspec.Struct, frozen=True):
    """How the packets of a stream are sealed from now on."""

    sender: Annotated[int, msgspec.Meta(ge=0)]  # its id in packets
    counter: Number  # of its next packet
    generation: Number
    keys: SealKeys = []  # by generation; none where they come from the mesh key
