"""Which groups and members an order is about, and what would happen to them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from meshmsg import Stream
from meshmsg._groups.group_operator import WAITING_MAX, GroupOperator, is_named
from meshmsg._groups.seat import Seats
from meshmsg._publish.streams import Streams
from meshmsg._wire.control import Operate, Start
from tests.support.grouping import seat_of
from tests.support.publishing import outlet_of


class World:
    """Two groups on a volatile stream of ten events."""

    def __init__(self) -> None:
        self.streams = Streams("pub")
        self.outlet = outlet_of(Stream("a.**"))
        self.seats = Seats()
        for name in ("g", "h"):
            self.seats.add(seat_of(self.outlet, name))
        self.members: dict[int, Any] = {}
        self.keeper, self.disk, self.dispatch = Mock(), Mock(), Mock()
        self.restart, self.put_out, self.wake = Mock(), Mock(), Mock()
        self.operator = GroupOperator(
            self.streams.changed,
            self.seats,
            self.members,
            self.keeper,
            self.disk,
            self.dispatch,
            self.restart,
            self.put_out,
            self.wake,
        )

    def reset(self, **more: Any) -> list[tuple[list[dict[str, Any]], str]]:
        answers: list[tuple[list[dict[str, Any]], str]] = []
        order = Operate(1, "group reset", "g", **more)
        self.operator.reset(order, lambda rows, problem: answers.append((rows, problem)), 1.0)
        return answers


def test_groups_are_chosen_by_name_and_stream() -> None:
    world = World()
    chosen = world.operator.chosen(Operate(1, "group pause", "g"))
    assert [seat.group.name for seat in chosen] == ["g"]
    assert world.operator.chosen(Operate(1, "group pause", "g", "pub/b")) == []
    text = world.operator.missing(Operate(1, "group pause", "x", "pub/b"))
    assert text == "there is no group 'x' on 'pub/b': known are g, h"


def test_pause_is_saved_before_it_is_answered_and_a_dry_run_is_not() -> None:
    world = World()
    order = Operate(1, "group pause", "g", dry_run=True)
    assert world.operator.pause(order, paused=True, now=1.0)[0]["changes"] is True
    assert not world.keeper.save_now.called
    (row,) = world.operator.pause(Operate(1, "group pause", "g"), paused=True, now=1.0)
    assert (row["group"], row["paused"], row["changes"]) == ("g", True, True)
    (seat,) = [seat for seat in world.seats if seat.group.name == "g"]
    assert seat.group.paused
    world.keeper.save_now.assert_called_once_with(seat)
    (row,) = world.operator.pause(Operate(1, "group pause", "g"), paused=True, now=1.0)
    assert row["changes"] is False


def test_reset_within_memory_is_done_at_once() -> None:
    world = World()
    ((rows, problem),) = world.reset(start=Start("", "origin"))
    assert (problem, rows[0]["to"]) == ("", f"{world.outlet.epoch}:0")
    assert rows[0]["generation"] == 1
    assert world.restart.call_args.args[1:] == (0, None, 1.0)
    world.restart.reset_mock()
    world.reset(start=None, dry_run=True)
    assert not world.restart.called


def durable_place(world: World) -> Callable[..., Any]:
    outlet = Mock(wraps=world.outlet)
    outlet.stream, outlet.reaches_back = world.outlet.stream, lambda start: True
    for seat in world.seats:
        seat.outlet = outlet
    return world.disk.find_places  # type: ignore[no-any-return]


def test_reset_that_needs_the_disk_goes_on_in_the_next_turn() -> None:
    world = World()
    find = durable_place(world)
    assert world.reset(start=Start("", "earliest")) == []
    _, _, far, *_ = find.call_args.args  # type: ignore[attr-defined]
    assert [start.stream for start in far] == [world.outlet.stream]
    answers: list[Any] = []
    order = Operate(1, "group reset", "g", start=Start("", "earliest"))
    world.operator.reset(order, lambda *answer: answers.append(answer), 1.0)
    *_, problem = find.call_args.args  # type: ignore[attr-defined]
    assert problem("broken") is False
    world.wake.assert_called_once_with()
    assert answers == []
    world.operator.on_tick(2.0)
    assert answers == [([], "the log cannot be read: broken")]


def test_no_more_orders_wait_for_the_disk_than_there_is_room_for() -> None:
    world = World()
    find = durable_place(world)
    for _ in range(WAITING_MAX):
        world.reset(start=Start("", "earliest"))
        find.call_args.args[-1]("later")  # type: ignore[attr-defined]
    ((rows, problem),) = world.reset(start=Start("", "earliest"))
    assert (rows, "others wait for the disk" in problem) == ([], True)


def test_members_are_put_out_by_name() -> None:
    world = World()
    for number, label in enumerate(["anna/one#0a", "anna/two#0b", "bert/one#0c"]):
        world.members[number] = SimpleNamespace(sub=number, label=label, group="g", seats={})
    rows = world.operator.evict(Operate(1, "evict", "anna", dry_run=True), 1.0)
    assert [row["member"] for row in rows] == ["anna/one#0a", "anna/two#0b"]
    assert not world.put_out.called
    world.operator.evict(Operate(1, "evict", "bert/one#0c"), 1.0)
    assert [call.args[0].label for call in world.put_out.call_args_list] == ["bert/one#0c"]


@pytest.mark.parametrize("name", ["", "ann", "anna/on", "one", "#0a"])
def test_parts_of_names_are_nobodys(name: str) -> None:
    assert not is_named(name, "anna/one#0a")
