"""The ledger: published = delivered + filtered + lost + in flight, for each subscription.

For a work group, delivered is what was acknowledged, and dead letters are one term more.

The publisher's numbers and the subscriber's counters are kept apart and by different means
(positions here, counts there), so that the sum is a check and not a definition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import msgspec


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One subscription on one epoch of one stream."""

    stream: str
    epoch: int
    subscription: str
    published: int
    delivered: int
    filtered: int
    lost: Mapping[str, int] = field(default_factory=dict)
    in_flight: int = 0
    state: str = "live"
    dead: int = 0
    """Of a work group: events that were given up and went to the dead letters."""

    @property
    def accounted(self) -> int:
        """What the subscriber's counters and its place add up to."""
        lost = sum(self.lost.values())
        return self.delivered + self.filtered + self.dead + lost + self.in_flight

    @property
    def difference(self) -> int:
        """Events that nobody can account for; negative if some were counted twice."""
        return self.published - self.accounted

    @property
    def reconciles(self) -> bool:
        """Whether every event is accounted for."""
        return self.difference == 0 and self.in_flight >= 0

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {
            "stream": self.stream,
            "epoch": self.epoch,
            "subscription": self.subscription,
            "published": self.published,
            "delivered": self.delivered,
            "filtered": self.filtered,
            "dead": self.dead,
            "lost": dict(self.lost),
            "in_flight": self.in_flight,
            "state": self.state,
            "reconciles": self.reconciles,
        }


def row_from_positions(
    stream: str,
    epoch: int,
    subscription: str,
    *,
    start: int,
    stop: int,
    consumed: int,
    delivered: int,
    filtered: int,
    lost: Mapping[str, int],
    state: str,
) -> LedgerRow:
    """A row from the publisher's positions and the subscriber's counters."""
    return LedgerRow(
        stream=stream,
        epoch=epoch,
        subscription=subscription,
        published=stop - start,
        delivered=delivered,
        filtered=filtered,
        lost=dict(lost),
        in_flight=stop - consumed,
        state=state,
    )


@dataclass(frozen=True, slots=True)
class Ledger:
    """All rows that a peer can speak for."""

    rows: tuple[LedgerRow, ...]

    @property
    def reconciles(self) -> bool:
        """Whether every row does."""
        return all(row.reconciles for row in self.rows)

    @property
    def in_flight(self) -> int:
        """Events that are on their way to those who are there."""
        return sum(row.in_flight for row in self.rows if row.state != "away")

    @property
    def lost(self) -> int:
        """Events that were declared lost."""
        return sum(sum(row.lost.values()) for row in self.rows)

    @classmethod
    def from_dicts(cls, rows: Iterable[Mapping[str, Any]]) -> Ledger:
        """Read back what `as_dict` wrote; raises `KeyError` or `TypeError` on anything else."""
        names = [item.name for item in fields(LedgerRow) if item.name != "dead"]
        try:
            taken = [{n: row[n] for n in names} | {"dead": row.get("dead", 0)} for row in rows]
            return cls(msgspec.convert(taken, tuple[LedgerRow, ...]))
        except msgspec.ValidationError as error:  # another peer wrote them
            raise TypeError(f"not the rows of a ledger: {error}") from None
