"""One stream at a subscriber: where it starts, what is known of it, what is told of its books."""

from __future__ import annotations

import pytest

from meshmsg._model.batch import Batch
from meshmsg._model.codecs import MsgpackCodec
from meshmsg._model.event import Position
from meshmsg._receive.incoming_stream import Books, Source, StartAt, figures_of, heard_next, row_of
from meshmsg._wire.control import Start
from meshmsg._wire.packet import PacketBeat
from meshmsg.recovery.stream.loss_detector import NackTiming
from meshmsg.recovery.stream.receiver import StreamReceiver
from tests.support.receiving import EPOCH, STREAM, frame, info, link

CODEC = MsgpackCodec()
HERE = Position(STREAM, EPOCH, 9)


@pytest.mark.parametrize(
    ("start", "born", "asked"),
    [
        (StartAt(), False, Start(STREAM, "live")),
        (StartAt("last", 5), False, Start(STREAM, "last", 5)),
        (StartAt("time", 77), False, Start(STREAM, "time", 77)),
        (StartAt(position=HERE), False, Start(STREAM, "resume", 9, EPOCH)),
        (StartAt(position=Position("pub/b", 1, 2)), False, Start(STREAM, "live")),
        (StartAt("earliest", committed={STREAM: HERE}), True, Start(STREAM, "resume", 9, EPOCH)),
        (StartAt("earliest", committed={}), False, Start(STREAM, "earliest")),
        (StartAt(), True, Start(STREAM, "origin")),
    ],
)
def test_start_is_asked_for_as_the_user_said(start: StartAt, born: bool, asked: Start) -> None:
    assert start.for_stream(STREAM, born=born) == asked


@pytest.mark.parametrize(
    ("start", "back"),
    [
        (StartAt(), False),
        (StartAt("earliest"), True),
        (StartAt("last", 1), True),
        (StartAt(position=HERE), True),
        (StartAt(position=Position("pub/b", 1, 2)), False),
    ],
)
def test_start_reaches_back_or_not(start: StartAt, back: bool) -> None:
    assert start.reaches_back(STREAM) is back


@pytest.mark.parametrize(
    ("start", "event"),
    [
        (StartAt("earliest"), 100),
        (StartAt("last", 30), 170),
        (StartAt("last", 500), 100),  # no more than there is
        (StartAt(position=Position(STREAM, EPOCH, 150)), 150),
        (StartAt(position=Position(STREAM, EPOCH, 5)), 100),
        (StartAt(position=Position(STREAM, EPOCH, 999)), 200),
    ],
)
def test_feed_starts_by_what_its_heartbeat_says_that_there_is(start: StartAt, event: int) -> None:
    at = start.for_beat(STREAM)
    assert at is not None
    assert at(PacketBeat(1, EPOCH, 60, 40, 100, 200, 1, 0)) == (40, event)


def test_live_feed_starts_with_what_comes_next() -> None:
    assert StartAt().for_beat(STREAM) is None
    assert StartAt(position=Position("pub/b", 1, 2)).for_beat(STREAM) is None


def source() -> Source:
    return Source(info(), 1, link(), CODEC)


def received(one: Source, start: int = 0) -> StreamReceiver:
    one.receiver = StreamReceiver(
        STREAM,
        EPOCH,
        start,
        timing=NackTiming(delay_s=0.0, retry_s=1.0, deadline_s=9.0),
        pending_bytes_max=1 << 20,
    )
    return one.receiver


def test_publisher_is_there_while_its_link_is_up() -> None:
    one, to = source(), link()
    assert not one.has_publisher  # announced, but not attached
    one.attach(info(), to)
    assert one.has_publisher
    to.state = "dialling"
    assert not one.has_publisher


def test_recorder_that_turns_out_to_be_the_publisher_lends_no_more() -> None:
    one, to = source(), link()
    one.lenders = [to]
    one.attach(info(epoch=EPOCH), to)
    assert (one.lenders, one.said) == ([], EPOCH)
    one.attach(info(epoch=EPOCH - 1), to)
    assert one.said == EPOCH  # it has spoken of a later epoch


def test_epoch_that_the_publisher_has_not_spoken_of_is_lent() -> None:
    one = source()
    received(one)
    assert not one.is_lent  # nobody knows better
    one.attach(info(epoch=EPOCH - 1), link())
    assert one.is_lent
    one.said = EPOCH
    assert not one.is_lent


def test_where_we_were_is_the_last_epoch_that_counts() -> None:
    one = source()
    own, lent = Books(STREAM, EPOCH, 0), Books(STREAM, EPOCH + 4, 0)
    one.old_books.extend([own, lent])
    one.said = EPOCH
    assert one.was_entered
    assert one.left(led=False) is own
    assert one.left(led=True) is lent
    received(one)
    assert one.left(led=True) is None


def test_what_was_heard_of_does_not_fall_behind_what_came() -> None:
    one = source()
    received(one)
    one.heard_next = 12
    assert heard_next(one) == 12


def test_consumer_inside_a_batch_has_taken_what_it_has_seen_of_it() -> None:
    books = Books(STREAM, EPOCH, 10)
    books.delivered, books.filtered, books.consumed = 5, 5, 20
    batch = Batch(frame(10, 20), STREAM, CODEC, 0, 10, [0, 2, 4, 6, 8])
    left_two = figures_of(books, 30, batch, 2)
    assert (left_two.consumed, left_two.delivered, left_two.filtered) == (16, 3, 3)
    done = figures_of(books, 30, batch, 0)
    assert (done.consumed, done.delivered, done.filtered, done.received) == (20, 5, 5, 30)


def test_figures_never_say_less_received_than_consumed() -> None:
    books = Books(STREAM, EPOCH, 0)
    books.consumed = 7
    assert figures_of(books, 0, None, 0).received == 7


def test_row_of_the_ledger_reconciles_with_what_is_in_flight() -> None:
    books = Books(STREAM, EPOCH, 5)
    books.consumed, books.delivered, books.filtered = 15, 6, 1
    books.lost["overflow"] = 3
    row = row_of(figures_of(books, 18, None, 0), "me/-", 20, "live")
    assert row.reconciles
    assert (row.stream, row.epoch, row.state, row.in_flight) == (STREAM, EPOCH, "live", 5)
