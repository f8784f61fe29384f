"""One message of a hostile peer costs that message: nobody else's events, threads or log lines."""

from __future__ import annotations

import logging
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zmq

from meshmsg import BindError, Multicast, Peer, Stream, Subscription
from meshmsg._wire import control
from meshmsg.transports.udp.multicast import MulticastClient, groups_of
from tests.support.ports import free_port
from tests.support.waiting import wait_until

Body = dict[str, Any]


def enclosed(body: Body) -> bytes:
    """Anything at all, in the envelope of a control message."""
    return b"MMC" + bytes([control.PROTOCOL_VERSION]) + msgpack.packb(body)


class Hostile:
    """A raw peer that is dialled, or dials, and says what it likes."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], name: str = "evil") -> None:
        self.name = name
        self._router = context.socket(zmq.ROUTER)
        self._data = context.socket(zmq.XPUB)
        port = self._router.bind_to_random_port("tcp://127.0.0.1")
        self.address = f"tcp://127.0.0.1:{port}"
        data = self._data.bind_to_random_port("tcp://127.0.0.1")
        self._fanout = [[self.address, f"tcp://127.0.0.1:{data}"]]
        self._dealer = context.socket(zmq.DEALER)

    def dial(self, address: str) -> None:
        """Say hello, with a stream: whoever hears that dials back."""
        self._dealer.connect(address)
        hello = {"t": "hello", "peer": self.name, "instance": 666, "mesh": "default"}
        self.say(hello | {"listen": [self.address], "streams": [f"{self.name}/a.**"]})

    def say(self, body: Body) -> None:
        self._dealer.send(enclosed(body))

    def hear(self) -> Any:
        return msgpack.unpackb(self._dealer.recv()[4:])

    def dialled_by(self, *kinds: str) -> tuple[bytes, Body]:
        """Who dialled, and the next message of one of these kinds that it says."""
        while True:
            identity, data = self._router.recv_multipart()
            body: Body = msgpack.unpackb(data[4:])
            if body["t"] in kinds:
                return identity, body

    def answer(self, to: bytes, body: Body) -> None:
        self._router.send_multipart([to, enclosed(body)])

    def welcome(self, *streams: Body) -> Body:
        who = {"t": "welcome", "peer": self.name, "instance": 666, "mesh": "default"}
        return who | {"streams": list(streams), "fanout": self._fanout}


def stream(name: str = "evil/a.**", **more: Any) -> Body:
    info = {"name": name, "topics": "a.**", "epoch": 1, "overflow": "block", "codec": "msgpack"}
    return info | {"window_bytes": 1 << 20} | more


def multicast(group: str, **more: Any) -> Body:
    info = {
        "group": group,
        "request_port": 30002,
        "sources": [["127.0.0.1", 40000]],
        "packet_bytes": 1472,
        "nack_delay_s": 0.001,
        "nack_backoff_s": 0.002,
        "nack_retry_s": 0.02,
        "nack_deadline_s": 5.0,
        "status_interval_s": 0.1,
        "receiver_timeout_s": 3.0,
        "receive_buffer_bytes": 1 << 16,
    }
    return info | more


@pytest.fixture
def hostile() -> Iterator[Hostile]:
    context = zmq.Context()
    context.setsockopt(zmq.RCVTIMEO, 20_000)
    context.setsockopt(zmq.LINGER, 0)
    try:
        yield Hostile(context)
    finally:
        context.destroy(0)


def count(peer: Peer, name: str) -> int:
    found: int = peer.stats()["counters"].get(name, 0)
    return found


def all_come(pub: Peer, events: Subscription, number: int = 200) -> None:
    """Honest traffic goes on, complete and in order."""
    pub.publish_many("a.b", list(range(number)))
    found: list[int] = []
    while len(found) < number:
        batch = events.get_many(timeout=30)
        assert batch, f"{len(found)} of {number} came"
        found += [event.data for event in batch]
    assert found == list(range(number))
    assert events.losses == []


@contextmanager
def recording(tmp_path: Path, **more: Any) -> Iterator[tuple[Peer, Peer, Subscription]]:
    """A publisher, and a peer that records it and reads it as well."""
    with (
        Peer("pub", streams=[Stream("a.**")]) as pub,
        Peer("victim", connect=pub.address, record="a.**", data_dir=tmp_path, **more) as victim,
        victim.subscribe("a.**") as events,
    ):
        pub.wait_for_subscribers("a.b", count=2, timeout=30)
        yield pub, victim, events


def recorded(peer: Peer, stream: str = "pub/a.**") -> int:
    rows = peer.stats()["recorder"]["streams"]
    return next((int(row["next"]) for row in rows if row["stream"] == stream), 0)


# --- one number in a welcome ---------------------------------------------------------------------


@pytest.mark.parametrize("size", [1 << 31, (1 << 31) - 1], ids=["beyond", "at the bound"])
def test_a_receive_buffer_of_2_gib_ends_nobody(hostile: Hostile, tmp_path: Path, size: int) -> None:
    with recording(tmp_path) as (pub, victim, events):
        all_come(pub, events)
        hostile.dial(victim.address)
        identity, _ = hostile.dialled_by("hello")
        line = multicast("239.255.7.41:30001", receive_buffer_bytes=size)
        hostile.answer(identity, hostile.welcome(stream(multicast=line)))
        if size > (1 << 31) - 1:
            wait_until(lambda: count(victim, "bad_control") > 0)
        else:
            hostile.dialled_by("subscribe")
        all_come(pub, events)
        wait_until(lambda: recorded(victim) == 400)
        assert victim.stats()["recorder"]["problem"] is None
        assert count(victim, "io_errors") == 0


def test_a_defect_in_handling_a_notice_costs_that_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the next such number is: neither the recorder ends, nor does `get()` raise."""

    def refuse(*_: Any) -> None:
        raise TypeError("an integer is required")

    line = Multicast(f"239.255.7.42:{free_port()}")
    with recording(tmp_path) as (pub, victim, events):
        monkeypatch.setattr("meshmsg.transports.sockets.MulticastClient", refuse)
        with Peer("fast", streams=[Stream("a.**", transport=line)], connect=victim.address):
            wait_until(lambda: events.stats()["counters"].get("io_errors", 0) > 0)
            all_come(pub, events)
            wait_until(lambda: recorded(victim) == 200)
            assert victim.stats()["recorder"]["problem"] is None


