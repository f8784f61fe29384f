"""What is shown: one row for each peer, stream, subscriber, group, log, loss and problem.

Times are in seconds, rates in events or bytes a second.
"""

from __future__ import annotations

import msgspec


class PeerRow(msgspec.Struct):
    """A peer: `here`, `silent` (it does not answer), `left` or `lost`."""

    name: str
    state: str
    is_self: bool
    roles: list[str]
    software: str
    addresses: list[str]
    problem: str = ""
    streams: int = 0
    subscriptions: int = 0
    published_s: float = 0.0
    delivered_s: float = 0.0
    gone_s: float | None = None


class FlowRow(msgspec.Struct):
    """What one peer delivers to another, all streams together."""

    publisher: str
    subscriber: str
    delivered_s: float
    blocking: bool
    lost: int


class StreamRow(msgspec.Struct):
    """A stream; `behind` is that of its slowest subscriber or group."""

    stream: str
    peer: str
    is_here: bool
    overflow: str
    transport: str
    published: int
    published_s: float
    bytes_s: float
    behind: int
    subscribers: int
    groups: int
    buffer_bytes: int
    dropped: int
    lost: int
    blocked: bool
    blocked_by: list[str]


class SubscriberRow(msgspec.Struct):
    """A subscription: `live`, `blocking`, `evicted`, `away`, or `gone` with its publisher."""

    stream: str
    name: str
    state: str
    behind: int
    delivered: int
    delivered_s: float
    repaired_frames: int
    lost: int
    blocked_s: float
    silent_s: float


class GroupRow(msgspec.Struct):
    """A work group."""

    stream: str
    name: str
    lag: int
    pending: int
    in_flight: int
    acked: int
    acked_s: float
    redelivered: int
    redelivered_s: float
    dead: int
    lost: int
    members: list[str]


class SenderRow(msgspec.Struct):
    """A stream that goes by multicast, where it is sent; `repairs` are what receivers asked for."""

    stream: str
    receivers: int
    flow: str
    packets: int
    packets_s: float
    nacks: int
    repairs: int
    behind: int
    unreached: list[str]


class ReceiverRow(msgspec.Struct):
    """The same where it is received: `loss` the part of packets that did not come by themselves."""

    stream: str
    name: str
    packets: int
    loss: float
    missing: int
    nacks: int
    repaired: int
    lost: int
    kernel_drops: int
    repair_p50_s: float | None
    repair_p99_s: float | None


class LogRow(msgspec.Struct):
    """The log of a durable stream, at its publisher or at a recorder, which `peer` names.

    A recorder that cannot write says so once for all its logs: that is a problem of its peer.
    """

    stream: str
    peer: str
    events: int
    disk_bytes: int | None
    oldest_s: float | None
    retention: str | None
    path: str = ""
    is_open: bool = True
    unsynced_bytes: int = 0
    holds: int = 0
    held_bytes: int = 0
    sync_p99_s: float | None = None
    problem: str = ""


class LossRow(msgspec.Struct):
    """A range that a subscription or a group lost; of a group only how many are known."""

    stream: str
    name: str
    reason: str
    count: int
    first: int | None
    stop: int | None
    seen_s: float


class LedgerLine(msgspec.Struct):
    """A row of the ledger: `in_doubt` if its sum is not right now.

    `reconciles` is `False` if it was not the last time either: peers answer one after the other,
    while events are on their way.
    """

    stream: str
    name: str
    published: int
    delivered: int
    filtered: int
    in_flight: int
    dead: int
    lost: int
    state: str
    in_doubt: bool
    reconciles: bool


class ProblemRow(msgspec.Struct):
    """What somebody should look at: `bad`, or only `odd`."""

    weight: str
    what: str
    problem: str
    for_s: float


class Totals(msgspec.Struct):
    """The mesh in a line."""

    peers: int
    gone: int
    streams: int
    published_s: float
    delivered_s: float
    bytes_s: float
    behind: int
    blocked: int
    group_lag: int
    dead: int
    lost: int
    unreconciled: int


class View(msgspec.Struct):
    """The mesh at one moment."""

    peer: str
    mesh: str
    totals: Totals
    problems: list[ProblemRow]
    peers: list[PeerRow]
    links: list[tuple[str, str]]
    flows: list[FlowRow]
    streams: list[StreamRow]
    subscribers: list[SubscriberRow]
    groups: list[GroupRow]
    senders: list[SenderRow]
    receivers: list[ReceiverRow]
    logs: list[LogRow]
    losses: list[LossRow]
    ledger: list[LedgerLine]
    unreadable: int = 0
