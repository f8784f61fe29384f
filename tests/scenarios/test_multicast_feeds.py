"""Feeds without a connection: late join, a named line, and what one peer's loss means to others."""

from __future__ import annotations

import logging
import random

import pytest

from meshmsg import ConfigError, Feed, Multicast, Peer, Stream, WaitTimeout
from meshmsg.testing import lose_packets
from tests.support.waiting import wait_until

PATIENCE_S = 30
COUNT = 5000


def some_port() -> int:
    """A port that no other run on this machine is likely to use; below those given out freely."""
    return 10_000 + 10 * random.SystemRandom().randrange(2000)


@pytest.mark.parametrize(
    ("start", "first"), [("earliest", 0), ("last:5", COUNT - 5), (f"last:{2 * COUNT}", 0)]
)
@pytest.mark.parametrize("ratio", [0.0, 0.3])
def test_late_joiner_without_connection_gets_what_the_sender_holds(
    start: str, first: int, ratio: float
) -> None:
    line = Multicast(f"239.255.7.20:{some_port()}")
    feed = Feed("exchange", "trades.**", line)
    with Peer("exchange", streams=[Stream("trades.**", transport=line)]) as exchange:
        exchange.publish_many("trades.X", range(COUNT))
        with (
            Peer("late", feeds=[feed]) as late,
            late.subscribe("**", start=start, on_loss="raise") as events,
            lose_packets(late, ratio, seed=4),
        ):
            received: list[int] = []
            while len(received) < COUNT - first:
                event = events.get(timeout=PATIENCE_S)
                assert event is not None
                received.append(event.data)
            assert received == list(range(first, COUNT))
            assert events.lost == 0


@pytest.mark.parametrize("where", ["sender", "receiver"])
def test_packets_are_lost_on_the_named_line_only(where: str) -> None:
    port = some_port()
    line_a, line_b = f"239.255.7.20:{port}", f"239.255.7.21:{port + 2}"
    both = Multicast(line_a, second=line_b)
    with (
        Peer("pricing", streams=[Stream("quotes.**", transport=both)]) as pricing,
        Peer("desk", connect=pricing.address) as desk,
        desk.subscribe("**") as events,
    ):
        pricing.wait_for_subscribers("quotes.X", timeout=PATIENCE_S)
        with lose_packets(pricing if where == "sender" else desk, 1.0, line=line_a) as path:
            pricing.publish_many("quotes.X", range(COUNT))
            got = [event.data for event in take(events)]
            # What came by B may be read before anything of A is.
            wait_until(lambda: events.get(timeout=0.01) is None and path.dropped > 0)
        assert got == list(range(COUNT))
        one, two = events.stats()["sources"][0]["multicast"]["lines"]
        assert one.get("first", 0) == 0
        assert two["first"] > 0
        assert (one["port"], two["port"]) == (port, port + 2)


def take(events):  # type: ignore[no-untyped-def]
    for _ in range(COUNT):
        event = events.get(timeout=PATIENCE_S)
        assert event is not None
        yield event


def test_a_line_is_named_by_group_and_port() -> None:
    with Peer("p") as peer, pytest.raises(ConfigError, match="line: 'A' is not a multicast group"):
        lose_packets(peer, line="A").__enter__()


def test_receiver_without_the_parity_library_asks_for_what_it_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from meshmsg._receive import multicast_receiver as _mcast_in

    line = Multicast(f"239.255.7.20:{some_port()}", parity="8+2")
    with Peer("pricing", streams=[Stream("quotes.**", transport=line)]) as pricing:
        monkeypatch.setattr(_mcast_in, "has_parity_library", lambda: False)
        with (
            Peer("desk", connect=pricing.address) as desk,
            desk.subscribe("**", on_loss="raise") as events,
        ):
            pricing.wait_for_subscribers("quotes.X", timeout=PATIENCE_S)
            with lose_packets(desk, 0.2, seed=2):
                pricing.publish_many("quotes.X", range(COUNT))
                assert [event.data for event in take(events)] == list(range(COUNT))
            figures = events.stats()["sources"][0]["multicast"]
    assert figures["parity_packets"] > 0
    assert figures["repaired"] > 0
    assert "computed" not in figures
    assert "pip install 'meshmsg[parity]'" in caplog.text


@pytest.mark.parametrize(
    ("publisher", "topics", "mesh"),
    [("exchang", "trades.**", "default"), ("exchange", "trades.*", "default"),
     ("exchange", "trades.**", "other")],
    ids=["publisher", "stream", "mesh"],
)  # fmt: skip
def test_feed_that_names_something_else_is_told_so(
    publisher: str, topics: str, mesh: str, caplog: pytest.LogCaptureFixture
) -> None:
    line = Multicast(f"239.255.7.20:{some_port()}", heartbeat_max="20ms")
    with (
        Peer("exchange", streams=[Stream("trades.**", transport=line)]),
        Peer("desk", mesh=mesh, feeds=[Feed(publisher, topics, line)]) as desk,
        desk.subscribe("**") as events,
        caplog.at_level(logging.WARNING, logger="meshmsg.peer"),
    ):
        with pytest.raises(WaitTimeout) as late:
            events.wait_for_publishers(timeout=1)
        for _ in range(PATIENCE_S):
            if caplog.messages:
                break
            events.get(timeout=1)
        for text in (str(late.value), caplog.text):
            assert f"nothing was heard of {publisher}/{topics} at {line.group}, but " in text
            assert "packets of other streams were" in text
            assert f"of the mesh ({mesh!r}) have to be the same on both sides" in text


def test_feed_of_a_silent_group_is_told_that_nothing_was_heard() -> None:
    line = Multicast(f"239.255.7.20:{some_port()}")
    with (
        Peer("desk", feeds=[Feed("exchange", "trades.**", line)]) as desk,
        desk.subscribe("**") as events,
        pytest.raises(WaitTimeout, match=r"\(nothing was heard of exchange/trades.\*\* at [^ ]*\)"),
    ):
        events.wait_for_publishers(timeout=0.1)
