"""What groups have done is on disk: saved together, and read at the next start."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshmsg import LogError, Stream
from meshmsg._groups import progress_store
from meshmsg._groups.progress_store import GroupKeeper, Saved
from meshmsg._groups.seat import Seat
from meshmsg._publish.published_stream import Outlet
from meshmsg.recovery.groups.resume import resume
from meshmsg.recovery.groups.store import GroupStore
from tests.support.grouping import Disk, deal, seat_of
from tests.support.publishing import CLOCK_US, fill, outlet_of
from tests.support.waiting import wait_until

DURABLE = Stream("a", durability="log")


class World:
    """The groups of one start of a peer, and what was saved of them."""

    def __init__(self, data_dir: Path, clock_us: int = CLOCK_US) -> None:
        self.disk = Disk(data_dir, clock_us)
        self.outlet: Outlet = self.disk.open(DURABLE)
        self.counters: Counter[str] = Counter()
        self.saved: list[Saved] = []
        self.lock = self.disk.streams.lock
        self.keeper = GroupKeeper("meshmsg-pub", self.lock, self.counters, self.saved.append)
        self._closed = False

    def seat(self, name: str = "g", **policy: object) -> Seat:
        seat = seat_of(self.outlet, name, **policy)
        self.keeper.save_now(seat)
        return seat

    def store(self) -> GroupStore:
        assert self.outlet.log is not None
        return GroupStore(self.outlet.log.folder, self.outlet.stream)

    def names(self) -> list[str]:
        return [record.name for record in self.store().load()]

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.keeper.close()
            self.disk.durable.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def test_a_group_is_on_disk_from_its_first_moment_on_and_holds_the_log(world: World) -> None:
    seat = world.seat()
    [saved] = world.saved
    assert (saved.seat, saved.good, saved.whole) == (seat, True, True)
    assert world.names() == ["g"]
    assert world.outlet.log is not None
    assert len(world.outlet.log.cursors().all()) == 1


def test_the_next_start_goes_on_where_a_group_was(world: World, tmp_path: Path) -> None:
    seat = world.seat(order="key", max_attempts=3)
    fill(world.outlet, 10)
    seat.group.limit = 10
    seat.group.join(1, "w", 8, 30.0, now=0.0)
    deal(seat)
    seat.group.ack(1, [(0, 4, 1), (6, 7, 1)], now=0.0)
    seat.names = {1}
    with world.lock:
        world.keeper.want(seat)
    world.close()
    again = World(tmp_path, CLOCK_US + 1000)
    try:
        [(record, line)] = again.keeper.load(again.outlet)
        assert (record.order, record.max_attempts, record.members) == ("key", 3, (1,))
        assert [(part.epoch, part.first, part.stop) for part in line.past] == [
            (world.outlet.epoch, 4, 10)
        ]
        resumed = seat_of(again.outlet, line=line, start=line.start)
        resume(resumed.group, record)
        assert resumed.group.pending(0) + resumed.group.in_flight == 5
    finally:
        again.close()


def test_what_the_file_still_has_to_do_is_held_until_a_new_file_is_there(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group that begins anew further on, and a disk that fails (or a kill) before its file."""
    world.seat()
    fill(world.outlet, 10)
    world.close()
    again = World(tmp_path, CLOCK_US + 1000)
    try:
        assert again.outlet.log is not None
        before = again.outlet.log.cursors().all()
        with monkeypatch.context() as patch:
            patch.setattr(GroupStore, "save", lambda *_: 1 / 0)
            further_on = again.seat()
            assert not again.saved[-1].good
            assert again.outlet.log.cursors().all() == before
        again.keeper.save_now(further_on)
        assert again.outlet.log.cursors().all() != before
    finally:
        again.close()


def test_changes_that_come_together_are_saved_together(world: World) -> None:
    seats = [world.seat(name) for name in ("g", "h")]
    before = world.counters["groups_saved"]
    with world.lock:
        for seat in seats * 5:
            world.keeper.want(seat)
    wait_until(lambda: world.counters["groups_saved"] == before + 2)
    world.close()
    assert world.counters["groups_saved"] == before + 2


