"""Who takes a member: what it asks for, what it says that it had, and what it forgets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from meshmsg._groups.consumer_joins import LIVE_END
from meshmsg._groups.consumer_messages import Asked, Attached
from meshmsg._groups.work_batch import WorkBatch
from meshmsg._model.message_fields import ACK_RANGES_MAX
from meshmsg._receive.incoming_stream import Sweep
from meshmsg._wire.control import Claimed, Join, Kept, Settle, Start, StreamInfo, Unjoined
from tests.support.grouping import EPOCH
from tests.support.member import STREAM, SUB, Giver, MemberWorld

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


def claims(giver: Giver) -> list[Claimed]:
    """It asks to be taken anew: what it says that it had."""
    before = len(giver.world.said(Join, giver.link))
    giver.ask()
    joins = giver.world.said(Join, giver.link)[before:]
    assert all(join.number == joins[-1].number > 0 for join in joins)
    return [claim for join in joins for claim in join.claims]


def claimed(giver: Giver) -> tuple[list[Any], list[Any]]:
    """What it has done, and what it has in hand."""
    said = claims(giver)
    return [ack for one in said for ack in one.acks], [held for one in said for held in one.held]


# Asking ----------------------------------------------------------------------------------------


def test_it_asks_for_what_it_was_made_for(make: Make) -> None:
    world = make(prefetch=33, order="key")
    join = world.giver().ask()
    assert (join.sub, join.group, join.prefetch, join.order) == (SUB, "g", 33, "key")
    assert (join.max_attempts, join.ack_timeout_s, join.patterns) == (5, 30.0, ["**"])
    assert join.starts == [Start(STREAM, "live")]
    assert join.ticket != SUB


def test_of_a_stream_that_is_new_all_is_for_the_group(make: Make) -> None:
    assert make().giver().ask(born=True).starts == [Start(STREAM, "origin")]


def test_it_asks_again_for_the_same_until_it_was_taken(make: Make) -> None:
    giver = make().giver()
    first = giver.ask(born=True)
    again = giver.ask(anew=False)
    assert (again.starts, again.ticket) == (first.starts, first.ticket)


def test_once_taken_it_goes_on_where_the_group_is(make: Make) -> None:
    giver = make().giver()
    giver.ask()
    giver.take()
    assert giver.ask(anew=False).starts == [Start(STREAM, "resume", LIVE_END, EPOCH)]


def test_many_streams_are_asked_for_in_several_messages(make: Make) -> None:
    world = make()
    giver = world.giver()
    infos = [
        StreamInfo(f"pub/{n}-{'x' * 200}", "**", EPOCH, "block", "msgpack", 1) for n in range(1000)
    ]
    world.member.notify(Asked(giver.link, infos, "", set(), True))
    world.pump()
    joins = world.said(Join)
    assert len(joins) > 1
    assert [start.stream for join in joins for start in join.starts] == [one.name for one in infos]
    assert world.member.streams() == {info.name for info in infos}


def test_every_membership_has_a_ticket_of_its_own_and_old_work_is_dropped(make: Make) -> None:
    world = make()
    giver = world.giver().join()
    first = world.said(Join)[-1].ticket
    giver.ask()  # its control connection broke
    assert world.said(Join)[-1].ticket != first
    giver.take()
    giver.deal(1, ticket=first)
    assert world.member.counters["stray_work"] == 1
    giver.deal(1)
    assert world.events(1) == [0]


# Being taken -----------------------------------------------------------------------------------


def test_an_address_that_cannot_be_used_is_counted(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    world = make()
    giver = world.giver()
    giver.ask()
    world.member.notify(Attached(giver.link, "nonsense", {STREAM: EPOCH}))
    world.pump()
    assert world.member.counters["bad_messages"] == 1
    assert "cannot be used" in caplog.text


def test_acks_of_one_that_does_not_count_on_us_wait_until_it_does(make: Make) -> None:
    world = make()
    giver = world.giver(durable=True).join()
    giver.deal(2)
    found = batch(world)
    giver.ask()
    found.ack_at(0)
    world.member.say()
    assert world.said(Settle) == []
    giver.take()
    assert world.acked() == [(0, 1, 1)]


def test_of_a_volatile_stream_what_is_in_hand_is_for_others_when_it_begins_anew(
    make: Make,
) -> None:
    world = make(auto_ack=True)
    giver = world.giver().join()
    giver.deal(3)
    giver.deal(2, 3)
    world.events(1)
    world.member.on_unjoined(giver.link, Unjoined(SUB, "silent for 3 s"))
    world.pump()
    assert world.member.take(as_events=True) is None
    assert world.member.counters["parted"] == 1
    assert giver.ask().claims == []
    giver.take()
    world.member.say()
    assert world.acked() == []


def test_another_start_of_a_volatile_publisher_has_other_events(make: Make) -> None:
    world = make()
    giver = world.giver().join()
    giver.deal(2)
    found = batch(world)
    giver.ask()
    giver.take(EPOCH + 1)
    found.ack_at(0)  # of the old one: it must settle nothing of the new
    world.member.say()
    assert world.acked() == []
    giver.deal(1, epoch=EPOCH)
    assert world.member.counters["stray_work"] == 1
    giver.deal(1, epoch=EPOCH + 1)
    assert world.events(1) == [0]
    assert world.member.sources()[0].delivered == 3


# What it had before ----------------------------------------------------------------------------


def durable(world: MemberWorld) -> Giver:
    return world.giver(durable=True).join()


def test_what_it_has_done_and_has_in_hand_is_said_to_a_publisher_that_is_back(make: Make) -> None:
    world = make()
    giver = durable(world)
    giver.deal(4)
    found = batch(world)
    found.ack_at(0)
    world.member.say()
    found.ack_at(1)  # not said yet
    assert claimed(giver) == ([(0, 2, 1)], [(2, 4, 1)])


def test_what_the_application_has_not_seen_is_not_claimed_and_not_handed_out(make: Make) -> None:
    world = make()
    giver = durable(world)
    giver.deal(2)
    giver.deal(2, 2)
    world.events(1)
    assert claimed(giver) == ([], [(0, 1, 1)])
    assert world.member.take(as_events=True) is None


def test_what_is_on_the_publishers_disk_need_not_be_said_again(make: Make) -> None:
    world = make()
    giver = durable(world)
    giver.deal(4)
    found = batch(world)
    for index in range(2):
        found.ack_at(index)
        world.member.say()
    first, second = (settle.number for settle in world.said(Settle))
    world.member.on_kept(object(), Kept(SUB, STREAM, second))  # only its publisher says so
    assert claimed(giver)[0] == [(0, 2, 1)]
    world.member.on_kept(giver.link, Kept(SUB, STREAM, first))
    assert claimed(giver)[0] == [(1, 2, 1)]
    world.member.on_kept(giver.link, Kept(SUB, "pub/other", second))
    assert claimed(giver)[0] == [(1, 2, 1)]


def test_a_refusal_is_claimed_with_its_text(make: Make) -> None:
    world = make()
    giver = durable(world)
    giver.deal(1)
    world.member.nack(batch(world), 0, 1.5, "bad")
    [claim] = claims(giver)
    [nack] = claim.nacks
    assert (nack.seq, nack.attempt, nack.delay_s, nack.error) == (0, 1, 1.5, "bad")


def test_claims_that_are_too_many_for_one_message_come_before_the_question(make: Make) -> None:
    world = make(prefetch=100_000)
    giver = durable(world)
    count = 6 * ACK_RANGES_MAX
    giver.deal(count)
    found = batch(world)
    for index in range(0, count, 2):
        found.ack_at(index)
    world.member.say()
    world.sent.clear()
    giver.ask()
    *before, last = world.said(Join)
    assert before
    assert all(join.more and not join.starts for join in before)
    assert (last.more, last.claims) == (False, [])
    acks = [ack for join in before for one in join.claims for ack in one.acks]
    assert acks == [(seq, seq + 1, 1) for seq in range(0, count, 2)]


def test_another_start_of_a_durable_publisher_goes_on_with_the_work_of_the_old(
    make: Make,
) -> None:
    world = make()
    giver = durable(world)
    giver.deal(3)
    found = batch(world)
    giver.ask()
    giver.take(EPOCH + 1)
    found.ack_at(0)
    giver.deal(1, 5, epoch=EPOCH)  # from its log
    giver.deal(1, 0, epoch=EPOCH + 1)
    world.member.say()
    said = [one for settle in world.said(Settle) for one in settle.settlements]
    assert [(one.epoch, one.acks) for one in said] == [(EPOCH, [(0, 1, 1)])]
    assert world.events(2) == [5, 0]
    [source] = world.member.sources()
    assert source.acked == 1


# Forgetting ------------------------------------------------------------------------------------


def test_streams_that_nobody_publishes_any_more_are_forgotten_but_not_their_place(
    make: Make,
) -> None:
    world = make()
    giver = world.giver().join()
    giver.link.state = "dialling"
    world.member.notify(Sweep(1000.0))
    world.pump()
    assert world.member.streams() == {STREAM}  # not for long enough
    world.member.notify(Sweep(-1.0))
    world.pump()
    assert world.member.streams() == set()
    giver.link.state = "up"
    assert giver.ask().starts == [Start(STREAM, "resume", LIVE_END, EPOCH)]


@pytest.mark.parametrize("kept", [False, True])
def test_a_stream_with_work_in_hand_or_to_be_said_stays(make: Make, kept: bool) -> None:
    world = make()
    giver = durable(world) if kept else world.giver().join()
    giver.deal(1)
    found = batch(world)
    giver.link.state = "dialling"
    if kept:
        found.ack_at(0)
        world.member.say()
        world.member.take(as_events=True)
    world.member.notify(Sweep(-1.0))
    world.pump()
    assert world.member.streams() == {STREAM}


def test_a_stream_whose_publisher_is_there_stays(make: Make) -> None:
    world = make()
    world.giver().join()
    world.member.notify(Sweep(-1.0))
    world.pump()
    assert world.member.streams() == {STREAM}
