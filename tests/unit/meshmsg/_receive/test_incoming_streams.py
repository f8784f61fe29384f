"""The streams of one subscription: coming, going, and what stays of those that went."""

from __future__ import annotations

from collections import Counter

import pytest

from meshmsg._model.codecs import MsgpackCodec
from meshmsg._receive.incoming_stream import Books, Source, StartAt
from meshmsg._receive.incoming_streams import IncomingStreams
from meshmsg._wire.control import Tail, stream_wire_id
from meshmsg.recovery.stream.loss_detector import NackTiming
from meshmsg.recovery.stream.receiver import StreamReceiver
from tests.support.receiving import EPOCH, MESH, STREAM, admission, frame, info, link

GONE_S = 10.0


def incoming(start: StartAt | None = None) -> IncomingStreams:
    return IncomingStreams(start or StartAt(), Counter())


def source(streams: IncomingStreams, name: str = STREAM) -> Source:
    """A stream whose publisher is away, seen last at 0."""
    made = Source(info(name), stream_wire_id(MESH, name), link(), MsgpackCodec())
    made.attach(info(name), link("dialling"))
    made.seen_at = 0.0
    streams.add(made)
    return made


def enter(one: Source, first: int = 0, stop: int = 0, *, epoch: int = EPOCH) -> StreamReceiver:
    """Receive an epoch, of which the consumer has taken everything up to `stop`."""
    name = one.info.name
    one.books = Books(name, epoch, first)
    one.receiver = StreamReceiver(
        name,
        epoch,
        first,
        timing=NackTiming(delay_s=0.0, retry_s=1.0, deadline_s=9.0),
        pending_bytes_max=1 << 20,
    )
    if stop > first:
        one.receiver.on_frame(frame(first, stop, epoch=epoch, name=name), now=0.0)
        one.books.consumed = one.heard_next = stop
        one.books.delivered = stop - first
    return one.receiver


def forget(streams: IncomingStreams, one: Source, *, is_named: bool = False) -> None:
    streams.forget(one, is_named=is_named)


def test_stream_is_found_by_name_and_by_number() -> None:
    streams = incoming()
    one = source(streams)
    assert streams.by_name == {STREAM: one}
    assert streams.by_wire == {one.wire_id: one}
    assert streams.received() == []
    enter(one)
    assert streams.received() == [one]


def test_looking_after_a_stream_is_never_put_off() -> None:
    streams = incoming()
    one = source(streams)
    one.due = 9.0
    streams.wake_at(one, 5.0)
    streams.wake_at(one, 7.0)
    assert (one.due, streams.timer_due) == (5.0, 5.0)


@pytest.mark.parametrize(("now", "found"), [(GONE_S - 0.1, False), (GONE_S, True)])
def test_stream_is_at_rest_when_its_publisher_has_been_gone_for_so_long(
    now: float, found: bool
) -> None:
    streams = incoming()
    one = source(streams)
    enter(one, 0, 3)
    assert streams.at_rest(GONE_S, now) == ([one] if found else [])


def test_publisher_that_is_there_and_data_that_came_count_as_seen() -> None:
    streams = incoming()
    one, other = source(streams), source(streams, "pub/b")
    one.link.state = "up"
    other.data_at = 95.0
    assert streams.at_rest(GONE_S, 100.0) == []
    one.link.state = "dialling"
    assert streams.at_rest(GONE_S, 109.0) == [other]
    assert streams.at_rest(GONE_S, 110.0) == [one, other]


def test_stream_of_which_something_waits_or_is_missing_is_not_at_rest() -> None:
    streams = incoming()
    one = source(streams)
    enter(one, 0, 3)
    one.admissions.append(admission(epoch=EPOCH + 1))
    assert streams.at_rest(GONE_S, 100.0) == []
    one.admissions.clear()
    one.books.consumed = 2  # the consumer has yet to take the last
    assert streams.at_rest(GONE_S, 100.0) == []
    one.books.consumed = 3
    one.heard_next = 4
    assert streams.at_rest(GONE_S, 100.0) == []
    one.heard_next = 3
    assert streams.at_rest(GONE_S, 100.0) == [one]
    assert one.receiver is not None
    one.receiver.on_tail(9, now=0.0)
    assert streams.at_rest(GONE_S, 100.0) == []


def test_stream_that_was_never_entered_leaves_no_place() -> None:
    streams = incoming()
    forget(streams, source(streams))
    assert not streams.by_name
    assert not streams.by_wire
    assert not streams.has_forgotten(STREAM)
    assert streams.counters["streams_forgotten"] == 1


def test_stream_that_comes_back_goes_on_with_its_books() -> None:
    streams = incoming()
    one = source(streams)
    enter(one, 0, 3)
    before = one.books
    forget(streams, one)
    assert streams.has_forgotten(STREAM)
    back = source(streams)
    assert list(back.old_books) == [before]
    assert (before.stop, back.said) == (3, EPOCH)
    assert not streams.has_forgotten(STREAM)
    assert streams.counters["streams_back"] == 1


def test_of_a_forgotten_stream_the_epochs_that_matter_are_kept() -> None:
    streams = incoming()
    one = source(streams)
    for epoch, taken in ((1, 4), (2, 5), (EPOCH, 0), (EPOCH + 4, 0), (EPOCH + 5, 0)):
        books = Books(STREAM, epoch, 0)
        books.consumed = taken
        one.old_books.append(books)
    forget(streams, one)
    with streams.lock:
        left = streams.left(STREAM)
    # The last that anything was taken of, the publisher's own last, and the newest of all.
    assert [books.epoch for books in left.books] == [2, EPOCH, EPOCH + 5]
    assert left.said == EPOCH


@pytest.mark.parametrize(
    ("tail", "moved"),
    [
        (Tail(STREAM, EPOCH, 0, 3), set()),
        (Tail(STREAM, EPOCH, 0, 4), {STREAM}),
        (Tail(STREAM, EPOCH + 1, 0, 0), {STREAM}),
        (Tail(STREAM, EPOCH - 1, 0, 99), set()),
        (Tail("pub/b", EPOCH, 0, 99), set()),
    ],
)
def test_forgotten_stream_goes_on_when_a_recorder_is_further(tail: Tail, moved: set[str]) -> None:
    streams = incoming()
    one = source(streams)
    enter(one, 0, 3)
    assert streams.moved([tail]) == set()  # it is not forgotten
    forget(streams, one)
    assert streams.moved([tail]) == moved


def test_history_counts_where_we_were_before_or_the_user_asks_for_it() -> None:
    streams = incoming()
    one = source(streams)
    enter(one, 0, 3)
    assert not streams.reaches_back(STREAM)
    forget(streams, one)
    assert streams.reaches_back(STREAM)
    assert not streams.reaches_back("pub/b")
    assert incoming(StartAt("earliest")).reaches_back("pub/b")


def test_named_subscription_has_yet_to_commit_what_was_forgotten() -> None:
    streams = incoming()
    one, other = source(streams), source(streams, "pub/b")
    enter(one, 0, 3)
    enter(other, 0, 2)
    forget(streams, one, is_named=True)
    forget(streams, other)
    assert [books[-1].stream for books in streams.uncommitted()] == [STREAM]
    streams.committed([STREAM])
    assert list(streams.uncommitted()) == []


def test_stream_that_is_back_is_committed_as_any_other() -> None:
    streams = incoming()
    one = source(streams)
    enter(one, 0, 3)
    forget(streams, one, is_named=True)
    source(streams)
    assert list(streams.uncommitted()) == []
