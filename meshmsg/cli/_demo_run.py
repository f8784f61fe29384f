"""The run behind `meshmsg demo`: one publisher, three subscribers, losses on purpose.

Nothing here rests on luck.  The publisher goes on only while the subscribers that are not stalled
keep up (they say how far they are, over pipes), and the stalled one is woken only when events that
it does not have are certain to have left the publisher's buffer.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshmsg._model.config import Stream, Tuning
from meshmsg._model.errors import WaitTimeout
from meshmsg._peer.peer import Peer
from meshmsg._wire.control import stream_wire_id
from meshmsg._wire.frame import Frame
from meshmsg.cli._demo_stage import WAIT_S, Stage
from meshmsg.cli._workers import Worker, workers
from meshmsg.recovery.stream.ledger import Ledger
from meshmsg.testing import LossyLink, lose_messages

WORKER = "meshmsg.cli._demo_worker"
PUBLISHER = "market"
HEALTHY = ("alice", "bob")
STALLED = "carol"

SYMBOLS = ("AAPL", "MSFT", "NVDA", "SAP", "TSLA")
QUOTES_PER_FRAME = 80
ORDERS_PER_FRAME = 10
ROUND_S = 0.04
#: How many rounds the healthy may be behind: a small part of what the quotes' buffer holds.
LAG_ROUNDS = 3
#: Rounds of a stall at least: the buffer and all queues on the way are full well before.
STALL_ROUNDS_MIN = 75
GONE_RANGES_MIN = 3

QUOTES_BUFFER = 256 * 1024
# Short queues, so that seconds are enough to see them overflow; and nobody is given up for dead
# on a busy machine.
TUNING = {"queue_frames": 50, "peer_timeout_s": 120.0}


@dataclass
class Subscriber:
    """A subscriber as the publisher's side of the demo sees it."""

    name: str
    worker: Worker
    state: str = "reading"
    report: dict[str, Any] = field(default_factory=dict)

    def figure(self, kind: str, name: str) -> int:
        """One of its figures on one stream."""
        streams = self.report.get("streams", {})
        return int(streams.get(kind, {}).get(name, 0))

    def total(self, name: str) -> int:
        """One of its figures on both streams."""
        return self.figure("quotes", name) + self.figure("orders", name)


@dataclass
class Outcome:
    """What the run came to."""

    published: dict[str, int]
    frames: int
    dropped_frames: int
    dropped_events: int
    stalled_s: float
    took_s: float
    subscribers: list[Subscriber]
    ledger: Ledger


class Drops(LossyLink):
    """Loses frames by a seed, and remembers which events were in them."""

    def __init__(self, ratio: float, seed: int) -> None:
        super().__init__(ratio, seed)
        self.ranges: dict[int, list[tuple[int, int]]] = {}

    def __call__(self, message: bytes) -> bool:
        """Whether this message is lost."""
        lost = super().__call__(message)
        if lost:
            frame = Frame(message)
            self.ranges.setdefault(frame.stream, []).append((frame.first, frame.stop))
        return lost

    @property
    def events(self) -> int:
        """Events in the frames that were lost."""
        return sum(stop - first for ranges in self.ranges.values() for first, stop in ranges)


