"""The groups of a publisher: who is taken, who gets which work, and what becomes of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from meshmsg import Stream
from meshmsg._groups import dispatcher as module
from meshmsg._groups.dispatcher import CONNECT_S, LAST_WORDS_S, PUT_OFF_S
from meshmsg._wire.control import (
    Gone,
    Join,
    Joined,
    Kept,
    Refusal,
    Settle,
    Settlement,
    Start,
    StartKind,
    Unjoined,
)
from meshmsg._wire.subframe import decode_work
from meshmsg.recovery.stream.quotas import Quota
from meshmsg.transports.zmq.sockets import ZmqSockets
from meshmsg.transports.zmq.work_queue import WorkInlet
from tests.support.publishing import Publishing
from tests.support.waiting import wait_until

PREFETCH = 4


class Worker:
    """A member of a group, as its publisher sees it."""

    def __init__(self, world: Publishing, sub: int, link: bytes = b"worker") -> None:
        self.world = world
        self.sub = sub
        self.link = link
        self.context = ZmqSockets()
        self.inlet = WorkInlet(self.context, 1000)
        self._closed = False

    def ask(
        self,
        group: str = "g",
        *,
        kind: StartKind = "live",
        streams: tuple[str, ...] | None = None,
        peer: str = "worker",
        **fields: Any,
    ) -> None:
        """Ask to be taken."""
        names = streams or tuple(f"pub/{stream.label}" for stream in self.world.config.streams)
        given = {
            "patterns": ["**"],
            "starts": [Start(name, kind) for name in names],
            "prefetch": PREFETCH,
            "ack_timeout_s": 30.0,
            "max_attempts": 2,
            "order": "none",
            **fields,
        }
        self.world.side.on_join(self.link, peer, Join(self.sub, group, **given), time.monotonic())

    def connect(self) -> None:
        joined = [one for one in self.world.wire.said(Joined, self.link) if one.sub == self.sub]
        self.inlet.connect(joined[-1].work[0][1])
        known = self.world.side.groups.members[self.sub]
        wait_until(lambda: self.world.turn() and known.work.connected)

    def join(self, group: str = "g", **fields: Any) -> None:
        self.ask(group, **fields)
        self.connect()

    def read(self) -> list[tuple[int, int]]:
        """Number and attempt of the events that are there."""
        found: list[tuple[int, int]] = []
        while (data := self.inlet.recv()) is not None:
            frame, work = decode_work(self.sub, data)
            places = range(work.lo, work.hi) if work.chosen is None else work.chosen
            attempts = work.attempts or [work.attempt] * len(places)
            found += [(frame.first + at, n) for at, n in zip(places, attempts, strict=True)]
        return found

    def work(self, count: int) -> list[tuple[int, int]]:
        """So many events that come, no more."""
        found: list[tuple[int, int]] = []
        wait_until(lambda: found.extend(self.read()) or len(found) >= count)
        assert len(found) == count
        return found

    def settle(
        self, topic: str = "a", *, link: bytes | None = None, epoch: int = 0, **said: Any
    ) -> None:
        outlet = self.world.outlet(topic)
        message = {name: said.pop(name) for name in ("closed", "number") if name in said}
        settlement = Settlement(outlet.stream, epoch or outlet.epoch, **said)
        settle = Settle(self.sub, [settlement], **message)
        self.world.side.on_settle(link or self.link, settle, time.monotonic())

    def told(self) -> list[Unjoined]:
        return [one for one in self.world.wire.said(Unjoined, self.link) if one.sub == self.sub]

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.inlet.close()
            self.context.close()


@pytest.fixture
def world() -> Iterator[Publishing]:
    with Publishing(Stream("a")) as made:
        yield made


@pytest.fixture
def hire(world: Publishing) -> Iterator[Callable[..., Worker]]:
    made: list[Worker] = []

    def make(sub: int, link: bytes = b"worker", at: Publishing = world) -> Worker:
        made.append(Worker(at, sub, link))
        return made[-1]

    yield make
    for worker in made:
        worker.close()


def publish(world: Publishing, count: int, topic: str = "a") -> None:
    world.side.publish_all(topic, [b"%d" % n for n in range(count)], None, None, None)


def row(world: Publishing) -> Any:
    [found] = [one for one in world.side.ledger_rows() if one.subscription == "group g"]
    assert (
        found.published
        == found.delivered
        + found.filtered
        + found.dead
        + sum(found.lost.values())
        + found.in_flight
    )
    return found


# Work ------------------------------------------------------------------------------------------


def test_a_member_that_is_connected_gets_as_much_as_it_has_credit_for(
    world: Publishing, hire: Callable[..., Worker]
) -> None:
    worker = hire(1)
    worker.ask()
    [joined] = world.wire.said(Joined, b"worker")
    assert [tail.stream for tail in joined.streams] == ["pub/a"]
    publish(world, 10)
    worker.connect()
    assert worker.work(PREFETCH) == [(seq, 1) for seq in range(PREFETCH)]
    worker.settle(acks=[(0, 3, 1)])
    assert worker.work(3) == [(4, 1), (5, 1), (6, 1)]
    assert (row(world).delivered, row(world).in_flight) == (3, 7)


def test_members_share_the_events_and_each_group_gets_all(
    world: Publishing, hire: Callable[..., Worker]
) -> None:
    one, two, other = hire(1), hire(2), hire(3)
    one.join()
    two.join()
    other.join("h")
    publish(world, PREFETCH)
    shared: list[tuple[int, int]] = []
    wait_until(lambda: shared.extend(one.read() + two.read()) or len(shared) == PREFETCH)
    assert sorted(shared) == [(seq, 1) for seq in range(PREFETCH)]
    assert other.work(PREFETCH) == [(seq, 1) for seq in range(PREFETCH)]


def test_work_of_a_member_whose_connection_broke_goes_to_others_in_a_moment(
    world: Publishing, hire: Callable[..., Worker]
) -> None:
    one, two = hire(1), hire(2, b"other")
    one.join()
    publish(world, 2)
    assert len(one.work(2)) == 2
    two.join()
    member = world.side.groups.members[1]
    one.close()
    wait_until(lambda: world.look(100.0) or member.lost_at == 100.0)
    world.turn(100.0 + LAST_WORDS_S / 2)
    world.turn(100.0 + LAST_WORDS_S)
    assert 1 in world.side.groups.members  # its last words may lie unread
    world.turn(100.0 + LAST_WORDS_S)
    assert 1 not in world.side.groups.members
    # One of them may be what ended it: they are tried apart.
    assert two.work(1) == [(0, 2)]
    two.settle(acks=[(0, 1, 2)])
    assert two.work(1) == [(1, 2)]
    assert [told.reason for told in one.told()] == ["connection lost"]


def test_one_that_leaves_gives_back_what_it_has_not_opened(
    world: Publishing, hire: Callable[..., Worker]
) -> None:
    one, two = hire(1), hire(2)
    one.join()
    publish(world, 3)
    one.work(3)
    one.settle(acks=[(0, 1, 1)], returned=[(1, 3, 1)], closed=True, number=5)
    two.join()
    assert two.work(2) == [(1, 1), (2, 1)]  # it was never opened
    assert world.wire.said(Kept, b"worker") == [Kept(1, "pub/a", 5)]
    assert one.told() == []


def test_an_event_that_fails_too_often_becomes_a_dead_letter(
    world: Publishing, hire: Callable[..., Worker], caplog: pytest.LogCaptureFixture
) -> None:
    worker = hire(1)
    worker.join()
    publish(world, 1)
    for attempt in (1, 2):
        assert worker.work(1) == [(0, attempt)]
        worker.settle(nacks=[Refusal(0, attempt, 0.0, "ValueError: bad")])
    assert world.side.topics_of("pub/dead.g") == "dead.g"
    assert world.side.find("dead.g").next == 1
    assert world.announced == 1
    assert (row(world).dead, row(world).in_flight) == (1, 0)
    assert "gave up pub/a@" in caplog.text


def test_what_fell_out_of_the_buffer_is_told_to_the_members(
    hire: Callable[..., Worker],
) -> None:
    stream = Stream("a", overflow="drop_oldest", buffer_bytes=64 * 1024)
    with Publishing(stream) as world:
        worker = hire(1, at=world)
        worker.join()
        for _ in range(20):
            world.side.publish("a", bytes(64 * 1024))
        worker.work(PREFETCH)
        worker.settle(acks=[(0, PREFETCH, 1)])
        gone = world.wire.said(Gone, b"worker")
        assert gone
        assert gone[0].ranges[0][0] == PREFETCH
        assert row(world).lost["overflow"] == sum(b - a for one in gone for a, b in one.ranges)


# What is said of work that somebody has not ----------------------------------------------------


def test_acks_of_strangers_settle_nothing(world: Publishing, hire: Callable[..., Worker]) -> None:
    worker, stranger = hire(1), hire(9)
    worker.join()
    publish(world, 2)
    worker.work(2)
    stranger.settle(acks=[(0, 2, 1)])
    assert [told.refused for told in stranger.told()] == [False]
    worker.settle(link=b"another connection", acks=[(0, 1 << 62, 1)])
    assert world.side.counters["stale_acks"] == 2 + 2  # at most what the stream has
    worker.settle(acks=[(0, 1, 2)])  # another attempt
    worker.settle(epoch=5, acks=[(0, 2, 1)])
    assert world.side.counters["strange_settlements"] == 1
    assert row(world).delivered == 0


def test_one_that_leaves_where_it_is_not_known_is_not_answered(
    world: Publishing, hire: Callable[..., Worker]
) -> None:
    stranger = hire(9)
    stranger.settle(closed=True)
    assert stranger.told() == []


# Coming ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"order": "key"}, "order='key'"),
        ({"max_attempts": 3}, "max_attempts=3"),
        ({"patterns": ["b.*"]}, "the topics b.*"),
        ({"patterns": []}, "it names no topics"),
        ({"patterns": ["a..b"]}, "a..b"),
        ({"group": "no name"}, "spaces"),
    ],
)
def test_a_member_that_does_not_fit_is_refused_for_good_and_told_why(
    world: Publishing,
    hire: Callable[..., Worker],
    fields: dict[str, Any],
    words: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    hire(1).join()
    other = hire(2)
    other.ask(**fields)
    [told] = other.told()
    assert told.refused
    assert words in told.reason
    assert list(world.side.groups.members) == [1]
    assert world.side.counters["members_refused"] == 1


def test_nobody_takes_the_number_of_a_member(
    world: Publishing, hire: Callable[..., Worker]
) -> None:
    hire(1).join()
    thief = hire(1, b"thief")
    thief.ask(peer="thief")
    assert [told.reason for told in thief.told()] == ["another member has its number"]
    assert world.side.groups.members[1].link == b"worker"


def test_a_member_that_comes_back_on_another_connection_begins_anew(
    world: Publishing, hire: Callable[..., Worker]
) -> None:
    hire(1).join()
    publish(world, 2)
    again = hire(1, b"again")
    again.join()
    assert again.work(1) == [(0, 2)]
    assert world.side.groups.quota.used == 1


def test_one_that_never_connects_is_forgotten_and_so_is_its_group(
    world: Publishing, hire: Callable[..., Worker], caplog: pytest.LogCaptureFixture
) -> None:
    worker = hire(1)
    before = time.monotonic()
    worker.ask()
    world.turn(before + CONNECT_S)
    assert list(world.side.groups.members) == [1]
    world.turn(time.monotonic() + CONNECT_S + 1)
    assert world.side.groups.members == {}
    assert len(world.side.groups.seats) == 0
    assert [told.reason for told in worker.told()] == ["did not connect"]


def test_those_who_do_not_come_for_their_work_keep_others_waiting_a_moment(
    world: Publishing, hire: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WAITING_PER_PEER_MAX", 1)
    one, two = hire(1), hire(2)
    before = time.monotonic()
    one.ask()
    two.ask()
    assert world.side.counters["members_put_off"] == 1
    world.turn(before)
    assert two.told() == []
    world.turn(time.monotonic() + PUT_OFF_S)
    assert [told.refused for told in two.told()] == [False]
    one.connect()
    two.join()


def test_where_all_places_are_taken_who_has_most_gives_one(
    world: Publishing, hire: Callable[..., Worker]
) -> None:
    world.side.groups.quota = Quota(2, 2)
    workers = [hire(sub) for sub in (1, 2, 3)]
    for worker in workers:
        worker.ask()
    assert "you have 2 members here already" in workers[2].told()[0].reason
    late = hire(4, b"late")
    late.ask()
    assert list(world.side.groups.members) == [1, 4]
    assert [told.reason for told in workers[1].told()] == ["others need the room"]


def test_one_peer_does_not_begin_all_groups(
    world: Publishing, hire: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GROUPS_EACH_MAX", 1)
    hire(1).join("g")
    other = hire(2)
    other.ask("h")
    assert "you have begun 1 groups already" in other.told()[0].reason
    hire(3, b"other").join("h")
    hire(4).join("g")  # it is there already


def test_members_of_a_peer_that_is_gone_or_silent_are_too(
    world: Publishing, hire: Callable[..., Worker]
) -> None:
    gone, silent, good = hire(1, b"gone"), hire(2, b"silent"), hire(3, b"good")
    for worker in (gone, silent, good):
        worker.join()
    world.side.forget_link(b"gone", 0.0)
    now = time.monotonic()
    world.side.groups.forget_silent({b"silent": now - 60, b"good": now}, now)
    assert list(world.side.groups.members) == [3]
    assert "silent for" in silent.told()[0].reason


# Groups without members ------------------------------------------------------------------------


def test_a_group_keeps_its_place_for_a_while_and_is_then_given_up(
    hire: Callable[..., Worker], caplog: pytest.LogCaptureFixture
) -> None:
    with Publishing(Stream("a", group_keep=60)) as world:
        worker = hire(1, at=world)
        worker.join()
        before = time.monotonic()
        worker.settle(closed=True)
        publish(world, 3)
        world.turn(before + 60)
        assert row(world).state == "no members"
        world.turn(time.monotonic() + 61)
        assert row(world).state == "expired"
        assert (row(world).lost, row(world).in_flight) == ({"expired": 3}, 0)
        assert len(world.side.groups.seats) == 0
        assert not world.outlet("a").sender.flow.claims
        assert "gave up group g of pub/a with 3 events" in caplog.text


def test_a_declared_group_has_the_events_from_the_first_on_and_is_never_given_up(
    hire: Callable[..., Worker],
) -> None:
    with Publishing(Stream("a", groups=["g"], group_keep=1)) as world:
        publish(world, 2)
        world.turn(time.monotonic() + 1000)
        worker = hire(1, at=world)
        worker.join()
        assert worker.work(2) == [(0, 1), (1, 1)]


def test_a_durable_group_starts_in_the_past_and_goes_on_after_a_restart(
    hire: Callable[..., Worker], tmp_path: Path
) -> None:
    stream = Stream("a", durability="log")
    with Publishing(stream, data_dir=tmp_path) as first:
        publish(first, 3)
        worker = hire(1, at=first)
        worker.ask(kind="earliest")
        wait_until(lambda: first.turn() and first.wire.said(Joined))
        worker.connect()
        assert worker.work(3) == [(0, 1), (1, 1), (2, 1)]
        worker.settle(acks=[(0, 2, 1)], closed=True, number=1)
        wait_until(lambda: first.wire.said(Kept))
    with Publishing(stream, data_dir=tmp_path) as world:
        outlet = world.outlet("a")
        assert world.side.groups.away(outlet, 1) == []  # nobody is expected back
        again = hire(2, at=world)
        again.join()
        assert [seq for seq, _ in again.work(1)] == [2]
        assert world.side.groups.takers(outlet, "a") == 1


# Figures ---------------------------------------------------------------------------------------


def test_members_that_take_a_topic_count_for_those_who_wait(
    hire: Callable[..., Worker],
) -> None:
    with Publishing(Stream("a.**")) as world:
        worker = hire(1, at=world)
        worker.ask(patterns=["a.b"])
        wait_for = world.side.subscribers.wait_for
        assert wait_for("a.b", 1, 0.0) == 0  # it is not connected
        worker.connect()
        assert wait_for("a.b", 1, 0.0) == 1
        assert wait_for("a.c", 1, 0.0) == 0
        [stats] = world.side.stats()["a.**"]["groups"]
        assert stats["members"][0]["name"] == "worker/-#000001"


def test_what_is_no_monitor_of_a_member_is_for_others(world: Publishing) -> None:
    assert not world.side.groups.on_readable(object(), 0.0)
    assert world.side.groups.look() == 0
