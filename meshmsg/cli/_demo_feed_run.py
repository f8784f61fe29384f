"""The run behind `meshmsg demo feed`: a multicast feed and three receivers that lose packets.

The publisher goes on only while the receivers keep up (they say how far they are, over pipes), so
nothing here rests on luck or on a fast machine.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshmsg._model.config import Stream, Tuning
from meshmsg._model.multicast_config import Multicast
from meshmsg._peer.peer import Peer
from meshmsg.cli._demo_stage import WAIT_S, Stage
from meshmsg.cli._workers import Worker, workers
from meshmsg.recovery.stream.ledger import Ledger

WORKER = "meshmsg.cli._demo_feed_worker"
PUBLISHER = "market"
STREAM = "quotes.**"
NAMES = ("alice", "bob", "carol")

SYMBOLS = ("AAPL", "MSFT", "NVDA", "SAP", "TSLA")
QUOTES_PER_FRAME = 40
ROUND_S = 0.02
#: How many rounds the receivers may be behind.
LAG_ROUNDS = 20
# Nobody is given up for dead on a busy machine.
TUNING = {"peer_timeout_s": 120.0}


@dataclass
class Receiver:
    """A receiver as the publisher's side of the demo sees it."""

    name: str
    worker: Worker
    report: dict[str, Any] = field(default_factory=dict)

    def figure(self, name: str) -> int:
        """What it said of the quotes, or of its own losing."""
        return int(self.report.get(name, 0))

    def packets(self, name: str) -> int:
        """One of its figures of packets."""
        return int(self.report.get("multicast", {}).get(name, 0))


@dataclass
class Outcome:
    """What the run came to."""

    group: str
    drop: float
    published: int
    sent: dict[str, Any]
    took_s: float
    receivers: list[Receiver]
    ledger: Ledger

    def total(self, name: str) -> int:
        """A figure of packets, of all receivers together."""
        return sum(receiver.packets(name) for receiver in self.receivers)


class Run(Stage):
    """One run; `show` is called every now and then with the run itself."""

    def __init__(self, seconds: float, drop: float, seed: int, show: Callable[[Run], None]) -> None:
        super().__init__("starting three receivers, each a process of its own", show)
        self.drop = drop
        self.published = 0
        self.receivers: list[Receiver] = []
        self.sent: dict[str, Any] = {}
        # A group of its own, so that two demos on one machine do not meet.
        rng = random.SystemRandom()
        self.group = f"239.255.{rng.randint(1, 254)}.{rng.randint(1, 254)}:30001"
        self._seeds = {name: seed + n for n, name in enumerate(NAMES)}
        self._rounds = max(10, int(seconds / ROUND_S))
        self._due = 0.0

    def go(self) -> Outcome:
        """Run it; raises `WorkerFailed` and what a peer raises."""
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="meshmsg-")))
            stream = Stream(STREAM, transport=Multicast(self.group))
            address = f"ipc://{folder}/mesh"
            tuning = Tuning(**TUNING)  # type: ignore[arg-type]
            self._peer = stack.enter_context(
                Peer(PUBLISHER, streams=stream, bind=address, discovery="none", tuning=tuning)
            )
            self._start_receivers(stack)
            self.phase = f"each receiver loses {self.drop:.0%} of all packets on purpose"
            self._due = time.monotonic()
            for _ in range(self._rounds):
                self._round()
            self.phase = "no more quotes: the last ones are repaired"
            self._peer.flush(timeout=WAIT_S)
            self.until(self._all_here)
            ledger = self.settled_ledger()
            self.tend(show=True)
            return Outcome(
                self.group,
                self.drop,
                self.published,
                self.sent,
                self.elapsed_s,
                self.receivers,
                ledger,
            )

    def _start_receivers(self, stack: ExitStack) -> None:
        settings = {
            "connect": self._peer.address,
            "tuning": TUNING,
            "drop": self.drop,
            "seeds": self._seeds,
        }
        started = stack.enter_context(workers(WORKER, settings, NAMES))
        self.receivers = [Receiver(n, worker) for n, worker in zip(NAMES, started, strict=True)]
        self.until(lambda: all(receiver.report for receiver in self.receivers))

    def _round(self) -> None:
        """A few frames, when it is time and the receivers have kept up."""
        self.until(self._may_go_on)
        for symbol in SYMBOLS:
            quotes = [
                {"n": self.published + n, "symbol": symbol, "bid": 100 + n / 100, "ask": 101.0}
                for n in range(QUOTES_PER_FRAME)
            ]
            self._peer.publish_many(f"quotes.{symbol}", quotes)
            self.published += QUOTES_PER_FRAME
        self._due += ROUND_S

    def _may_go_on(self) -> bool:
        allowed = LAG_ROUNDS * QUOTES_PER_FRAME * len(SYMBOLS)
        on_time = all(self.behind(receiver) <= allowed for receiver in self.receivers)
        return on_time and time.monotonic() >= self._due

    def behind(self, receiver: Receiver) -> int:
        """Quotes that a receiver has not heard of yet, by its last word."""
        return self.published - receiver.figure("next")

    def _all_here(self) -> bool:
        """Everybody has everything, and said so; a lost heartbeat may hide a gap for a moment."""
        return all(
            self.behind(receiver) == 0 and receiver.packets("missing") == 0
            for receiver in self.receivers
        )

    def hear(self) -> None:
        """Take what the receivers have said."""
        for receiver in self.receivers:
            for report in receiver.worker.heard():
                receiver.report = report

    def look(self) -> None:
        """The sender's figures."""
        self.sent = self._peer.stats()["streams"][STREAM]["multicast"]
