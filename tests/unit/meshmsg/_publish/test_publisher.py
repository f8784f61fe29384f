"""All streams of a peer: numbers, ways out, what is refused, and the I/O thread's turns."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from meshmsg import (
    ClosedError,
    ConfigError,
    EventTooLarge,
    Multicast,
    NameInUse,
    NoStream,
    ProtocolError,
    Stream,
    TopicError,
)
from meshmsg._publish import hand_over
from meshmsg._publish import publisher as module
from meshmsg._wire.control import Evicted, StatusPlease
from meshmsg._wire.frame import Frame
from meshmsg._wire.heartbeat import Heartbeat
from tests.scenarios.multicast.conftest import new_group
from tests.support.publishing import CLOCK_US, Publishing
from tests.support.waiting import wait_until

SUB = 7


@pytest.fixture
def world() -> Iterator[Publishing]:
    with Publishing(Stream("a.**"), Stream("b.**", overflow="drop_oldest")) as made:
        yield made


def heard(socket: Any) -> Frame | Heartbeat:
    assert socket.poll(60_000), "nothing came"
    data = socket.recv()
    try:
        return Heartbeat.decode(data)
    except ProtocolError:
        return Frame(data)


def frame(socket: Any) -> Frame:
    """The next frame that comes, between heartbeats."""
    while not isinstance(found := heard(socket), Frame):
        pass
    return found


def beat(socket: Any, next_: int) -> None:
    """A heartbeat comes that says so many events."""
    while not (isinstance(found := heard(socket), Heartbeat) and found.next == next_):
        pass


# Publishing ------------------------------------------------------------------------------------


def test_events_of_a_stream_are_numbered_in_turn_whatever_their_topic(world: Publishing) -> None:
    positions = [world.side.publish(topic, n) for n, topic in enumerate(["a.x", "b.x", "a.y"])]
    assert [(one.stream, one.seq) for one in positions if one is not None] == [
        ("pub/a.**", 0),
        ("pub/b.**", 0),
        ("pub/a.**", 1),
    ]
    assert {one.epoch for one in positions if one is not None} == {world.outlet("a.x").epoch}
    assert world.outlet("a.x").epoch >= CLOCK_US


def test_many_events_are_numbered_as_one_after_the_other(world: Publishing) -> None:
    world.side.publish("a.x", 0)
    last = world.side.publish_all("a.x", range(1, 10), None, None, None)
    assert last is not None
    assert last.seq == 9
    assert world.side.publish_all("a.x", [], None, None, None) is None
    assert world.side.publish("a.x", 10).seq == 10  # type: ignore[union-attr]


def test_a_topic_that_no_stream_takes_is_refused_with_those_that_there_are(
    world: Publishing,
) -> None:
    with pytest.raises(NoStream) as caught:
        world.side.publish("c.x", 1)
    assert caught.value.declared == ["a.**", "b.**"]


@pytest.mark.parametrize("topic", ["", "a..b", "a.*", "a.**", 7, None, ["a.x"]])
def test_what_is_no_topic_is_refused(world: Publishing, topic: Any) -> None:
    with pytest.raises(TopicError):
        world.side.publish(topic, 1)
    with pytest.raises(TopicError):
        world.side.publish_all(topic, [1], None, None, None)


def test_an_event_that_is_refused_takes_no_number(world: Publishing) -> None:
    for bad in ({"key": 7}, {"headers": {7: 1}}):
        with pytest.raises(ConfigError):
            world.side.publish("a.x", 1, **bad)  # type: ignore[arg-type]
    assert world.side.publish("a.x", 1).seq == 0  # type: ignore[union-attr]


@pytest.mark.parametrize("size", [1024, 1025])
def test_an_event_may_be_as_large_as_its_stream_says(size: int) -> None:
    with Publishing(Stream("a", event_bytes_max=1024)) as world:
        if size <= 1024:
            assert world.side.publish("a", bytes(size))
        else:
            with pytest.raises(EventTooLarge):
                world.side.publish("a", bytes(size))
            with pytest.raises(EventTooLarge):
                world.side.publish("a", bytes(size - 4), key="k" * 8)
            assert world.outlet("a").next == 0


def test_of_many_those_before_a_bad_one_are_published_and_the_error_says_so(
    world: Publishing,
) -> None:
    with pytest.raises(EventTooLarge) as caught:
        world.side.publish_all("a.x", [b"x", b"y", bytes(17 << 20), b"z"], None, None, None)
    assert (caught.value.published, caught.value.last.seq) == (2, 1)
    assert world.outlet("a.x").next == 2


def test_a_peer_that_declares_nothing_publishes_all_topics_in_one_stream() -> None:
    with Publishing() as world:
        assert world.announced == 0
        for n, topic in enumerate(["a", "b.c"]):
            assert world.side.publish(topic, n).seq == n  # type: ignore[union-attr]
        assert world.announced == 1
        assert [info.topics for info in world.side.infos()] == ["**"]


def test_nothing_is_published_before_the_peer_is_open_nor_after_it_is_closed() -> None:
    world = Publishing()
    with pytest.raises(ClosedError, match="use it in a with block"):
        world.side.publish("a", 1)
    with world:
        world.side.publish("a", 1)
        world.side.finish()
        for topic in ("a", "b"):
            with pytest.raises(ClosedError, match="the peer is closed"):
                world.side.publish(topic, 1)


def test_threads_that_publish_at_once_share_the_numbers(world: Publishing) -> None:
    found: list[int] = []

    def publish() -> None:
        mine = [world.side.publish("a.x", n) for n in range(300)]
        found.extend(position.seq for position in mine if position is not None)

    threads = [threading.Thread(target=publish) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(1200))


# Leaving ---------------------------------------------------------------------------------------


def test_an_event_that_finds_its_stream_idle_leaves_at_once(world: Publishing) -> None:
    taker = world.attach(SUB, "a.x")
    world.side.publish("a.x", b"one")
    sent = frame(taker)
    assert (sent.first, sent.payload_at(0), sent.topic_at(0)) == (0, b"one", "a.x")


@pytest.fixture
def yields(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One for each time that the processor was given away, for longer than a send takes."""
    given: list[int] = []

    def give() -> None:
        given.append(1)
        time.sleep(0.0001)

    monkeypatch.setattr(hand_over, "sched_yield", give)
    monkeypatch.setattr(hand_over, "LONG_S", 60.0)
    return given