class Run(Stage):
    """One run of the demo; `show` is called every now and then with the run itself."""

    def __init__(
        self, seconds: float, ratio: float, seed: int, show: Callable[[Run], None]
    ) -> None:
        super().__init__("starting three subscribers, each a process of its own", show)
        self.published = {"quotes": 0, "orders": 0}
        self.subscribers: list[Subscriber] = []
        self.drops = Drops(ratio, seed)
        self.stats: dict[str, Any] = {}
        self.stalled_s = 0.0
        self._rounds = max(10, int(seconds / ROUND_S))
        self._due = 0.0

    def frames(self) -> int:
        """Frames of data so far."""
        streams = self.stats.get("streams", {}).values()
        return sum(stream["frames"] for stream in streams)

    def go(self) -> Outcome:
        """Run it; raises `WorkerFailed` and what a peer raises."""
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="meshmsg-")))
            streams = (
                Stream("quotes.**", overflow="drop_oldest", buffer_bytes=QUOTES_BUFFER),
                Stream("orders.**", overflow="buffer"),
            )
            self._peer = stack.enter_context(
                Peer(
                    PUBLISHER,
                    streams=streams,
                    bind=f"ipc://{folder}/mesh",
                    discovery="none",
                    tuning=_tuning(),
                )
            )
            self._start_subscribers(stack)
            stack.enter_context(lose_messages(self._peer, self.drops))
            self._calm(0.3, f"{self.drops.ratio:.0%} of all frames are dropped on purpose")
            with self._stall():
                self._calm(0.45, f"{STALLED} is frozen (SIGSTOP), the others go on", stalled=True)
            self._calm(0.25, f"{STALLED} is back, and catches up")
            self._settle()
            ledger = self.settled_ledger()
            return self._outcome(ledger)

    def _start_subscribers(self, stack: ExitStack) -> None:
        settings = {"connect": self._peer.address, "tuning": TUNING}
        names = (*HEALTHY, STALLED)
        started = stack.enter_context(workers(WORKER, settings, names))
        self.subscribers = [
            Subscriber(name, worker) for name, worker in zip(names, started, strict=True)
        ]
        self.until(lambda: self._all_take("quotes.AAPL") and self._all_take("orders.eu"))

    def _all_take(self, topic: str) -> bool:
        try:
            self._peer.wait_for_subscribers(topic, len(self.subscribers), timeout=0.01)
        except WaitTimeout:
            return False
        return True

    # --- phases ---

    def _calm(self, part: float, phase: str, *, stalled: bool = False) -> None:
        """Publish for a part of the run."""
        self.phase = phase
        rounds = int(self._rounds * part)
        if stalled:
            rounds = max(rounds, STALL_ROUNDS_MIN)
        self._due = time.monotonic()
        for _ in range(rounds):
            self._round()

    @contextmanager
    def _stall(self) -> Iterator[None]:
        """Freeze one subscriber; it wakes when it has certainly missed something for good."""
        sleeper = self.subscribers[-1]
        sleeper.worker.freeze()
        began = time.monotonic()
        sleeper.state = "frozen"
        missed_from = self.published["quotes"]
        yield
        while self._gone_since(missed_from) < GONE_RANGES_MIN:
            self._round()
        self.stalled_s = time.monotonic() - began
        sleeper.worker.thaw()
        sleeper.state = "catching up"

    def _gone_since(self, missed_from: int) -> int:
        """Dropped ranges, of quotes from here on, that nobody can ask for any more."""
        stream = self._peer.stats()["streams"]["quotes.**"]
        wire_id = stream_wire_id("default", stream["stream"])
        return sum(
            first >= missed_from and stop <= stream["first_available"]
            for first, stop in self.drops.ranges.get(wire_id, ())
        )

    def _settle(self) -> None:
        """No more events: wait until every subscriber has heard of every one of them."""
        self.phase = "no more events: the last ones arrive"
        self._peer.flush(timeout=WAIT_S)
        self.until(lambda: all(self._behind(s) == 0 for s in self.subscribers))
        for subscriber in self.subscribers:
            subscriber.state = "done"

    def _outcome(self, ledger: Ledger) -> Outcome:
        self.tend(show=True)
        return Outcome(
            published=dict(self.published),
            frames=self.frames(),
            dropped_frames=self.drops.dropped,
            dropped_events=self.drops.events,
            stalled_s=self.stalled_s,
            took_s=self.elapsed_s,
            subscribers=self.subscribers,
            ledger=ledger,
        )

    # --- publishing ---

    def _round(self) -> None:
        """A few frames of each stream, when it is time and the healthy have kept up."""
        self.until(self._may_go_on)
        for symbol in SYMBOLS:
            first = self.published["quotes"]
            quotes = [
                {"n": first + n, "symbol": symbol, "bid": 100 + n / 100, "ask": 100.05 + n / 100}
                for n in range(QUOTES_PER_FRAME)
            ]
            self._peer.publish_many(f"quotes.{symbol}", quotes)
            self.published["quotes"] += QUOTES_PER_FRAME
        for region in ("eu", "us"):
            first = self.published["orders"]
            orders = [{"n": first + n, "qty": 10 * n} for n in range(ORDERS_PER_FRAME)]
            self._peer.publish_many(f"orders.{region}", orders)
            self.published["orders"] += ORDERS_PER_FRAME
        self._due += ROUND_S

    def _may_go_on(self) -> bool:
        allowed = LAG_ROUNDS * QUOTES_PER_FRAME * len(SYMBOLS)
        healthy = self.subscribers[: len(HEALTHY)]
        on_time = all(self.behind(s, "quotes") <= allowed for s in healthy)
        return on_time and time.monotonic() >= self._due

    def behind(self, subscriber: Subscriber, kind: str) -> int:
        """Events that a subscriber has not heard of yet, by its last word."""
        return self.published[kind] - subscriber.figure(kind, "next")

    def _behind(self, subscriber: Subscriber) -> int:
        return self.behind(subscriber, "quotes") + self.behind(subscriber, "orders")

    # --- waiting ---

    def hear(self) -> None:
        """Take what the subscribers have said."""
        for subscriber in self.subscribers:
            for report in subscriber.worker.heard():
                subscriber.report = report
            if subscriber.state == "catching up" and self._behind(subscriber) < QUOTES_PER_FRAME:
                subscriber.state = "reading"

    def look(self) -> None:
        """The publisher's figures."""
        self.stats = self._peer.stats()


def _tuning() -> Tuning:
    return Tuning(**TUNING)  # type: ignore[arg-type]
