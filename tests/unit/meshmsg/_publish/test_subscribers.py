"""Who reads a peer's streams: who is taken, what they are told, and when they are forgotten."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshmsg import ClosedError, NameInUse, NoStream, Stream
from meshmsg._publish.published_stream import Outlet
from meshmsg._wire.control import (
    Commit,
    Figures,
    Gone,
    Nack,
    Place,
    Repair,
    Start,
    Status,
    StatusPlease,
    Subscribe,
    Subscribed,
    Unsubscribed,
)
from meshmsg._wire.frame import Frame
from meshmsg.recovery.stream.quotas import Quota
from tests.support.publishing import Publishing
from tests.support.waiting import wait_until

SUB = 7
LINK = b"desk"
BLOCKS = Stream("a", overflow="block", window_bytes=1024)


@pytest.fixture
def world() -> Iterator[Publishing]:
    with Publishing(BLOCKS, Stream("b"), subscriber_wait_s=10.0, subscriber_return_s=60.0) as made:
        yield made


def block(world: Publishing) -> Outlet:
    """Publish until the stream is shut by who reads it."""
    while world.side.publish("a", bytes(600), on_gate=lambda: None) is not None:
        pass
    return world.outlet("a")


def taken(world: Publishing) -> list[tuple[int, str]]:
    return [(one.sub, one.stream) for one in world.wire.said(Subscribed)]


# Coming ----------------------------------------------------------------------------------------


def test_a_subscription_is_taken_once_its_data_connection_is_seen(world: Publishing) -> None:
    world.side.publish("a", 1)
    request = world.request(SUB, "earliest")
    world.side.subscribers.on_subscribe(LINK, "desk", 1, request, 0.0)
    world.turn()
    assert taken(world) == []
    world.attach(SUB)
    assert taken(world) == [(SUB, "pub/a"), (SUB, "pub/b")]
    admitted = world.wire.said(Subscribed, LINK)[0]
    assert (admitted.epoch, admitted.start, admitted.next, admitted.over) == (
        world.outlet("a").epoch,
        0,
        1,
        False,
    )


def test_a_connection_that_is_seen_first_waits_for_who_it_is(world: Publishing) -> None:
    world.attach(SUB)
    world.side.subscribers.on_subscribe(LINK, "desk", 1, world.request(SUB), 0.0)
    assert len(taken(world)) == 2


def test_what_is_not_published_here_takes_no_place(world: Publishing) -> None:
    nothing = Subscribe(SUB, ["**"], [Start("pub/c", "live"), Start("other/a", "live")])
    world.side.subscribers.on_subscribe(LINK, "desk", 1, nothing, 0.0)
    [refused] = world.wire.said(Unsubscribed, LINK)
    assert (refused.streams, refused.refused) == (["pub/c", "other/a"], False)
    assert world.side.subscribers.subs == {}
    assert world.side.subscribers.quota.used == 0


def test_one_that_asks_again_is_told_again_and_has_one_place(world: Publishing) -> None:
    world.subscribe(SUB)
    world.subscribe(SUB, link=b"another connection")
    assert len(world.wire.said(Subscribed, b"another connection")) == 2
    assert world.side.subscribers.quota.used == 1
    assert list(world.side.subscribers.quota.owners) == [
        world.wire.sender.owner_of(b"another connection")
    ]


def test_of_too_many_the_peer_that_has_most_gives_a_place(
    world: Publishing, caplog: pytest.LogCaptureFixture
) -> None:
    world.side.subscribers.quota = Quota(3, 3)
    for sub in (1, 2, 3):
        world.side.subscribers.on_subscribe(LINK, "desk", 1, world.request(sub), 0.0)
    world.side.subscribers.on_subscribe(LINK, "desk", 1, world.request(4), 0.0)
    [refused] = world.wire.said(Unsubscribed, LINK)
    assert refused.sub == 4
    assert "you have 3 subscriptions here already" in refused.reason
    world.side.subscribers.on_subscribe(b"late", "late", 2, world.request(5), 0.0)
    assert [one.sub for one in world.wire.said(Unsubscribed, LINK)] == [4, 3]
    assert list(world.side.subscribers.subs) == [1, 2, 5]
    assert world.side.counters["subscriptions_displaced"] == 1
    assert "gives its place to others" in caplog.text


def test_who_is_away_gives_its_place_before_anybody_who_is_there(world: Publishing) -> None:
    for sub in (1, 2):
        world.subscribe(sub, link=b"%d" % sub)
    world.side.subscribers.quota = Quota(2, 2)
    for remote in world.side.subscribers.subs.values():
        world.side.subscribers.quota.take(remote.owner)
    world.side.lose_link(b"1", 0.0, 1.0)
    world.side.subscribers.on_subscribe(b"3", "late", 2, world.request(3), 2.0)
    assert list(world.side.subscribers.subs) == [2, 3]


# What they say ---------------------------------------------------------------------------------


def test_blocked_publisher_is_released_when_the_slow_subscriber_reports(world: Publishing) -> None:
    world.subscribe(SUB)
    outlet = block(world)
    world.report(SUB, "a", outlet.sender.next)
    assert not outlet.gated


def test_figures_that_cannot_be_are_counted_and_change_nothing(world: Publishing) -> None:
    world.subscribe(SUB)
    outlet = block(world)
    world.report(SUB, "a", outlet.sender.next + 1)  # of the future
    assert world.side.counters["strange_figures"] == 1
    world.report(SUB, "a", outlet.sender.next, link=b"somebody else")
    world.report(SUB + 1, "a", outlet.sender.next)
    assert world.side.counters["strange_status"] == 2
    past = Figures(outlet.stream, outlet.epoch - 1, 0, 9, 9, 9, 0, {})
    unknown = Figures("pub/c", 1, 0, 9, 9, 9, 0, {})
    world.side.subscribers.on_status(LINK, Status(SUB, [past, unknown]), 0.0)
    assert outlet.gated


def test_a_nack_is_answered_from_memory(world: Publishing) -> None:
    world.subscribe(SUB)
    for n in range(3):
        world.side.publish("b", n)
        world.side.send_own()
    outlet = world.outlet("b")
    world.wire.clear()
    world.side.subscribers.on_nack(LINK, Nack(SUB, outlet.stream, outlet.epoch, [(1, 2)], 5))
    [frame] = map(Frame, world.wire.frames())
    assert frame.first <= 1 < frame.stop
    assert world.wire.said(Repair, LINK)[-1].answers == 5
    world.side.subscribers.on_nack(LINK, Nack(SUB, outlet.stream, 1, [(1, 2)], 6))
    assert world.wire.said(Gone, LINK)[-1] == Gone(SUB, outlet.stream, 1, [(1, 2)], "gone", 6)


def test_a_nack_of_somebody_else_is_counted_and_not_answered(world: Publishing) -> None:
    world.subscribe(SUB)
    world.side.publish("b", 1)
    outlet = world.outlet("b")
    world.wire.clear()
    for link, ask in (
        (b"else", Nack(SUB, "pub/b", outlet.epoch, [(0, 1)], 1)),
        (LINK, Nack(SUB + 1, "pub/b", outlet.epoch, [(0, 1)], 1)),
        (LINK, Nack(SUB, "pub/c", outlet.epoch, [(0, 1)], 1)),
    ):
        world.side.subscribers.on_nack(link, ask)
    assert world.side.counters["strange_nacks"] == 3
    assert world.wire.sent == []


def test_one_that_does_not_read_its_repairs_gets_no_more(world: Publishing) -> None:
    world.subscribe(SUB)
    world.side.publish("b", 1)
    world.wire.clear()
    world.wire.unsent_bytes = 1 << 30
    world.side.subscribers.on_nack(LINK, Nack(SUB, "pub/b", world.outlet("b").epoch, [(0, 1)], 1))
    assert world.wire.sent == []
    assert world.wire.counters["repairs_put_off"] == 1


def test_a_commit_of_somebody_else_is_counted(world: Publishing) -> None:
    world.subscribe(SUB)
    commit = Commit(SUB, [Place("pub/a", 1, 0)])
    world.side.subscribers.on_commit(b"else", commit)
    world.side.subscribers.on_commit(LINK, commit)  # it holds nothing
    assert world.side.counters["strange_commits"] == 2


def test_subscribers_are_asked_and_their_answers_are_waited_for(world: Publishing) -> None:
    subscribers = world.side.subscribers
    for sub in (1, 2):
        world.subscribe(sub)
    world.wire.clear()
    number = subscribers.start_refresh()
    assert world.wire.said(StatusPlease) == [StatusPlease(1, number), StatusPlease(2, number)]
    world.report(1, "a", 0, answers=number)
    assert not subscribers.is_fresh(number)
    world.report(2, "a", 0, answers=number)
    assert subscribers.is_fresh(number)
    assert subscribers.start_refresh() == number + 1
    subscribers.refresh(0.0)  # nobody answers; it returns all the same


# Their going -----------------------------------------------------------------------------------


def test_blocked_publisher_is_released_when_the_slow_subscriber_leaves(world: Publishing) -> None:
    world.subscribe(SUB)
    outlet = block(world)
    assert outlet.blockers()
    world.report(SUB, "a", 0, closed=True)
    assert not outlet.gated
    assert world.side.subscribers.subs == {}


def test_the_books_of_one_that_left_stay_and_it_goes_on_with_them(world: Publishing) -> None:
    world.subscribe(SUB)
    world.side.publish("b", 1)
    world.report(SUB, "b", 1)
    world.report(SUB, "b", 1, closed=True)
    [row] = world.side.subscribers.finished
    assert (row.subscription, row.state, row.delivered) == ("desk/-#000007", "closed", 1)
    world.side.subscribers.on_subscribe(LINK, "desk", 1, world.request(SUB), 0.0)
    assert not world.side.subscribers.finished


def test_one_whose_peer_left_is_forgotten_at_once(world: Publishing) -> None:
    world.subscribe(1, link=b"1")
    world.subscribe(2, link=b"2")
    world.side.forget_link(b"1", 0.0)
    assert list(world.side.subscribers.subs) == [2]
    assert list(world.outlet("a").sender.flow.claims) == [2]


def test_one_that_fell_silent_is_waited_for_and_then_forgotten(world: Publishing) -> None:
    world.subscribe(SUB)
    outlet = block(world)
    gone_at = time.monotonic()
    world.side.lose_link(LINK, gone_at, gone_at)
    world.turn(gone_at + 9)
    assert outlet.gated  # it may be back
    world.turn(gone_at + 11)
    assert not outlet.gated
    assert list(world.side.subscribers.subs) == [SUB]
    world.turn(gone_at + 61)
    assert world.side.subscribers.subs == {}


def test_one_that_ends_its_data_connection_and_is_back_goes_on(world: Publishing) -> None:
    world.subscribe(SUB)
    world.detach(SUB)
    assert list(world.side.subscribers.away) == [SUB]
    world.attach(SUB)
    assert not world.side.subscribers.away
    assert list(world.outlet("a").sender.flow.claims) == [SUB]


def test_a_peer_that_starts_anew_does_not_come_back_for_its_old_subscriptions(
    world: Publishing,
) -> None:
    def ask(sub: int, instance: int) -> None:
        world.side.subscribers.on_subscribe(LINK, "desk", instance, world.request(sub), 2.0)

    world.subscribe(1)
    world.side.lose_link(LINK, 1.0, 1.0)
    ask(2, 7)  # the same start of it: it may be back with the first
    assert list(world.side.subscribers.subs) == [1, 2]
    ask(3, 8)
    assert list(world.side.subscribers.subs) == [2, 3]


# Waiting for them ------------------------------------------------------------------------------


def test_those_count_who_take_the_topic(world: Publishing) -> None:
    wait_for = world.side.subscribers.wait_for
    assert wait_for("a", 0, None) == 0
    assert wait_for("a", 1, 0.0) == 0
    request = Subscribe(SUB, ["b"], [Start("pub/a", "live"), Start("pub/b", "live")])
    world.side.subscribers.on_subscribe(LINK, "desk", 1, request, 0.0)
    world.attach(SUB)
    assert wait_for("a", 1, 0.0) == 0
    assert wait_for("b", 1, 0.0) == 1
    with pytest.raises(NoStream):
        wait_for("c", 1, 0.0)


def test_nobody_is_waited_for_where_nobody_may_come(world: Publishing) -> None:
    world.side.set_rivals({"pub/a": "tcp://192.0.2.1:7000"})
    with pytest.raises(NameInUse):
        world.side.subscribers.wait_for("a", 1, None)
    world.side.finish()
    with pytest.raises(ClosedError):
        world.side.subscribers.wait_for("b", 1, None)


def test_who_starts_in_an_earlier_epoch_is_told_of_it_first_and_its_log_is_held(
    tmp_path: Path,
) -> None:
    durable = Stream("a", durability="log")
    with Publishing(durable, data_dir=tmp_path) as first:
        for n in range(3):
            first.side.publish("a", n)
        epoch = first.outlet("a").epoch
    with Publishing(durable, data_dir=tmp_path) as world:
        world.subscribe(SUB, kind="earliest", name="audit", hold=True)
        wait_until(lambda: len(world.wire.said(Subscribed)) == 2)
        over, now = world.wire.said(Subscribed)
        assert (over.epoch, over.start, over.next, over.over) == (epoch, 0, 3, True)
        assert (now.epoch, now.start, now.over) == (world.outlet("a").epoch, 0, False)
        # It counts for those who wait once it has said that it knows.
        assert world.side.subscribers.wait_for("a", 1, 0.0) == 0
        world.report(SUB, "a", 0)
        assert world.side.subscribers.wait_for("a", 1, 0.0) == 1
        world.side.subscribers.on_commit(LINK, Commit(SUB, [Place("pub/a", epoch, 2)]))
        assert not world.side.counters["strange_commits"]