def test_who_sent_one_event_gives_the_processor_to_zeromq(
    world: Publishing, yields: list[int]
) -> None:
    for notes in ({}, {"key": "k"}):
        world.outlet("a.x").due_ns = 0
        world.side.publish("a.x", b"one", **notes)  # type: ignore[arg-type]
    assert len(yields) == 2
    world.side.publish_all("a.x", [b"one", b"two"], None, None, None)
    assert len(yields) == 2


def test_who_publishes_without_a_pause_gathers_after_the_processor_was_given_away(
    world: Publishing, yields: list[int]
) -> None:
    for n in range(1000):
        world.side.publish("a.x", n)
    assert 0 < len(yields) < 300


def test_streams_in_turn_are_a_rush_though_the_processor_is_given_away(yields: list[int]) -> None:
    topics = [f"s{n}" for n in range(50)]
    with Publishing(*map(Stream, topics)) as world:
        for _ in range(20):
            for topic in topics:
                world.side.publish(topic, b"one")
        assert 0 < len(yields) < 300


def test_what_a_thread_leaves_behind_is_sent(world: Publishing) -> None:
    taker = world.attach(SUB, "a.x")
    for n in range(100):
        world.side.publish("a.x", n)
    stop = 0
    while stop < 100:
        sent = frame(taker)
        assert sent.first == stop
        stop = sent.stop


def test_a_frame_too_large_to_push_is_announced(world: Publishing) -> None:
    taker = world.attach(SUB, "a.x")
    world.side.publish("a.x", bytes(2 << 20))
    beat(taker, 1)
    assert world.side.counters["announced_frames"] == 1


def test_messages_are_lost_where_a_test_says_so(world: Publishing) -> None:
    world.side.set_fault(lambda message: True)
    world.side.publish("a.x", 1)
    world.side.flush(0.0, words=())
    assert world.side.injected_drops() >= 1
    world.close()
    assert world.side.injected_drops() == 0
    with pytest.raises(ClosedError):
        world.side.set_fault(None)


# Waiting ---------------------------------------------------------------------------------------


def test_flush_names_who_has_not_taken_all_and_asks_them(world: Publishing) -> None:
    world.subscribe(SUB)
    world.side.publish("a.x", 1)
    world.side.publish("b.x", 1)
    words = ("buffer", "drop_oldest")
    world.wire.clear()
    assert {claim.label for claim in world.side.flush(0.05, words=words)} == {"desk/-#000007"}
    assert world.wire.said(StatusPlease)
    world.report(SUB, "a.x", 1)
    # Of streams that drop nobody is waited for.
    assert world.side.flush(0.0, words=("buffer",)) == []
    assert len(world.side.flush(0.0, words=words)) == 1
    world.report(SUB, "b.x", 1)
    assert world.side.flush(None, words=words) == []


def test_only_streams_that_sync_each_event_wait_for_the_disk(tmp_path: Path) -> None:
    with Publishing(
        Stream("safe", durability="log", fsync="always"),
        Stream("log", durability="log"),
        Stream("memory"),
        data_dir=tmp_path,
    ) as world:
        waits = world.side.waits_for_disk
        assert [waits(), waits("safe"), waits("log"), waits("memory")] == [True, True, False, False]
        position = world.side.publish("safe", 1)
        log = world.outlet("safe").log
        assert position is not None
        assert log is not None
        assert log.durable == 1
        assert world.outlet("safe").sender.sealed == 1


# The I/O thread --------------------------------------------------------------------------------


