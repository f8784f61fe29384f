"""The run behind the demo: an exchange, feed handlers, a risk desk, a gateway.

The day is as long in market time as it is asked to be, and the same for the same seed: how fast the
machine is only decides how long it takes.  Handlers are slow, late or killed, and nobody waits for
them: the log does.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from market.bars import Bars
from market.demo.spark import Spark
from market.demo.stage import WAIT_S, Overdue, Stage
from market.demo.workers import Worker
from market.exchange import FEED, ORDERS, TRADES, Exchange, Lines, market_streams
from market.simulator import Simulator
from meshmsg import Ledger, Peer, Tuning, WaitTimeout

EXCHANGE = "exchange"
SLOW, KILLED, LATE, MOLD = "alice", "bob", "carol", "dave"
ROLES = {SLOW: "slow", KILLED: "killed and back", LATE: "joins late", MOLD: "MoldUDP64"}
DESK = ("risk-1", "risk-2", "risk-3")
GATEWAY = "gateway"
TAPE = "tape"
SINK = "sink"

#: Market time that is published at once.
STEP_S = 0.02
#: When things happen, as a part of the day.
KILL_AT, JOIN_AT, BACK_AT = 0.3, 0.5, 0.65
#: The slow one takes so many times as long for a message as they come apart.
SLOWNESS = 1.2
#: Messages between two checkpoints, at which all hash their books: about one a second and a half.
CHECK_S = 1.5
RATES = 120
#: Spark starts slowly, and on a busy machine very slowly.
SPARK_S = 300.0
# A killed handler's place is kept that long; members of the desk are not given up so soon.
TUNING = {"peer_timeout_s": 10.0, "member_timeout_s": 60.0}


@dataclass
class Handling:
    """A feed handler as the exchange's side of the demo sees it."""

    name: str
    seed: int
    state: str = "waiting"
    worker: Worker | None = None
    report: dict[str, Any] = field(default_factory=dict)
    #: Reports of earlier starts, the last of each.
    past: list[dict[str, Any]] = field(default_factory=list)
    #: How many messages there were when it was killed.
    killed_at: int = 0

    def figure(self, name: str) -> int:
        """A figure of this start."""
        return int(self.report.get(name, 0))

    def total(self, *names: str) -> int:
        """Figures of all starts, added up."""
        return sum(int(said.get(name, 0)) for said in (*self.past, self.report) for name in names)

    @property
    def hashes(self) -> dict[int, str]:
        """The checkpoints: after how many messages, and the hash of the books."""
        return {int(place): made for place, made in self.report.get("hashes", {}).items()}

    @property
    def final(self) -> str | None:
        """The hash of the books at the end of the day."""
        return self.report.get("final")


@dataclass
class Outcome:
    """What the run came to."""

    published: dict[str, int]
    drop: float
    took_s: float
    handlers: list[Handling]
    desk: dict[str, dict[str, Any]]
    exposure: dict[str, int]
    hashes: dict[int, str]
    final: str
    sent: dict[str, Any]
    replayed: int
    gateway: dict[str, Any]
    tape: dict[str, Any]
    bars: Bars
    spark: Spark
    ledger: Ledger
    #: What was waited for in vain, in words.
    overdue: list[str] = field(default_factory=list)


