"""The fields of control messages: each type says how much of it is taken.

A peer decodes what anybody sends, so every number, text, list and map has a bound, and a range that
runs backward is refused.  `msgspec` compares lengths with the header of a value, before it reads
what is in it: a list that is too long costs nothing.  A test walks all messages and fails for a
field that has no bound.

The I/O thread reads and heeds a message in one go, with the interpreter's lock: all other threads
of the process wait for it.  So the bounds are such that one message costs about a millisecond.
Whoever has more to say says it in several messages (`_wire.control.encode_pages`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta

from meshmsg._model.units import NAME_BYTES_MAX, PATTERNS_MAX

#: Streams that one peer publishes, or records.
STREAMS_MAX = 10_000
#: Entries of one message that says something of each stream.
ENTRIES_MAX = 64
#: Streams that a `hello` names.  Whoever wants to know all of them reads the `welcome`.
HELLO_STREAMS_MAX = 256
#: Work groups that a card names, and roles.
GROUPS_MAX = 1000
ROLES_MAX = 16
#: Addresses that one peer listens at.
ADDRESSES_MAX = 16
#: Reasons of losses that are told apart.
REASONS_MAX = 16
#: Epochs of one log in one message.
EPOCHS_MAX = 512
#: Frames, and holes between them, in one part of a read.
PART_FRAMES_MAX = 16_384
#: Ranges in one repair request.
NACK_RANGES_MAX = 256
#: Ranges, or refusals, of one stream and epoch in one message of a member.
ACK_RANGES_MAX = 512
#: Ranges and refusals in one message of a member, all together: publishers wait while it is read.
PIECES_MAX = 1024
#: Ranges and refusals that a member claims, in as many messages as that takes.
CLAIMED_PIECES_MAX = 131_072
#: Events that a member may ask for ahead of its acknowledgements.
PREFETCH_MAX = 100_000
ATTEMPTS_MAX = 1_000_000
DURATION_MAX_S = 1e9
#: Peers that one message tells of, and addresses of each.
CONTACTS_MAX = 256
CONTACT_ADDRESSES_MAX = ADDRESSES_MAX
NAME_CHARS_MAX = 1024
TEXT_CHARS_MAX = 4096

U64 = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Version = Annotated[int, Meta(ge=0, le=255)]
# msgpack has no integer beyond 64 bits, and msgspec no bound beyond 63.
Id = Annotated[int, Meta(ge=0, extra={"le": (1 << 64) - 1})]
Prefetch = Annotated[int, Meta(ge=1, le=PREFETCH_MAX)]
Attempt = Annotated[int, Meta(ge=1, le=ATTEMPTS_MAX)]
Duration = Annotated[float, Meta(ge=0, le=DURATION_MAX_S)]
Port = Annotated[int, Meta(ge=0, le=65535)]
# Names and reasons are logged and shown to people: nothing in them may move a cursor or begin a
# line.
_CONTROLS = r"\x00-\x1f\x7f-\x9f\u2028\u2029"
_PRINTED = rf"\A[^{_CONTROLS}]*\Z"
Name = Annotated[str, Meta(max_length=NAME_CHARS_MAX, pattern=_PRINTED)]
#: As a peer may call itself; what comes after a slash is a stream or a subscription of it.
PeerName = Annotated[str, Meta(max_length=NAME_BYTES_MAX, pattern=rf"\A[^\s/@{_CONTROLS}]+\Z")]
Text = Annotated[str, Meta(max_length=TEXT_CHARS_MAX, pattern=_PRINTED)]
#: What went wrong with an event, in the words of an application: kept with it, and never logged.
ErrorText = Annotated[str, Meta(max_length=TEXT_CHARS_MAX)]
Short = Annotated[bytes, Meta(max_length=64)]
Range = tuple[U64, U64]
AckRange = tuple[U64, U64, Attempt]
#: An epoch, its first event, one past its last.
EpochRange = tuple[U64, U64, U64]
Pair = tuple[Name, Name]
Ranges = Annotated[list[Range], Meta(max_length=NACK_RANGES_MAX)]
AckRanges = Annotated[list[AckRange], Meta(max_length=ACK_RANGES_MAX)]
EpochRanges = Annotated[list[EpochRange], Meta(max_length=EPOCHS_MAX)]
Patterns = Annotated[list[Name], Meta(max_length=PATTERNS_MAX)]
Addresses = Annotated[list[Name], Meta(max_length=ADDRESSES_MAX)]
AddressPairs = Annotated[list[Pair], Meta(max_length=ADDRESSES_MAX)]
#: On a card: as many as fit a message.
StreamNames = Annotated[list[Name], Meta(max_length=STREAMS_MAX)]
Reasons = Annotated[dict[Name, U64], Meta(max_length=REASONS_MAX)]

_UNPRINTED = re.compile(rf"[{_CONTROLS}\ud800-\udfff]+")


def as_text(text: str) -> str:
    """A text as other peers take it: of one line, and not too long."""
    return _UNPRINTED.sub(" ", text)[:TEXT_CHARS_MAX]


def check_ranges(ranges: Iterable[tuple[int, int] | tuple[int, int, object]]) -> None:
    """Raise `ValueError` for a range that runs backward."""
    for one in ranges:
        if one[0] > one[1]:
            raise ValueError(f"range [{one[0]}, {one[1]}) runs backward")


def check_range(first: int, stop: int) -> None:
    """Raise `ValueError` for a range that runs backward."""
    if first > stop:
        raise ValueError(f"range [{first}, {stop}) runs backward")
