"""What a publisher knows of one event: when it was published, and what its subscribers have had."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meshmsg._model.event import Position
from meshmsg._publish.stream_counts import subscribers_of
from meshmsg._wire.frame import Frame
from meshmsg.recovery.stream.flow_control import Claim

if TYPE_CHECKING:
    from meshmsg._publish.published_stream import Outlet


def traced(outlet: Outlet, place: Position, groups: list[dict[str, Any]]) -> dict[str, Any]:
    """All of it, as plain data; with the publisher's lock held.

    `state` is `published`, `unpublished` (its number has not been given yet), `earlier` or `later`
    (of another start).  Subscribers are of this start only.
    """
    sender = outlet.sender
    known: dict[str, Any] = {
        "epoch": outlet.epoch,
        "first_available": sender.first_available,
        "next": sender.next,
        "durable": outlet.log is not None,
        "groups": groups,
        "subscriptions": [],
    }
    if place.epoch != outlet.epoch:
        return {"state": "earlier" if place.epoch < outlet.epoch else "later", **known}
    if not sender.origin <= place.seq < sender.next:
        return {"state": "unpublished", **known, "groups": []}
    known["subscriptions"] = [_claimed(claim, place.seq) for claim in subscribers_of(outlet)]
    return {"state": "published", **known, **_looked_up(outlet, place.seq)}


def _looked_up(outlet: Outlet, seq: int) -> dict[str, Any]:
    """Topic, time and size of an event that memory still has."""
    for first, _, data in outlet.sender.buffer.held(seq, seq + 1):
        frame, index = Frame(data), seq - first
        size = len(frame.payload_at(index))
        return {"topic": frame.topic_at(index), "time_ns": frame.time_at(index), "bytes": size}
    return {}


def _claimed(claim: Claim, seq: int) -> dict[str, Any]:
    """How far a subscription is, by its last report: `before`, `had` (taken, filtered or lost),
    `received` (its consumer has yet to take it), `coming`."""
    if seq < claim.start:
        state = "before"
    elif seq < claim.consumed:
        state = "had"
    else:
        state = "received" if seq < claim.received else "coming"
    return {
        "name": claim.label,
        "patterns": list(claim.patterns),
        "state": state,
        "is": claim.state,
        "filtered": claim.filtered,
        "lost": dict(claim.lost),
    }