class Run(Stage):
    """One run; `show` is called every now and then with the run itself."""

    def __init__(
        self,
        seconds: float,
        drop: float,
        seed: int,
        show: Callable[[Run], None],
        *,
        stocks: int = 300,
        rate: float = 4000.0,
        spark: bool | None = False,
    ) -> None:
        super().__init__("starting: each part is a process of its own", show)
        self.day_s = seconds
        self.drop = drop
        self.handlers = {name: Handling(name, seed + n) for n, name in enumerate(ROLES, 1)}
        self.desk: dict[str, dict[str, Any]] = {name: {} for name in DESK}
        self.gateway: dict[str, Any] = {}
        self.tape: dict[str, Any] = {}
        self.sent: dict[str, Any] = {}
        self.replayed = 0  # frames that were read from the log, for those who were slow or late
        self.news: list[tuple[float, str]] = []  # a few in a day
        self.rates: deque[int] = deque(maxlen=RATES)  # messages of the last steps
        self.at_s = 0.0  # market time
        self.simulator = Simulator(stocks, rate, seed, check_every=max(100, int(rate * CHECK_S)))
        self.spark = Spark(spark)
        self.overdue: list[str] = []
        self._workers: list[tuple[Worker, Callable[[dict[str, Any]], None]]] = []
        # Groups of their own, so that two demos on one machine do not meet.
        rng = random.SystemRandom()
        net = f"239.255.{rng.randint(1, 254)}"
        self.lines = Lines(f"{net}.1:30701", f"{net}.2:30703")
        self._mold_lines = Lines(f"{net}.3:30721", f"{net}.4:30723")
        self._rate = rate
        self._due = 0.0

    def go(self) -> Outcome:
        """Run it; raises `WorkerFailed` and what a peer raises."""
        with ExitStack() as stack:
            self._folder = Path(stack.enter_context(_folder_for_now()))
            self._peer = stack.enter_context(
                Peer(
                    EXCHANGE,
                    streams=market_streams(self.lines),
                    bind=f"ipc://{self._folder}/mesh",
                    discovery="none",
                    data_dir=str(self._folder / EXCHANGE),
                    tuning=Tuning(**TUNING),  # type: ignore[arg-type]
                )
            )
            self.exchange = Exchange(self._peer, self.simulator)
            stack.push(lambda kind, error, trace: self._dismiss(calm=kind is None))
            self._start()
            self._trade()
            self._settle()
            return self._outcome(self.settled_ledger())

    # --- the cast ---

    def _settings(self, **more: Any) -> dict[str, Any]:
        """What every worker is told, and more."""
        return {"connect": self._peer.address, "tuning": TUNING, "drop": self.drop, **more}

    def _hire(
        self, name: str, module: str, hear: Callable[[dict[str, Any]], None], **more: Any
    ) -> Worker:
        settings = self._settings(name=name, **more)
        worker = Worker(name, f"market.demo.parts.{module}", settings)
        self._workers.append((worker, hear))
        return worker

    def _start_handler(self, name: str, **more: Any) -> None:
        handling = self.handlers[name]
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        mold = name == MOLD
        handling.worker = self._hire(
            name,
            "mold" if mold else "handler",
            lambda said: handling.report.update(said),
            seed=handling.seed + 100 * len(handling.past),
            folder=str(folder),
            check_every=max(100, int(self._rate * CHECK_S)),
            pause_s=SLOWNESS / self._rate if name == SLOW else 0.0,
            slow_s=self.day_s,
            **more,
        )
        handling.state = "starting"

    def _start(self) -> None:
        for name in DESK:
            self._hire(name, "risk", lambda said, name=name: self.desk[name].update(said))  # type: ignore[misc]
        self._start_handler(SLOW)
        self._start_handler(KILLED)
        self._hire(GATEWAY, "gateway", self.gateway.update, lines=list(self._mold_lines))
        self._hire(TAPE, "tape", self.tape.update, seed=self.handlers[MOLD].seed + 1)
        self.spark.start(self._folder / SINK, self._settings(seed=self.handlers[MOLD].seed + 2))
        takers = {ORDERS: len(DESK), FEED: 3, TRADES: 1}
        self.until(lambda: all(self._takers(topic, count) for topic, count in takers.items()))
        self._tell("the market opens")
        self.exchange.open()
        self.until(lambda: "server" in self.gateway)
        self._start_handler(MOLD, server=self.gateway["server"], lines=list(self._mold_lines))
        self.until(lambda: all(self.handlers[name].report for name in (SLOW, KILLED, MOLD)))

    def _takers(self, topic: str, count: int) -> bool:
        try:
            self._peer.wait_for_subscribers(topic, count, timeout=0.01)
        except WaitTimeout:
            return False
        return True

    def _dismiss(self, *, calm: bool) -> None:
        for worker, _ in self._workers:
            worker.ask_to_stop()
        for worker, _ in self._workers:
            worker.end(at_once=not calm)
        self.spark.end()

    # --- the day ---

    def _trade(self) -> None:
        self.phase = f"trading; {self.drop:.0%} of the packets on each line are lost on purpose"
        plot = [
            (KILL_AT, self._kill),
            (JOIN_AT, self._join),
            (BACK_AT, self._come_back),
        ]
        self._due = time.monotonic()
        steps = max(10, round(self.day_s / STEP_S))
        for step in range(1, steps + 1):
            self.until(lambda: time.monotonic() >= self._due)
            self._due += STEP_S
            self.at_s = step * self.day_s / steps
            self.rates.append(len(self.exchange.until(self.at_s).feed))
            while plot and self.at_s >= plot[0][0] * self.day_s:
                plot.pop(0)[1]()
        self.exchange.close()

    def _kill(self) -> None:
        handling = self.handlers[KILLED]
        # It must have something to go on from.
        self.until(lambda: (self._folder / KILLED / "books").exists())
        worker = handling.worker
        assert worker is not None
        worker.kill()
        self._workers = [pair for pair in self._workers if pair[0] is not worker]
        worker.end()
        handling.past.append(handling.report)
        handling.killed_at = self.simulator.messages
        handling.report, handling.state, handling.worker = {}, "killed", None
        self._tell(f"{KILLED} is killed (SIGKILL), in the middle of it")

    def _join(self) -> None:
        self._start_handler(LATE)
        self._tell(f"{LATE} joins, and reads the day from its beginning: from the log, then live")

    def _come_back(self) -> None:
        self._start_handler(KILLED)
        self._tell(f"{KILLED} is back: its own snapshot, then what it missed, then live")

    def _settle(self) -> None:
        """The day is over: wait until everybody has all of it."""
        self.phase = "the market is closed: the last messages arrive"
        self._tell("the market closes")
        self._peer.flush(timeout=WAIT_S)
        orders, trades = self.exchange.published[ORDERS], self.exchange.published[TRADES]
        deadline = time.monotonic() + WAIT_S
        for what, condition in (
            ("all books", lambda: all(handling.final for handling in self.handlers.values())),
            ("all orders", lambda: self._desk_has(orders)),
            ("all trades", lambda: int(self.tape.get("bars_of", 0)) >= trades),
        ):
            self._await(what, condition, max(0.0, deadline - time.monotonic()))
        if self.spark.running:
            self.phase = "Spark makes its bars"
            self._tell(self.phase)
            self.spark.finish(dict(self.exchange.published))
            self._await("Spark", lambda: self.spark.done or not self.spark.running, SPARK_S)

    def _await(self, what: str, condition: Callable[[], bool], wait_s: float) -> None:
        """Wait, and go on when it does not come: the reconciliation says what is missing."""
        try:
            self.until(condition, wait_s)
        except Overdue:
            self.overdue.append(f"waited in vain for {what}")

    def _desk_has(self, orders: int) -> bool:
        return self._desk_total("handled") >= orders and self._desk_is_idle()

    def _desk_total(self, name: str) -> int:
        return sum(int(said.get(name, 0)) for said in self.desk.values())

    def _desk_is_idle(self) -> bool:
        """Everybody has said what the accounts come to."""
        return all(said.get("exposure") or not said.get("handled") for said in self.desk.values())

    def _tell(self, text: str) -> None:
        self.news.append((self.elapsed_s, text))

    # --- figures ---

    def hear(self) -> None:
        """Take what the workers have said."""
        for worker, take in list(self._workers):
            for said in worker.heard():
                take(said)
        self.spark.hear()
        for handling in self.handlers.values():
            self._judge(handling)

    def _judge(self, handling: Handling) -> None:
        """Say in a word how a handler is."""
        if handling.worker is None:
            return
        if handling.final:
            handling.state = "done"
        elif not handling.report:
            handling.state = "starting"
        elif self.behind(handling) > self._rate / 2:
            handling.state = "catching up"
        else:
            handling.state = "live"

    def behind(self, handling: Handling) -> int:
        """Messages that are not in a handler's books, by its last word."""
        if not handling.report and not handling.past:
            return self.simulator.messages if handling.worker else 0
        last = handling.report or handling.past[-1]
        return self.simulator.messages - int(last.get("applied", 0))

    def look(self) -> None:
        """The exchange's figures."""
        stats = self._peer.stats()
        streams = stats["streams"]
        self.replayed = int(stats["counters"].get("replayed_frames", 0))
        self.sent = {name: streams[name].get("multicast", {}) for name in ("feed.**", "trades.**")}

    def _outcome(self, ledger: Ledger) -> Outcome:
        self.tend(show=True)
        published = {topic: self.exchange.published[topic] for topic in (FEED, TRADES, ORDERS)}
        self.spark.compare(self.exchange.bars, published)
        return Outcome(
            published=published,
            drop=self.drop,
            took_s=self.elapsed_s,
            handlers=list(self.handlers.values()),
            desk=self.desk,
            exposure=dict(self.exchange.exposure),
            hashes=self.simulator.hashes,
            final=self.simulator.books.hash(),
            sent=self.sent["feed.**"],
            replayed=self.replayed,
            gateway=self.gateway,
            tape=self.tape,
            bars=self.exchange.bars,
            spark=self.spark,
            ledger=ledger,
            overdue=self.overdue,
        )


def _folder_for_now() -> tempfile.TemporaryDirectory[str]:
    """Removed at the end; what Spark's Java still writes while it ends does not matter."""
    return tempfile.TemporaryDirectory(prefix="meshmsg-", ignore_cleanup_errors=True)
