"""What a recorder lends: where a stream starts here, repairs, and how far it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from meshmsg import PeerConfig
from meshmsg._replay.recorded_log import RecordedLog
from meshmsg._replay.recorder_service import NEVER, TELL_S, Lender
from meshmsg._wire.control import (
    Figures,
    Gone,
    Nack,
    Ping,
    Pong,
    Repair,
    Start,
    StartKind,
    Status,
    Subscribe,
    Subscribed,
    Unsubscribed,
)
from meshmsg._wire.frame import Frame
from meshmsg.recovery.stream.quotas import Quota
from tests.support.recording import STREAM, record, recorded
from tests.support.waiting import wait_until
from tests.support.wire import Wire

LINK = b"desk"
SUB = 7
INSTANCE = 99


class World:
    """A recorder that has two epochs of a stream."""

    def __init__(self, data_dir: Path) -> None:
        self.wire = Wire()
        self.woken = 0
        self.own = {5}
        self.lender = Lender(
            PeerConfig("recorder"),
            INSTANCE,
            self.wire.sender,
            self._wake,
            lambda: None,
            lambda sub: sub in self.own,
        )
        self.log: RecordedLog = recorded(data_dir)
        self.lender.logs[STREAM] = self.log
        record(self.log, 5, (0, 3))
        record(self.log, 6, (0, 4))

    def _wake(self) -> None:
        self.woken += 1

    def ask(self, kind: StartKind, value: int = 0, epoch: int = 0, link: bytes = LINK) -> None:
        asked = Subscribe(SUB, ["**"], [Start(STREAM, kind, value, epoch)])
        assert self.lender.on_request(link, asked) is None

    def told(self, count: int, link: bytes = LINK) -> list[tuple[int, int, int, bool]]:
        """Of each epoch that it was told of: which, from where to where, whether it is over."""
        wait_until(lambda: len(self.wire.said(Subscribed, link)) >= count)
        said = self.wire.said(Subscribed, link)
        assert all(one.recorded for one in said)
        return [(one.epoch, one.start, one.next, one.over) for one in said]

    def close(self) -> None:
        self.lender.stop()
        self.log.writer.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def test_what_it_has_is_announced(world: World) -> None:
    [info] = world.lender.infos()
    assert (info.name, info.topics, info.epoch, info.durable) == (STREAM, "a.**", 6, True)
    [tail] = world.lender.tails()
    assert (tail.epoch, tail.first, tail.next) == (6, 0, 4)
    [entry] = world.lender.entries()
    assert (entry.stream, entry.epoch, entry.next, entry.recorded) == (STREAM, 6, 4, True)
    assert world.lender.names() == [STREAM]
    assert world.lender.log_of("pub/other") is None


@pytest.mark.parametrize(
    ("kind", "value", "epoch", "told"),
    [
        ("earliest", 0, 0, [(5, 0, 3, True), (6, 0, 4, False)]),
        ("last", 5, 0, [(5, 2, 3, True), (6, 0, 4, False)]),
        ("last", 1, 0, [(6, 3, 4, False)]),
        ("live", 0, 0, [(6, 4, 4, False)]),
        ("origin", 0, 0, [(6, 0, 4, False)]),
        ("resume", 2, 6, [(6, 2, 4, False)]),
        ("resume", 1 << 60, 6, [(6, 4, 4, False)]),
        ("resume", 0, 9, [(6, 4, 4, False)]),  # of a later epoch than is here
    ],
)
def test_a_reader_is_told_what_there_is_from_its_start_on(
    world: World,
    kind: StartKind,
    value: int,
    epoch: int,
    told: list[tuple[int, int, int, bool]],
) -> None:
    world.ask(kind, value, epoch)
    assert world.told(len(told)) == told


def test_a_reader_hears_how_far_its_stream_is_but_not_too_often(world: World) -> None:
    world.ask("live")
    world.told(1)
    assert world.lender.on_tick(0.0) == NEVER
    for _ in range(2):
        record(world.log, 6, (world.log.place[1], world.log.place[1] + 1))
        world.lender.on_written()
    assert world.woken == 1
    assert world.lender.on_tick(10.0) == NEVER
    world.lender.on_written()
    assert world.lender.on_tick(10.0 + TELL_S / 2) == 10.0 + TELL_S
    assert len(world.wire.said(Pong)) == 1
    world.lender.on_tick(10.0 + TELL_S)
    pongs = world.wire.said(Pong, LINK)
    assert [(one.instance, one.tails, one.recorded[0].next) for one in pongs] == [
        (INSTANCE, [], 6),
        (INSTANCE, [], 6),
    ]


def test_a_reader_is_led_on_into_the_next_epoch(world: World) -> None:
    world.ask("live")
    world.told(1)
    record(world.log, 7, (0, 2))
    world.lender.on_written()
    world.lender.on_tick(10.0)
    assert world.told(3)[1:] == [(6, 4, 4, True), (7, 0, 2, False)]
    world.lender.on_written()
    world.lender.on_tick(20.0)
    assert len(world.wire.said(Subscribed)) == 3  # once


def test_what_somebody_misses_is_sent_from_the_log(world: World) -> None:
    record(world.log, 6, (4, 6), lost=True)
    assert world.lender.on_request(LINK, Nack(SUB, STREAM, 6, [(1, 2), (5, 6)], 3)) is None
    wait_until(lambda: world.wire.said(Gone))
    assert [Frame(data).first for data in world.wire.frames()] == [0]
    [gone] = world.wire.said(Gone, LINK)
    assert (gone.ranges, gone.reason, gone.answers) == ([(5, 6)], "overflow", 3)
    assert [repair.answers for repair in world.wire.said(Repair)] == [0]


def test_of_an_epoch_that_is_over_the_end_is_told(world: World) -> None:
    world.lender.on_request(LINK, Nack(SUB, STREAM, 5, [(2, 9)], 3))
    world.lender.on_request(LINK, Nack(SUB + 1, STREAM, 4, [(0, 2)], 4))
    wait_until(lambda: len(world.wire.said(Gone)) == 2)
    over, unknown = world.wire.said(Gone)
    assert (over.ranges, over.reason) == ([(3, 9)], "gone")
    assert (unknown.ranges, unknown.answers) == ([(0, 2)], 4)


def test_what_does_not_concern_recorded_streams_is_left_to_the_publisher(world: World) -> None:
    other = Nack(SUB, "recorder/own", 1, [(0, 1)], 1)
    for message in (other, Ping(1)):
        assert world.lender.on_request(LINK, message) is message
    both = Subscribe(SUB, ["**"], [Start(STREAM, "live"), Start("recorder/own", "live")])
    left = world.lender.on_request(LINK, both)
    assert left == Subscribe(SUB, ["**"], [Start("recorder/own", "live")])


def figures(stream: str) -> Figures:
    return Figures(stream, 1, 0, 0, 0, 0, 0, {})


def test_a_report_of_recorded_streams_ends_here(world: World) -> None:
    world.ask("live")
    on_request = world.lender.on_request
    assert on_request(LINK, Status(SUB, [figures(STREAM)])) is None
    own = figures("recorder/own")
    assert on_request(LINK, Status(SUB, [figures(STREAM), own])) == Status(SUB, [own])
    # It reads a stream of this peer itself too, or answers a question of it.
    assert on_request(LINK, Status(5, [figures(STREAM)])) == Status(5, [])
    assert on_request(LINK, Status(SUB, [], answers=3)) == Status(SUB, [], answers=3)
    assert on_request(LINK, Status(SUB, [], closed=True)) is None
    assert world.lender.quota.used == 0


def test_readers_of_a_peer_that_is_gone_are_forgotten(world: World) -> None:
    world.ask("live")
    world.ask("live", link=b"other")
    assert world.lender.quota.used == 2
    world.lender.forget(LINK)
    world.lender.forget(b"nobody")
    assert world.lender.quota.used == 1
    world.lender.on_written()
    world.lender.on_tick(10.0)
    assert world.wire.said(Pong, LINK) == []


def test_of_too_many_readers_who_has_most_gives_a_place(world: World, tmp_path: Path) -> None:
    world.lender.quota = Quota(2, 2)
    for sub in (1, 2, 3):
        world.lender.on_request(LINK, Subscribe(sub, ["**"], [Start(STREAM, "live")]))
    [refused] = world.wire.said(Unsubscribed, LINK)
    assert (refused.sub, refused.streams) == (3, [STREAM])
    assert "no room" in refused.reason
    world.ask("live", link=b"late")
    world.told(1, b"late")
    assert [one.sub for one in world.wire.said(Unsubscribed, LINK)] == [3, 2]
    assert world.wire.counters["lender_readers_displaced"] == 1
    assert world.wire.counters["lender_readers_full"] == 1


def test_one_that_does_not_read_what_it_asked_for_gets_no_more(world: World) -> None:
    world.wire.unsent_bytes = 1 << 30
    world.lender.on_request(LINK, Nack(SUB, STREAM, 6, [(0, 1)], 1))
    assert world.wire.sent == []
    assert world.wire.counters["repairs_put_off"] == 1


def test_a_log_that_is_empty_so_far_says_nothing(world: World, tmp_path: Path) -> None:
    empty = world.lender.logs["pub/empty"] = recorded(tmp_path, "pub/empty")
    assert [tail.stream for tail in world.lender.tails()] == [STREAM]
    assert [entry.stream for entry in world.lender.entries()] == [STREAM]
    starts = [Start("pub/empty", "earliest"), Start(STREAM, "live")]
    world.lender.on_request(LINK, Subscribe(SUB, ["**"], starts))
    world.told(1)
    assert [one.stream for one in world.wire.said(Subscribed)] == [STREAM]
    empty.writer.close()
