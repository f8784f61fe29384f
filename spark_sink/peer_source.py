"""Events from peers that keep logs: publishers with durable streams, and recorders.

Several may keep the same stream.  A range is read from the one that has most of it; what one has
not, the others are asked for.  One that does not answer is left alone for a while, so that it does
not slow down the rest.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence

from meshmsg import Loss
from meshmsg._errors import ReplayError
from meshmsg._replay_client import RemoteLog, ReplayClient
from meshmsg.recovery.receiver import Run
from meshmsg.spark_sink.positions import Epoch, Range, StreamState, Survey

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

    def __init__(self, address: str, mesh: str, clock: Clock) -> None:
        self.address = address
        self._mesh = mesh
        self._clock = clock
        self._client: ReplayClient | None = None
        self.logs: dict[str, RemoteLog] = {}
        self.problem = ""
        self._pause_s = 0.0
        self._again_at = 0.0

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
            self.problem = error.problem
            self._pause_s = min(PAUSE_MAX_S, max(PAUSE_MIN_S, 2 * self._pause_s))
            self._again_at = self._clock() + self._pause_s
        else:
            self.problem, self._pause_s = "", 0.0

    def close(self) -> None:
        """Let go of the connection."""
        client, self._client = self._client, None
        if client is not None:
            client.close()


class PeerSource:
    """Logs of peers; see `EventSource`."""

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        mesh: str = "default",
        timeout_s: float = 300.0,
        clock: Clock = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._peers = [_Peer(address, mesh, clock) for address in addresses]
        self._timeout_s = timeout_s
        self._clock = clock
        self._sleep = sleep

    def survey(self) -> Survey:
        """See `EventSource`."""
        found = Survey()
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
                state.epochs = _merged(state.epochs, epochs_of(remote))
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

    def _having(self, stream: str) -> list[_Peer]:
        """Peers with a log of this stream, whoever has most first; recorders before publishers."""
        if not any(stream in peer.logs for peer in self._peers):
            for peer in self._peers:
                peer.ask()
        having = [peer for peer in self._peers if stream in peer.logs and not peer.problem]

        def rank(peer: _Peer) -> tuple[tuple[int, int], bool]:
            remote = peer.logs[stream]
            return remote.latest or (0, 0), remote.recorded

        return sorted(having, key=rank, reverse=True)

    def read(self, wanted: Range) -> Iterator[Run | Loss]:
        """See `EventSource`.  Waits for peers that are away, and tries again, as long as it may."""
        deadline = self._clock() + self._timeout_s
        while True:
            try:
                for item in self._from_any(wanted, self._having(wanted.stream)):
                    stop = item.stop if isinstance(item, Loss) else item.frame.first + item.hi
                    wanted = wanted._replace(first=stop)
                    deadline = self._clock() + self._timeout_s
                    yield item
                return
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
            for peer in self._peers:
                peer.ask()

    def _from_any(self, wanted: Range, peers: Sequence[_Peer]) -> Iterator[Run | Loss]:
        """A range from the first of some peers; what it has lost, from the others."""
        if not peers:
            raise ReplayError(wanted.stream, "no peer that answers has this stream")
        peer, others = peers[0], peers[1:]
        known = next(
            (e for e in epochs_of(peer.logs[wanted.stream]) if e.epoch == wanted.epoch), None
        )
        first = wanted.first
        if known is not None and not others and not first:
            first = min(known.origin, wanted.stop)
        if known is not None and known.ended and known.stop < wanted.stop and not others:
            # It is over and ended before that: a crash of the machine took its end.
            stop = max(first, known.stop)
            yield from self._from_one(peer, wanted._replace(first=first, stop=stop), others)
            yield Loss(wanted.stream, wanted.epoch, stop, wanted.stop, "gone")
            return
        yield from self._from_one(peer, wanted._replace(first=first), others)

    def _from_one(
        self, peer: _Peer, wanted: Range, others: Sequence[_Peer]
    ) -> Iterator[Run | Loss]:
        if not wanted.events:
            return
        with peer.client(READ_TIMEOUT_S) as client:
            for item in client.read(*wanted):
                if isinstance(item, Loss) and others:
                    missing = wanted._replace(first=item.first, stop=item.stop)
                    yield from self._from_any(missing, others)
                else:
                    yield item

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


def _merged(ours: list[Epoch], theirs: list[Epoch]) -> list[Epoch]:
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
