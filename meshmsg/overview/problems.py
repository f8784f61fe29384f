"""What somebody should look at, and for how long it has been so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from meshmsg.overview.figures import PeerFigures
from meshmsg.overview.rows import LedgerLine, LossRow, PeerRow, ProblemRow
from meshmsg.overview.streams import StreamRows

#: A loss is news for so long.
NEWS_S = 120.0
PROBLEMS_MAX = 200

_Found = tuple[str, str, str]  #: weight, what it is about, what is wrong


class Problems:
    """Remembers since when each has been there."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, str], float] = {}

    def age(self, found: Iterable[_Found], *, now: float) -> list[ProblemRow]:
        """Rows for what was found, bad ones first; what was not found any more is forgotten."""
        before, self._since = self._since, {}
        rows: list[ProblemRow] = []
        for weight, what, problem in found:
            if len(rows) >= PROBLEMS_MAX:
                break
            kind = (what, "".join(char for char in problem if not char.isdigit()))
            self._since[kind] = since = before.get(kind, now)
            rows.append(ProblemRow(weight, what, problem, now - since))
        return sorted(rows, key=lambda row: row.weight != "bad")


def find_problems(
    peers: Sequence[PeerRow],
    figures: Sequence[PeerFigures],
    rows: StreamRows,
    ledger: Sequence[LedgerLine],
    losses: Sequence[LossRow],
) -> Iterator[_Found]:
    """All that is wrong now."""
    yield from _of_peers(peers)
    for row in ledger:
        if not row.reconciles:
            yield "bad", f"{row.stream} → {row.name}", "the ledger does not add up"
    yield from _of_streams(rows)
    for loss in losses:
        if loss.seen_s < NEWS_S:
            text = f"lost {loss.count:,} events: {loss.reason}"
            yield "bad", f"{loss.stream} → {loss.name}", text
    for one in figures:
        for taken in one.name_in_use:
            text = f"others take it from the peer of the same name at {taken.address}"
            yield "bad", taken.stream, text
        if one.recorder is not None and one.recorder.problem:
            yield "bad", f"recorder {one.peer}", one.recorder.problem


def _of_peers(peers: Sequence[PeerRow]) -> Iterator[_Found]:
    for peer in peers:
        if peer.problem:
            yield "bad", peer.name, peer.problem
        if peer.state == "lost":
            yield "bad", peer.name, "the peer is lost: it ended without a good-bye, or is cut off"
        elif peer.state == "silent":
            yield "odd", peer.name, "the peer does not answer"


def _of_streams(rows: StreamRows) -> Iterator[_Found]:
    for stream in rows.streams:
        if stream.blocked and stream.is_here:
            names = ", ".join(stream.blocked_by[:3]) or "a receiver"
            yield "bad", stream.stream, f"blocked by {names}"
    for one in rows.subscribers:
        if one.state == "evicted":
            yield "bad", f"{one.stream} → {one.name}", "evicted: nobody waits for it any more"
    for group in rows.groups:
        if group.lag and not group.members:
            yield "bad", f"{group.stream} → group {group.name}", "has work and no members"
        if group.dead:
            text = f"{group.dead:,} dead letters"
            yield "odd", f"{group.stream} → group {group.name}", text
    for log in rows.logs:
        if log.problem or not log.is_open:
            yield "bad", log.stream, log.problem or "its log is not open"
    for sender in rows.senders:
        for name in sender.unreached:
            yield "bad", sender.stream, f"packets do not reach {name}, though it reports"
