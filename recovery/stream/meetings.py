"""Which streams of a peer are new to a subscription: those that the peer had not when the two met.

A subscription starts in a stream where its user says, by default with the next event.  A stream
that is declared after subscription and peer have met is another matter: the subscription was there
before the first event, so that is where it starts.  What a peer says takes its time, connections
break meanwhile, and a subscription may be made between two messages: so this is decided by who has
met whom, and not by which message came first.

| a peer says what it has | what is new in it | to whom |
|---|---|---|
| for the first time | nothing | |
| `again`, over a connection that stands | what it did not name before | to every subscription |
| over another connection, in the same start | what it did not name before | to those it had met |
| in another start | nothing | |

A peer that dials us and has no streams is met then: whatever it names later is new.

A peer may say what it has in several pages: what is new on each of them is judged by what was known
before the first.  A subscription that is made between two pages is offered with the next one what
stood on those before.
"""

from __future__ import annotations

from collections.abc import Collection, Container
from dataclasses import dataclass, field
from typing import NamedTuple

#: As many peers as may be dialled and may dial us.
PEERS_MAX = 20_000
#: Streams of all of them together.
NAMES_MAX = 200_000

Names = frozenset[str]
NONE: Names = frozenset()


@dataclass(slots=True)
class _Met:
    streams: set[str] = field(default_factory=set)
    subs: set[int] = field(default_factory=set)
    away_since: float | None = None
    before: _Met | None = None  #: as it was before a peer began to say what it has


class Offer(NamedTuple):
    """What to tell a subscription of a peer's streams."""

    sub: int
    streams: Names
    born: Names
    """Those of them that are new, to be read from their first event on."""


class Meetings:
    """Those of one peer's subscriptions with other peers, each known by the number of its start."""

    def __init__(self) -> None:
        self._peers: dict[int, _Met] = {}
        self._names = 0  # of streams of all

    def __len__(self) -> int:
        return len(self._peers)

    def on_hello(self, peer: int, subs: Collection[int], *, has_streams: bool) -> None:
        """A peer dials us, and says whether it has streams."""
        met = self._peers.get(peer)
        if met is None and not has_streams:
            self._add(peer, _Met(set(), set(subs)))
        elif met is not None and not met.streams:
            met.subs.update(subs)

    def on_welcome(
        self,
        peer: int,
        streams: Names,
        subs: Collection[int],
        *,
        again: bool,
        begins: bool = True,
        more: bool = False,
    ) -> list[Offer]:
        """A peer says what it has: all of it has to be offered, `again` only what is new.

        It `begins`, and there is `more` of it to come, where it takes several pages to say it.
        """
        met = self._pop(peer) or _Met()
        before = met.before or _Met()
        if begins:  # what was begun before and came to no end says nothing
            before = met.before or _Met(met.streams, set(met.subs))
            met = _Met(set(), met.subs)
        late = set() if begins else set(subs) - met.subs
        met.before = before if more else None
        met.streams |= streams
        met.subs.update(subs)
        self._add(peer, met)
        so_far = frozenset(met.streams) if late else streams
        offers = []
        for sub in subs:
            known, named = sub in before.subs, so_far if sub in late else streams
            born = named - before.streams if again or known else NONE
            offers.append(Offer(sub, born if again and known else named, born))
        return offers

    def meet(self, peer: int, sub: int) -> bool:
        """Return True for a subscription that was never offered what the peer has."""
        met = self._peers.get(peer)
        if met is None:  # it gave its place to others
            return True
        known = sub in met.subs
        met.subs.add(sub)
        return not known

    def forget(self, sub: int) -> None:
        """A subscription is closed."""
        for met in self._peers.values():
            met.subs.discard(sub)

    def sweep(self, here: Container[int], gone_s: float, *, now: float) -> None:
        """Forget peers that have not been here for so long: who comes back then is met anew."""
        for peer, met in list(self._peers.items()):
            if peer in here:
                met.away_since = None
            elif met.away_since is None:
                met.away_since = now
            elif now - met.away_since >= gone_s:
                self._pop(peer)

    def _add(self, peer: int, met: _Met) -> None:
        self._peers[peer] = met
        self._names += len(met.streams)
        while len(self._peers) > PEERS_MAX or (self._names > NAMES_MAX and len(self._peers) > 1):
            self._pop(next(iter(self._peers)))  # that said nothing new for longest

    def _pop(self, peer: int) -> _Met | None:
        met = self._peers.pop(peer, None)
        self._names -= 0 if met is None else len(met.streams)
        return met
