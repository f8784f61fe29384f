"""Who is a member of a durable group: on disk before the first work, awaited after a restart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshmsg import Stream
from meshmsg._groups.progress_store import GroupKeeper, Saved
from meshmsg._groups.roster import GroupRoll, RemoteMember
from meshmsg._groups.seat import Seat, Seats
from meshmsg._wire.control import Claimed, Join, Kept, Refusal, Start
from meshmsg.recovery.stream.quotas import Owner
from meshmsg.transports.zmq.context import Context
from meshmsg.transports.zmq.work_queue import WorkOutlet
from tests.support.grouping import Disk, deal, seat_of
from tests.support.publishing import fill, outlet_of

RETURN_S = 5.0
LINK = b"worker"


class World:
    """The roll of a peer with one durable group; what is wanted is saved when the test says so."""

    def __init__(self, data_dir: Path) -> None:
        self.disk = Disk(data_dir)
        self.outlet = self.disk.open(Stream("a", durability="log"))
        self.context = Context()
        self.seats = Seats()
        self.members: dict[int, RemoteMember] = {}
        self.counters: Counter[str] = Counter()
        self.entered: list[tuple[Seat, int]] = []
        self.wire = self.disk.wire
        self.keeper = GroupKeeper(
            "meshmsg-pub", self.disk.streams.lock, self.counters, self._on_saved
        )
        self.roll = GroupRoll(
            self.seats,
            self.members,
            self.keeper,
            self.wire.sender,
            RETURN_S,
            self.counters,
            self._enter,
        )
        self.seat = seat_of(self.outlet)
        self.seats.add(self.seat)
        self.seat.group.limit = 1000
        self._works: list[WorkOutlet] = []

    def _on_saved(self, saved: Saved) -> None:
        self.roll.on_saved(saved)

    def _enter(self, seat: Seat, member: RemoteMember, now: float) -> None:
        self.entered.append((seat, member.sub))
        seat.group.join(member.sub, member.label, member.prefetch, 30.0, now=now)

    def join(self, sub: int, *claims: Claimed, number: int = 0, more: bool = False) -> Join:
        starts = [Start(seat.outlet.stream, "live") for seat in self.seats]
        return Join(
            sub,
            "g",
            ["**"],
            starts,
            10,
            30.0,
            5,
            "none",
            claims=list(claims),
            number=number,
            more=more,
        )

    def member(self, sub: int, link: bytes = LINK) -> RemoteMember:
        """One that is connected."""
        work = WorkOutlet(self.context, sub, ["tcp://127.0.0.1:1"])
        self._works.append(work)
        work.connected = True
        member = RemoteMember(self.join(sub), link, "worker", Owner("", link), work, 0.0)
        self.members[sub] = member
        member.seats = {seat.outlet.stream: seat for seat in self.seats}
        return member

    def save(self) -> None:
        self.keeper.save_now(self.seat)

    def recall(self, sub: int, *claims: Claimed, number: int = 0) -> RemoteMember:
        member = self.members.get(sub) or self.member(sub)
        self.roll.recall(member, self.join(sub, *claims, number=number), [self.seat], 0.0)
        return member

    def close(self) -> None:
        for work in self._works:
            work.close(0.0)
        self.keeper.close()
        self.disk.durable.close()
        self.context.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def claim(world: World, **said: list) -> Claimed:  # type: ignore[type-arg]
    return Claimed(world.outlet.stream, world.outlet.epoch, **said)


# Coming and going ------------------------------------------------------------------------------


def test_a_member_gets_work_when_the_disk_knows_of_it(world: World) -> None:
    member = world.member(1)
    with world.disk.streams.lock:
        world.roll.admit(world.seat, member, 0.0)
        assert world.entered == []
    world.save()
    assert world.entered == [(world.seat, 1)]
    world.roll.admit(world.seat, member, 0.0)  # it is known there already
    assert world.entered == [(world.seat, 1)] * 2


def test_a_member_of_a_volatile_stream_gets_work_at_once(world: World) -> None:
    seat = seat_of(outlet_of(Stream("v")))
    world.roll.admit(seat, world.member(1), 0.0)
    assert world.entered == [(seat, 1)]


def test_one_that_has_gone_before_it_was_saved_does_not_enter(world: World) -> None:
    with world.disk.streams.lock:
        for sub in (1, 2):
            world.roll.admit(world.seat, world.member(sub), 0.0)
        world.roll.strike(world.seat, 1)
        world.members[2].work.connected = False
    world.save()
    assert world.entered == []
    assert world.seat.names == {2}


def test_one_that_was_struck_off_has_to_be_saved_anew(world: World) -> None:
    member = world.member(1)
    with world.disk.streams.lock:
        world.roll.admit(world.seat, member, 0.0)
    world.save()
    with world.disk.streams.lock:
        world.roll.strike(world.seat, 1)
        world.roll.admit(world.seat, member, 0.0)
        assert world.entered == [(world.seat, 1)]
    world.save()
    assert world.entered == [(world.seat, 1)] * 2


# What is kept ----------------------------------------------------------------------------------


def test_a_member_is_told_when_what_it_said_is_on_disk(world: World) -> None:
    member = world.member(1)
    with world.disk.streams.lock:
        world.roll.hear(world.seat, member, 7)
        world.roll.hear(world.seat, member, 8)
        assert world.wire.said(Kept) == []
    world.save()
    assert world.wire.said(Kept, LINK) == [Kept(1, "pub/a", 8)]


def test_what_needs_no_answer_gets_none(world: World) -> None:
    world.roll.hear(world.seat, world.member(1), 0)
    world.save()
    assert world.wire.said(Kept) == []


def test_one_that_leaves_a_volatile_group_is_answered_at_once(world: World) -> None:
    seat = seat_of(outlet_of(Stream("v")))
    member = world.member(1)
    member.seats = {seat.outlet.stream: seat}
    world.roll.part(member, 0)
    assert world.wire.said(Kept) == []
    world.roll.part(member, 9)
    assert world.wire.said(Kept) == [Kept(1, "pub/v", 9)]


# After a restart -------------------------------------------------------------------------------


def test_nothing_is_dealt_out_until_all_of_an_earlier_start_have_spoken(world: World) -> None:
    world.roll.wait_for(world.seat, [1, 2])
    fill(world.outlet, 4)
    world.seat.group.join(3, "new", 10, 30.0, now=0.0)
    assert deal(world.seat) == []
    world.recall(1)
    assert deal(world.seat) == []
    world.recall(2)
    assert deal(world.seat) == [(3, seq) for seq in range(4)]


def test_where_nobody_was_there_nobody_is_waited_for(world: World) -> None:
    world.roll.wait_for(world.seat, [])
    assert not world.seat.group.recalling
    assert world.roll.on_tick(world.seat, 0.0) is None


def test_who_is_not_back_in_time_is_given_up(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.roll.wait_for(world.seat, [1, 2])
    assert world.roll.on_tick(world.seat, 100.0) == 100.0 + RETURN_S
    world.recall(1)
    assert world.roll.on_tick(world.seat, 104.9) == 100.0 + RETURN_S
    assert world.roll.on_tick(world.seat, 105.0) is None
    assert world.counters["members_not_back"] == 1
    assert not world.seat.group.recalling
    assert world.seat.names == {1}
    assert "1 members of group g are not back" in caplog.text


def dealt_before_the_restart(world: World) -> None:
    """Six events of this epoch were dealt out to member 1, which is awaited."""
    fill(world.outlet, 6)
    world.roll.wait_for(world.seat, [1])
    world.seat.group.dealt = 6
    world.seat.group.is_marked = True


def test_what_a_member_had_and_has_done_is_settled_when_it_is_back(world: World) -> None:
    dealt_before_the_restart(world)
    said = claim(world, acks=[(0, 2, 1)], nacks=[Refusal(2, 1)], held=[(3, 5, 1)])
    world.recall(1, said, number=4)
    group = world.seat.group
    assert (group.acked, group.in_flight) == (2, 2)
    assert world.counters["stale_acks"] == 0
    world.save()
    assert world.wire.said(Kept) == [Kept(1, "pub/a", 4)]


def test_claims_may_come_in_several_messages(world: World) -> None:
    dealt_before_the_restart(world)
    for seq in (0, 1):
        world.roll.note_claims(
            LINK, world.join(1, claim(world, acks=[(seq, seq + 1, 1)]), more=True)
        )
    world.recall(1, claim(world, acks=[(2, 3, 1)]))
    assert world.seat.group.acked == 3


def test_claims_of_a_connection_that_is_gone_are_forgotten(world: World) -> None:
    dealt_before_the_restart(world)
    world.roll.note_claims(LINK, world.join(1, claim(world, acks=[(0, 1, 1)]), more=True))
    world.roll.forget_claims(LINK)
    world.recall(1)
    assert world.seat.group.acked == 0


def test_claims_of_one_that_can_have_had_nothing_are_not_kept(world: World) -> None:
    dealt_before_the_restart(world)
    world.roll.note_claims(LINK, world.join(2, claim(world, acks=[(0, 6, 1)]), more=True))
    other = Claimed("pub/other", 1, acks=[(0, 1, 1)])
    world.roll.note_claims(LINK, world.join(1, other, more=True))
    world.recall(2)
    world.recall(1)
    assert world.seat.group.acked == 0


def test_claims_of_epochs_that_the_group_has_not_are_settled_already(world: World) -> None:
    dealt_before_the_restart(world)
    old = Claimed(world.outlet.stream, world.outlet.epoch - 1, acks=[(0, 6, 1)])
    world.recall(1, old)
    assert world.seat.group.acked == 0
    assert not world.seat.group.recalling
