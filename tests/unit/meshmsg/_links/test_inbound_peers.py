"""Requests of those who dial us: who is welcome, who is heeded, and what everyone is told."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from meshmsg._links import inbound_peers as module
from meshmsg._links.discovery_service import ITSELF
from meshmsg._links.inbound_peers import CUT_S, Reception
from meshmsg._wire import control as c
from meshmsg.transports.zmq.control import Request
from tests.support.linking import EPOCH, FAR, HERE, ME, Linking, linking, stream

DATA = [(HERE, "tcp://127.0.0.1:5000")]


class Door:
    """The control socket, with requests that wait, and what became of connections."""

    def __init__(self) -> None:
        self.waiting: deque[Request] = deque()
        self.cut: list[int] = []
        self.read = 0

    def recv(self) -> Request | None:
        return self.waiting.popleft() if self.waiting else None

    def wait(self, timeout_s: float) -> None:
        pass

    def spoke(self, fd: int, size: int) -> None:
        pass

    def all_read(self) -> None:
        self.read += 1

    def cut_greedy(self, fd: int) -> None:
        self.cut.append(fd)


class Served:
    """What can be had here, and what was asked of it."""

    def __init__(self) -> None:
        self.own: list[c.StreamInfo] = []
        self.lent: list[c.StreamInfo] = []
        self.asked: list[c.Message] = []
        self.gone: list[tuple[bytes, float | None]] = []
        self.seen: dict[bytes, float] = {}

    def infos(self) -> Any:
        return self.own, self.lent

    def tails(self) -> Any:
        return [[c.Tail(info.name, EPOCH, 0, 5) for info in some] for some in self.infos()]

    def serve(self, request: Request, client: Any, message: c.Message, now: float) -> bool:
        if client is None or not isinstance(message, c.Nack):
            return False
        self.asked.append(message)
        return True

    def refuse(self, identity: bytes, message: c.Message) -> None:
        pass

    def forget(self, identity: bytes, now: float, last_seen: float | None = None) -> None:
        self.gone.append((identity, last_seen))

    def forget_silent(self, seen: dict[bytes, float], now: float) -> None:
        self.seen = seen


class Side:
    """A peer that is dialled."""

    def __init__(self, links: Linking) -> None:
        self.links = links
        self.door, self.served = Door(), Served()
        door: Any = self.door
        self.noted: list[tuple[str, dict[str, object]]] = []
        self.reception = Reception(
            links.config,
            ME,
            "1",
            links.control,
            links.guard,
            door,
            DATA,
            links.clients,
            links.gate,
            door,
            links.questions,
            links.finder,
            links.links,
            links.namesakes,
            self.served,
            lambda what, **fields: self.noted.append((what, fields)),
        )

    def hear(self, *messages: c.Message | bytes, who: bytes = b"x", host: str = "10.0.0.1") -> None:
        for message in messages:
            data = message if isinstance(message, bytes) else c.encode_message(message)
            self.door.waiting.append(Request(who, host, b"", who[0], [data], len(data)))
        while self.door.waiting:
            self.reception.on_readable()

    def meet(self, who: bytes = b"x", instance: int = FAR, **fields: Any) -> None:
        self.hear(hello(instance, **fields), who=who)

    def said(self, kind: type[Any], to: bytes = b"x") -> list[Any]:
        return [one for who, one in self.links.sent if who == to and isinstance(one, kind)]


def hello(instance: int = FAR, **fields: Any) -> c.Hello:
    return c.Hello(**{"peer": "far", "instance": instance, "mesh": "default", **fields})


NACK = c.Nack(1, "me/a", EPOCH, [(0, 1)], 1)


@pytest.fixture
def side() -> Iterator[Side]:
    with linking() as made:
        yield Side(made)


# Hello -----------------------------------------------------------------------------------------


def test_who_says_hello_is_welcome_and_told_what_there_is(side: Side) -> None:
    side.served.own, side.served.lent = [stream("me/a")], [stream("x/b")]
    side.meet()
    (welcome,) = side.said(c.Welcome)
    assert (welcome.peer, welcome.instance, welcome.fanout) == ("me", ME, DATA)
    assert (welcome.streams, welcome.recorded) == (side.served.own, side.served.lent)
    assert (welcome.page, welcome.more) == (0, False)
    assert side.links.clients[b"x"].peer == "far"


def test_many_streams_take_several_pages(side: Side) -> None:
    side.served.own = [stream(f"me/{n}") for n in range(150)]
    side.served.lent = [stream(f"x/{n}") for n in range(50)]
    side.meet()
    pages = side.said(c.Welcome)
    assert [page.page for page in pages] == list(range(len(pages)))
    assert [page.more for page in pages] == [True] * (len(pages) - 1) + [False]
    assert [info.name for page in pages for info in page.streams] == [
        info.name for info in side.served.own
    ]
    assert sum(len(page.recorded) for page in pages) == 50


def test_peer_with_streams_is_dialled_back(side: Side) -> None:
    side.meet(streams=["far/a"], listen=["tcp://127.0.0.1:7"])
    assert list(side.links.table.by_address) == ["tcp://10.0.0.1:7"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"mesh": "other"}, "peer 'far' of mesh 'other' meets mesh 'default'"),
        ({"instance": ME}, ITSELF),
    ],
)
def test_who_is_not_of_ours_is_told_why(side: Side, fields: Any, reason: str) -> None:
    side.hear(hello(**fields))
    assert side.said(c.Refused) == [c.Refused(reason)]
    assert side.links.clients == {}
    assert side.links.counters["refused"] == 1


def test_other_version_is_told_in_words_that_it_understands(side: Side) -> None:
    data = c.encode_message(hello())
    side.hear(data[:3] + bytes([99]) + data[4:])
    ((_, answer),) = side.links.sent
    assert isinstance(answer, bytes)
    assert c.message_version(answer) == 99
    assert side.links.counters["refused"] == 1
    assert side.links.clients == {}


def test_connection_is_of_one_peer(side: Side) -> None:
    side.meet()
    side.meet(instance=FAR + 1)
    assert side.links.clients[b"x"].instance == FAR
    assert side.links.counters["bad_control"] == 1
    side.meet()  # again: our streams may have changed
    assert len(side.said(c.Welcome)) == 2


def test_only_so_many_are_taken(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLIENTS_MAX", 1)
    side.meet()
    side.meet(who=b"y", instance=FAR + 1)
    side.meet()
    assert list(side.links.clients) == [b"x"]
    assert "1 peers are connected" in side.said(c.Refused, b"y")[0].reason


# Requests --------------------------------------------------------------------------------------


def test_request_of_a_stranger_is_answered_with_a_question(side: Side) -> None:
    side.hear(NACK)
    assert side.said(c.Unknown) == [c.Unknown()]
    assert side.served.asked == []
    side.meet()
    side.hear(NACK)
    assert side.served.asked == [NACK]


def test_sign_of_life_is_answered_with_how_far_streams_are(side: Side) -> None:
    side.served.own, side.served.lent = [stream("me/a")], [stream("x/b")]
    side.meet()
    side.hear(c.Ping(7))
    own, lent = c.Tail("me/a", EPOCH, 0, 5), c.Tail("x/b", EPOCH, 0, 5)
    assert side.said(c.Pong) == [c.Pong(7, ME, [own], [lent])]


def test_card_is_answered_once_with_ours(side: Side) -> None:
    side.meet()
    card = c.Here("far", FAR, 1, [], [], [], [], "1")
    side.hear(card, card)
    assert len(side.said(c.Here)) == 1
    assert [info.name for info in side.links.finder.peers()] == ["far"]
    side.hear(c.Here("far", FAR + 1, 1, [], [], [], [], "1"))
    assert side.links.counters["bad_control"] == 1


@pytest.mark.parametrize(
    "noise", [b"", b"xyz", b"x" * 50, c.encode_message(c.Welcome("far", FAR, "default", [], []))]
)
def test_noise_is_counted_and_stops_nobody(side: Side, noise: bytes) -> None:
    side.meet()
    side.hear(noise, NACK)
    counters = side.links.counters
    assert counters["bad_control"] + counters["refused"] == 1
    assert side.served.asked == [NACK]


def test_message_of_several_parts_is_noise(side: Side) -> None:
    data = c.encode_message(hello())
    side.door.waiting.append(Request(b"x", "", b"", 1, [data, b"more"], len(data)))
    side.hear(hello(FAR + 1), who=b"y")
    assert side.links.counters["bad_control"] == 1
    assert list(side.links.clients) == [b"y"]


def test_defect_costs_one_request(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    side.meet()

    def fail(*_: Any) -> Any:
        raise RuntimeError("a defect")

    with monkeypatch.context() as patched:
        patched.setattr(side.served, "serve", fail)
        side.hear(NACK)
    side.hear(NACK)
    assert side.links.counters["io_errors"] == 1
    assert side.served.asked == [NACK]


def test_who_takes_too_much_time_waits_and_is_heeded_later(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    side.meet()
    clock = iter(range(0, 1000, 5))  # each request takes 5 s
    monkeypatch.setattr(module._platform, "thread_time", lambda: float(next(clock)))
    for _ in range(4):
        side.hear(NACK)
    assert side.links.counters["requests_delayed"] >= 1
    heeded = len(side.served.asked)
    assert heeded < 4
    monkeypatch.setattr(module._platform, "thread_time", lambda: 0.0)
    while len(side.served.asked) < 4:
        side.reception.on_tick(time.monotonic() + 1e6)
    assert side.served.asked == [NACK] * 4


# Coming and going ------------------------------------------------------------------------------


def test_routing_id_that_somebody_took_over_is_a_stranger_s(side: Side) -> None:
    side.meet()
    data = c.encode_message(NACK)
    side.door.waiting.append(Request(b"x", "10.0.0.1", b"another key", 1, [data], len(data)))
    side.reception.on_readable()
    assert side.links.clients == {}
    assert side.said(c.Unknown) == [c.Unknown()]


def test_who_says_good_bye_is_forgotten_and_does_not_come_back(side: Side) -> None:
    side.meet()
    side.hear(c.Bye(FAR, []))
    assert side.links.clients == {}
    assert side.served.gone == [(b"x", None)]


def test_who_is_silent_for_too_long_may_come_back(side: Side) -> None:
    side.meet()
    side.meet(who=b"y", instance=FAR + 1)
    side.links.clients[b"x"].last_seen = 10.0
    side.links.clients[b"y"].last_seen = 12.0
    side.reception.forget_silent(15.0)
    assert side.served.gone == []
    side.reception.forget_silent(15.1)
    assert side.served.gone == [(b"x", 10.0)]
    assert side.served.seen == {b"y": 12.0}


def test_who_may_not_stay_is_cut_off(side: Side) -> None:
    side.meet()
    side.meet(who=b"y", instance=FAR + 1)
    side.links.clients[b"y"].user = b"key"
    side.reception.forget_users({b"key"}, 0.0)
    assert list(side.links.clients) == [b"x"]


def test_everyone_is_told_of_new_streams_and_that_we_leave(side: Side) -> None:
    side.meet()
    side.meet(who=b"y", instance=FAR + 1)
    side.served.own = [stream("me/a")]
    side.reception.announce()
    side.reception.leave()
    for who in (b"x", b"y"):
        assert side.said(c.Welcome, who)[-1].streams == side.served.own
        assert side.said(c.Bye, who) == [c.Bye(ME, [c.Tail("me/a", EPOCH, 0, 5)])]


def test_good_bye_is_awaited_until_all_have_answered_or_the_time_is_up(side: Side) -> None:
    side.meet()
    side.meet(who=b"y", instance=FAR + 1)
    bye = c.encode_message(c.Bye(FAR, []))
    for who, data in ((b"x", b"noise"), (b"x", bye), (b"z", bye), (b"y", bye), (b"y", b"late")):
        side.door.waiting.append(Request(who, "", b"", 1, [data]))
    side.reception.await_byes(time.monotonic() + 60.0)
    assert len(side.door.waiting) == 1
    side.reception.await_byes(time.monotonic())
    assert len(side.door.waiting) == 1


def test_connections_that_were_cut_are_remembered_for_a_while_only(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    side.meet()
    monkeypatch.setattr("meshmsg.recovery.stream.time_shares.WAITING_MAX", 0)
    clock = iter(range(0, 10_000, 5))
    monkeypatch.setattr(module._platform, "thread_time", lambda: float(next(clock)))
    for _ in range(3):
        side.hear(NACK)
    assert side.door.cut == [b"x"[0]]
    assert side.links.clients == {}
    side.hear(hello())
    assert side.links.counters["requests_dropped"] >= 1
    assert side.links.clients == {}
    side.reception.on_ping(time.monotonic() + CUT_S)
    monkeypatch.setattr(module._platform, "thread_time", lambda: 0.0)
    side.hear(hello(), who=b"x", host="10.0.0.2")
    assert list(side.links.clients) == [b"x"]
