"""When an epoch is entered, when the one before is over, and what becomes of what was lent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from meshmsg._model.event import Loss
from meshmsg._receive import epochs as module
from meshmsg._receive.epochs import SOURCES_A_TURN
from meshmsg._receive.incoming_stream import Source, StartAt, TailHint
from meshmsg._wire.control import StreamInfo, Subscribed
from meshmsg.recovery.stream.receiver import HINT_GRACE_S
from tests.support.receiving import EPOCH, STREAM, Receiving, admission, frame, link, receiving

NEXT = EPOCH + 1
QUIET = HINT_GRACE_S + 0.01


@pytest.fixture
def side() -> Iterator[Receiving]:
    with receiving() as made:
        yield made


def admit(side: Receiving, source: Source, one: Subscribed, now: float = 0.0) -> None:
    side.intake.epochs.on_admission(source, one, now)


def entered(side: Receiving, stop: int = 3, *, lent: bool = False, **fields: object) -> Source:
    """A stream whose first events have been taken."""
    source = side.source(**fields)  # type: ignore[arg-type]
    if lent:
        source.link.state = "dialling"
        source.said = 0
        source.info = StreamInfo(STREAM, "a.**", 0, "buffer", "msgpack", 1 << 20)
    admit(side, source, admission(recorded=lent))
    if stop:
        side.give(source, 0, stop)
        assert side.taken() == [(EPOCH, 0, stop)]
    return source


def epoch_of(source: Source) -> tuple[int, int]:
    assert source.receiver is not None
    return source.receiver.epoch, source.receiver.start


# The first -------------------------------------------------------------------------------------


def test_first_epoch_is_entered_at_once(side: Receiving) -> None:
    source = side.source()
    admit(side, source, admission(5, 9))
    assert epoch_of(source) == (EPOCH, 5)
    assert source.heard_next == 9
    assert side.reports == 0


def test_publisher_of_a_log_is_told_at_once_that_it_is_counted_on(side: Receiving) -> None:
    source = side.source(durable=True)
    admit(side, source, admission())
    assert side.reports == 1


def test_events_that_exist_already_are_asked_for(side: Receiving) -> None:
    source = side.source()
    admit(side, source, admission(2, 9))
    assert source.receiver is not None
    assert source.receiver.missing == 7


def test_frames_that_came_before_their_epoch_are_in_order_when_it_is_entered(
    side: Receiving,
) -> None:
    source = side.source()
    side.intake.epochs.stash(source, frame(3, 5))
    side.intake.epochs.stash(source, frame(0, 2, epoch=NEXT))
    side.intake.epochs.stash(source, frame(0, 3))
    admit(side, source, admission(2))
    assert side.taken() == [(EPOCH, 2, 3), (EPOCH, 3, 5)]
    admit(side, source, admission(0, epoch=NEXT))
    side.intake.epochs.go_on(QUIET)
    assert side.taken() == [(NEXT, 0, 2)]
    assert source.stash_bytes == 0


def test_stash_has_an_end_and_wants_nothing_old(
    side: Receiving, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = entered(side)
    early = frame(0, 2, epoch=NEXT)
    monkeypatch.setattr(module, "STASH_BYTES_MAX", 2 * len(early.data))
    for _ in range(3):
        side.intake.epochs.stash(source, early)
    side.intake.epochs.stash(source, frame(0, 2, epoch=EPOCH - 1))
    assert len(source.stash) == 2
    assert side.intake.counters["stash_full"] == 1
    assert side.intake.counters["stale_frames"] == 1


# From one to the next --------------------------------------------------------------------------


def test_next_epoch_waits_until_the_one_before_is_quiet(side: Receiving) -> None:
    source = entered(side)
    admit(side, source, admission(epoch=NEXT), now=1.0)
    assert epoch_of(source)[0] == EPOCH
    side.give(source, 3, 5, now=1.0)  # it was on its way
    source.data_at = 1.1
    assert side.intake.epochs.go_on(1.0 + QUIET)
    assert epoch_of(source)[0] == EPOCH
    assert not side.intake.epochs.go_on(1.1 + QUIET)
    assert epoch_of(source) == (NEXT, 0)
    assert side.taken() == [(EPOCH, 3, 5)]
    assert [(books.epoch, books.stop) for books in source.old_books] == [(EPOCH, 5)]


def test_time_without_room_to_read_is_not_quiet(side: Receiving) -> None:
    source = entered(side)
    admit(side, source, admission(epoch=NEXT))
    side.intake.ready.full_at = 1.0
    assert side.intake.epochs.go_on(1.1)
    assert epoch_of(source)[0] == EPOCH


def test_what_is_missing_of_an_epoch_went_with_its_process(side: Receiving) -> None:
    source = entered(side)
    source.heard_next = 6
    admit(side, source, admission(epoch=NEXT))
    side.intake.epochs.go_on(QUIET)
    assert side.taken() == [Loss(STREAM, EPOCH, 3, 6, "gone")]
    assert epoch_of(source)[0] == NEXT


def test_good_bye_says_how_far_an_epoch_went(side: Receiving) -> None:
    source = entered(side)
    assert source.receiver is not None
    side.intake.epochs.on_tail_hint(
        source, source.receiver, TailHint(STREAM, EPOCH, 5, final=True), 0.0
    )
    assert side.intake.incoming.leavers
    admit(side, source, admission(epoch=NEXT))
    side.intake.epochs.go_on(QUIET)
    assert side.taken() == [Loss(STREAM, EPOCH, 3, 5, "gone")]


def test_epoch_that_a_log_has_the_end_of_is_read_to_its_end(side: Receiving) -> None:
    source = entered(side, durable=True)
    admit(side, source, admission(3, 5, over=True))
    admit(side, source, admission(epoch=NEXT))
    assert side.intake.epochs.go_on(100.0)
    assert epoch_of(source)[0] == EPOCH
    side.give(source, 3, 5)
    assert not side.intake.epochs.go_on(100.0)  # at once: the log has no more of it
    assert epoch_of(source)[0] == NEXT


def test_words_of_an_epoch_that_is_over_are_dropped_on_a_durable_stream(side: Receiving) -> None:
    source = entered(side, durable=True)
    admit(side, source, admission(0, 2, epoch=EPOCH - 1, over=True))
    assert not source.admissions
    assert side.intake.counters["stale_admissions"] == 1


def test_several_epochs_are_entered_one_after_the_other(side: Receiving) -> None:
    source = entered(side, durable=True)
    admit(side, source, admission(3, 3, over=True))
    admit(side, source, admission(0, 2, epoch=NEXT, over=True))
    admit(side, source, admission(0, epoch=NEXT + 1))
    assert side.intake.epochs.go_on(0.0)
    assert epoch_of(source)[0] == NEXT
    side.give(source, 0, 2)
    assert not side.intake.epochs.go_on(0.0)
    assert epoch_of(source)[0] == NEXT + 1


def test_streams_take_turns_when_many_have_a_next_epoch(side: Receiving) -> None:
    count = SOURCES_A_TURN + 10
    sources = [side.source(f"pub/{n}", durable=True) for n in range(count)]
    for source in sources:
        name = source.info.name
        admit(side, source, admission(name=name))
        admit(side, source, admission(name=name, over=True))
        admit(side, source, admission(name=name, epoch=NEXT))
    assert side.intake.epochs.go_on(0.0)
    assert sum(epoch_of(source)[0] == NEXT for source in sources) == SOURCES_A_TURN
    assert not side.intake.epochs.go_on(0.0)
    assert all(epoch_of(source)[0] == NEXT for source in sources)


def test_no_epoch_begins_before_the_place_where_it_was_left(side: Receiving) -> None:
    source = entered(side, stop=5)
    admit(side, source, admission(epoch=NEXT))
    side.intake.epochs.go_on(QUIET)
    admit(side, source, admission(0, 9), now=1.0)  # it is back in the first one
    side.intake.epochs.go_on(1.0 + QUIET)
    assert epoch_of(source) == (EPOCH, 5)
    assert source.books.delivered == 5  # and goes on with its books


# Coming back -----------------------------------------------------------------------------------


def test_publisher_that_is_back_in_the_same_epoch_may_have_sent_more(side: Receiving) -> None:
    source = entered(side)
    admit(side, source, admission(3, 9), now=1.0)
    assert source.receiver is not None
    assert source.receiver.missing == 0  # it may be on its way
    source.receiver.on_deadline(now=1.0 + QUIET)
    assert source.receiver.missing == 6
    assert source.heard_next == 9


def test_tail_of_another_epoch_says_nothing_of_this_one(side: Receiving) -> None:
    source = entered(side)
    assert source.receiver is not None
    side.intake.epochs.on_tail_hint(source, source.receiver, TailHint(STREAM, NEXT, 99), 0.0)
    assert source.heard_next < 99
    assert source.receiver.missing == 0


def test_lent_epoch_that_its_publisher_does_not_know_is_withdrawn(side: Receiving) -> None:
    source = entered(side, lent=True)
    side.give(source, 3, 5)  # ready, and not taken
    source.link.state = "up"
    source.admissions.append(admission(epoch=NEXT + 1, recorded=True))
    admit(side, source, admission(0, 4, epoch=EPOCH - 1))
    assert side.intake.counters["disowned"] == 1
    side.intake.epochs.go_on(QUIET)
    assert side.taken() == []
    assert epoch_of(source) == (EPOCH - 1, 0)
    assert [books.epoch for books in source.old_books] == [EPOCH]


def test_lent_events_beyond_what_the_publisher_has_are_withdrawn(side: Receiving) -> None:
    source = entered(side, lent=True)
    source.lenders = [link()]
    assert source.receiver is not None
    source.receiver.on_claim(8, now=0.0)
    ready = source.receiver.on_frame(frame(3, 8), now=0.0, repair=True, lent=True)
    side.intake.ready.put(source, ready)
    source.link.state = "up"
    admit(side, source, admission(0, 6))
    assert side.intake.counters["disowned"] == 1
    assert side.taken() == [(EPOCH, 3, 6)]
    assert epoch_of(source) == (EPOCH, 6)


def test_lent_start_that_lies_beyond_the_publisher_begins_where_history_does() -> None:
    with receiving(StartAt("earliest")) as side:
        source = side.source()
        source.link.state = "dialling"
        admit(side, source, admission(50, recorded=True))
        source.link.state = "up"
        admit(side, source, admission(2, 9, first=2))
        assert epoch_of(source) == (EPOCH, 2)
