"""What was lost lately: ranges that subscriptions report; of groups, which only count, how many."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from meshmsg.overview.figures import PeerFigures
from meshmsg.overview.rows import GroupRow, LossRow

#: Losses that are remembered, the newest.
LOSSES_MAX = 200

_Key = tuple[str, str, int, int | None]


class Losses:
    """Remembers when each was seen first; what was there at the first look counts as seen then."""

    def __init__(self) -> None:
        self._seen: dict[_Key, tuple[float, LossRow]] = {}

    def take(
        self, peers: Iterable[PeerFigures], groups: Sequence[GroupRow], *, now: float
    ) -> list[LossRow]:
        """All that are known now, the newest first."""
        for figures in peers:
            for subscription in figures.subscriptions:
                for lost in subscription.losses:
                    key = (lost.stream, subscription.name, lost.epoch, lost.first)
                    if key not in self._seen:
                        row = LossRow(
                            stream=lost.stream,
                            name=subscription.name,
                            reason=lost.reason,
                            count=max(0, lost.stop - lost.first),
                            first=lost.first,
                            stop=lost.stop,
                            seen_s=0.0,
                        )
                        self._seen[key] = (now, row)
        for group in groups:
            name = f"group {group.name}"
            of_group: _Key = (group.stream, name, group.lost, None)
            if group.lost and of_group not in self._seen:
                row = LossRow(group.stream, name, "group", group.lost, None, None, 0.0)
                self._seen[of_group] = (now, row)
        while len(self._seen) > LOSSES_MAX:
            del self._seen[next(iter(self._seen))]
        for at, row in self._seen.values():
            row.seen_s = now - at
        return [row for _, row in reversed(self._seen.values())]
