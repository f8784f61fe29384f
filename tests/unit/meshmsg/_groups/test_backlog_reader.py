"""What groups need from disk: in bounded pieces, and where a new one starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from meshmsg import Stream
from meshmsg._groups import backlog_reader
from meshmsg._groups.backlog_reader import GroupDisk
from meshmsg._groups.seat import Seat, Seats
from meshmsg._publish.published_stream import Outlet
from meshmsg._wire.control import Start
from meshmsg.recovery.groups.numbering import Line, Past
from meshmsg.transports.zmq.context import Context
from meshmsg.transports.zmq.fanout import FanoutServer
from tests.support.grouping import Disk, seat_of
from tests.support.publishing import fill
from tests.support.waiting import wait_until

DURABLE = Stream("a", durability="log")
#: Two earlier starts, each of which has written five events.
OLDER, OLD = 1_000, 2_000


class World:
    """A group that wants events which only the log has."""

    def __init__(self, data_dir: Path) -> None:
        for epoch in (OLDER, OLD):
            with Disk(data_dir, epoch) as before:
                fill(before.open(DURABLE), 5)
        self.disk = Disk(data_dir)
        self.outlet: Outlet = self.disk.open(DURABLE)
        self.seats = Seats()
        self.dispatched: list[Seat] = []
        self.reader = GroupDisk(
            self.disk.streams,
            self.seats,
            self.disk.durable,
            lambda seat, now: self.dispatched.append(seat),
        )
        self.context = Context()
        self.disk.streams.fanout = FanoutServer(self.context, 10)

    def seat(self) -> Seat:
        line = Line(self.outlet.epoch, 0, [Past(OLDER, 0, 5), Past(OLD, 0, 5)])
        seat = seat_of(self.outlet, line=line, start=-10)
        self.seats.add(seat)
        return seat

    def fetch(self, seat: Seat, first: int, stop: int) -> list[tuple[int, int]]:
        """What is on the group's shelf when the read is over."""
        seat.group.shelf.wanted.add(first, stop)
        with self.disk.streams.lock:
            self.reader.fetch(seat)
            assert seat.fetching
            self.reader.fetch(seat)  # it is under way
        wait_until(lambda: not seat.fetching)
        with self.disk.streams.lock:
            return [(one[0], one[1]) for one in seat.group.shelf.held(first, stop)]

    def close(self) -> None:
        if self.disk.streams.fanout is not None:
            self.disk.streams.fanout.close(0.0)
        self.disk.durable.close()
        self.context.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def test_events_of_earlier_epochs_come_with_the_numbers_of_the_group(world: World) -> None:
    seat = world.seat()
    found = world.fetch(seat, -10, 0)
    assert (found[0][0], found[-1][1]) == (-10, 0)
    assert world.dispatched == [seat]
    assert world.disk.streams.counters["group_fetched_frames"] >= 1


def test_a_group_far_behind_gets_a_bounded_piece_at_a_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog_reader, "FETCH_BYTES_MAX", 1)
    seat = world.seat()
    found = world.fetch(seat, -10, 0)
    assert found[0][0] == -10
    assert found[-1][1] <= -5


def test_a_group_that_was_given_up_meanwhile_is_not_dealt_for(world: World) -> None:
    seat = world.seat()
    world.seats.remove(seat)
    world.fetch(seat, -5, 0)
    assert world.dispatched == []


def test_when_the_peer_is_closing_nothing_is_dealt(world: World) -> None:
    seat = world.seat()
    fanout, world.disk.streams.fanout = world.disk.streams.fanout, None
    world.fetch(seat, -5, 0)
    assert world.dispatched == []
    world.disk.streams.fanout = fanout


@pytest.mark.parametrize(
    ("kind", "value", "past", "start"),
    [
        ("earliest", 0, [(OLDER, 0, 5), (OLD, 0, 5)], None),
        ("last", 2, [(OLD, 3, 5)], None),
        ("resume", 0, [], 0),
    ],
)
def test_a_new_group_starts_where_it_asks_to(
    world: World, kind: str, value: int, past: list[tuple[int, int, int]], start: int | None
) -> None:
    found: list[dict[str, Line]] = []
    epoch = world.outlet.epoch if kind == "resume" else 0
    begin = Start(world.outlet.stream, kind, value, epoch)  # type: ignore[arg-type]
    with world.disk.streams.lock:
        world.reader.find_places(1, "g", [begin], found.append)
    wait_until(lambda: found)
    line = found[0][world.outlet.stream]
    assert [(part.epoch, part.first, part.stop) for part in line.past] == past
    assert line.epoch == world.outlet.epoch
    if start is not None:
        assert line.start == start