# --- ranges --------------------------------------------------------------------------------------


def test_a_gone_that_runs_backward_does_not_raise_in_get(hostile: Hostile) -> None:
    with (
        Peer("pub", streams=[Stream("a.**")]) as pub,
        Peer("victim", connect=[hostile.address, pub.address]) as victim,
        victim.subscribe("a.**") as events,
    ):
        pub.wait_for_subscribers("a.b", timeout=30)
        identity, _ = hostile.dialled_by("hello")
        hostile.answer(identity, hostile.welcome(stream()))
        _, subscribe = hostile.dialled_by("subscribe")
        where = {"sub": subscribe["sub"], "stream": "evil/a.**", "epoch": 1}
        place = {"origin": 0, "first": 0, "next": 100, "start": 0}
        hostile.answer(identity, {"t": "subscribed"} | where | place)
        _, nack = hostile.dialled_by("nack")
        gone = {"t": "gone", "ranges": [[60, 50]], "reason": "gone", "answers": nack["number"]}
        hostile.answer(identity, gone | where)
        wait_until(lambda: count(victim, "bad_control") == 1)
        all_come(pub, events)


# --- multicast groups ----------------------------------------------------------------------------


def test_announced_groups_are_joined_up_to_a_limit(
    hostile: Hostile, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        Peer("pub", streams=[Stream("a.**")]) as pub,
        Peer("victim", connect=[hostile.address, pub.address]) as victim,
        victim.subscribe("a.**") as events,
    ):
        pub.wait_for_subscribers("a.b", timeout=30)
        identity, _ = hostile.dialled_by("hello")
        many = [
            stream(f"evil/{n}", multicast=multicast(f"239.255.8.{n}:30001")) for n in range(100)
        ]
        hostile.answer(identity, hostile.welcome(*many[:64]) | {"more": True})
        hostile.answer(identity, hostile.welcome(*many[64:]) | {"page": 1})
        wait_until(lambda: events.stats()["counters"].get("join_errors", 0) == 36)
        assert len(events._intake.reading.lines) == 64
        all_come(pub, events)
    told = [r for r in caplog.records if "cannot join" in r.getMessage()]
    assert len(told) == 1  # of 36


def test_a_socket_that_cannot_be_had_is_a_bind_error() -> None:
    """Which is counted as a join error; ZeroMQ would not survive this, so no peer is open here."""
    (group,) = groups_of(Multicast("239.255.7.43:30001"), "127.0.0.1")
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, most[1]))  # as if all were in use
    try:
        with pytest.raises(BindError, match="Too many open files"):
            MulticastClient(group, None, 1 << 16)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, most)


def test_a_group_that_cannot_be_joined_for_want_of_a_socket_is_a_join_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*given: Any) -> None:
        raise BindError("239.255.7.44:30001", "Too many open files")

    monkeypatch.setattr("meshmsg.transports.sockets.MulticastClient", refuse)
    streams = [Stream("m.**", transport=Multicast("239.255.7.44:30001")), Stream("a.**")]
    with (
        Peer("pub", streams=streams) as pub,
        Peer("victim", connect=pub.address) as victim,
        victim.subscribe("**") as events,
    ):
        pub.wait_for_subscribers("a.b", timeout=30)
        wait_until(lambda: events.stats()["counters"].get("join_errors", 0) > 0)
        all_come(pub, events)


