"""`MeshView`: answers of many peers in, the mesh as it is shown out; no clock, thread or socket.

| a peer is | when |
|---|---|
| `here` | it answers, or it is ourselves |
| `silent` | it is known and does not answer: its last figures stay, marked as old |
| `left`, `lost` | it said good-bye, or was heard no more; shown for `GONE_S`, then forgotten |

Figures of a peer come from itself.  A stream that nobody answers for stays as it was last seen, for
as long as its peer is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from meshmsg._overview.figures import Card, PeerFigures, read_cards, read_stats
from meshmsg._overview.history import History, Rates
from meshmsg._overview.ledgers import merge
from meshmsg._overview.losses import Losses
from meshmsg._overview.problems import Problems, find_problems
from meshmsg._overview.receiving import receiver_rows
from meshmsg._overview.rows import FlowRow, LedgerLine, PeerRow, Totals, View
from meshmsg._overview.streams import StreamRows

#: A peer that is gone is shown for so long.
GONE_S = 600.0
#: Peers that are shown; of more than that, those that came first.
PEERS_MAX = 1_000
#: Links that an outbound peer has, under one address or another.
UP = ("up", "duplicate")


class Look(NamedTuple):
    """What was learned at one moment."""

    stats: Mapping[str, Any]  #: of the peer itself
    answers: Sequence[Mapping[str, Any]] = ()  #: statistics of others
    changes: Sequence[tuple[str, str]] = ()  #: who `left` or was `lost`
    ledgers: Sequence[Mapping[str, Any]] | None = None  #: `None` where nobody was asked this time


class _Peer:
    """What is known of one peer."""

    __slots__ = ("card", "figures", "seen_at", "state")

    def __init__(self, card: Card) -> None:
        self.card = card
        self.figures: PeerFigures | None = None
        self.state = "silent"
        self.seen_at = 0.0


class MeshView:
    """Remembers what is needed for rates, plots and peers that are gone."""

    def __init__(self) -> None:
        self._peers: dict[str, _Peer] = {}
        self._rates = Rates()
        self.history = History()
        self._losses = Losses()
        self._problems = Problems()
        self._ledger: list[LedgerLine] = []
        self.unreadable = 0  #: answers that were not figures, or no ledger

    def take(self, look: Look, *, now: float) -> View:
        """The mesh after one more look; raises `ValueError` if our own figures are none."""
        own = read_stats(look.stats)
        self._take_peers(own, look, now)
        self._take_ledgers(look.ledgers)
        view = self._view(own, now)
        self._add_history(view)
        self._rates.forget(before=now - GONE_S)
        return view

    # --- what is known ---

    def _take_peers(self, own: PeerFigures, look: Look, now: float) -> None:
        answered = {own.peer: own}
        for answer in look.answers:
            try:
                figures = read_stats(answer)
            except ValueError:
                self.unreadable += 1
            else:
                answered.setdefault(figures.peer, figures)
        cards = {own.peer: Card(own.peer, own.addresses, _roles(own), software=own.software)}
        cards |= {card.name: card for card in read_cards(look.stats.get("peers", []))}
        for name in [*answered, *cards]:
            card = cards.get(name) or Card(name)
            if name in self._peers:
                self._peers[name].card = card
            elif len(self._peers) < PEERS_MAX:
                self._peers[name] = _Peer(card)
        parting = {name: kind for kind, name in look.changes if kind in ("left", "lost")}
        for name, peer in list(self._peers.items()):
            if name in answered:
                peer.figures, peer.state = answered[name], "here"
            elif name in cards:
                peer.state = "silent"
            elif name in parting:
                peer.state = parting[name]
            elif peer.state == "here":  # how it went is told within the next look
                peer.state = "silent"
            elif peer.state == "silent":
                peer.state = "lost"
            if peer.state in ("here", "silent"):
                peer.seen_at = now
            elif now - peer.seen_at > GONE_S:
                del self._peers[name]

    def _take_ledgers(self, answers: Sequence[Mapping[str, Any]] | None) -> None:
        if answers is None:
            return
        good = []
        for answer in answers:
            try:
                merge([answer])
            except (AttributeError, KeyError, TypeError, ValueError):
                self.unreadable += 1
            else:
                good.append(answer)
        before = {(row.stream, row.name) for row in self._ledger if row.in_doubt}
        self._ledger = [
            LedgerLine(
                stream=row.stream,
                name=row.subscription,
                published=row.published,
                delivered=row.delivered,
                filtered=row.filtered,
                in_flight=row.in_flight,
                dead=row.dead,
                lost=sum(row.lost.values()),
                state=row.state,
                in_doubt=not row.reconciles,
                reconciles=row.reconciles or (row.stream, row.subscription) not in before,
            )
            for row in merge(good).rows
        ]

    # --- what is shown ---

    def _view(self, own: PeerFigures, now: float) -> View:
        rows = StreamRows(self._rates, now)
        delivered: dict[str, float] = {}
        for name, peer in self._peers.items():
            for stream in peer.figures.streams.values() if peer.figures else ():
                rows.add(name, stream, is_here=peer.state == "here")
            if peer.figures is not None and peer.figures.recorder is not None:
                rows.add_recorder(name, peer.figures.recorder)
        for row in rows.subscribers:
            at = row.name.partition("/")[0]
            delivered[at] = delivered.get(at, 0.0) + row.delivered_s
        peers = [
            self._peer_row(name, name == own.peer, rows.published.get(name, 0.0), delivered, now)
            for name in sorted(self._peers)
        ]
        here = [peer.figures for peer in self._peers.values() if peer.figures is not None]
        losses = self._losses.take(here, rows.groups, now=now)
        problems = self._problems.age(
            find_problems(peers, here, rows, self._ledger, losses), now=now
        )
        return View(
            peer=own.peer,
            mesh=own.mesh,
            totals=self._totals(peers, rows),
            problems=problems,
            peers=peers,
            links=self._links(),
            flows=_flows(rows),
            streams=rows.streams,
            subscribers=rows.subscribers,
            groups=rows.groups,
            senders=rows.senders,
            receivers=receiver_rows(here),
            logs=rows.logs,
            losses=losses,
            ledger=self._ledger,
            unreadable=self.unreadable,
        )

    def _peer_row(
        self, name: str, is_self: bool, published_s: float, delivered: dict[str, float], now: float
    ) -> PeerRow:
        peer = self._peers[name]
        figures, is_here = peer.figures, peer.state == "here"
        return PeerRow(
            name=name,
            state=peer.state,
            is_self=is_self,
            roles=peer.card.roles,
            software=peer.card.software,
            addresses=peer.card.addresses,
            problem=(figures.problem or "") if figures else "",
            streams=len(figures.streams) if figures else len(peer.card.streams),
            subscriptions=len(figures.subscriptions) + len(figures.members) if figures else 0,
            published_s=published_s if is_here else 0.0,
            delivered_s=delivered.get(name, 0.0) if is_here else 0.0,
            gone_s=now - peer.seen_at if peer.state in ("left", "lost") else None,
        )

    def _links(self) -> list[tuple[str, str]]:
        found = set()
        for name, peer in self._peers.items():
            if peer.figures is None or peer.state != "here":
                continue
            others = {link.peer for link in peer.figures.links if link.state in UP}
            for other in others | set(peer.figures.clients):
                if other in self._peers and other != name:
                    found.add((min(name, other), max(name, other)))
        return sorted(found)

    def _totals(self, peers: list[PeerRow], rows: StreamRows) -> Totals:
        return Totals(
            peers=sum(peer.state == "here" for peer in peers),
            gone=sum(peer.state != "here" for peer in peers),
            streams=sum(row.is_here for row in rows.streams),
            published_s=sum(row.published_s for row in rows.streams),
            delivered_s=sum(row.delivered_s for row in rows.subscribers),
            bytes_s=sum(row.bytes_s for row in rows.streams),
            behind=max((row.behind for row in rows.streams if row.is_here), default=0),
            blocked=sum(row.blocked and row.is_here for row in rows.streams),
            group_lag=sum(row.lag for row in rows.groups),
            dead=sum(row.dead for row in rows.groups),
            lost=sum(row.lost for row in rows.streams),
            unreconciled=sum(not row.reconciles for row in self._ledger),
        )

    def _add_history(self, view: View) -> None:
        points: dict[Any, float] = {
            ("mesh", "published_s"): view.totals.published_s,
            ("mesh", "delivered_s"): view.totals.delivered_s,
            ("mesh", "behind"): view.totals.behind,
            ("mesh", "lost"): view.totals.lost,
        }
        for stream in view.streams:
            if stream.is_here:
                points[("rate", stream.stream)] = stream.published_s
                points[("behind", stream.stream)] = stream.behind
        for group in view.groups:
            points[("lag", group.stream, group.name)] = group.lag
        self.history.add(points)


def _roles(figures: PeerFigures) -> list[str]:
    """What a peer does, as others read it on its card."""
    named = {
        "publisher": figures.streams,
        "subscriber": figures.subscriptions,
        "worker": figures.members,
        "recorder": figures.recorder,
    }
    return [role for role, does in named.items() if does]


def _flows(rows: StreamRows) -> list[FlowRow]:
    """Who sends to whom, by the names that subscribers have: `peer/subscription`."""
    found: dict[tuple[str, str], FlowRow] = {}
    owners: dict[str, str] = {row.stream: row.peer for row in rows.streams if row.is_here}
    for one, delivered_s, blocking, lost in _deliveries(rows):
        publisher = owners.get(one[0])
        subscriber = one[1].partition("/")[0]
        if publisher is None or subscriber == publisher:
            continue
        flow = found.setdefault(
            (publisher, subscriber), FlowRow(publisher, subscriber, 0.0, False, 0)
        )
        flow.delivered_s += delivered_s
        flow.blocking = flow.blocking or blocking
        flow.lost += lost
    return [flow for _, flow in sorted(found.items())]


def _deliveries(rows: StreamRows) -> Iterable[tuple[tuple[str, str], float, bool, int]]:
    for row in rows.subscribers:
        if row.state not in ("away", "gone"):
            where = (row.stream, row.name)
            yield where, row.delivered_s, row.state == "blocking", row.lost
    for group in rows.groups:
        for member in group.members:
            yield (group.stream, member), group.acked_s / len(group.members), False, 0