def test_volatile_groups_cost_neither_disk_nor_thread(world: World) -> None:
    seat = seat_of(outlet_of(Stream("a")))
    world.keeper.save_now(seat)
    world.keeper.want(seat, at_once=True)
    world.keeper.forget(seat)
    assert world.keeper.load(seat.outlet) == []
    assert world.saved == []
    assert not [one for one in threading.enumerate() if one.name == "meshmsg-pub groups"]


def test_what_is_wanted_last_is_saved_when_it_closes(world: World) -> None:
    seat = world.seat()
    for _ in range(3):
        with world.lock:
            world.keeper.want(seat)
    world.close()
    assert world.saved[-1].number == seat.saved_number
    world.keeper.close()


def test_a_group_that_was_given_up_is_removed_and_not_saved_again(world: World) -> None:
    seat = world.seat()
    with world.lock:
        world.keeper.want(seat)
        world.keeper.forget(seat)
    assert not seat.kept
    world.close()
    assert world.names() == []


def test_a_group_that_an_operator_removed_is_dropped(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_store, "LOOK_S", 0.01)
    seat = world.seat()
    world.store().remove("g")
    wait_until(lambda: seat.dropped)
    with world.lock:
        assert world.keeper.may_drop(seat, wanted=False)
        world.keeper.forget(seat)


@pytest.mark.parametrize("declared", [True, False])
def test_a_group_that_is_needed_is_put_back(
    world: World, monkeypatch: pytest.MonkeyPatch, declared: bool, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(progress_store, "LOOK_S", 0.01)
    seat = world.seat()
    seat.declared = declared
    world.store().remove("g")
    wait_until(lambda: seat.dropped)
    with world.lock:
        assert not world.keeper.may_drop(seat, wanted=not declared)
    wait_until(lambda: world.names() == ["g"])
    assert ("its stream declares it" if declared else "it has members") in caplog.text


def test_a_disk_that_fails_is_told_once_and_saving_is_tried_again(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(progress_store, "RETRY_S", 0.01)
    seat = world.seat()
    problem = LogError("/data/a", "cannot be written: No space left on device")

    def fail(store: GroupStore, record: object) -> None:
        raise problem

    with monkeypatch.context() as patch:
        patch.setattr(GroupStore, "save", fail)
        with world.lock:
            world.keeper.want(seat)
        wait_until(lambda: world.counters["group_save_failures"] >= 3)
        assert not world.saved[-1].good
        assert caplog.text.count("No space left") == 1
    with world.lock:
        good = len([saved for saved in world.saved if saved.good])
    wait_until(lambda: len([saved for saved in world.saved if saved.good]) > good)


def test_an_error_of_our_own_does_not_end_the_saving(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_store, "RETRY_S", 0.01)
    seat = world.seat()
    with monkeypatch.context() as patch:
        patch.setattr(GroupStore, "save", lambda *_: 1 / 0)
        with world.lock:
            world.keeper.want(seat)
        wait_until(lambda: world.counters["group_save_failures"])
    wait_until(lambda: world.saved[-1].good)
    assert world.keeper.guard.ended is None


def test_a_damaged_file_is_told_and_its_group_goes_on(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world.seat("g")
    world.seat("h")
    world.close()
    [damaged] = tmp_path.rglob("g.group")
    damaged.write_bytes(damaged.read_bytes()[:-5])
    again = World(tmp_path, CLOCK_US + 1000)
    try:
        # It goes on from what it holds of the log: work is done twice rather than never.
        assert [record.name for record, _ in again.keeper.load(again.outlet)] == ["g", "h"]
        assert again.counters["groups_damaged"] == 1
        assert "the group is damaged" in caplog.text
    finally:
        again.close()


def test_dead_letters_are_on_disk_before_their_events_are_settled(world: World) -> None:
    seat = seat_of(world.outlet)
    seat.dead = world.disk.open(Stream("dead.g", durability="log"))
    fill(seat.dead, 1)
    assert seat.dead.log is not None
    world.keeper.save_now(seat)
    assert seat.dead.log.durable == 1
