"""What control messages say of sealed multicast packets."""

from __future__ import annotations

from typing import Annotated

import msgspec

#: Keys in one message: the one in use, and the next.
SEAL_KEYS_MAX = 8
Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Key = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
Keys = Annotated[list[tuple[Number, Key]], msgspec.Meta(max_length=SEAL_KEYS_MAX)]


class SealInfo(msgspec.Struct, frozen=True):
    """How the packets of a stream are sealed from now on."""

    sender: Annotated[int, msgspec.Meta(ge=0)]  # its id in packets
    counter: Number  # of its next packet
    generation: Number
    keys: Keys = []  # by generation; empty where they come from the mesh key
