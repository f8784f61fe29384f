"""Which streams of peers our subscriptions hear of, and what they ask for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from meshmsg._links.outbound_peer import Link, Listing
from meshmsg._model.errors import ProtocolError
from meshmsg._model.event import Position
from meshmsg._receive.incoming_stream import (
    Attach,
    Complete,
    Detach,
    Lend,
    RepairFrame,
    Said,
    Sweep,
    TailHint,
)
from meshmsg._wire import control as c
from meshmsg.recovery.stream.unconfirmed import FIRST_S
from tests.support.linking import EPOCH, FAR, Linking, linking, stream
from tests.support.receiving import link

NAMED = frozenset(["far/a"])


@pytest.fixture
def side() -> Iterator[Linking]:
    with linking() as made:
        yield made


def far(side: Linking, *streams: c.StreamInfo, recorded: tuple[c.StreamInfo, ...] = ()) -> Link:
    made = side.up("tcp://127.0.0.1:1", "far", FAR, *(streams or (stream("far/a"),)))
    made.recorded = {info.name: info for info in recorded}
    return made


def welcome(side: Linking, to: Link, *names: str, again: bool = False) -> None:
    """A peer has said what it has, all on one page."""
    to.state = "up" if again else "greeting"
    listing = Listing(to, to.instance)
    to.state = "up"
    page = c.Welcome(to.peer, to.instance, "default", [], [])
    side.offers.on_page(to, listing, page, frozenset(names))


def starts(side: Linking) -> list[tuple[str, str]]:
    return [(one.stream, one.kind) for said in side.said(c.Subscribe) for one in said.starts]


# What is offered -------------------------------------------------------------------------------


def test_streams_that_a_subscription_wants_are_asked_for(side: Linking) -> None:
    to = far(side, stream("far/a"), stream("far/b", topics="b.**"))
    inlet = side.inlet()
    welcome(side, to, "far/a", "far/b")
    (attach,) = inlet.told(Attach)
    assert (attach.link, attach.address) == (to, to.data_address)
    assert [info.name for info in attach.streams] == ["far/a"]
    assert starts(side) == [("far/a", "live")]
    (asked,) = side.said(c.Subscribe, to)
    assert (asked.sub, asked.patterns) == (1, ["a.**"])


def test_subscription_that_wants_nothing_says_nothing(side: Linking) -> None:
    inlet = side.inlet(1, "z.*")
    welcome(side, far(side), "far/a")
    assert (inlet.notices, side.sent) == ([], [])


def test_pattern_that_nobody_could_subscribe_to_is_not_offered(side: Linking) -> None:
    to = far(side, stream("far/a", topics="a..b"))
    welcome(side, to, "far/a")
    inlet = side.inlet(1, "**")
    welcome(side, to, "far/a")
    assert inlet.notices == []


def test_stream_that_is_declared_after_we_met_is_read_from_its_first_event(side: Linking) -> None:
    to = far(side)
    side.inlet()
    welcome(side, to, "far/a")
    to.streams["far/b"] = stream("far/b")
    welcome(side, to, "far/a", "far/b", again=True)
    assert starts(side) == [("far/a", "live"), ("far/b", "origin")]


def test_peer_that_dialled_us_before_it_had_streams_was_met_then(side: Linking) -> None:
    side.inlet()
    side.offers.on_hello(c.Hello("far", FAR, "default"))
    welcome(side, far(side), "far/a")
    assert starts(side) == [("far/a", "origin")]


def test_new_subscription_hears_of_all_that_is_there_once(side: Linking) -> None:
    welcome(side, far(side), "far/a")
    inlet = side.inlet()
    side.offers.offer_all(inlet, [FAR])
    side.offers.offer_all(inlet, [FAR])
    assert len(inlet.told(Attach)) == 1
    side.offers.forget(1)
    side.offers.offer_all(inlet, [FAR])
    assert len(inlet.told(Attach)) == 2


def test_peers_that_were_named_and_have_yet_to_answer_may_have_recorded_it(side: Linking) -> None:
    side.table.by_address["tcp://x:1"] = link("dialling")
    inlet = side.inlet()
    welcome(side, far(side), "far/a")
    assert inlet.told(Attach)[0].more
    side.offers.tell_complete()
    assert inlet.told(Complete) == []
    side.table.by_address["tcp://x:1"].state = "refused"
    side.offers.on_refused()
    assert len(inlet.told(Complete)) == 1
    assert inlet.woken == 1  # whoever waits for that peer should look


# Recorders -------------------------------------------------------------------------------------


def test_recorder_is_a_source_and_asked_only_for_what_nobody_publishes_here(side: Linking) -> None:
    far(side)
    recorder = side.up("tcp://127.0.0.1:2", "rec", FAR + 1)
    recorder.recorded = {name: stream(name) for name in ("far/a", "gone/a")}
    inlet = side.inlet()
    welcome(side, recorder, "far/a", "gone/a")
    (lend,) = inlet.told(Lend)
    assert [info.name for info in lend.streams] == ["far/a", "gone/a"]
    assert lend.asked == {"gone/a"}
    assert starts(side) == [("gone/a", "live")]


def test_history_is_asked_of_recorders_too(side: Linking) -> None:
    far(side)
    recorder = side.up("tcp://127.0.0.1:2", "rec", FAR + 1)
    recorder.recorded = {"far/a": stream("far/a")}
    inlet = side.inlet()
    inlet.history = True
    welcome(side, recorder, "far/a")
    assert inlet.told(Lend)[0].asked == NAMED


def test_forgotten_stream_is_taken_up_when_its_recorder_says_that_it_goes_on(
    side: Linking,
) -> None:
    recorder = side.up("tcp://127.0.0.1:2", "rec", FAR)
    recorder.recorded = {"far/a": stream("far/a")}
    inlet = side.inlet()
    inlet.forgotten = {"far/a"}
    welcome(side, recorder, "far/a")
    assert inlet.notices == []
    side.offers.follow([c.Tail("far/b", EPOCH, 0, 9)])
    assert inlet.notices == []
    side.offers.follow([c.Tail("far/a", EPOCH, 0, 9)])
    assert len(inlet.told(Lend)) == 1


# Answers ---------------------------------------------------------------------------------------


def subscribed(side: Linking) -> tuple[Link, Any]:
    to, inlet = far(side), side.inlet()
    welcome(side, to, "far/a")
    inlet.notices.clear()
    return to, inlet


ADMITTED = c.Subscribed(1, "far/a", EPOCH, 0, 0, 0, 0)


def test_what_nobody_confirms_is_asked_for_again_ever_more_rarely(side: Linking) -> None:
    to, _ = subscribed(side)
    (first,) = side.said(c.Subscribe)
    due = side.offers.on_tick(0.0)
    side.offers.on_tick(due)
    assert side.said(c.Subscribe) == [first, first]
    assert side.counters["subscriptions_repeated"] == 1
    assert side.offers.on_tick(due) >= due + FIRST_S
    side.offers.on_link_message(to, ADMITTED, None)
    side.offers.on_tick(due + 1e6)
    assert len(side.said(c.Subscribe)) == 2


def test_nothing_is_asked_of_a_peer_that_is_not_there(side: Linking) -> None:
    to, _ = subscribed(side)
    to.state = "dialling"
    side.offers.on_tick(1e9)
    assert len(side.said(c.Subscribe)) == 1


def test_refusal_for_now_is_remembered_and_asked_again_and_one_for_good_is_not(
    side: Linking, caplog: pytest.LogCaptureFixture
) -> None:
    to, inlet = subscribed(side)
    side.offers.on_link_message(to, c.Unsubscribed(1, ["far/a", "far/other"], "full"), None)
    assert inlet.refusals == {"far/a": "full"}  # of what it has
    assert "does not take our subscription to far/a: full" in caplog.text
    side.offers.on_tick(1e9)
    assert len(side.said(c.Subscribe)) == 2
    side.offers.on_link_message(to, c.Unsubscribed(1, ["far/a"], "never", refused=True), None)
    side.offers.on_tick(2e9)
    assert len(side.said(c.Subscribe)) == 2
    side.offers.on_link_message(to, ADMITTED, None)
    assert inlet.refusals == {}
    assert inlet.counters["refused_subscriptions"] == 2


@pytest.mark.parametrize("kind", [c.Subscribed, c.Gone])
def test_answers_are_handed_to_the_subscription_that_they_are_for(
    side: Linking, kind: type[Any]
) -> None:
    to, inlet = subscribed(side)
    gone = c.Gone(1, "far/a", EPOCH, [(0, 2)], "expired", 1)
    message = ADMITTED if kind is c.Subscribed else gone
    side.offers.on_link_message(to, message, None)
    side.inlets.intakes.clear()
    side.offers.on_link_message(to, message, None)  # nobody's any more
    assert inlet.notices == [Said(to, "far/a", message)]


def test_repair_brings_its_frame(side: Linking) -> None:
    to, inlet = subscribed(side)
    side.offers.on_link_message(to, c.Repair(1, "far/a", 3), b"frame")
    assert inlet.notices == [RepairFrame(to, "far/a", b"frame", 3)]
    side.offers.on_link_message(to, c.Repair(1, "far/a", 3), memoryview(b"frame"))
    assert isinstance(inlet.notices[-1].data, bytes)
    with pytest.raises(ProtocolError):
        side.offers.on_link_message(to, c.Repair(1, "far/a", 3), None)


def test_publisher_that_asks_is_told_how_far_we_are(side: Linking) -> None:
    to, _ = subscribed(side)
    side.offers.on_link_message(to, c.StatusPlease(1, 9), None)
    assert side.said(c.Status) == []  # made in the report's own time


def test_tails_are_hints_and_of_recorders_claims(side: Linking) -> None:
    to, inlet = subscribed(side)
    own, lent = c.Tail("far/a", EPOCH, 0, 9), c.Tail("x/a", EPOCH, 0, 4)
    side.offers.on_link_message(to, c.Pong(0, FAR, [own], [lent]), None)
    side.offers.on_link_message(to, c.Bye(FAR, [own]), None)
    assert inlet.told(TailHint) == [
        TailHint("far/a", EPOCH, 9),
        TailHint("x/a", EPOCH, 4, lender=to),
        TailHint("far/a", EPOCH, 9, final=True),
    ]


def test_only_logs_are_told_what_is_committed(side: Linking) -> None:
    to = far(side, stream("far/a"), stream("far/log", durable=True))
    inlet = side.inlet()
    places = [Position(name, EPOCH, 5) for name in ("far/a", "far/log", "x/log")]
    side.offers.commit(to, inlet, places)
    assert side.said(c.Commit) == [c.Commit(1, [c.Place("far/log", EPOCH, 5)])]
    side.offers.commit(to, inlet, places[:1])
    assert len(side.said(c.Commit)) == 1


# Gone ------------------------------------------------------------------------------------------


def test_peer_that_is_given_up_is_left_and_asked_no_more(side: Linking) -> None:
    to, inlet = subscribed(side)
    side.offers.let_go(to, at_once=True)
    assert inlet.told(Detach) == [Detach(to.data_address, True)]
    side.offers.on_tick(1e9)
    assert len(side.said(c.Subscribe)) == 1


def test_streams_are_swept_now_and_then(side: Linking) -> None:
    _, inlet = subscribed(side)
    for now in (1000.0, 1001.0, 1100.0):
        side.offers.on_ping(set(), now)
    assert len(inlet.told(Sweep)) == 2


def test_stream_that_there_was_no_room_for_is_offered_when_there_is() -> None:
    with linking(streams_max=3) as side:
        to = far(side, stream("far/a"), stream("far/b"))
        inlet = side.inlet()
        welcome(side, to, "far/a", "far/b")
        assert [info.name for one in inlet.told(Attach) for info in one.streams] == ["far/a"]
        assert side.counters["streams_full"] == 1
        del to.streams["far/a"]
        side.offers.on_ping(set(), 1000.0)  # gives the place back, and uses it
        assert [info.name for one in inlet.told(Attach) for info in one.streams] == [
            "far/a",
            "far/b",
        ]
