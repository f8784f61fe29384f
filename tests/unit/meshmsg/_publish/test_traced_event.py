"""What a publisher says of one event."""

from __future__ import annotations

from meshmsg import Position, Stream
from meshmsg._publish.traced_event import traced
from tests.support.publishing import CLOCK_US, fill, outlet_of


def at(seq: int, epoch: int = CLOCK_US) -> Position:
    return Position("pub/a", epoch, seq)


def test_each_subscription_is_as_far_as_it_has_said() -> None:
    outlet = outlet_of(Stream("a"))
    fill(outlet, 2)
    flow = outlet.sender.flow
    flow.admit(7, "desk/-#000007", 2, ("**",), now=0.0)
    flow.admit(-1, "group g", 0, ("**",), now=0.0)
    fill(outlet, 8)
    lost = {"overflow": 1}
    flow.report(7, received=6, consumed=4, delivered=1, filtered=0, lost=lost, stop=10, now=1.0)
    states = []
    for seq in (1, 3, 5, 8):
        found = traced(outlet, at(seq), [])
        (row,) = found["subscriptions"]
        states.append(row["state"])
        assert (found["state"], row["name"], row["lost"]) == ("published", "desk/-#000007", lost)
        assert found["topic"] == "a"
    assert states == ["before", "had", "received", "coming"]


def test_what_is_of_another_start_or_has_no_number_yet_is_told_apart() -> None:
    outlet = outlet_of(Stream("a"))
    fill(outlet, 3)
    outlet.sender.flow.admit(7, "desk", 0, ("**",), now=0.0)
    groups = [{"group": "g"}]
    for place, state, kept in (
        (at(3), "unpublished", []),
        (at(1, CLOCK_US - 1), "earlier", groups),
        (at(1, CLOCK_US + 1), "later", groups),
    ):
        found = traced(outlet, place, groups)
        assert (found["state"], found["groups"], found["subscriptions"]) == (state, kept, [])
        assert "topic" not in found


def test_what_memory_does_not_have_any_more_has_no_topic() -> None:
    outlet = outlet_of(Stream("a", overflow="drop_oldest", buffer_bytes="64KiB"))
    for _ in range(40):
        fill(outlet, 100)
    found = traced(outlet, at(0), [])
    if found["first_available"] > 0:
        assert "topic" not in found
    assert found["state"] == "published"
