"""What a consumer asks for and gets: words of `subscribe`, verbs of a subscription.

Its node is another shell: a few lines here say what a subscription wants of it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from meshmsg._model.errors import ClosedError, ConfigError, PeerRefused, WaitTimeout
from meshmsg._model.event import EventsLost, Loss, Position
from meshmsg._receive.committed_positions import Bookmarks
from meshmsg._receive.incoming_stream import StartAt
from meshmsg._receive.subscription import (
    Subscription,
    check_on_loss,
    member_options,
    parse_start,
)
from meshmsg._wire.control import Evicted
from tests.support.receiving import (
    EPOCH,
    STREAM,
    SUB,
    Receiving,
    admission,
    link,
    receiving,
)


class Host:
    """A node with one subscription."""

    def __init__(self, side: Receiving) -> None:
        self.side = side
        self.stopped = threading.Event()
        self.refused: PeerRefused | None = None
        self.failed = False
        self.committed: list[Position] = []
        self.publisher = self.links = self.table = self
        self.known: list[Any] = []

    def label(self, sub: int) -> str:
        return f"me/-#{sub:06x}"

    def inlet_stats(self, inlet: Any) -> dict[str, Any]:
        return {"name": self.label(inlet.sub)}

    def tell_committed(self, inlet: Any, positions: list[Position]) -> None:
        self.committed += positions

    def all(self) -> list[Any]:
        return self.known

    def refusal(self) -> PeerRefused | None:
        return self.refused

    def check_running(self) -> None:
        if self.failed:
            raise ClosedError("the I/O thread ended")

    def drop(self, inlet: Any) -> None:
        inlet.close()

    def see_off(self) -> None:
        pass

    def send_own(self) -> None:
        pass


@pytest.fixture
def side() -> Iterator[Receiving]:
    with receiving() as made:
        yield made


@pytest.fixture
def host(side: Receiving) -> Host:
    return Host(side)


@pytest.fixture
def events(side: Receiving, host: Host) -> Iterator[Subscription]:
    with Subscription(host, side.intake, "report") as made:  # type: ignore[arg-type]
        yield made


def ready(side: Receiving, *ranges: tuple[int, int]) -> None:
    """Events that wait for the consumer; where a range does not follow, a loss lies between."""
    source = side.intake.incoming.by_name.get(STREAM) or side.source()
    if source.receiver is None:
        side.intake.epochs.on_admission(source, admission(), 0.0)
    assert source.receiver is not None
    for first, stop in ranges:
        if first > source.receiver.next:
            gone = [(source.receiver.next, first)]
            source.receiver.on_tail(first, now=0.0)
            side.intake.ready.put(source, source.receiver.on_gone(gone, "overflow", now=0.0))
        side.give(source, first, stop)


LOST = Loss(STREAM, EPOCH, 2, 4, "overflow")


# Words -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "start"),
    [
        ("live", StartAt()),
        ("earliest", StartAt("earliest")),
        ("committed", StartAt("earliest", committed={})),
        ("last:100", StartAt("last", 100)),
        (1.5, StartAt("time", 1_500_000_000)),
        (datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC), StartAt("time", 2_000_000_000)),
        (Position(STREAM, 3, 9), StartAt(position=Position(STREAM, 3, 9))),
        (str(Position(STREAM, 3, 9)), StartAt(position=Position(STREAM, 3, 9))),
    ],
)
def test_start_is_read(word: Any, start: StartAt) -> None:
    assert parse_start(word) == start


@pytest.mark.parametrize(
    "word",
    [
        "",
        "Live",
        "last:",
        "last:-1",
        "last:x",
        -1,
        True,
        1e30,
        float("nan"),
        None,
        datetime(2026, 1, 1),
    ],
)
def test_start_that_is_none_says_what_can_be_written(word: Any) -> None:
    with pytest.raises(ConfigError, match="start"):
        parse_start(word)


def test_what_is_done_about_losses_is_a_word_or_a_function() -> None:
    for good in ("report", "raise", print):
        check_on_loss(good)
    with pytest.raises(ConfigError, match="on_loss"):
        check_on_loss("ignore")


GOOD = {
    "group": "work",
    "prefetch": 64,
    "ack_timeout": "30s",
    "max_attempts": 5,
    "order": "key",
    "auto_ack": False,
}


def test_member_asks_for_what_the_user_said() -> None:
    options = member_options(**GOOD)  # type: ignore[arg-type]
    assert (options.group, options.prefetch, options.ack_timeout_s) == ("work", 64, 30.0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("group", ""),
        ("group", "a/b"),
        ("prefetch", 0),
        ("prefetch", True),
        ("prefetch", 1 << 40),
        ("prefetch", 1.5),
        ("max_attempts", 0),
        ("ack_timeout", 0),
        ("ack_timeout", -1),
        ("ack_timeout", 1e12),
        ("order", "random"),
    ],
)
def test_member_option_that_is_wrong_is_named(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=field):
        member_options(**{**GOOD, field: value})  # type: ignore[arg-type]


# Events ----------------------------------------------------------------------------------------


def test_get_gives_event_after_event_and_then_nothing(
    side: Receiving, events: Subscription
) -> None:
    ready(side, (0, 2))
    found = [events.get(timeout=0) for _ in range(3)]
    assert [event and event.data for event in found] == [0, 1, None]


def test_get_many_gathers_what_is_ready_and_no_more_than_it_may(
    side: Receiving, events: Subscription
) -> None:
    ready(side, (0, 2), (2, 5))
    assert [event.data for event in events.get_many(max=4, timeout=0)] == [0, 1, 2, 3]
    assert [event.data for event in events.get_many(timeout=0)] == [4]
    assert events.get_many(timeout=0) == []
    with pytest.raises(ConfigError, match="max"):
        events.get_many(max=0)


def test_gathering_stops_before_a_loss(side: Receiving, events: Subscription) -> None:
    ready(side, (0, 2), (4, 5))
    assert [event.data for event in events.get_many(timeout=0)] == [0, 1]
    assert events.losses == []
    assert [event.data for event in events.get_many(timeout=0)] == [4]
    assert (events.losses, events.lost) == ([LOST], 2)


def test_batches_end_when_none_comes(side: Receiving, events: Subscription) -> None:
    ready(side, (0, 2), (2, 5))
    assert [len(batch) for batch in events.batches(timeout=0)] == [2, 3]


def test_loop_ends_when_the_subscription_is_closed(side: Receiving, events: Subscription) -> None:
    ready(side, (0, 2))
    found = []
    for event in events:
        found.append(event.data)
        if event.data == 1:
            events.close()
    assert found == [0, 1]


def test_loss_is_raised_where_that_was_asked_for_and_the_next_event_follows(
    side: Receiving, host: Host
) -> None:
    with Subscription(host, side.intake, "raise") as events:  # type: ignore[arg-type]
        ready(side, (0, 2), (4, 5))
        assert [event.data for event in events.get_many(timeout=0)] == [0, 1]
        with pytest.raises(EventsLost) as caught:
            events.get(timeout=0)
        assert caught.value.loss == LOST
        event = events.get(timeout=0)
        assert event is not None
        assert event.data == 4


def test_loss_is_handed_to_a_function(side: Receiving, host: Host) -> None:
    told: list[Loss] = []
    with Subscription(host, side.intake, told.append) as events:  # type: ignore[arg-type]
        ready(side, (0, 2), (4, 5))
        assert [event.data for event in (events.get(timeout=0) for _ in range(3)) if event] == [
            0,
            1,
            4,
        ]
    assert told == [LOST]


def test_consumer_waits_while_another_thread_has_the_subscription(
    side: Receiving, events: Subscription
) -> None:
    ready(side, (0, 2))
    taken, done = threading.Event(), threading.Event()

    def hold() -> None:
        with side.intake.lock:
            taken.set()
            done.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait(30)
    assert events.get(timeout=0) is None
    done.set()
    thread.join()
    assert events.get(timeout=0) is not None


# Ends ------------------------------------------------------------------------------------------


def test_closed_subscription_says_so(events: Subscription) -> None:
    events.close()
    events.close()
    assert events.closed
    with pytest.raises(ClosedError):
        events.get(timeout=0)
    with pytest.raises(ClosedError), events:
        pass
    assert list(events) == []


def test_end_by_a_failure_is_not_the_end_of_the_stream(
    side: Receiving, host: Host, events: Subscription
) -> None:
    host.failed = True
    side.intake.close()
    with pytest.raises(ClosedError, match="I/O thread"):
        list(events)


def test_subscription_that_is_dropped_warns(side: Receiving, host: Host) -> None:
    events = Subscription(host, side.intake, "report")  # type: ignore[arg-type]
    with pytest.warns(ResourceWarning, match="not closed"):
        del events


def test_refusal_is_raised_to_who_waits(side: Receiving, host: Host, events: Subscription) -> None:
    host.refused = PeerRefused("tcp://x:1", "another mesh")
    for wait in (events.get, events.wait_for_publishers):
        with pytest.raises(PeerRefused):
            wait(timeout=0)
    ready(side, (0, 1))
    assert events.get(timeout=0) is not None  # what is there already


def test_waiting_for_publishers_tells_who_is_not_there(
    side: Receiving, host: Host, events: Subscription
) -> None:
    with pytest.raises(WaitTimeout, match="knows no other"):
        events.wait_for_publishers(timeout=0)
    host.known = [link("dialling", "tcp://127.0.0.1:7")]
    with pytest.raises(WaitTimeout, match=r"0 of 1 .*tcp://127.0.0.1:7 is dialling"):
        events.wait_for_publishers(timeout=0)
    ready(side, (0, 1))
    events.wait_for_publishers(timeout=0)


# What it knows ---------------------------------------------------------------------------------


def test_name_evictions_and_figures(side: Receiving, events: Subscription) -> None:
    side.source()
    side.intake.notify(Evicted(SUB, STREAM, "too slow"))
    side.intake.pump(0.0)
    assert events.evictions == ["too slow"]
    assert events.name == events.stats()["name"] == "me/-#000007"
    assert events.group is None


def test_commit_keeps_how_far_the_consumer_is(
    side: Receiving, host: Host, events: Subscription, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="name"):
        events.commit()
    side.intake.bookmarks = Bookmarks(str(tmp_path), "audit")
    ready(side, (0, 5))
    events.get(timeout=0)
    events.commit()
    place = Position(STREAM, EPOCH, 1)
    assert Bookmarks(str(tmp_path), "audit").read() == {STREAM: place}
    assert host.committed == []
    side.intake.hold = True  # publishers keep in their logs what is not committed
    events.commit()
    assert host.committed == [place]


def test_words_of_groups_are_refused_elsewhere(side: Receiving, events: Subscription) -> None:
    ready(side, (0, 2))
    event = events.get(timeout=0)
    assert event is not None
    for call in (
        lambda: events.ack(event),
        lambda: events.ack([event]),
        lambda: events.nack(event),
        lambda: events.ack("event"),
        lambda: events.ack(7),  # type: ignore[arg-type]
        lambda: events.nack([event]),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigError):
            call()
