"""Ledger rows of subscribers, and figures of a stream, as its claims say them."""

from __future__ import annotations

from meshmsg import Stream
from meshmsg._publish.stream_counts import claim_row, stream_stats, subscribers_of
from tests.support.publishing import CLOCK_US, fill, outlet_of


def test_a_row_adds_up() -> None:
    outlet = outlet_of(Stream("a"))
    fill(outlet, 2)
    flow = outlet.sender.flow
    claim = flow.admit(7, "desk/-#000007", 2, ("**",), now=0.0)
    fill(outlet, 8)
    lost = {"overflow": 1}
    flow.report(7, received=9, consumed=8, delivered=3, filtered=2, lost=lost, stop=10, now=1.0)
    row = claim_row(outlet, claim, outlet.sender.next, claim.state)
    assert (row.stream, row.epoch, row.subscription, row.state) == (
        "pub/a",
        CLOCK_US,
        "desk/-#000007",
        "live",
    )
    assert (row.published, row.delivered, row.filtered, row.lost, row.in_flight) == (
        8,
        3,
        2,
        lost,
        2,
    )
    assert row.published == 3 + 2 + 1 + row.in_flight


def test_groups_are_no_subscribers() -> None:
    outlet = outlet_of(Stream("a"))
    for sub, label in ((7, "desk"), (-1, "group g")):
        outlet.sender.flow.admit(sub, label, 0, ("**",), now=0.0)
    assert [claim.label for claim in subscribers_of(outlet)] == ["desk"]
    stats = stream_stats(outlet, 0.0, [{"name": "g"}])
    assert [one["name"] for one in stats["subscribers"]] == ["desk"]
    assert stats["groups"] == [{"name": "g"}]


def test_figures_say_who_blocks_and_since_when() -> None:
    outlet = outlet_of(Stream("a", overflow="block", window_bytes=1024))
    flow = outlet.sender.flow
    flow.admit(7, "slow", 0, ("**",), now=0.0)
    fill(outlet, 3, 1024)
    flow.admit(8, "new", 3, ("**",), now=4.0)
    outlet.gated = True
    flow.on_deadline(now=5.0)
    stats = stream_stats(outlet, 7.5, [])
    assert (stats["published"], stats["frames"], stats["next"]) == (3, 3, 3)
    assert (stats["blocked"], stats["blocked_by"]) == (True, ["slow"])
    slow, new = stats["subscribers"]
    assert (slow["behind"], slow["blocking"], slow["blocked_s"]) == (3, True, 2.5)
    assert (new["behind"], new["blocking"], new["blocked_s"]) == (0, False, 0.0)
    assert (slow["silent_s"], new["silent_s"]) == (7.5, 3.5)
    assert "multicast" not in stats
    assert "log" not in stats


def test_an_unused_stream_has_zeros() -> None:
    stats = stream_stats(outlet_of(Stream("a")), 0.0, [])
    assert {stats[name] for name in ("published", "frames", "bytes", "next", "dropped")} == {0}
    assert stats["subscribers"] == []
