"""Whom a subscription asks for what it misses, and what recorders are believed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from meshmsg._links.outbound_peer import Link
from meshmsg._model.event import Loss
from meshmsg._model.message_fields import NACK_RANGES_MAX
from meshmsg._receive.incoming_stream import Lend, Source, StartAt, TailHint
from meshmsg._receive.repair_sources import (
    ASK_AGAIN_S,
    ASK_S,
    BEHIND_S,
    LENDERS_MAX,
    PATIENCE_S,
    Lending,
)
from meshmsg._receive.subscription_io import Intake
from meshmsg._wire.control import Gone, Nack, Start, Subscribe
from meshmsg.recovery.stream.receiver import StreamReceiver
from tests.support.receiving import EPOCH, STREAM, SUB, Receiving, admission, info, link, receiving


@pytest.fixture
def side() -> Iterator[Receiving]:
    with receiving() as made:
        yield made


def lend(side: Receiving, to: Link, *, asked: bool = False, name: str = STREAM) -> Lending:
    lending = side.intake.lending
    lending.on_lend(Lend(to, [info(name)], frozenset([name] if asked else [])), 0.0)
    return lending


def entered(side: Receiving, stop: int = 3, *, up: bool = True) -> tuple[Source, StreamReceiver]:
    """A stream of which the events before `stop` have come, and whether its publisher is there."""
    source = side.source()
    side.intake.epochs.on_admission(source, admission(), 0.0)
    if stop:
        side.give(source, 0, stop)
    assert source.receiver is not None
    side.taken()
    side.posted.clear()
    source.link.state = "up" if up else "dialling"
    return source, source.receiver


def hint(to: Link, next_: int, epoch: int = EPOCH) -> TailHint:
    return TailHint(STREAM, epoch, next_, lender=to)


def gone(first: int, stop: int, reason: str, answers: int = 0) -> Gone:
    return Gone(SUB, STREAM, EPOCH, [(first, stop)], reason, answers)


# Who there is ----------------------------------------------------------------------------------


def test_recorder_brings_a_stream_that_nobody_else_has_offered(side: Receiving) -> None:
    recorder = link()
    lend(side, recorder)
    source = side.intake.incoming.by_name[STREAM]
    assert source.lenders == [recorder]
    assert not source.has_publisher


def test_recorder_that_was_asked_is_waited_for_until_its_time_is_up(side: Receiving) -> None:
    lending = lend(side, link(), asked=True)
    source = side.intake.incoming.by_name[STREAM]
    assert lending.is_asking(source, ASK_S - 0.1)
    assert not lending.is_asking(source, ASK_S)
    assert side.intake.counters["lender_timeouts"] == 1


def test_recorder_that_comes_again_puts_nothing_off(side: Receiving) -> None:
    recorder = link()
    lending = lend(side, recorder, asked=True)
    source = side.intake.incoming.by_name[STREAM]
    lending.on_lend(Lend(recorder, [info()], frozenset([STREAM])), 2.0)
    assert source.lenders == [recorder]
    assert not lending.is_asking(source, ASK_S)


def test_recorder_that_is_gone_is_not_waited_for(side: Receiving) -> None:
    recorder = link()
    lending = lend(side, recorder, asked=True)
    recorder.state = "dialling"
    assert not lending.is_asking(side.intake.incoming.by_name[STREAM], 0.0)
    assert not side.intake.counters["lender_timeouts"]


def test_recorders_that_left_make_room_and_no_more_than_the_limit_are_taken(
    side: Receiving,
) -> None:
    recorders = [link() for _ in range(LENDERS_MAX + 1)]
    for recorder in recorders:
        lend(side, recorder)
    source = side.intake.incoming.by_name[STREAM]
    assert source.lenders == recorders[:LENDERS_MAX]
    recorders[0].state = "left"
    lend(side, recorders[-1])
    assert source.lenders == recorders[1:]


@pytest.mark.parametrize(("start", "waits"), [(StartAt("earliest"), True), (StartAt(), False)])
def test_history_waits_for_peers_that_have_yet_to_answer(start: StartAt, waits: bool) -> None:
    with receiving(start) as side:
        source, lending = side.source(), side.intake.lending
        lending.on_attach(source, True, 0.0)
        assert lending.is_asking(source, PATIENCE_S - 0.1) is waits
        lending.on_attach(source, True, 10.0)
        lending.on_complete(10.1)
        assert not lending.is_asking(source, 10.2)
        assert not side.intake.counters["lender_timeouts"]


def test_history_of_a_recorder_waits_for_peers_that_have_yet_to_answer() -> None:
    """One of them may be the publisher, which has more."""
    with receiving(StartAt("earliest")) as side:
        lending, recorder = side.intake.lending, link()
        lending.on_lend(Lend(recorder, [info()], frozenset([STREAM]), more=True), 0.0)
        source = side.intake.incoming.by_name[STREAM]
        lending.on_admission(source, recorder, admission(0, 5, recorded=True), 0.0)
        assert lending.is_asking(source, PATIENCE_S - 0.1)
        assert not lending.is_asking(source, PATIENCE_S)
        assert not side.intake.counters["lender_timeouts"]


def test_recorder_that_is_behind_is_not_waited_for_where_nothing_has_begun() -> None:
    with receiving(StartAt("earliest")) as side:
        source = side.source()
        lending = lend(side, recorder := link(), asked=True)
        lending.put(source, admission(0, 2, epoch=EPOCH + 1))
        lending.on_admission(source, recorder, admission(0, 5, recorded=True), 0.0)
        assert not lending.is_asking(source, 0.0)


# Repair ----------------------------------------------------------------------------------------


def test_publisher_alone_is_asked_for_everything(side: Receiving) -> None:
    source, receiver = entered(side)
    side.intake.lending.ask(source, receiver, [(3, 5), (7, 9)], 0.0)
    assert side.posted == [(source.link, Nack(SUB, STREAM, EPOCH, [(3, 5), (7, 9)], 0))]
    assert side.intake.counters["nacks"] == 1


def test_request_has_no_more_ranges_than_a_message_takes(side: Receiving) -> None:
    source, receiver = entered(side)
    ranges = [(n, n + 1) for n in range(3, 3 + 2 * NACK_RANGES_MAX + 4, 2)]
    side.intake.lending.ask(source, receiver, ranges, 0.0)
    (request,) = side.asked(Nack)
    assert request.ranges == ranges[:NACK_RANGES_MAX]


def test_nobody_is_asked_where_nobody_is(side: Receiving) -> None:
    source, receiver = entered(side)
    source.link = None
    side.intake.lending.ask(source, receiver, [(3, 5)], 0.0)
    assert side.posted == []


def test_recorders_are_asked_for_what_the_publisher_refuses(side: Receiving) -> None:
    source, receiver = entered(side)
    recorder = link()
    lending = lend(side, recorder)
    receiver.on_tail(9, now=0.0)
    lending.ask(source, receiver, [(3, 9)], 0.0)
    assert [to for to, _ in side.posted] == [source.link]
    lending.on_gone(source, receiver, source.link, gone(3, 6, "expired"), 0.0)
    assert [(to, one.ranges) for to, one in side.posted[1:]] == [(recorder, [(3, 6)])]
    assert side.intake.counters["lender_nacks"] == 1


def test_what_nobody_has_is_lost_for_the_reason_that_the_publisher_gave(side: Receiving) -> None:
    source, receiver = entered(side)
    recorder = link()
    lending = lend(side, recorder)
    receiver.on_tail(9, now=0.0)
    lending.on_gone(source, receiver, source.link, gone(3, 6, "expired"), 0.0)
    assert side.taken() == []
    lending.on_gone(source, receiver, recorder, gone(3, 9, "unknown"), 0.0)
    lost = [Loss(STREAM, EPOCH, 3, 6, "expired")]
    assert side.taken() == lost  # the rest is asked of the publisher, which has not refused it
    assert side.asked(Nack)[-1].ranges == [(6, 9)]


def test_recorder_that_may_be_back_is_waited_for(side: Receiving) -> None:
    source, receiver = entered(side)
    recorder = link()
    lending = lend(side, recorder)
    receiver.on_tail(9, now=0.0)
    recorder.state = "dialling"
    lending.on_gone(source, receiver, source.link, gone(3, 9, "expired"), 0.0)
    assert side.taken() == []
    recorder.state = "left"
    lending.ask(source, receiver, [(3, 9)], 0.0)
    assert side.taken() == [Loss(STREAM, EPOCH, 3, 9, "expired")]


def test_without_recorders_the_publisher_decides_alone(side: Receiving) -> None:
    source, receiver = entered(side)
    receiver.on_tail(9, now=0.0)
    side.intake.lending.on_gone(source, receiver, source.link, gone(3, 6, "overflow"), 0.0)
    assert side.taken() == [Loss(STREAM, EPOCH, 3, 6, "overflow")]


def test_nobody_else_can_say_that_events_are_gone(side: Receiving) -> None:
    source, receiver = entered(side)
    receiver.on_tail(9, now=0.0)
    side.intake.lending.on_gone(source, receiver, link(), gone(3, 9, "expired"), 0.0)
    assert side.taken() == []
    assert receiver.missing == 6
    assert side.intake.counters["bad_messages"] == 1


@pytest.mark.parametrize(("durable", "away"), [(True, True), (False, False)])
def test_log_of_a_publisher_that_is_away_is_waited_for(durable: bool, away: bool) -> None:
    with receiving() as side:
        source = side.source(durable=durable)
        assert not side.intake.lending.is_away(source)
        source.link.state = "dialling"
        assert side.intake.lending.is_away(source) is away
        lending = lend(side, link())  # who has recorded it can be asked meanwhile
        assert not lending.is_away(source)
        assert lending.may_have(source)


# Claims ----------------------------------------------------------------------------------------


def test_claim_counts_only_while_the_publisher_is_away(side: Receiving) -> None:
    source, receiver = entered(side, up=True)
    recorder = link()
    lending = lend(side, recorder)
    lending.on_claim(source, hint(recorder, 9), 0.0)
    assert receiver.missing == 0
    source.link.state = "dialling"
    lending.on_claim(source, hint(recorder, 9), 0.0)
    assert receiver.claimed == [(3, 9)]
    source.link.state = "up"
    lending.follow(source, 0.0)
    assert receiver.claimed == []


def test_claim_of_a_stranger_counts_nothing(side: Receiving) -> None:
    source, receiver = entered(side, up=False)
    lend(side, link()).on_claim(source, hint(link(), 9), 0.0)
    assert receiver.missing == 0


def test_claimed_events_that_are_refused_are_forgotten_and_not_lost(side: Receiving) -> None:
    source, receiver = entered(side, up=False)
    recorder = link()
    lending = lend(side, recorder)
    lending.on_claim(source, hint(recorder, 9), 0.0)
    lending.ask(source, receiver, [(3, 9)], 0.0)
    lending.on_gone(source, receiver, recorder, gone(3, 9, "unknown"), 0.0)
    lending.ask(source, receiver, [(3, 9)], 0.0)
    assert (receiver.missing, side.taken()) == (0, [])


def test_what_a_recorder_has_noted_as_gone_is_lost_where_a_later_epoch_waits(
    side: Receiving,
) -> None:
    source, receiver = entered(side, up=False)
    recorder, other = link(), link()
    lending = lend(side, recorder)
    lend(side, other)
    lending.on_claim(source, hint(recorder, 7), 0.0)
    lending.on_claim(source, hint(other, 9), 0.0)
    other.state = "left"
    lending.put(source, admission(epoch=EPOCH + 1, recorded=True))
    lending.on_gone(source, receiver, recorder, gone(3, 7, "corrupt"), 0.0)
    assert side.taken() == [Loss(STREAM, EPOCH, 3, 7, "corrupt")]
    assert receiver.missing == 0


def test_what_a_recorder_has_noted_as_gone_is_asked_of_a_publisher_that_is_there(
    side: Receiving,
) -> None:
    """It is back in a later epoch, and has yet to say what its log has of this one."""
    source, receiver = entered(side, up=False)
    lending = lend(side, recorder := link())
    lending.on_claim(source, hint(recorder, 9), 0.0)
    source.attach(info(epoch=EPOCH + 1), source.link)
    source.link.state = "up"
    lending.put(source, admission(epoch=EPOCH + 1, recorded=True))
    lending.on_gone(source, receiver, recorder, gone(3, 9, "corrupt"), 0.0)
    assert side.taken() == []
    assert [(to, one.ranges) for to, one in side.posted] == [(source.link, [(3, 9)])]


def test_epoch_of_a_recorder_that_serves_nothing_of_it_is_no_loss_beside_the_publisher(
    side: Receiving,
) -> None:
    source, receiver = entered(side, stop=0, up=False)
    lending = lend(side, recorder := link())
    lending.on_claim(source, hint(recorder, 9), 0.0)
    source.attach(info(epoch=EPOCH + 1), source.link)
    source.link.state = "up"
    lending.put(source, admission(epoch=EPOCH + 1))
    lending.on_gone(source, receiver, recorder, gone(0, 9, "corrupt"), 0.0)
    assert (side.taken(), receiver.missing, side.posted) == ([], 0, [])


def test_nothing_is_lost_before_the_publisher_can_have_been_found(side: Receiving) -> None:
    lending = lend(side, recorder := link())
    source = side.intake.incoming.by_name[STREAM]
    side.intake.epochs.on_admission(source, admission(recorded=True), 0.0)
    receiver = source.receiver
    assert receiver is not None
    lending.on_claim(source, hint(recorder, 9), 0.0)
    lending.put(source, admission(epoch=EPOCH + 1, recorded=True))
    found_at = source.seen_at
    lending.on_gone(source, receiver, recorder, gone(0, 9, "corrupt"), found_at + 0.9 * PATIENCE_S)
    assert (side.taken(), receiver.missing) == ([], 9)
    lending.ask(source, receiver, [(0, 9)], found_at + PATIENCE_S)
    assert side.taken() == [Loss(STREAM, EPOCH, 0, 9, "corrupt")]


def test_later_epoch_of_a_recorder_is_asked_for_where_the_publisher_is_away(
    side: Receiving,
) -> None:
    source, _ = entered(side, up=False)
    recorder = link()
    lending = lend(side, recorder)
    lending.on_claim(source, hint(recorder, 2, EPOCH + 1), 0.0)
    wanted = Subscribe(SUB, ["a.**"], [Start(STREAM, "resume", 3, EPOCH)])
    assert side.posted == [(recorder, wanted)]
    lending.on_claim(source, hint(recorder, 2, EPOCH + 1), 0.0)  # asked already
    assert len(side.posted) == 1


def test_what_is_written_down_follows_publishers_only() -> None:
    class Follower(Intake):
        follows_recorders = False

    with receiving(kind=Follower) as side:
        source, receiver = entered(side, up=False)
        recorder = link()
        lending = lend(side, recorder)
        lending.on_claim(source, hint(recorder, 9), 0.0)
        lending.on_claim(source, hint(recorder, 9, EPOCH + 1), 0.0)
        assert (receiver.missing, side.posted) == (0, [])


# Epochs ----------------------------------------------------------------------------------------


def test_epoch_of_a_recorder_needs_the_publisher_s_word_where_that_is_there(
    side: Receiving,
) -> None:
    source = side.source()
    recorder = link()
    lending = lend(side, recorder)
    for epoch, taken in ((EPOCH, True), (EPOCH + 1, False)):
        lent = admission(0, 5, epoch=epoch, recorded=True)
        assert lending.may_enter(source, lent) is taken
        assert (lending.on_admission(source, recorder, lent, 0.0) is not None) is taken
    assert side.intake.counters["unproved_epochs"] == 1
    source.link.state = "dialling"
    assert lending.may_enter(source, admission(epoch=EPOCH + 1, recorded=True))


def test_what_a_recorder_has_is_a_start_and_no_proof_of_events(side: Receiving) -> None:
    lending = lend(side, recorder := link(), asked=True)
    source = side.intake.incoming.by_name[STREAM]
    taken = lending.on_admission(source, recorder, admission(4, 9, recorded=True), 0.0)
    assert taken is not None
    assert (taken.first, taken.start, taken.next) == (4, 4, 4)
    assert not lending.is_asking(source, 0.0)  # it has answered


def test_place_of_before_is_where_a_recorder_s_epoch_begins() -> None:
    with receiving(StartAt("earliest")) as side:
        source, _ = entered(side)
        side.intake.incoming.forget(source, is_named=False)
        lending = lend(side, recorder := link())
        source = side.intake.incoming.by_name[STREAM]
        taken = lending.on_admission(source, recorder, admission(0, 9, recorded=True), 0.0)
        assert taken is not None
        assert taken.start == 3
        old = admission(0, 9, epoch=EPOCH - 1, recorded=True)
        assert lending.on_admission(source, recorder, old, 0.0) is None


def test_publisher_that_begins_anew_has_recorders_asked_for_the_end_of_the_epoch_before(
    side: Receiving,
) -> None:
    source, _ = entered(side)
    lending = lend(side, recorder := link())
    source.said = EPOCH
    lending.on_admission(source, source.link, admission(epoch=EPOCH + 1), 0.0)
    assert side.posted[-1][0] is recorder
    assert side.asked(Subscribe)[-1].starts == [Start(STREAM, "resume", 3, EPOCH)]
    assert lending.is_asking(source, 0.0)
    # One that has not heard of the new epoch is asked again, for a while.
    source.admissions.append(admission(epoch=EPOCH + 1))
    late = admission(0, 3, recorded=True)
    lending.on_admission(source, recorder, late, BEHIND_S - 0.1)
    assert lending.is_asking(source, ASK_AGAIN_S)
    assert len(side.asked(Subscribe)) == 2
    lending.on_admission(source, recorder, late, BEHIND_S)
    assert not lending.is_asking(source, BEHIND_S)


def test_good_byes_of_an_epoch_before_are_counted_and_dropped(side: Receiving) -> None:
    source, _ = entered(side)
    source.said = EPOCH
    old = admission(0, 2, epoch=EPOCH - 1, over=True)
    assert side.intake.lending.on_admission(source, source.link, old, 0.0) is None
    assert side.intake.counters["stale_admissions"] == 1


def test_epochs_wait_in_their_order_and_each_once() -> None:
    with receiving(StartAt("earliest")) as side:
        source = side.source()
        lending = lend(side, link())
        lending.put(source, admission(2, 9, epoch=5, recorded=True))
        lending.put(source, admission(0, 4, epoch=4, recorded=True))
        lending.put(source, admission(1, 7, epoch=5, recorded=True))
        assert [(one.epoch, one.start, one.next) for one in source.admissions] == [
            (4, 0, 4),
            (5, 1, 7),
        ]
        assert lending.awaits_publisher(source)
        # The publisher's word takes the place, and begins where a recorder goes back to.
        lending.put(source, admission(6, 20, epoch=5))
        assert [(one.epoch, one.start, one.recorded) for one in source.admissions][1] == (
            5,
            1,
            False,
        )
        assert not lending.awaits_publisher(source)