def test_subscribers_hear_of_a_stream_that_says_nothing(world: Publishing) -> None:
    world.subscribe(SUB)
    taker = world.attach(SUB + 1, "a.x")
    world.side.publish("a.x", 1)
    frame(taker)
    due = world.outlet("a.x").sender.heartbeat_due()
    assert world.turn(due) > due
    beat(taker, 1)


def test_what_fails_of_one_stream_does_not_stop_the_care_of_others(world: Publishing) -> None:
    world.subscribe(SUB)
    taker = world.attach(SUB + 1, "b.x")
    world.side.publish("b.x", 1)
    frame(taker)
    world.side.publish("a.x", 1)
    mine = world.outlet("a.x").sender.wire_id.to_bytes(8, "little")

    def fault(message: bytes) -> bool:
        if message.startswith(mine):
            raise OSError("no buffer space")
        return False

    world.side.set_fault(fault)
    world.turn(time.monotonic() + 100)
    assert world.side.counters["io_errors"] == 1
    beat(taker, 1)


def test_a_subscriber_that_blocks_for_too_long_is_evicted_and_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Publishing(Stream("a", overflow="block", window_bytes=1024, evict_after=5)) as world:
        world.subscribe(SUB)
        now = time.monotonic()
        while world.side.publish("a", bytes(600), on_gate=lambda: None) is not None:
            pass
        world.turn(now)
        assert world.outlet("a").gated
        world.turn(now + 4.9)
        assert world.outlet("a").gated
        world.turn(time.monotonic() + 6)
        assert not world.outlet("a").gated
        [evicted] = world.wire.said(Evicted, b"desk")
        assert (evicted.sub, evicted.stream) == (SUB, "pub/a")
        assert "without reading" in evicted.reason
        assert "evicted desk/-#000007" in caplog.text
        assert [row.state for row in world.side.ledger_rows()] == ["evicted"]


def test_a_stream_that_is_another_peers_is_shut_until_it_is_ours_again(world: Publishing) -> None:
    called: list[int] = []
    world.side.set_rivals({"pub/a.**": "tcp://192.0.2.1:7000"})
    with pytest.raises(NameInUse):
        world.side.publish("a.x", 1)
    assert world.side.publish("b.x", 1)
    with pytest.raises(NameInUse):
        world.side.publish("a.x", 1, on_gate=lambda: called.append(1))
    world.side.set_rivals({})
    assert world.side.publish("a.x", 1).seq == 0  # type: ignore[union-attr]


# Books -----------------------------------------------------------------------------------------


def test_tails_and_topics_are_those_of_the_streams(world: Publishing) -> None:
    for n in range(3):
        world.side.publish("a.x", n)
    world.side.flush(None, words=())
    assert [(tail.stream, tail.first, tail.next) for tail in world.side.tails()] == [
        ("pub/a.**", 0, 3),
        ("pub/b.**", 0, 0),
    ]
    assert world.side.topics_of("pub/a.**") == "a.**"
    assert world.side.topics_of("pub/c") is None
    assert sorted(world.side.stats()) == ["a.**", "b.**"]


def test_the_ledger_has_a_row_for_each_stream_that_a_subscription_takes(world: Publishing) -> None:
    world.subscribe(SUB)
    assert world.side.links_of(SUB) == [b"desk"]
    assert world.side.links_of(SUB + 1) == []
    world.side.publish("a.x", 1)
    world.side.publish("a.x", 2)
    world.report(SUB, "a.x", 1)
    rows = {row.stream: row for row in world.side.ledger_rows()}
    assert (rows["pub/a.**"].published, rows["pub/a.**"].in_flight) == (2, 1)
    assert (rows["pub/b.**"].published, rows["pub/b.**"].in_flight) == (0, 0)


def test_a_topic_is_looked_up_once_and_the_memory_of_it_is_bounded(
    world: Publishing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROUTES_MAX", 2)
    for n in range(5):
        assert world.side.publish(f"a.x{n}", n).seq == n  # type: ignore[union-attr]
    world.side.forget_routes()
    assert world.side.publish("a.x0", 5).seq == 5  # type: ignore[union-attr]


def test_multicast_streams_lose_packets_and_get_new_keys_where_they_have_any() -> None:
    stream = Stream("m", transport=Multicast(new_group()), overflow="drop_oldest")
    with Publishing(stream, Stream("a")) as world:
        assert len(world.side.inlets()) == 2
        world.side.set_packet_fault(lambda packet: True)
        world.side.publish("m", 1)
        wait_until(lambda: world.side.injected_drops() > 0)
        world.side.renew_seals(0.0)  # it has none
        assert world.side.on_inlet(world.side.inlets()[0], 0.0) == 0.0
        assert [info.multicast is not None for info in world.side.infos()] == [True, False]


def test_a_peer_may_be_closed_twice_and_before_it_was_open(tmp_path: Path) -> None:
    world = Publishing(Stream("a", durability="log"), data_dir=tmp_path)
    with world:
        world.side.publish("a", 1)
    world.side.close(0.0)
    assert world.side.durable.logs == []
    assert world.side.flush(0.0, words=()) == []
