"""A peer that takes too much of the I/O thread's time, or of the log: it waits, or is cut."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import zmq

from meshmsg import Peer, Stream, Tuning
from meshmsg._runtime.log_limit import LINES_EACH_MAX
from meshmsg._wire import control
from meshmsg.recovery.stream import time_shares
from tests.support.pairs import pair
from tests.support.waiting import wait_until


class Dealers:
    """Raw peers that dial."""

    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.setsockopt(zmq.RCVTIMEO, 60_000)
        self._open: list[zmq.Socket[bytes]] = []

    def dial(self, address: str, name: str) -> zmq.Socket[bytes]:
        """Say hello, and be welcomed."""
        dealer = self._context.socket(zmq.DEALER)
        self._open.append(dealer)
        dealer.setsockopt(zmq.RECONNECT_IVL, -1)
        dealer.setsockopt(zmq.IMMEDIATE, 1)  # nothing can be sent once it is cut
        dealer.connect(address)
        say(dealer, control.Hello(name, sum(name.encode()), "default"))
        assert isinstance(hear(dealer), control.Welcome)
        return dealer

    def close(self) -> None:
        for dealer in self._open:
            dealer.close(linger=0)
        self._context.term()


@pytest.fixture
def dealers() -> Iterator[Dealers]:
    made = Dealers()
    try:
        yield made
    finally:
        made.close()


def say(dealer: zmq.Socket[bytes], message: control.Message) -> None:
    dealer.send(control.encode_message(message))


def hear(dealer: zmq.Socket[bytes]) -> control.Message:
    return control.decode_message(dealer.recv())


def count(peer: Peer, name: str) -> int:
    found: int = peer.stats()["counters"].get(name, 0)
    return found


def test_whoever_has_used_up_its_time_waits_and_nobody_else_does(
    dealers: Dealers, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Peer("pub", streams=[Stream("a.**")]) as pub:
        greedy, modest = dealers.dial(pub.address, "greedy"), dealers.dial(pub.address, "modest")
        say(modest, control.Ping(7))
        assert isinstance(hear(modest), control.Pong)
        # Its budget is gone with one message, and comes back within seconds.
        monkeypatch.setattr(time_shares, "MESSAGE_S", 1.0)
        say(greedy, control.Ping(0))
        assert isinstance(hear(greedy), control.Pong)
        monkeypatch.setattr(time_shares, "MESSAGE_S", 0.0)
        for number in range(1, 4):
            say(greedy, control.Ping(number))
        wait_until(lambda: count(pub, "requests_delayed") == 3, timeout=60)
        say(modest, control.Ping(8))
        assert isinstance(hear(modest), control.Pong)
        assert not greedy.poll(0)
        answers = [hear(greedy) for _ in range(3)]  # in order, and none is missing
        assert [a.number for a in answers if isinstance(a, control.Pong)] == [1, 2, 3]
        assert count(pub, "requests_delayed") == 3


def test_whoever_goes_on_is_cut_and_can_come_back(
    dealers: Dealers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_shares, "WAITING_MAX", 5)
    with (
        Peer("pub", streams=[Stream("a.**")]) as pub,
        Peer("good", connect=pub.address) as good,
        good.subscribe("a.**") as events,
    ):
        pub.wait_for_subscribers("a.b", timeout=60)
        greedy = dealers.dial(pub.address, "greedy")
        monkeypatch.setattr(time_shares, "MESSAGE_S", 100.0)
        say(greedy, control.Ping(0))
        assert isinstance(hear(greedy), control.Pong)
        monkeypatch.setattr(time_shares, "MESSAGE_S", 0.0)
        for number in range(1, 20):
            say(greedy, control.Ping(number))
        wait_until(lambda: count(pub, "connections_greedy") == 1)
        wait_until(lambda: not greedy.poll(0, zmq.POLLOUT))
        assert "greedy" not in pub.stats()["clients"]
        dealers.dial(pub.address, "greedy")
        pub.publish("a.b", 1)
        assert events.get(timeout=60).data == 1


def test_a_dialled_peer_that_has_used_up_its_time_is_read_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pair() as (pub, sub, events):
        # All it says costs more than its budget: it is read now and then, and nothing is missing.
        monkeypatch.setattr(time_shares, "MESSAGE_S", 1.5 * time_shares.BURST_S)
        wait_until(lambda: count(sub, "answers_delayed") > 0)
        pub.publish_many("a.b", list(range(100)))
        found: list[int] = []
        while len(found) < 100:
            found += [event.data for event in events.get_many(timeout=60)]
        assert found == list(range(100))
        assert events.losses == []
        seen = count(sub, "answers_delayed")
        wait_until(lambda: count(sub, "answers_delayed") > seen)
        assert sub.peers()


def test_those_who_fall_silent_do_not_fill_the_log(
    dealers: Dealers, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="meshmsg.peer")
    tuning = Tuning(peer_timeout_s=0.3, ping_interval_s=0.1)
    with Peer("pub", streams=[Stream("a.**")], tuning=tuning) as peer:
        for n in range(60):
            dealers.dial(peer.address, f"silent-{n}")
        wait_until(lambda: not peer._node.reception.clients)
        lines = [record for record in caplog.records if "silent" in record.getMessage()]
        assert 0 < len(lines) <= 2 * LINES_EACH_MAX
