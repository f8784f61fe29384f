"""A work group's events in a row across epochs, and frames that have to be fetched."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from meshmsg._wire.frame import Frame, encode_frame
from meshmsg.recovery.groups import group as work_group
from meshmsg.recovery.groups import numbering as work_line
from meshmsg.recovery.groups.group import WorkGroup
from meshmsg.recovery.groups.numbering import SHELF_BYTES_MAX, Line, Past, Shelf
from meshmsg.recovery.groups.policy import GroupPolicy
from meshmsg.recovery.stream.retransmit_buffer import RetransmitBuffer

OLD, MIDDLE, NEW = 3, 5, 9


def frame(epoch: int, first: int, count: int = 1, keys: Sequence[str] = ()) -> bytes:
    payloads = [b"%d" % n for n in range(first, first + count)]
    return encode_frame(5, epoch, first, "t", payloads, 0, keys=dict(enumerate(keys)))


def test_line_without_a_past_has_the_streams_own_numbers() -> None:
    line = Line(NEW)
    assert (line.number(NEW, 7), line.place(7), line.number(OLD, 7)) == (7, (NEW, 7), None)
    assert line.split(3, 9) == [(NEW, 3, 9, 0)]


def test_earlier_epochs_lie_below_in_order_without_a_hole() -> None:
    line = Line(NEW, 0, [Past(OLD, 4, 10), Past(MIDDLE, 0, 3)])
    assert line.start == -9
    places = [line.place(n) for n in range(-9, 2)]
    assert places == [(OLD, n) for n in range(4, 10)] + [(MIDDLE, n) for n in range(3)] + [
        (NEW, 0),
        (NEW, 1),
    ]
    assert [line.number(*place) for place in places] == list(range(-9, 2))
    assert [part[:3] for part in line.split(-5, 4)] == [
        (OLD, 8, 10),
        (MIDDLE, 0, 3),
        (NEW, 0, 4),
    ]


def test_ranges_of_an_epoch_are_cut_to_what_the_line_has_of_it() -> None:
    line = Line(NEW, 0, [Past(OLD, 4, 10)])
    assert line.clip(OLD, 0, 100) == (-6, 0)
    assert line.clip(OLD, 20, 30)[0] >= line.clip(OLD, 20, 30)[1]
    assert line.clip(NEW, 2, 4) == (2, 4)
    first, stop = line.clip(MIDDLE, 0, 10)
    assert first == stop


class Bench:
    """A durable group whose log is a dict."""

    def __init__(self, past: Sequence[Past] = (), order: str = "none") -> None:
        self.buffer = RetransmitBuffer(1000)
        self.shelf = Shelf(self.buffer, Line(NEW, 0, past), durable=True)
        start = self.shelf.line.start
        self.group = WorkGroup(
            "g", self.buffer, start, GroupPolicy(order), takes_all=True, shelf=self.shelf
        )
        self.group.join(1, "m", 10, 30.0, now=0.0)
        self.sealed = 0

    def deal(self) -> list[tuple[int, int]]:
        dealt = []
        for _, work in self.group.dispatch(self.sealed, now=0.0):
            got = Frame(work.data)
            places = range(work.lo, work.hi) if work.chosen is None else work.chosen
            dealt += [(got.epoch, got.first + place) for place in places]
        return dealt

    def bring(self, epoch: int, first: int, count: int = 1) -> None:
        at = self.shelf.line.number(epoch, first)
        assert at is not None
        self.shelf.put([(at, at + count, frame(epoch, first, count))], [])


def test_work_of_an_earlier_epoch_waits_until_it_was_fetched() -> None:
    bench = Bench([Past(OLD, 4, 10)])
    assert bench.deal() == []
    assert list(bench.shelf.wanted) == [(-6, 0)]
    bench.bring(OLD, 4, 4)
    assert bench.deal() == [(OLD, n) for n in range(4, 8)]
    assert list(bench.shelf.wanted) == [(-2, 0)]
    bench.buffer.append(0, 2, frame(NEW, 0, 2))
    bench.sealed = 2
    assert bench.deal() == []  # in order: the rest of the past first
    bench.bring(OLD, 8, 2)
    assert bench.deal() == [(OLD, 8), (OLD, 9), (NEW, 0), (NEW, 1)]
    bench.group.ack(1, [(-6, 2, 1)], now=0.0)
    assert bench.group.floor == 2


def test_what_is_gone_from_the_log_is_lost_with_its_reason() -> None:
    bench = Bench([Past(OLD, 0, 10)])
    bench.deal()
    bench.shelf.put([(-4, 0, frame(OLD, 6, 4))], [(-10, -5, "expired"), (-5, -4, "corrupt")])
    assert bench.deal() == [(OLD, n) for n in range(6, 10)]
    assert bench.group.losses == [(-10, -5, "expired"), (-5, -4, "corrupt")]
    assert dict(bench.group.lost) == {"expired": 5, "corrupt": 1}


def test_what_stands_between_work_that_is_done_is_fetched_together() -> None:
    bench = Bench([Past(OLD, 0, 10)])
    claimed = [(-9, -7, 1), (-5, -4, 1)]
    bench.group.dealt = 0
    bench.group.recall(1, claimed, [], awaited=True, most=10, sealed=0, now=0.0)
    assert bench.deal() == []
    assert list(bench.shelf.wanted) == [(-10, -9), (-7, -5), (-4, 0)]
    bench.shelf.put([(-10, -7, frame(OLD, 0, 3)), (-7, -3, frame(OLD, 3, 4))], [])
    assert bench.deal() == [(OLD, n) for n in (0, 3, 4, 6)]
    assert list(bench.shelf.wanted) == [(-3, 0)]


def test_event_to_be_sent_again_is_fetched_again() -> None:
    bench = Bench()
    bench.buffer.append(0, 1, frame(NEW, 0))
    bench.sealed = 1
    assert bench.deal() == [(NEW, 0)]
    bench.buffer.ring_bytes_max = 0
    bench.buffer.append(1, 2, frame(NEW, 1))  # and the first one falls out of memory
    bench.group.nack(1, 0, 1, 0.0, "no", now=0.0)
    assert bench.deal() == []
    assert list(bench.shelf.wanted) == [(0, 1)]
    assert bench.group.pending(1) == 1
    bench.bring(NEW, 0)
    assert bench.deal() == [(NEW, 0)]


def test_event_that_is_given_up_is_fetched_for_its_letter() -> None:
    bench = Bench()
    bench.group.set_policy(GroupPolicy("none", 1), takes_all=True)
    bench.buffer.append(0, 1, frame(NEW, 0))
    bench.sealed = 1
    bench.deal()
    bench.buffer.ring_bytes_max = 0
    bench.buffer.append(1, 2, frame(NEW, 1))
    bench.group.nack(1, 0, 1, 0.0, "no", now=0.0)
    bench.deal()
    assert (bench.group.dead, bench.group.floor) == (0, 0)
    bench.bring(NEW, 0)
    bench.deal()
    (letter,) = bench.group.dead_letters
    assert (letter.frame.epoch, letter.seq, bench.group.floor) == (NEW, 0, 1)


def test_restored_group_skips_what_is_settled_and_goes_on_with_attempts() -> None:
    bench = Bench([Past(OLD, 0, 6)])
    bench.group.restore([(-5, -3)], {-3: 3, -5: 9})
    bench.deal()
    bench.bring(OLD, 0, 6)
    shipped = bench.group.dispatch(0, now=0.0)
    again = {
        Frame(work.data).first + place: (work.attempts or [work.attempt] * 99)[n]
        for _, work in shipped
        for n, place in enumerate(work.chosen or range(work.lo, work.hi))
    }
    assert again == {0: 1, 3: 3, 4: 1, 5: 1}
    assert bench.group.acked == 2
    assert bench.group.pending(0) + bench.group.in_flight == 4


def test_shelf_is_bounded() -> None:
    bench = Bench([Past(OLD, 0, 100)])
    size = SHELF_BYTES_MAX // 4
    for n in range(10):
        at = n - 100
        bench.shelf.put([(at, at + 1, bytes(size))], [])
    assert len(list(bench.shelf.held(-100, 0))) == 4
    bench.shelf.forget(0)
    assert list(bench.shelf.held(-100, 0)) == []


def test_heads_of_keys_that_were_fetched_go_before_others_push_them_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count, size = 400, 4
    names = [f"k{n}" for n in range(count)]  # a key each
    frames = {
        first - count: frame(OLD, first, size, names[first : first + size])
        for first in range(0, count, size)
    }
    monkeypatch.setattr(work_line, "SHELF_BYTES_MAX", 3 * len(frames[-count]))
    monkeypatch.setattr(work_group, "ABSENT_MAX", 20)
    bench = Bench([Past(OLD, 0, count)], order="key")
    bench.group.join(2, "slow", 10, 30.0, now=0.0)
    open_: list[int] = []
    done = 0
    for turn in range(1500):
        for number, work in bench.group.dispatch(0, now=0.0):
            got = Frame(work.data)
            places = range(work.lo, work.hi) if work.chosen is None else work.chosen
            seqs = [got.first + place - count for place in places]
            if number == 1:
                bench.group.ack(1, [(seq, seq + 1, 1) for seq in seqs], now=0.0)
                done += len(seqs)
            else:
                open_ += seqs
        if turn > 500:  # it has slept long enough
            bench.group.ack(2, [(seq, seq + 1, 1) for seq in open_], now=0.0)
            done += len(open_)
            open_.clear()
        wanted = [n for first, stop in bench.shelf.wanted for n in range(first, stop)]
        brought = sorted({n - n % size for n in wanted})[:2]
        bench.shelf.put([(at, at + size, frames[at]) for at in brought], [])
    assert done == count


@pytest.mark.parametrize(
    ("epoch", "seq", "number"),
    [(5, 0, -30), (7, 41, -30), (7, 50, -21), (7, 99, -20), (8, 3, -17), (8, 99, 0), (9, 6, 6)],
)
def test_place_that_an_epoch_did_not_come_to_is_where_it_ends(
    epoch: int, seq: int, number: int
) -> None:
    line = Line(9, 0, [Past(7, 41, 51), Past(8, 0, 20)])
    assert line.locate(epoch, seq) == number
    assert (line.start, line.end) == (-30, 0)
