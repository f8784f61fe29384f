"""MoldUDP64 over real sockets: loss, late join, bad packets, and bridges in both directions."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from meshmsg import BindError, ClosedError, ConfigError, Peer, Stream
from meshmsg.moldudp import MeshToMold, MoldToMesh, epoch_of
from meshmsg.moldudp.receiver import MoldLoss, MoldMessages, MoldTiming
from meshmsg.moldudp.sockets import MoldListener, MoldSender
from tests.support.ports import free_port
from tests.support.waiting import wait_until

PATIENCE_S = 60.0
MESSAGES = [f"message {n}".encode() for n in range(3000)]


@pytest.fixture
def lines() -> list[str]:
    """Two lines that nobody else uses."""
    ports = [free_port(socket.SOCK_DGRAM) for _ in range(2)]
    return [f"239.255.{random.randint(1, 254)}.{n}:{port}" for n, port in enumerate(ports, 71)]


def collect(listener: MoldListener) -> Iterator[MoldMessages | MoldLoss]:
    """All of a session."""
    deadline = time.monotonic() + PATIENCE_S
    while not listener.complete:
        assert time.monotonic() < deadline, listener.stats()
        yield from listener.get(timeout=0.1)


def messages(items: Iterable[MoldMessages | MoldLoss]) -> list[bytes]:
    found: list[bytes] = []
    for item in items:
        assert isinstance(item, MoldMessages), item
        found += item.messages
    return found


def payloads(listener: MoldListener) -> list[bytes]:
    return messages(collect(listener))


def test_everything_comes_over_two_bad_lines(lines: list[str]) -> None:
    rng = random.Random(5)
    with (
        MoldSender(lines, session="DAY1") as sender,
        MoldListener(lines, server=sender.address) as listener,
    ):
        listener.fault = lambda packet: rng.random() < 0.4
        for first in range(0, len(MESSAGES), 100):
            assert sender.send(MESSAGES[first : first + 100]) == first + 1
        sender.finish()
        assert payloads(listener) == MESSAGES
        stats = listener.stats()
        assert stats["requests"] > 0
        assert stats["answers"] > 0
        assert stats.get("lost", 0) == 0
        assert sender.stats()["server_resent"] > 0


def test_who_comes_late_asks_for_the_beginning(lines: list[str]) -> None:
    with MoldSender(lines[:1], session="DAY1", heartbeat_s=0.05) as sender:
        sender.send(MESSAGES)
        with MoldListener(lines[:1], server=sender.address) as late:
            early: list[bytes] = []
            while not late.core.missing and not early:  # a heartbeat tells what there is
                early += messages(late.get(timeout=0.01))
            sender.finish()
            assert early + messages(collect(late)) == MESSAGES


def test_without_a_server_what_is_lost_is_declared(lines: list[str]) -> None:
    timing = MoldTiming(deadline_s=0.2)
    with MoldSender(lines[:1], session="DAY1") as sender:
        sender.send([b"1", b"2"])
        with MoldListener(lines[:1], timing=timing) as listener:
            sender.send([b"3"])
            sender.finish()
            assert list(collect(listener)) == [
                MoldLoss("DAY1", 1, 3),
                MoldMessages("DAY1", 3, (b"3",)),
            ]


def test_bad_packets_are_counted_and_change_nothing(lines: list[str]) -> None:
    rng = random.Random(7)
    with (
        MoldSender(lines[:1], session="DAY1") as sender,
        MoldListener(lines[:1], server=sender.address) as listener,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger,
    ):
        stranger.setsockopt(
            socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1")
        )
        host, port = lines[0].split(":")
        server = ("127.0.0.1", int(sender.address.rpartition(":")[2]))
        for _ in range(200):
            junk = rng.randbytes(rng.randint(0, 60))
            for target in ((host, int(port)), server):
                stranger.sendto(junk, target)
        sender.send(MESSAGES[:100])
        sender.finish()
        assert payloads(listener) == MESSAGES[:100]
        assert listener.counters["bad_packets"] == 200
        wait_until(lambda: sender.counters["bad_requests"] == 200)


def test_answers_of_others_than_the_server_are_not_taken(lines: list[str]) -> None:
    with (
        MoldListener(lines[:1], server="127.0.0.1:9") as listener,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger,
    ):
        listener._asking.bind(("127.0.0.1", 0))
        stranger.sendto(b"x" * 30, listener._asking.getsockname())
        while not listener.counters["strangers"]:
            listener.get(timeout=0.05)
        assert listener.counters["bad_packets"] == 0


def test_numbers_go_up_only_and_a_closed_sender_says_so(lines: list[str]) -> None:
    with MoldSender(lines[:1], session="DAY1") as sender:
        assert sender.send([b"a"], number=5) == 5
        with pytest.raises(ConfigError, match="next is 6"):
            sender.send([b"b"], number=3)
    with pytest.raises(ClosedError):
        sender.send([b"c"])
    sender.close()


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"lines": []}, "lines"),
        ({"lines": ["239.255.7.7"]}, "lines"),
        ({"lines": ["10.0.0.1:5"]}, "lines"),
        ({"session": "much too long"}, "session"),
        ({"serve": "nowhere"}, "serve"),
        ({"interface": "no-such-interface"}, "interface"),
    ],
)
def test_bad_settings_are_named(wrong: dict[str, str], field: str) -> None:
    settings = {"lines": ["239.255.7.7:30001"], "session": "S"} | wrong
    with pytest.raises(ConfigError, match=field), MoldSender(**settings):  # type: ignore[arg-type]
        pass


def test_a_taken_address_is_said(lines: list[str]) -> None:
    with (
        MoldSender(lines[:1], session="A") as sender,
        pytest.raises(BindError),
        MoldSender(lines[:1], session="B", serve=sender.address),
    ):
        pass


# Bridges ---------------------------------------------------------------------------------------


class Bridging:
    """A bridge in a thread, for as long as the block lasts."""

    def __init__(self, bridge: MeshToMold | MoldToMesh) -> None:
        self._bridge = bridge
        self._stop = threading.Event()
        self._thread = threading.Thread(target=bridge.run, args=(lambda: not self._stop.is_set(),))

    def __enter__(self) -> Bridging:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


def wait_for_sender(bridge: MeshToMold) -> MoldSender:
    found = wait_until(lambda: bridge.sender)
    assert found is not None
    return found


def test_there_and_back_again(lines: list[str], tmp_path: Path) -> None:
    """A stream as MoldUDP64, with loss, and as a stream again: payloads and numbers hold."""
    rng = random.Random(9)
    feed = Stream("feed.**", durability="log")
    with ExitStack() as stack:
        exchange = stack.enter_context(Peer("exchange", streams=[feed], data_dir=tmp_path))
        last = exchange.publish_many("feed.itch", MESSAGES[:1000])
        gate = stack.enter_context(Peer("gate", connect=exchange.address))
        bridge = MeshToMold(gate, "feed.**", lines, heartbeat_s=0.05)
        stack.enter_context(Bridging(bridge))
        sender = wait_for_sender(bridge)
        assert last is not None
        assert epoch_of(sender.session) == last.epoch
        listener = stack.enter_context(MoldListener(lines, server=sender.address))
        listener.fault = lambda packet: rng.random() < 0.3
        desk = stack.enter_context(Peer("desk", streams=[Stream("itch.**")]))
        reader = stack.enter_context(Peer("reader", connect=desk.address))
        events = stack.enter_context(reader.subscribe("itch.**", start="earliest"))
        desk.wait_for_subscribers("itch.feed", timeout=PATIENCE_S)
        back = MoldToMesh(desk, "itch.feed", listener)
        stack.enter_context(Bridging(back))
        exchange.publish_many("feed.itch", MESSAGES[1000:])
        got = []
        while len(got) < len(MESSAGES):
            event = events.get(timeout=PATIENCE_S)
            assert event is not None, listener.stats()
            assert event.headers["mold.session"] == sender.session
            got.append((int(event.key or 0), event.data))
        assert got == [(n, message) for n, message in enumerate(MESSAGES, 1)]
        assert listener.stats()["answers"] > 0
        assert back.counters["lost"] == bridge.counters["lost"] == 0


def test_what_the_session_has_lost_is_an_event_in_its_place(lines: list[str]) -> None:
    with ExitStack() as stack:
        sender = stack.enter_context(MoldSender(lines[:1], session="DAY1"))
        timing = MoldTiming(deadline_s=0.2)
        listener = stack.enter_context(
            MoldListener(lines[:1], server=sender.address, timing=timing)
        )
        desk = stack.enter_context(Peer("desk", streams=[Stream("itch.**")]))
        reader = stack.enter_context(Peer("reader", connect=desk.address))
        events = stack.enter_context(reader.subscribe("itch.**"))
        desk.wait_for_subscribers("itch.feed", timeout=PATIENCE_S)
        back = MoldToMesh(desk, "itch.feed", listener)
        stack.enter_context(Bridging(back))
        sender.send([b"1"])
        sender.send([b"4"], number=4)
        found = [events.get(timeout=PATIENCE_S) for _ in range(3)]
        assert [event and event.data for event in found] == [
            b"1",
            {"session": "DAY1", "first": 2, "stop": 4},
            b"4",
        ]
        assert found[1] is not None
        assert found[1].topic == "itch.feed.lost"
        assert back.counters["lost"] == 2


def test_a_part_of_a_stream_is_no_session(lines: list[str]) -> None:
    with (
        Peer("exchange", streams=[Stream("feed.**")]) as exchange,
        Peer("gate", connect=exchange.address) as gate,
    ):
        for topic in ("feed.a", "feed.b", "feed.a"):
            exchange.publish(topic, b"1")
        bridge = MeshToMold(gate, "feed.a", lines)
        deadline = time.monotonic() + PATIENCE_S
        with pytest.raises(ConfigError, match="one whole stream"):
            bridge.run(lambda: time.monotonic() < deadline)
