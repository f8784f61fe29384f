"""Others of our name: who gives way, and whom we look at."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from meshmsg._links.name_conflicts import LOOKS_MAX, TOLD_S
from meshmsg._wire import control as c
from tests.support.linking import FAR, HERE, Linking, linking, stream

THERE = "tcp://127.0.0.1:1"


@pytest.fixture
def side() -> Iterator[Linking]:
    with linking() as made:
        made.infos = [stream("me/a", epoch=50), stream("me/b", epoch=50)]
        yield made


def told(side: Linking, *addresses: str, now: float = 0.0) -> None:
    side.namesakes.on_taken(c.Taken(list(addresses or (THERE,))), "127.0.0.1", now)


def looked_at(side: Linking) -> list[str]:
    return [link.address for link in side.table.all()]


def test_word_alone_stops_nobody_but_has_us_look(side: Linking) -> None:
    told(side)
    side.namesakes.on_ping(0.0)
    assert side.rivals == {}
    assert looked_at(side) == [THERE]
    assert not side.table.all()[0].given


def test_earlier_peer_of_our_name_has_it(side: Linking, caplog: pytest.LogCaptureFixture) -> None:
    side.up(THERE, "me", FAR, stream("me/a", epoch=40), stream("other/x"))
    side.namesakes.on_ping(0.0)
    assert side.rivals == {}  # nobody has refused us
    told(side)
    side.namesakes.on_ping(0.0)
    side.namesakes.on_ping(1.0)
    assert side.rivals == {"me/a": THERE}
    assert caplog.text.count("in use") == 1


@pytest.mark.parametrize(("epoch", "ours"), [(49, False), (50, False), (51, True)])
def test_later_one_gives_way_and_is_told(side: Linking, epoch: int, ours: bool) -> None:
    rival = side.up(THERE, "me", FAR, stream("me/a", epoch=epoch))
    told(side)
    side.namesakes.on_ping(0.0)
    assert (side.rivals == {}) is ours
    assert side.said(c.Taken, rival) == ([c.Taken([HERE])] if ours else [])


def test_name_is_ours_again_when_the_other_has_left_or_nobody_speaks_of_it(side: Linking) -> None:
    rival = side.up(THERE, "me", FAR, stream("me/a", epoch=40))
    told(side)
    side.namesakes.on_ping(0.0)
    rival.state = "left"
    side.namesakes.on_ping(1.0)
    assert side.rivals == {}
    rival.state = "up"
    side.namesakes.on_ping(TOLD_S - 0.1)
    assert side.rivals == {"me/a": THERE}
    side.namesakes.on_ping(TOLD_S)
    assert side.rivals == {}


def test_nobody_is_looked_at_twice_nor_ourselves_nor_too_many(side: Linking) -> None:
    told(side, HERE, "tcp://127.0.0.1:2", "tcp://127.0.0.1:2", "tcp://no.name:3")
    assert looked_at(side) == ["tcp://127.0.0.1:2"]
    told(side, *(f"tcp://127.0.0.1:{port}" for port in range(3, 12)))
    assert len(looked_at(side)) == LOOKS_MAX
    assert side.counters["looks_dropped"] == 1
    assert side.counters["names_taken"] == 2


def test_where_nobody_is_we_hang_up(side: Linking) -> None:
    told(side)
    side.namesakes.on_ping(TOLD_S)
    assert looked_at(side) == [THERE]
    side.namesakes.on_ping(TOLD_S + 0.1)
    assert looked_at(side) == []


def test_connection_that_discovery_counts_on_stays(side: Linking) -> None:
    told(side)
    side.finder.contacts.adopt(FAR, "me", THERE, now=0.0)
    side.namesakes.on_ping(TOLD_S + 0.1)
    assert looked_at(side) == [THERE]
    assert side.table.all()[0].found
