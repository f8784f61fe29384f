"""One subscription as whoever drives it sees it: notices and messages in, batches out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from meshmsg._model.batch import Batch
from meshmsg._model.event import Loss, Position
from meshmsg._model.multicast_config import Multicast
from meshmsg._receive.committed_positions import Bookmarks
from meshmsg._receive.delivery_samples import EVERY_S
from meshmsg._receive.incoming_stream import (
    Attach,
    Detach,
    RepairFrame,
    Said,
    Source,
    StartAt,
    Sweep,
    TailHint,
)
from meshmsg._receive.multicast_receiver import info_of
from meshmsg._receive.subscription_io import (
    BACKGROUND_AFTER_S,
    BACKGROUND_PACKETS_S,
    LEAVE_AFTER_S,
)
from meshmsg._wire.control import Evicted, Gone, Nack, Start, stream_wire_id
from meshmsg.recovery.stream.loss_detector import NEVER
from meshmsg.recovery.stream.receiver import HINT_GRACE_S
from meshmsg.transports.udp.multicast import Datagram
from tests.scenarios.multicast.conftest import new_group
from tests.support.receiving import (
    EPOCH,
    MESH,
    STREAM,
    SUB,
    Receiving,
    admission,
    beat,
    data,
    frame,
    info,
    link,
    packets,
    receiving,
)
from tests.support.waiting import wait_until


@pytest.fixture
def side() -> Iterator[Receiving]:
    with receiving() as made:
        yield made


def admitted(side: Receiving, start: int = 0, next_: int | None = None, **fields: Any) -> Source:
    """A stream that its publisher has admitted us to."""
    source = side.source(**fields)
    said = Said(source.link, source.info.name, admission(start, next_, name=source.info.name))
    side.intake.notify(said)
    side.intake.pump(0.0)
    return source


def calm(side: Receiving) -> None:
    """Nothing but data is to be seen to."""
    for _ in range(2):
        side.intake.pump(1.0)


PREFIX = stream_wire_id(MESH, STREAM).to_bytes(8, "little")


def connected(side: Receiving) -> None:
    """The publisher has seen our subscription to its stream."""
    wait_until(lambda: (True, PREFIX) in side.server.drain())


def left(side: Receiving) -> bool:
    """The publisher has seen the end of it."""
    return (False, PREFIX) in side.server.drain()


def sent(side: Receiving, *messages: bytes) -> None:
    """The publisher sends, and the first has come."""
    for message in messages:
        side.server.send(message)
    side.client.await_message()


def rows(side: Receiving) -> list[Any]:
    return side.intake.rows("me/-")


# Where to start --------------------------------------------------------------------------------


def test_stream_that_is_new_starts_as_the_user_said() -> None:
    with receiving(StartAt("last", 5)) as side:
        assert side.intake.start_for(info(), born=False) == Start(STREAM, "last", 5)


def test_stream_that_was_born_is_read_from_its_beginning_until_it_admits_us(
    side: Receiving,
) -> None:
    assert side.intake.start_for(info(), born=True) == Start(STREAM, "origin")
    assert side.intake.start_for(info(), born=False) == Start(STREAM, "origin")
    admitted(side)
    assert side.intake.start_for(info(), born=False) == Start(STREAM, "resume", 0, EPOCH)


def test_stream_that_is_received_goes_on_behind_what_was_taken(side: Receiving) -> None:
    source = admitted(side)
    side.give(source, 0, 5)
    assert side.intake.start_for(info(), born=False).value == 0
    side.taken()
    assert side.intake.start_for(info(), born=False) == Start(STREAM, "resume", 5, EPOCH)


def test_publisher_is_asked_to_go_on_where_it_was_itself(side: Receiving) -> None:
    """An epoch that only recorders vouch for says nothing to a publisher that is not in it."""
    source = admitted(side)
    side.give(source, 0, 5)
    side.taken()
    assert source.receiver is not None
    source.said, source.receiver.epoch, source.books.epoch = EPOCH, EPOCH + 1, EPOCH + 1
    assert side.intake.start_for(info(), born=False).kind == "live"
    assert side.intake.start_for(info(), born=False, lent=True).epoch == EPOCH + 1


@pytest.mark.parametrize(("start", "wants"), [(StartAt(), False), (StartAt("earliest"), True)])
def test_history_is_wanted_until_an_epoch_is_received(start: StartAt, wants: bool) -> None:
    with receiving(start) as side:
        assert side.intake.wants_history(STREAM) is wants
        admitted(side)
        assert not side.intake.wants_history(STREAM)


def test_streams_on_their_way_count_as_had(side: Receiving) -> None:
    side.source()
    side.intake.notify(Attach(link(), side.address, [info("pub/b")]))
    assert side.intake.streams() == {STREAM, "pub/b"}


# Data ------------------------------------------------------------------------------------------


def test_events_come_by_the_data_socket_in_order(side: Receiving) -> None:
    admitted(side)
    connected(side)
    sent(side, data(0, 2), data(2, 3))
    side.intake.pump(0.0)
    assert side.taken() == [(EPOCH, 0, 2)]
    side.client.await_message()
    side.intake.pump(0.0, read_ahead=True)
    assert side.taken() == [(EPOCH, 2, 3)]


def test_quick_way_gives_the_batch_itself(side: Receiving) -> None:
    admitted(side)
    connected(side)
    calm(side)
    sent(side, data(0, 2))
    assert side.intake.receive(1.0, 1.0) is True  # the topics of a stream are judged once
    assert side.taken() == [(EPOCH, 0, 2)]
    sent(side, data(2, 4))
    got = side.intake.receive(1.0, 1.0, as_events=True)
    assert isinstance(got, Batch)
    assert [event.data for event in side.intake.iterator] == [2, 3]


def sampled(side: Receiving) -> tuple[int, float]:
    """How many frames are measured, and how many events they had."""
    (source,) = side.intake.sources()
    sizes = source.samples.as_dict()["batch_events"] if source.samples else None
    return (0, 0.0) if sizes is None else (sum(sizes["counts"]), sizes["sum"])


def test_a_frame_is_measured_now_and_then_on_the_quick_way(side: Receiving) -> None:
    admitted(side)
    connected(side)
    calm(side)
    sent(side, data(0, 2))
    side.intake.receive(1.0, 1.0)  # the topics of a stream are judged once
    side.taken()
    before, events = sampled(side)
    now = time.monotonic() + 5.0
    for first, at in ((2, now), (4, now + EVERY_S / 2), (6, now + EVERY_S)):
        sent(side, data(first, first + 2))
        assert isinstance(side.intake.receive(at, at), Batch)
    assert sampled(side) == (before + 2, events + 4.0)


def test_a_frame_is_measured_now_and_then_on_the_long_way(
    side: Receiving, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = admitted(side)
    now = time.monotonic() + 5.0
    for first, at in ((0, now), (3, now + EVERY_S / 2), (6, now + EVERY_S)):
        monkeypatch.setattr(side.intake, "_monotonic", lambda at=at: at)
        side.give(source, first, first + 3)
        side.taken()
    assert sampled(side) == (2, 6.0)


def test_a_packet_is_measured_on_the_quick_way(
    side: Receiving, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1.0 - EVERY_S]
    monkeypatch.setattr(side.intake, "_monotonic", lambda: clock[0])
    sender = ("127.0.0.1", 4000)
    admitted(side, multicast=info_of(Multicast(new_group()), [sender]))
    reading = side.intake.reading
    first, *more = packets((0, 2), (2, 4))
    (line,) = reading.lines.values()
    reading.on_datagram(line, Datagram(first, len(first), sender), 1.0)  # the sender is known
    side.taken()
    calm(side)
    before, events = sampled(side)
    came = [Datagram(one, len(one), sender) for one in more]
    monkeypatch.setattr(line, "recv", lambda: came.pop(0))
    clock[0] = 1.0
    assert side.intake.receive(1.0, 1.0, as_events=True) is True
    assert [event.data for event in side.intake.iterator] == [2, 3]
    assert sampled(side) == (before + 1, events + 2.0)


def test_quick_way_is_left_while_there_is_more_to_see_to(side: Receiving) -> None:
    admitted(side)
    calm(side)
    side.intake.notify(Evicted(SUB, STREAM, "too slow"))
    assert side.intake.receive(1.0, 1.0) is False  # the inbox
    calm(side)
    assert side.intake.receive(1.0, 1.0) is None
    side.intake.incoming.timer_due = 0.0
    assert side.intake.receive(1.0, 1.0) is False


def test_heartbeat_tells_of_events_that_did_not_come(side: Receiving) -> None:
    source = admitted(side)
    connected(side)
    sent(side, beat(4))
    side.intake.pump(0.0)
    assert source.receiver is not None
    assert source.receiver.missing == 4
    side.intake.pump(0.001)
    side.intake.pump(0.5)
    assert side.asked(Nack)[0].ranges == [(0, 4)]


@pytest.mark.parametrize("noise", [b"", b"short", b"\0" * 40, data(0, 2)[:-1]])
def test_noise_on_the_data_socket_is_counted(side: Receiving, noise: bytes) -> None:
    admitted(side)
    wire_id = stream_wire_id(MESH, STREAM).to_bytes(8, "little")
    connected(side)
    sent(side, wire_id + noise[8:])
    side.intake.pump(0.0)
    assert side.taken() == []
    assert side.intake.counters["bad_messages"] == 1


def test_stream_that_is_not_ours_is_noise(side: Receiving) -> None:
    admitted(side)
    side.intake.incoming.by_wire.clear()
    connected(side)
    sent(side, data(0, 2))
    side.intake.pump(0.0)
    assert side.intake.counters["bad_messages"] == 1


# Handing over ----------------------------------------------------------------------------------


def test_events_of_other_topics_are_filtered_and_accounted_for(side: Receiving) -> None:
    source = admitted(side, topics="**")
    for first, topic in ((0, "a.b"), (2, ["a.b", "x.y"]), (4, "x.y")):
        assert source.receiver is not None
        two = frame(first, first + 2, topic=topic)
        side.intake.ready.put(source, source.receiver.on_frame(two, now=0.0))
    assert side.taken() == [(EPOCH, 0, 2), (EPOCH, 2, 4)]
    (row,) = rows(side)
    assert (row.delivered, row.filtered, row.reconciles) == (3, 3, True)


def test_topic_that_its_stream_may_not_carry_is_never_taken(side: Receiving) -> None:
    source = side.source(to=link(user=b"abc"), topics="a.ok.**")
    side.intake.notify(Said(source.link, STREAM, admission()))
    side.intake.pump(0.0)
    assert source.receiver is not None
    for first, topic in ((0, "a.ok.x"), (2, "a.other")):
        two = frame(first, first + 2, topic=topic)
        side.intake.ready.put(source, source.receiver.on_frame(two, now=0.0))
    assert side.taken() == [(EPOCH, 0, 2)]
    assert side.intake.counters["foreign_topics"] == 1


def test_consumer_that_goes_through_a_batch_leaves_the_rest_to_whoever_takes_batches(
    side: Receiving,
) -> None:
    source = admitted(side)
    side.give(source, 0, 5)
    side.intake.take(as_events=True)
    assert [next(side.intake.iterator).data for _ in range(2)] == [0, 1]
    (row,) = rows(side)
    assert (row.delivered, row.in_flight, row.reconciles) == (2, 3, True)
    assert side.intake.positions() == [Position(STREAM, EPOCH, 2)]
    assert side.taken() == [(EPOCH, 2, 5)]
    assert list(side.intake.iterator) == []
    assert side.intake.positions() == [Position(STREAM, EPOCH, 5)]


def test_loss_is_handed_over_in_its_place_and_counted(side: Receiving) -> None:
    source = admitted(side)
    side.give(source, 0, 1)
    lost = Loss(STREAM, EPOCH, 1, 4, "overflow")
    side.intake.ready.put(source, [lost])
    assert not side.intake.loss_is_next()
    assert side.taken() == [(EPOCH, 0, 1), lost]
    assert list(side.intake.losses) == [lost]
    assert side.intake.counters["lost"] == 3


def test_events_that_cannot_be_handed_over_are_a_loss(
    side: Receiving, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = admitted(side)
    side.give(source, 0, 3)

    def fail(self: Any) -> Any:
        raise RuntimeError("a defect")

    monkeypatch.setattr(Batch, "events", fail)
    assert side.intake.take(as_events=True) == Loss(STREAM, EPOCH, 0, 3, "corrupt")
    assert rows(side)[0].reconciles


def test_publishers_are_told_when_a_quarter_of_their_window_is_taken() -> None:
    with receiving() as side:
        size = len(data(0, 2))
        source = admitted(side, window_bytes=8 * size)
        for first in range(0, 4, 2):
            side.give(source, first, first + 2)
        before = side.reports
        side.taken()
        assert side.reports == before + 1


# Notices ---------------------------------------------------------------------------------------


def test_notice_for_an_epoch_that_is_not_entered_is_early(side: Receiving) -> None:
    source = side.source()
    for early in (
        Said(source.link, STREAM, Gone(SUB, STREAM, EPOCH, [(0, 2)], "expired", 0)),
        RepairFrame(source.link, STREAM, data(0, 2), 0),
        TailHint(STREAM, EPOCH, 9),
    ):
        side.intake.notify(early)
    side.intake.notify(TailHint("pub/unknown", EPOCH, 9))
    side.intake.pump(0.0)
    assert side.intake.counters["early_notices"] == 3


def test_repair_fills_the_gap_that_it_was_asked_for(side: Receiving) -> None:
    source = admitted(side, 0, 5)
    side.give(source, 2, 5)
    assert side.taken() == []
    side.intake.notify(RepairFrame(source.link, STREAM, data(0, 2), 0))
    side.intake.pump(0.0)
    assert side.taken() == [(EPOCH, 0, 2), (EPOCH, 2, 5)]


@pytest.mark.parametrize(
    "bad", [data(0, 2)[:-1], data(0, 2, name="pub/b"), data(0, 2, epoch=EPOCH + 1)]
)
def test_repair_that_is_none_is_counted(side: Receiving, bad: bytes) -> None:
    source = admitted(side, 0, 5)
    side.intake.notify(RepairFrame(source.link, STREAM, bad, 0))
    side.intake.pump(0.0)
    assert side.taken() == []
    assert side.intake.counters["bad_messages"] == 1


def test_repair_of_a_stranger_is_not_taken(side: Receiving) -> None:
    admitted(side, 0, 5)
    side.intake.notify(RepairFrame(link(), STREAM, data(0, 2), 0))
    side.intake.pump(0.0)
    assert side.taken() == []
    assert side.intake.counters["bad_messages"] == 1


def test_eviction_is_remembered(side: Receiving) -> None:
    admitted(side)
    side.intake.notify(Evicted(SUB, STREAM, "too slow"))
    side.intake.pump(0.0)
    assert list(side.intake.evictions) == ["too slow"]


def test_publisher_that_names_an_impossible_address_costs_itself(side: Receiving) -> None:
    side.intake.notify(Attach(link(), "tcp://no port", [info("pub/b")]))
    source = admitted(side)
    assert side.intake.counters["bad_messages"] == 1
    assert source.receiver is not None


def test_notice_that_fails_costs_itself(side: Receiving, monkeypatch: pytest.MonkeyPatch) -> None:
    source = side.source()

    def fail(*_: Any) -> Any:
        raise RuntimeError("a defect")

    monkeypatch.setattr(side.intake.lending, "on_gone", fail)
    admitted(side)
    gone = Gone(SUB, STREAM, EPOCH, [(0, 2)], "expired", 0)
    side.intake.notify(Said(source.link, STREAM, gone))
    side.intake.notify(Evicted(SUB, STREAM, "too slow"))
    side.intake.pump(0.0)
    assert side.intake.counters["io_errors"] == 1
    assert list(side.intake.evictions) == ["too slow"]


def test_publisher_that_moved_is_read_to_the_end_first(side: Receiving) -> None:
    admitted(side)
    connected(side)
    sent(side, data(0, 2))
    side.intake.notify(Detach(side.address))
    side.intake.pump(0.0)
    assert side.taken() == [(EPOCH, 0, 2)]
    side.intake.pump(LEAVE_AFTER_S - 0.1)
    sent(side, data(2, 3))
    side.intake.pump(LEAVE_AFTER_S - 0.1)
    assert side.taken() == [(EPOCH, 2, 3)]
    wait_until(lambda: side.intake.pump(LEAVE_AFTER_S + 0.1) or left(side))


# Timers ----------------------------------------------------------------------------------------


def test_tail_that_was_told_beside_the_data_is_asked_for_when_nothing_comes(
    side: Receiving,
) -> None:
    source = admitted(side)
    side.intake.notify(TailHint(STREAM, EPOCH, 3))
    side.intake.pump(1.0)
    side.intake.pump(1.0 + HINT_GRACE_S / 2)
    assert source.receiver is not None
    assert source.receiver.missing == 0
    for step in range(5):
        side.intake.pump(1.0 + HINT_GRACE_S + 0.01 * step)
    assert side.asked(Nack)[0].ranges == [(0, 3)]


def test_gap_of_a_publisher_that_has_left_is_lost_when_all_is_read(side: Receiving) -> None:
    source = admitted(side, 0, 3)
    side.intake.notify(TailHint(STREAM, EPOCH, 3, final=True))
    source.link.state = "left"
    side.intake.pump(1.0)
    assert side.taken() == [Loss(STREAM, EPOCH, 0, 3, "gone")]


def test_log_of_a_publisher_that_is_away_is_waited_for(side: Receiving) -> None:
    source = admitted(side, 0, 3, durable=True)
    source.link.state = "dialling"
    side.posted.clear()
    for step in range(200):
        side.intake.pump(step * 0.1)
    assert (side.taken(), side.asked(Nack)) == ([], [])
    source.link.state = "up"
    for step in range(200, 230):
        side.intake.pump(step * 0.1)
    assert side.asked(Nack)[0].ranges == [(0, 3)]


def test_who_has_no_room_asks_for_nothing_and_gives_nothing_up() -> None:
    with receiving(inbox_bytes_max=1, repair_deadline_s=1.0) as side:
        source = admitted(side, 0, 9)
        side.give(source, 0, 2)
        side.posted.clear()
        for step in range(50):
            side.intake.pump(step * 0.1)
        assert side.asked(Nack) == []
        assert side.taken() == [(EPOCH, 0, 2)]
        for step in range(50, 60):
            side.intake.pump(step * 0.1)
        assert side.asked(Nack)[0].ranges == [(2, 9)]
        assert side.taken() == []


# Forgetting ------------------------------------------------------------------------------------


def sweep(side: Receiving, now: float = 1e9) -> None:
    side.intake.notify(Sweep(1.0))
    side.intake.pump(now)


def test_stream_whose_publisher_is_gone_is_forgotten_with_its_place_kept(side: Receiving) -> None:
    source = admitted(side)
    side.give(source, 0, 5)
    side.taken()
    side.intake.refusals[STREAM] = "full"
    sweep(side)
    assert side.intake.streams() == {STREAM}  # its publisher is there
    source.link.state = "left"
    sweep(side, 2e9)
    assert side.intake.streams() == set()
    assert side.intake.has_forgotten(STREAM)
    assert side.intake.refusals == {}
    assert side.intake.start_for(info(), born=False) == Start(STREAM, "resume", 5, EPOCH)


def test_stream_that_the_consumer_is_in_the_middle_of_is_not_forgotten(side: Receiving) -> None:
    source = admitted(side)
    side.give(source, 0, 5)
    source.link.state = "left"
    sweep(side)
    assert side.intake.streams() == {STREAM}
    side.intake.take(as_events=True)
    next(side.intake.iterator)
    sweep(side)
    assert side.intake.streams() == {STREAM}
    list(side.intake.iterator)
    sweep(side)
    assert side.intake.streams() == set()


def test_place_in_a_forgotten_stream_is_committed_once(side: Receiving, tmp_path: Any) -> None:
    side.intake.bookmarks = Bookmarks(str(tmp_path), "audit")
    source = admitted(side)
    side.give(source, 0, 5)
    side.taken()
    source.link.state = "left"
    sweep(side)
    positions = side.intake.positions()
    assert positions == [Position(STREAM, EPOCH, 5)]
    side.intake.committed(positions)
    assert side.intake.positions() == []


# Driving ---------------------------------------------------------------------------------------


def test_background_reads_for_a_consumer_that_has_not_read_for_a_while(side: Receiving) -> None:
    admitted(side)
    side.intake.driven_at = 10.0
    connected(side)
    sent(side, data(0, 2))
    side.intake.driven_at = 10.0
    side.intake.tend(10.0 + BACKGROUND_AFTER_S / 2)
    assert not side.intake.ready.items
    side.intake.tend(10.0 + BACKGROUND_AFTER_S * 2)
    assert side.intake.ready.items
    assert side.intake.driven_at == 10.0  # its consumer has not been there


def test_subscription_that_is_closed_is_driven_no_more(side: Receiving) -> None:
    told: list[str] = []
    side.intake.on_close = lambda: told.append("closed")
    side.intake.close()
    side.intake.close()
    side.intake.tend(1e9, force=True)
    side.intake.notify(Sweep(1.0))
    assert side.intake.closed
    assert told == ["closed", "closed"]


def test_consumer_of_packets_is_busy_sooner(side: Receiving) -> None:
    assert side.intake.background_s == BACKGROUND_AFTER_S
    side.source(multicast=info_of(Multicast(new_group()), []))
    assert side.intake.background_s == BACKGROUND_PACKETS_S


def test_idle_subscription_has_no_timer(side: Receiving) -> None:
    admitted(side)
    side.intake.pump(1.0)
    side.intake.pump(2.0)
    assert side.intake.timer_due == NEVER


def test_figures_are_of_the_streams_of_one_publisher(side: Receiving) -> None:
    one, other = admitted(side), admitted(side, name="pub/b", to=link())
    side.give(one, 0, 4)
    assert side.intake.sources_of(other.link) == [other]
    figures = side.intake.figures_of([one])
    assert [(f.stream, f.epoch, f.received, f.consumed) for f in figures] == [(STREAM, EPOCH, 4, 0)]
    assert rows(side)[0].in_flight == 4


def test_ended_epochs_have_rows_of_their_own(side: Receiving) -> None:
    source = admitted(side)
    side.give(source, 0, 4)
    side.taken()
    side.intake.notify(Said(source.link, STREAM, admission(epoch=EPOCH + 1)))
    side.intake.pump(1.0)
    side.intake.pump(2.0)
    assert [(row.epoch, row.state) for row in rows(side)] == [
        (EPOCH, "ended"),
        (EPOCH + 1, "live"),
    ]
