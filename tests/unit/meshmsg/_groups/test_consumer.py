"""A member of a group: what it hands out, what it says of it, and how it leaves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from meshmsg._groups.consumer import SETTLE_S
from meshmsg._groups.consumer_messages import Asked
from meshmsg._groups.work_batch import ERROR_CHARS_MAX, WorkBatch
from meshmsg._model.event import Loss
from meshmsg._model.message_fields import ACK_RANGES_MAX, ENTRIES_MAX
from meshmsg._wire.control import Gone, Kept, Settle, Unjoined
from meshmsg.recovery.stream.loss_detector import NEVER
from tests.support.grouping import EPOCH
from tests.support.member import STREAM, SUB, MemberWorld
from tests.support.waiting import wait_until

Make = Callable[..., MemberWorld]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[MemberWorld] = []

    def world(**options: Any) -> MemberWorld:
        made.append(MemberWorld(**options))
        return made[-1]

    yield world
    for one in made:
        one.close()


def batch(world: MemberWorld) -> WorkBatch:
    with world.member.lock:
        found = world.member.take(as_events=False)
    assert isinstance(found, WorkBatch)
    return found


# Handing out -----------------------------------------------------------------------------------


def test_events_are_handed_out_in_the_order_in_which_they_came(make: Make) -> None:
    world = make()
    giver = world.giver().join()
    giver.deal(3)
    giver.deal(2, 3)
    assert world.events(5) == [0, 1, 2, 3, 4]
    assert world.member.take(as_events=True) is None
    [source] = world.member.sources()
    assert (source.received, source.delivered, source.redelivered) == (5, 5, 0)


def test_the_rest_of_a_batch_comes_as_a_batch(make: Make) -> None:
    world = make()
    world.giver().join().deal(5)
    assert world.events(2) == [0, 1]
    rest = batch(world)
    assert list(rest.ranges()) == [(2, 5, 1)]
    assert world.member.take(as_events=False) is None


def test_work_of_a_membership_that_is_over_is_dropped(make: Make) -> None:
    world = make()
    giver = world.giver().join()
    giver.deal(1, ticket=12345)
    giver.deal(1, epoch=EPOCH + 1)
    assert world.member.counters["stray_work"] == 2
    assert world.member.take(as_events=True) is None


def test_nonsense_is_counted_and_what_is_behind_it_comes(make: Make) -> None:
    world = make()
    giver = world.giver()
    ticket = giver.ask().ticket
    giver.take()
    world.see(lambda: giver.work.send(ticket.to_bytes(8, "little") + b"nonsense"))
    giver.deal(1)
    assert world.member.counters["bad_messages"] == 1
    assert world.events(1) == [0]


def test_a_publisher_that_ignores_its_credit_is_not_read_ahead(make: Make) -> None:
    world = make(prefetch=4)
    giver = world.giver().join()
    giver.deal(4)
    giver.send(4, 4)
    for _ in range(20):
        world.pump()
    assert [source.received for source in world.member.sources()] == [4]
    assert world.events(4) == [0, 1, 2, 3]
    wait_until(world.pump)
    assert world.events(4) == [4, 5, 6, 7]


def test_losses_come_in_their_turn(make: Make) -> None:
    world = make()
    world.giver().join().deal(1)
    world.member.notify(Gone(SUB, STREAM, EPOCH, [(5, 8)], "overflow", 0))
    world.pump()
    assert not world.member.loss_is_next()
    world.events(1)
    assert world.member.loss_is_next()
    with world.member.lock:
        loss = world.member.take(as_events=True)
    assert loss == Loss(STREAM, EPOCH, 5, 8, "overflow")
    assert list(world.member.losses) == [loss]
    assert world.member.counters["lost"] == 3


# Settling --------------------------------------------------------------------------------------


def test_acks_gather_while_there_is_work_and_leave_when_it_runs_out(make: Make) -> None:
    world = make()
    giver = world.giver().join()
    giver.deal(2)
    giver.deal(2, 2)
    first = batch(world)
    first.ack_at(0)
    world.pump()
    assert world.acked() == []  # there is more at hand
    first.ack_at(1)
    batch(world)
    world.pump()
    assert world.acked() == [(0, 2, 1)]
    assert world.said(Settle, giver.link)


def test_acks_of_a_busy_consumer_leave_by_the_clock(make: Make) -> None:
    world = make()
    world.giver().join().deal(3)
    before = world.woken
    batch(world).ack_at(0)
    assert world.woken == before + 1
    due = world.member.settle_due()
    assert due <= time.monotonic() + SETTLE_S
    world.member.tend(due - 0.001)
    assert world.acked() == []
    world.member.tend(due)
    assert world.acked() == [(0, 1, 1)]
    assert world.member.settle_due() == NEVER


def test_a_good_part_of_the_credit_used_up_is_said_at_once(make: Make) -> None:
    world = make(prefetch=8)
    world.giver().join().deal(4)
    found = batch(world)
    found.ack_at(0)
    assert world.acked() == []
    found.ack_at(1)
    assert world.acked() == [(0, 2, 1)]


def test_a_refusal_is_said_at_once_with_a_text_that_can_be_sent(make: Make) -> None:
    world = make()
    world.giver().join().deal(2)
    found = batch(world)
    world.member.nack(found, 1, 2.5, "bad name: \udcff" + "x" * 2 * ERROR_CHARS_MAX)
    [settle] = world.said(Settle)
    [refusal] = settle.settlements[0].nacks
    assert (refusal.seq, refusal.attempt, refusal.delay_s) == (1, 1, 2.5)
    assert refusal.error.startswith("bad name: ?")
    assert len(refusal.error) == ERROR_CHARS_MAX
    assert world.member.counters["nacked"] == 1


def test_what_was_handed_over_is_settled_by_the_next_where_that_was_asked_for(make: Make) -> None:
    world = make(auto_ack=True)
    giver = world.giver().join()
    giver.deal(2)
    giver.deal(1, 2)
    world.events(2)
    world.pump()
    assert world.acked() == []
    world.events(1)
    world.pump()
    assert world.acked() == [(0, 2, 1)]


def test_more_than_a_message_holds_is_said_in_several(make: Make) -> None:
    world = make(prefetch=100_000)
    giver = world.giver().join()
    count = 2 * (ACK_RANGES_MAX + 10)
    giver.deal(count)
    found = batch(world)
    for index in range(0, count, 2):
        found.ack_at(index)
    world.member.say()
    settles = world.said(Settle)
    assert len(settles) > 1 or len(settles[0].settlements) > 1
    assert all(len(one.settlements) <= ENTRIES_MAX for one in settles)
    assert len(world.acked()) == count // 2
    assert world.member.sources()[0].acked == count // 2


def test_each_publisher_hears_of_its_own_work(make: Make) -> None:
    world = make()
    givers = [world.giver(stream).join() for stream in ("pub/a", "other/b")]
    for giver in givers:
        giver.deal(1)
    for _ in givers:
        batch(world).ack_at(0)
    world.member.say()
    for giver in givers:
        [settle] = world.said(Settle, giver.link)
        assert [one.stream for one in settle.settlements] == [giver.info.name]


def test_a_sign_of_life_settles_nothing(make: Make) -> None:
    world = make()
    giver = world.giver().join()
    world.member.sign_of_life()
    assert world.said(Settle, giver.link) == [Settle(SUB, [])]


# Refusals and endings --------------------------------------------------------------------------


def test_a_refusal_for_good_is_kept_for_the_user(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    world = make()
    giver = world.giver()
    giver.ask()
    world.member.on_unjoined(giver.link, Unjoined(SUB, "not now"))
    assert world.member.refusal is None
    world.member.on_unjoined(giver.link, Unjoined(SUB, "a member asks for other topics", True))
    assert "other topics" in str(world.member.refusal)
    assert "group g: a member asks for other topics" in caplog.text


def test_one_that_leaves_gives_back_what_it_did_not_look_at(make: Make) -> None:
    world = make()
    giver = world.giver().join()
    giver.deal(3)
    giver.deal(2, 3)
    world.events(1)
    world.member.leave()
    [settle] = world.said(Settle, giver.link)
    [said] = settle.settlements
    assert (said.acks, said.returned) == ([], [(1, 3, 1), (3, 5, 1)])
    assert (settle.closed, settle.received) == (True, {STREAM: 5})
    assert not world.member.seen_off.is_set()
    world.member.on_kept(giver.link, Kept(SUB, STREAM, settle.number))
    assert world.member.seen_off.is_set()


def test_one_that_acknowledges_by_itself_has_done_what_it_was_handed(make: Make) -> None:
    world = make(auto_ack=True)
    world.giver().join().deal(3)
    world.events(2)
    world.member.leave()
    [said] = world.said(Settle)[-1].settlements
    assert (said.acks, said.returned) == ([(0, 2, 1)], [(2, 3, 1)])


def test_one_without_a_publisher_that_hears_it_does_not_wait(make: Make) -> None:
    world = make()
    world.giver().join().link.state = "dialling"
    world.member.leave()
    assert world.member.seen_off.is_set()


def test_a_publisher_that_will_not_answer_is_not_waited_for(make: Make) -> None:
    world = make()
    giver = world.giver().join()
    world.member.leave()
    world.member.on_silence(giver.link)
    assert world.member.seen_off.is_set()


def test_closed_twice_it_tells_the_loop_that_waits(make: Make) -> None:
    world = make()
    told: list[int] = []
    world.member.on_close = lambda: told.append(1)
    world.member.close()
    world.member.close()
    assert told
    assert world.member.seen_off.is_set()


# The I/O thread --------------------------------------------------------------------------------


def test_notices_are_read_by_the_io_thread_while_the_consumer_is_busy(make: Make) -> None:
    world = make()
    giver = world.giver()
    world.member.notify(Asked(giver.link, [giver.info], "", set(), True))
    assert world.member.streams() == {STREAM}
    world.member.tend(0.0)
    assert world.member.inbox == world.member.inbox.__class__()
    assert world.sent
    assert world.member.fds
    world.member.clear_wakeup()


def test_work_is_received_in_a_moment_where_nothing_else_is_to_be_done(make: Make) -> None:
    world = make()
    now = time.monotonic()
    assert not world.member.receive(now, None)  # there is nobody to get it from
    giver = world.giver().join()
    assert not world.member.receive(now, now)  # the time is up
    giver.deal(1)
    batch(world).ack_at(0)
    assert not world.member.receive(now, None)
    assert world.acked() == [(0, 1, 1)]  # said before it waits
