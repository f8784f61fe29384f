"""The books of a publisher: ledger rows of its subscribers, and figures of its streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meshmsg.recovery.stream.flow_control import Claim
from meshmsg.recovery.stream.ledger import LedgerRow, row_from_positions

if TYPE_CHECKING:
    from meshmsg._publish.published_stream import Outlet


def claim_row(outlet: Outlet, claim: Claim, stop: int, state: str) -> LedgerRow:
    """A subscriber's row."""
    return row_from_positions(
        outlet.stream,
        outlet.epoch,
        claim.label,
        start=claim.start,
        stop=stop,
        consumed=claim.consumed,
        delivered=claim.delivered,
        filtered=claim.filtered,
        lost=claim.lost,
        state=state,
    )


def subscribers_of(outlet: Outlet) -> list[Claim]:
    """The claims of subscriptions; those of work groups have negative numbers."""
    return [claim for claim in outlet.sender.flow.claims.values() if claim.sub >= 0]


def stream_stats(outlet: Outlet, now: float, groups: list[dict[str, Any]]) -> dict[str, Any]:
    """Figures of a stream, as plain data."""
    sender = outlet.sender
    blockers = outlet.blockers()
    return {
        "stream": outlet.stream,
        "epoch": outlet.epoch,
        "overflow": outlet.config.overflow,
        "published": sender.next - sender.origin,
        "frames": sender.frames,
        "bytes": sender.published_bytes,
        "first_available": sender.first_available,
        "next": sender.next,
        "buffer_bytes": sender.buffer.bytes,
        "dropped": sender.buffer.discarded_claimed,
        "blocked": outlet.gated,
        "blocked_by": list(blockers.values()),
        **({} if outlet.waits is None else {"wait_s": outlet.waits.as_dict()}),
        **({} if outlet.packets is None else {"multicast": _packet_stats(outlet)}),
        **({} if outlet.log is None else {"log": outlet.log.stats()}),
        **({} if outlet.spill is None else {"spill": outlet.spill.stats()}),
        "subscribers": [
            _claim_stats(c, sender.next, c.sub in blockers, now) for c in subscribers_of(outlet)
        ],
        "groups": groups,
    }


def _packet_stats(outlet: Outlet) -> dict[str, Any]:
    assert outlet.packets is not None
    return {**outlet.packets.stats(), "unreached": sorted(outlet.unreached().values())}


def _claim_stats(claim: Claim, stop: int, blocking: bool, now: float) -> dict[str, Any]:
    return {
        "name": claim.label,
        "behind": stop - claim.consumed,
        "received": claim.received,
        "consumed": claim.consumed,
        "delivered": claim.delivered,
        "filtered": claim.filtered,
        "lost": dict(claim.lost),
        "repaired_frames": claim.repaired,
        "dropped": claim.gone,
        "blocking": blocking,
        "blocked_s": 0.0 if claim.blocked_since is None else round(now - claim.blocked_since, 3),
        "evicted": claim.evicted,
        "evictions": claim.evictions,
        "attached": claim.attached,
        "away_s": 0.0 if claim.away_since is None else round(now - claim.away_since, 3),
        "silent_s": round(now - claim.progress_at, 3),
    }
