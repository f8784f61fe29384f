"""Groups on streams: found by name, in the ledger and in the figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshmsg import Stream
from meshmsg._groups.seat import KEEP_S, Seats, group_stats, live_row, row_of
from tests.support.grouping import Disk, deal, seat_of
from tests.support.publishing import fill, outlet_of


def test_a_group_is_found_by_its_stream_and_name() -> None:
    seats = Seats()
    orders, quotes = outlet_of(Stream("orders")), outlet_of(Stream("quotes"))
    both = [seat_of(orders, "g"), seat_of(orders, "h")]
    other = seat_of(quotes, "g")
    for seat in (*both, other):
        seats.add(seat)
    assert seats.of(orders.stream) == both
    assert seats.find(quotes.stream, "g") is other
    assert seats.find(quotes.stream, "h") is None
    assert seats.of("pub/nothing") == []
    assert len(seats) == 3


def test_a_stream_knows_whether_groups_take_its_events() -> None:
    seats = Seats()
    outlet = outlet_of(Stream("a"))
    both = [seat_of(outlet, "g"), seat_of(outlet, "h")]
    for seat in both:
        seats.add(seat)
    assert outlet.has_groups
    seats.remove(both[0])
    assert outlet.has_groups
    seats.remove(both[1])
    assert not outlet.has_groups
    with pytest.raises(ValueError, match="not in list"):
        seats.remove(both[1])


def test_seats_may_be_given_up_while_all_are_gone_through() -> None:
    seats = Seats()
    outlet = outlet_of(Stream("a"))
    for name in ("g", "h", "i"):
        seats.add(seat_of(outlet, name))
    for seat in seats:
        seats.remove(seat)
    assert len(seats) == 0


@pytest.mark.parametrize(
    ("group_keep", "volatile_s", "durable_s"), [(None, KEEP_S, None), (5, 5.0, 5.0), (0, 0.0, 0.0)]
)
def test_a_group_without_members_stays_for_ever_only_on_disk(
    tmp_path: Path, group_keep: int | None, volatile_s: float, durable_s: float | None
) -> None:
    volatile = seat_of(outlet_of(Stream("a", group_keep=group_keep)))
    assert (volatile.kept, volatile.keep_s) == (False, volatile_s)
    with Disk(tmp_path) as disk:
        durable = seat_of(disk.open(Stream("a", durability="log", group_keep=group_keep)))
        assert (durable.kept, durable.keep_s) == (True, durable_s)


def test_the_row_of_a_group_adds_up_while_work_is_in_flight() -> None:
    outlet = outlet_of(Stream("a"))
    seat = seat_of(outlet)
    fill(outlet, 10)
    assert live_row(seat).state == "no members"
    seat.group.join(1, "w", 4, 30.0, now=0.0)
    assert len(deal(seat)) == 4
    seat.group.ack(1, [(0, 2, 1)], now=0.0)
    row = live_row(seat)
    assert (row.state, row.subscription) == ("live", "group g")
    assert (row.published, row.delivered, row.in_flight) == (10, 2, 8)
    over = row_of(seat, 10, "expired", in_flight=0)
    assert (over.state, over.in_flight) == ("expired", 0)


def test_figures_of_a_group_and_its_members() -> None:
    outlet = outlet_of(Stream("a"))
    seat = seat_of(outlet, max_attempts=3)
    fill(outlet, 5)
    seat.group.join(1, "w", 2, 30.0, now=0.0)
    deal(seat)
    stats = group_stats(seat)
    assert (stats["name"], stats["max_attempts"], stats["topics"]) == ("g", 3, ["**"])
    assert (stats["lag"], stats["pending"], stats["in_flight"]) == (5, 3, 2)
    assert stats["members"] == [
        {"name": "w", "prefetch": 2, "in_flight": 2, "delivered": 2, "acked": 0}
    ]
