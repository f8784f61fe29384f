"""The links of one peer, wired as its node does it, with no thread: only a test takes turns.

What it says is kept, and sent where somebody listens; `Far` is such a one.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from meshmsg._access.access_control import Gate
from meshmsg._links.discovery_service import Doings, Finder
from meshmsg._links.inbound_peer import Client
from meshmsg._links.name_conflicts import Namesakes
from meshmsg._links.offers import Inlets, Offers
from meshmsg._links.outbound_peer import Link, LinkTable
from meshmsg._links.outbound_peers import Links
from meshmsg._links.peer_queries import Questions
from meshmsg._links.status_reports import StatusReports
from meshmsg._model.config import PeerConfig, Tuning
from meshmsg._model.discovery_config import Discovery
from meshmsg._model.topics import TopicFilter
from meshmsg._runtime.control_sender import ControlSender
from meshmsg._runtime.guard import Guard
from meshmsg._runtime.log_limit import LogLimit
from meshmsg._wire import control as c
from meshmsg.recovery.stream.ledger import Ledger
from meshmsg.transports.zmq.context import Poller
from meshmsg.transports.zmq.control import ControlServer, Request
from meshmsg.transports.zmq.sockets import ZmqSockets
from tests.support.receiving import EPOCH
from tests.support.waiting import wait_until

ME, FAR = 100, 200  # numbers of starts
HERE = "tcp://127.0.0.1:4000"


def stream(name: str, epoch: int = EPOCH, **fields: Any) -> c.StreamInfo:
    given = {"topics": "a.**", "overflow": "buffer", "codec": "msgpack", "window_bytes": 1 << 20}
    return c.StreamInfo(name, epoch=epoch, **{**given, **fields})


def client(peer: str, instance: int, host: str = "127.0.0.1", now: float = 0.0) -> Client:
    """A peer that dialled us."""
    return Client(c.Hello(peer, instance, "default"), host, b"", now)


class Inlet:
    """A subscription, as far as offers know one: it keeps what it is told."""

    def __init__(self, sub: int = 1, patterns: tuple[str, ...] = ("a.**",)) -> None:
        self.sub, self.filter = sub, TopicFilter(patterns)
        self.notices: list[Any] = []
        self.counters: Counter[str] = Counter()
        self.refusals: dict[str, str] = {}
        self.forgotten: set[str] = set()
        self.hold, self.bookmarks = False, None
        self.history = False
        self.incoming = self
        self.woken = 0

    def notify(self, notice: Any) -> None:
        self.notices.append(notice)

    def told(self, kind: type[Any]) -> list[Any]:
        return [notice for notice in self.notices if isinstance(notice, kind)]

    def tend(self, now: float, *, force: bool = False) -> None:
        pass

    def wake(self) -> None:
        self.woken += 1

    def has_forgotten(self, name: str) -> bool:
        return name in self.forgotten

    def moved(self, tails: Any) -> set[str]:
        return {tail.stream for tail in tails} & self.forgotten

    def wants_history(self, name: str) -> bool:
        return self.history

    def start_for(self, info: c.StreamInfo, *, born: bool, lent: bool = False) -> c.Start:
        return c.Start(info.name, "origin" if born else "live")

    def streams(self) -> set[str]:
        return set()

    def sources_of(self, to: Any) -> list[Any]:
        return []

    def figures_of(self, sources: list[Any]) -> list[Any]:
        return []


class Linking:
    """One peer's links and all that belongs to them."""

    def __init__(self, discovery: Discovery | str, tuning: Tuning, **config: Any) -> None:
        self.config = PeerConfig("me", discovery=discovery, tuning=tuning, **config)  # type: ignore[arg-type]
        self.context = ZmqSockets(None, 5.0)
        self.poller = Poller()
        self.counters: Counter[str] = Counter()
        self.sent: list[tuple[Any, c.Message | bytes]] = []
        self.infos: list[c.StreamInfo] = []
        self.rivals: dict[str, str] = {}
        self.doings = Doings((), (), ())
        self.addresses = [HERE]
        self.clients: dict[bytes, Client] = {}
        self.table = LinkTable()
        self.inlets = Inlets()
        self.figures: dict[str, Any] = {"streams": []}
        self.refreshed = 0  # how often our subscribers were asked
        self.answered = 0  # so many of those they have answered
        self.calls: list[Callable[[], None]] = []
        self.failed: Exception | None = None
        self.guard = Guard("the I/O thread", self.counters)
        self.control = ControlSender(self.send, lambda to: 0, lambda to: Any, self.counters)  # type: ignore[arg-type, return-value]
        notes = LogLimit(logging.getLogger("meshmsg.peer"), self.counters)
        self.gate = Gate(
            self.config,
            None,
            notes,
            self.counters,
            self.table,
            self.clients,
            lambda: [info.name for info in self.infos],
            lambda name: "a.**",
            lambda sub: [],
            lambda keys, now: None,
        )
        self.questions = Questions(
            "me",
            self.control,
            lambda: self.figures,
            lambda: Ledger(()),
            lambda event: {"event": str(event)},
            self._refresh,
            lambda number: number <= self.answered,
            self._check_running,
        )
        self.finder = Finder(
            self.config,
            ME,
            "1",
            self.control,
            self.addresses,
            self.table,
            self.clients,
            lambda: self.doings,
            lambda address: self.links.dial(address, given=False, found=True),
            lambda one: self.links.drop(one),
            self.calls.append,
        )
        reports = StatusReports(self.send)
        self.offers = Offers(tuning, self.control, notes, self.table, self.inlets, reports)
        self.links = Links(
            self.config,
            ME,
            "1",
            self.control,
            self.guard,
            self.context,
            self.poller,
            self.addresses,
            self.table,
            self.clients,
            self.gate,
            self.questions,
            self.finder,
            self.offers,
            lambda: self.infos,
            list,
        )
        self.namesakes = Namesakes(
            self.control,
            self.links,
            self.finder,
            self.addresses,
            lambda: self.infos,
            self._set_rivals,
        )

    def send(self, to: Any, parts: list[bytes]) -> bool:
        ours = c.message_version(parts[0]) == c.PROTOCOL_VERSION
        said = c.decode_message(parts[0], ("answer",)) if ours else parts[0]
        self.sent.append((to, said))
        return to.send(parts) if isinstance(to, Link) and to.client is not None else True

    def _refresh(self) -> int:
        self.refreshed += 1
        return self.refreshed

    def _check_running(self) -> None:
        if self.failed is not None:
            raise self.failed

    def _set_rivals(self, rivals: dict[str, str]) -> None:
        self.rivals = rivals

    def said(self, kind: type[Any], to: Any = None) -> list[Any]:
        """What was said of one kind, to one or to all."""
        some = [one for target, one in self.sent if to is None or target == to]
        return [one for one in some if isinstance(one, kind)]

    def up(self, address: str, peer: str, instance: int, *streams: c.StreamInfo) -> Link:
        """A peer that was dialled and has answered."""
        self.links.dial(address, given=False)
        made = self.table.by_address[address]
        made.state, made.peer, made.instance = "up", peer, instance
        made.data_address = address + "9"
        made.streams = {info.name: info for info in streams}
        return made

    def inlet(self, sub: int = 1, *patterns: str) -> Any:
        made = Inlet(sub, patterns or ("a.**",))
        self.inlets.intakes[sub] = made  # type: ignore[assignment]
        return made

    def turn(self) -> bool:
        """Read what has come on links."""
        for owner in self.poller.wait(0):
            self.links.on_readable(owner)
        return False

    def until(self, condition: Callable[[], Any]) -> None:
        """Take turns until something is so."""
        wait_until(lambda: self.turn() or condition(), 30.0)

    def close(self) -> None:
        for one in self.table.all():
            if one.client is not None:
                one.client.close()
        self.finder.close()
        self.context.close()


