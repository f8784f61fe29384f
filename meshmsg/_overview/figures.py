"""What a peer's `stats()` say, as far as the view needs it, with types.

Another peer wrote them: an answer of another shape is refused as a whole, names are cut, and of
fields that an older peer does not have there are defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

#: Longer names are cut.
NAME_MAX = 200

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e15)]


class Times(msgspec.Struct):
    """A histogram."""

    bounds: list[float]
    counts: list[Count]

    def quantile(self, share: float) -> float | None:
        """The bound that this share of them stays below; `None` without any, or beyond all.

        >>> Times([0.1, 1.0], [90, 10, 0]).quantile(0.5)
        0.1
        """
        total = sum(self.counts)
        left = share * total
        for bound, count in zip(self.bounds, self.counts, strict=False):
            left -= count
            if left <= 0 and total:
                return bound
        return None


class Subscriber(msgspec.Struct):
    """A subscription, as its publisher sees it."""

    name: str
    behind: Count
    delivered: Count
    blocking: bool
    evicted: bool
    attached: bool
    blocked_s: Seconds = 0.0
    away_s: Seconds = 0.0
    silent_s: Seconds = 0.0
    filtered: Count = 0
    repaired_frames: Count = 0
    lost: dict[str, Count] = {}


class GroupMember(msgspec.Struct):
    """A member, as the publisher sees it."""

    name: str
    in_flight: Count
    delivered: Count
    acked: Count


class Group(msgspec.Struct):
    """A work group."""

    name: str
    lag: Count
    pending: Count
    in_flight: Count
    acked: Count
    redelivered: Count
    dead: Count
    lost: dict[str, Count]
    members: list[GroupMember]
    timed_out: Count = 0
    nacked: Count = 0


class Log(msgspec.Struct):
    """The log of a durable stream."""

    path: str
    open: bool
    next: Count = 0
    durable: Count = 0
    unsynced_bytes: Count = 0
    holds: Count = 0
    held_bytes: Count = 0
    disk_bytes: Count | None = None
    oldest_s: Seconds | None = None
    retention: str | None = None
    problem: str | None = None
    sync_s: Times | None = None


class Spill(msgspec.Struct):
    """What a stream has put on the disk for slow subscribers."""

    events: Count
    bytes: Count
    bytes_max: Count
    problem: str | None = None


class Sender(msgspec.Struct):
    """The packets of a stream that goes by multicast."""

    flow: str
    next: Count
    sent: Count
    slowest: int
    receivers: Count
    packets: Count = 0
    nacks: Count = 0
    repairs: Count = 0
    unreached: list[str] = []


class Stream(msgspec.Struct):
    """A stream, at its publisher."""

    stream: str
    epoch: int
    overflow: str
    published: Count
    bytes: Count
    buffer_bytes: Count
    dropped: Count
    blocked: bool
    blocked_by: list[str]
    subscribers: list[Subscriber]
    groups: list[Group] = []
    log: Log | None = None
    spill: Spill | None = None
    multicast: Sender | None = None


class Line(msgspec.Struct):
    """One multicast group that packets come by."""

    kernel_drops: Count | None = 0


class Packets(msgspec.Struct):
    """The packets of a stream, where they are received."""

    missing: Count
    lines: list[Line]
    packets: Count = 0
    nacks: Count = 0
    repaired: Count = 0
    computed: Count = 0
    lost_packets: Count = 0
    repair_s: Times | None = None


class Source(msgspec.Struct):
    """One stream of a subscription."""

    stream: str
    epoch: int
    delivered: Count
    missing: Count
    nacks: Count
    lost: dict[str, Count]
    repaired: Count = 0
    repair_s: Times | None = None
    multicast: Packets | None = None


class Lost(msgspec.Struct):
    """A range that a subscription lost."""

    stream: str
    epoch: int
    first: Count
    stop: Count
    reason: str


class Subscription(msgspec.Struct):
    """A subscription, where it is."""

    name: str
    topics: list[str]
    sources: list[Source]
    losses: list[Lost] = []


class Membership(msgspec.Struct):
    """A member of a group, where it is."""

    name: str
    group: str


class Recorded(msgspec.Struct):
    """The log of a stream that a recorder keeps."""

    stream: str
    next: Count
    disk_bytes: Count | None = None
    oldest_s: Seconds | None = None
    retention: str | None = None


class Recorder(msgspec.Struct):
    """What a recorder does."""

    topics: list[str]
    problem: str | None = None
    streams: list[Recorded] = []


class Link(msgspec.Struct):
    """A connection that the peer has made, or tries to make."""

    address: str
    state: str
    peer: str
    reason: str = ""


class Taken(msgspec.Struct):
    """A stream that others take from another peer of the same name."""

    stream: str
    address: str


class PeerFigures(msgspec.Struct):
    """All that a peer says of itself."""

    peer: str
    mesh: str
    software: str
    addresses: list[str]
    streams: dict[str, Stream]
    subscriptions: list[Subscription]
    links: list[Link]
    clients: list[str]
    problem: str | None = None
    members: list[Membership] = []
    recorder: Recorder | None = None
    name_in_use: list[Taken] = []


class Card(msgspec.Struct):
    """What a peer told of itself to all that it met."""

    name: str
    addresses: list[str] = []
    roles: list[str] = []
    streams: list[str] = []
    groups: list[str] = []
    software: str = ""


def read_stats(answer: Any) -> PeerFigures:
    """The figures of a peer; raises `ValueError`."""
    return msgspec.convert(_cut(answer), PeerFigures)


def read_cards(cards: Any) -> list[Card]:
    """The other peers that one knows; raises `ValueError`."""
    return msgspec.convert(_cut(cards), list[Card])


def _cut(value: Any) -> Any:
    """The same with no text longer than `NAME_MAX`."""
    if isinstance(value, str):
        return value if len(value) <= NAME_MAX else value[: NAME_MAX - 1] + "…"
    if isinstance(value, Mapping):
        return {_cut(key): _cut(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_cut(inner) for inner in value]
    return value