# --- figures -------------------------------------------------------------------------------------


def test_a_stranger_cannot_disable_the_statistics(hostile: Hostile) -> None:
    with Peer("pub", streams=[Stream("a.**")]) as pub:
        hostile.dial(pub.address)
        assert hostile.hear()["t"] == "welcome"
        acks = [[0, (1 << 63) - 1, 1]] * 3
        settled = [{"stream": "pub/a.**", "epoch": 1, "acks": acks}]
        hostile.say({"t": "settle", "sub": 7, "settlements": settled})
        assert hostile.hear()["t"] == "unjoined"
        hostile.say({"t": "ask", "number": 5, "what": "stats"})
        answer = hostile.hear()
        assert answer["number"] == 5
        assert msgpack.unpackb(answer["body"])["counters"]["stale_acks"] == 1


def test_a_figure_too_large_to_say_is_clamped(hostile: Hostile) -> None:
    with Peer("pub", streams=[Stream("a.**")]) as pub:
        pub._open_node().counters["unsent"] = 1 << 70
        hostile.dial(pub.address)
        assert hostile.hear()["t"] == "welcome"
        hostile.say({"t": "ask", "number": 5, "what": "stats"})
        answer = msgpack.unpackb(hostile.hear()["body"])
        assert answer["counters"]["unsent"] == (1 << 63) - 1


# --- large messages ------------------------------------------------------------------------------


def test_a_hello_of_many_names_is_dropped_unread(hostile: Hostile) -> None:
    with (
        Peer("pub", streams=[Stream("a.**")]) as pub,
        Peer("good", connect=pub.address) as good,
        good.subscribe("a.**") as events,
    ):
        pub.wait_for_subscribers("a.b", timeout=30)
        hostile._dealer.connect(pub.address)
        hello = {"t": "hello", "peer": "evil", "instance": 666, "mesh": "default"}
        for _ in range(3):
            hostile.say(hello | {"listen": [""] * 8_000_000})
        wait_until(lambda: count(pub, "bad_control") == 3)
        all_come(pub, events)
        hostile.say(hello)  # which is good
        assert hostile.hear()["t"] == "welcome"


def test_what_is_large_and_not_asked_for_is_not_read(hostile: Hostile) -> None:
    with Peer("pub", streams=[Stream("a.**")]) as pub:
        hostile.dial(pub.address)
        assert hostile.hear()["t"] == "welcome"
        hostile.say({"t": "status", "sub": 1, "figures": [], "more": "x" * 100_000})
        hostile.say({"t": "answer", "number": 1, "body": b"x" * 100_000})
        wait_until(lambda: count(pub, "bad_control") == 2)
        hostile.say({"t": "status", "sub": 1, "figures": []})
        wait_until(lambda: count(pub, "strange_status") == 1)


def test_a_peer_of_many_streams_is_dialled_back() -> None:
    """Its hello names some of them, and its welcome all."""
    streams = [Stream(f"{'x' * 200}.n{n}") for n in range(400)]
    with (
        Peer("sub") as sub,
        sub.subscribe(f"{'x' * 200}.*") as events,
        Peer("pub", streams=streams, connect=sub.address) as pub,
    ):
        pub.wait_for_subscribers(f"{'x' * 200}.n399", timeout=30)
        pub.publish(f"{'x' * 200}.n399", 1)
        event = events.get(timeout=30)
        assert event is not None
        assert event.data == 1


# --- the log -------------------------------------------------------------------------------------


def test_a_refusal_cannot_forge_a_line_of_the_log(
    hostile: Hostile, caplog: pytest.LogCaptureFixture
) -> None:
    with Peer("victim", connect=hostile.address) as victim:
        identity, _ = hostile.dialled_by("hello")
        hostile.answer(identity, {"t": "refused", "reason": "no\nCRITICAL all is lost"})
        wait_until(lambda: count(victim, "bad_control") == 1)
        hostile.answer(identity, {"t": "refused", "reason": "no"})
        wait_until(lambda: victim.stats()["links"][0]["state"] == "refused")
    assert "all is lost" not in caplog.text


def test_refusals_of_one_kind_are_one_line(
    hostile: Hostile, caplog: pytest.LogCaptureFixture
) -> None:
    with Peer("victim") as victim:
        hostile._dealer.connect(victim.address)
        for _ in range(300):
            hostile._dealer.send(b"MMC\x09" + msgpack.packb({"t": "hello"}))
        wait_until(lambda: count(victim, "refused") == 300)
        assert count(victim, "log_lines_dropped") == 299
    assert sum(r.levelno >= logging.WARNING for r in caplog.records) == 1