@contextmanager
def linking(discovery: Discovery | str = "none", **config: Any) -> Iterator[Linking]:
    tuning = {name: config.pop(name) for name in list(config) if hasattr(Tuning, name)}
    made = Linking(discovery, Tuning(**tuning), **config)
    try:
        yield made
    finally:
        made.close()


class Far:
    """Another peer's control socket, which says what a test has it say."""

    def __init__(self, context: ZmqSockets, name: str = "far", instance: int = FAR) -> None:
        self.server = ControlServer(context)
        self.address = self.server.bind("tcp://127.0.0.1:*")
        self.name, self.instance = name, instance
        self.requests: list[Request] = []

    def heard(self, kind: type[Any]) -> list[Any]:
        """What it was told so far, of one kind."""
        while (request := self.server.recv()) is not None:
            self.requests.append(request)
        said = [c.decode_message(request.parts[0], ("answer",)) for request in self.requests]
        return [one for one in said if isinstance(one, kind)]

    def say(self, *messages: c.Message | bytes) -> None:
        for one in messages:
            data = one if isinstance(one, bytes) else c.encode_message(one)
            assert self.server.send(self.requests[-1].identity, [data])

    def welcome(self, *streams: c.StreamInfo, **fields: Any) -> c.Welcome:
        given: dict[str, Any] = {
            "peer": self.name,
            "instance": self.instance,
            "mesh": "default",
            "fanout": [(self.address, "tcp://127.0.0.1:5555")],
        }
        return c.Welcome(streams=list(streams), **{**given, **fields})

    def close(self) -> None:
        self.server.close(0.0)


@contextmanager
def far(side: Linking, name: str = "far", instance: int = FAR) -> Iterator[Far]:
    made = Far(side.context, name, instance)
    try:
        yield made
    finally:
        made.close()
