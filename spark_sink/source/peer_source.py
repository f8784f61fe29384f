"""Events from peers that keep logs: publishers with durable streams, and recorders.

Several may keep the same stream.  A range is read from the one that has most of it; what one has
not, the others are asked for.  One that does not answer is left alone for a while, so that it does
not slow down the rest.  What all who answer have lost is waited for while somebody has not been
away for too long: it may be there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from meshmsg import Loss
from meshmsg._model.errors import ReplayError
from meshmsg._replay.log_client import RemoteLog, ReplayClient
from meshmsg.recovery.stream.receiver import Run
from meshmsg.spark_sink.source.positions import Epoch, Range, StreamState, Survey

log = logging.getLogger("meshmsg.spark_sink")

#: How long a peer may take to say what it has: a trigger waits for it.
ASK_TIMEOUT_S = 3.0
#: A peer that did not answer is asked again after this, then after twice as long, at most so long.
PAUSE_MIN_S = 1.0
PAUSE_MAX_S = 30.0
#: A read under way that says nothing for this long is begun again.
READ_TIMEOUT_S = 20.0
#: Between attempts of a task.
RETRY_S = 1.0

Clock = Callable[[], float]


class _Peer:
    """One address: its connection, and what it said last."""

    def __init__(self, address: str, mesh: str, clock: Clock, away_s: float | None) -> None:
        self.address = address
        self._mesh = mesh
        self._clock = clock
        self._client: ReplayClient | None = None
        self.logs: dict[str, RemoteLog] = {}
        self.problem = ""
        self.away_since = 0.0  #: while there is a problem
        self._pause_s = 0.0
        self._again_at = 0.0
        if away_s is not None:  # it is known to be: nobody waits for it who need not
            self._put_off("it was away when the batch was planned", away_s)

    def client(self, timeout_s: float) -> ReplayClient:
        """A new connection."""
        return ReplayClient(self.address, mesh=self._mesh, timeout=timeout_s)

    def ask(self) -> None:
        """Learn what it has; if it does not say, `problem` tells why."""
        now = self._clock()
        if self.problem and now < self._again_at:
            return
        try:
            if self._client is None:
                self._client = self.client(ASK_TIMEOUT_S)
            self.logs = {found.stream: found for found in self._client.logs()}
        except ReplayError as error:
            self.close()
            self._put_off(error.problem)
        else:
            self.problem, self._pause_s = "", 0.0

    def _put_off(self, problem: str, away_s: float = 0.0) -> None:
        now = self._clock()
        if not self.problem:
            self.away_since = now - away_s
        self.problem = problem
        self._pause_s = min(PAUSE_MAX_S, max(PAUSE_MIN_S, 2 * self._pause_s))
        self._again_at = now + self._pause_s

    def epoch_of(self, wanted: Range) -> Epoch | None:
        """What it said of an epoch."""
        remote = self.logs.get(wanted.stream)
        known = [] if remote is None else epochs_of(remote)
        return next((epoch for epoch in known if epoch.epoch == wanted.epoch), None)

    def close(self) -> None:
        """Let go of the connection."""
        client, self._client = self._client, None
        if client is not None:
            client.close()


class PeerSource:
    """Logs of peers; see `EventSource`.

    `away` are peers that could not be reached when a batch was planned, and for how long: what
    others have lost is waited for until a peer has been away for `timeout_s`.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        mesh: str = "default",
        timeout_s: float = 300.0,
        away: Mapping[str, float] | None = None,
        clock: Clock | None = None,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        self._clock = clock or time.monotonic
        known = away or {}
        self._peers = [_Peer(a, mesh, self._clock, known.get(a)) for a in addresses]
        self._timeout_s = timeout_s
        self._sleep = sleep or time.sleep

    def away(self) -> dict[str, float]:
        """Peers that cannot be reached, and for how many seconds."""
        now = self._clock()
        return {p.address: max(0.0, now - p.away_since) for p in self._peers if p.problem}

    def survey(self) -> Survey:
        """See `EventSource`."""
        found = Survey(spread=len(self._peers) > 1)
        for peer in self._peers:
            peer.ask()
            if peer.problem:
                found.problems[peer.address] = peer.problem
                continue
            for remote in peer.logs.values():
                state = found.streams.get(remote.stream)
                if state is None:
                    state = StreamState(remote.stream, [], remote.codec)
                    found.streams[remote.stream] = state
                state.epochs = merged(state.epochs, epochs_of(remote))
        return found

    def codec_of(self, stream: str) -> str:
        """See `EventSource`.  A peer that is away has said it before."""
        for peer in self._peers:
            if stream in peer.logs:
                return peer.logs[stream].codec
        return "msgpack"

    def place_at(self, stream: str, time_ns: int) -> tuple[int, int] | None:
        """See `EventSource`.  Finds it by halves: a peer has no index of times to ask for."""
        state = self.survey().streams.get(stream)
        for epoch in [] if state is None else state.epochs:
            if epoch.stop <= epoch.first:
                continue
            last = self._time_of(stream, epoch.epoch, epoch.stop - 1, epoch.stop)
            if last is None or last < time_ns:
                continue
            low, high = epoch.first, epoch.stop - 1
            while low < high:
                middle = (low + high) // 2
                found = self._time_of(stream, epoch.epoch, middle, epoch.stop)
                if found is not None and found >= time_ns:
                    high = middle
                else:
                    low = middle + 1
            return epoch.epoch, low
        return None

    def _time_of(self, stream: str, epoch: int, seq: int, stop: int) -> int | None:
        """The time of an event; `None` if it is lost."""
        for item in self.read(Range(stream, epoch, seq, min(seq + 1, stop))):
            if not isinstance(item, Loss):
                return item.frame.time_at(item.lo)
        return None

    def read(self, wanted: Range) -> Iterator[Run | Loss]:
        """See `EventSource`.  Waits for peers that are away, and tries again, as long as it may."""
        deadline = self._clock() + self._timeout_s
        if not any(wanted.stream in peer.logs for peer in self._peers):
            self._ask_all()
        while True:
            try:
                for item in self._from_any(wanted):
                    if isinstance(item, Loss) and self._may_be_elsewhere(item):
                        break  # somebody came back: once more, from here on
                    stop = item.stop if isinstance(item, Loss) else item.frame.first + item.hi
                    wanted = wanted._replace(first=stop)
                    deadline = self._clock() + self._timeout_s
                    yield item
                else:
                    return
                continue
            except ReplayError as error:
                problem = str(error)
            if self._clock() >= deadline:
                raise ReplayError(
                    ", ".join(peer.address for peer in self._peers),
                    f"{wanted.stream}@{wanted.epoch}:{wanted.first}: {problem}; waited for "
                    f"{self._timeout_s:g} s (option peerTimeout). Start a peer that has this log: "
                    f"the query goes on where it was",
                )
            log.warning("%s@%s:%s: %s; waiting", *wanted[:3], problem)
            self._sleep(RETRY_S)
            self._ask_all()

    def _ask_all(self) -> None:
        for peer in self._peers:
            peer.ask()

    def _may_be_elsewhere(self, loss: Loss) -> bool:
        """Wait for peers that are away; `True` if one came back, `False` if none did in time."""
        said = False
        while True:
            until = self._clock() - self._timeout_s
            away = [p for p in self._peers if p.problem and p.away_since > until]
            if not away:
                return False
            if not said:
                names = ", ".join(peer.address for peer in away)
                log.warning("%s; waiting for %s, which may have them", loss, names)
                said = True
            self._sleep(RETRY_S)
            for peer in away:
                peer.ask()
            if not all(peer.problem for peer in away):
                return True

    def _from_any(self, wanted: Range) -> Iterator[Run | Loss]:
        """A range from whoever has most of it; what that one has not, from the others."""
        having = [
            (peer, epoch)
            for peer in self._peers
            if not peer.problem and (epoch := peer.epoch_of(wanted)) is not None
        ]
        if not having:
            raise ReplayError(wanted.stream, f"no peer that answers has epoch {wanted.epoch}")

        def rank(pair: tuple[_Peer, Epoch]) -> tuple[int, int, bool]:
            peer, epoch = pair
            there = min(epoch.stop, wanted.stop) - max(epoch.first, wanted.first)
            return there, epoch.stop, peer.logs[wanted.stream].recorded

        having.sort(key=rank, reverse=True)
        first = wanted.first
        if len(self._peers) == 1:  # else somebody had what is planned, who may be away now
            first = first or having[0][1].origin
        last = min(wanted.stop, max(epoch.stop for _, epoch in having))
        if first < last:
            yield from self._fill(wanted._replace(first=first, stop=last), having, "gone")
        if last < wanted.stop:
            if not all(epoch.ended for _, epoch in having) or any(p.problem for p in self._peers):
                raise ReplayError(wanted.stream, f"the log of epoch {wanted.epoch} ends at {last}")
            # It is over and ended before that: a crash of the machine took its end.
            yield Loss(wanted.stream, wanted.epoch, max(first, last), wanted.stop, "gone")

    def _fill(
        self, wanted: Range, having: Sequence[tuple[_Peer, Epoch]], reason: str
    ) -> Iterator[Run | Loss]:
        """A range from the first of some peers that has any of it, around that from the others."""
        for place, (peer, epoch) in enumerate(having):
            others = having[place + 1 :]
            first, stop = max(wanted.first, epoch.first), min(wanted.stop, epoch.stop)
            if first >= stop:
                if epoch.origin <= wanted.first < epoch.first:
                    reason = "expired"
                continue
            if wanted.first < first:
                why = "expired" if epoch.origin <= wanted.first else reason
                yield from self._fill(wanted._replace(stop=first), others, why)
            with peer.client(READ_TIMEOUT_S) as client:
                for item in client.read(wanted.stream, wanted.epoch, first, stop):
                    if isinstance(item, Loss):
                        lost = wanted._replace(first=item.first, stop=item.stop)
                        yield from self._fill(lost, others, item.reason)
                    else:
                        yield item
            if stop < wanted.stop:
                yield from self._fill(wanted._replace(first=stop), others, reason)
            return
        yield Loss(wanted.stream, wanted.epoch, wanted.first, wanted.stop, reason)

    def close(self) -> None:
        """See `EventSource`."""
        for peer in self._peers:
            peer.close()


def epochs_of(remote: RemoteLog) -> list[Epoch]:
    """The epochs of a log, as positions know them."""
    there = {epoch.epoch: epoch for epoch in remote.epochs}
    newest = max([*there, *(epoch.epoch for epoch in remote.known)], default=0)
    found = []
    for known in remote.known or remote.epochs:
        has = there.get(known.epoch)
        first = known.stop if has is None else has.first
        stop = known.stop if has is None else has.stop
        found.append(Epoch(known.epoch, known.first, first, stop, known.epoch != newest))
    return found


def merged(ours: list[Epoch], theirs: list[Epoch]) -> list[Epoch]:
    """What two peers have of a stream, together."""
    found = {epoch.epoch: epoch for epoch in ours}
    for other in theirs:
        own = found.get(other.epoch)
        if own is not None:
            other = Epoch(
                other.epoch,
                min(own.origin, other.origin),
                min(own.first, other.first),
                max(own.stop, other.stop),
                own.ended and other.ended,
            )
        found[other.epoch] = other
    return [found[number] for number in sorted(found)]
