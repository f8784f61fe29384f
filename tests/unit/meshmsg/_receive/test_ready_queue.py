"""What waits for the consumer: its order, its room, and what is taken back."""

from __future__ import annotations

import pytest

from meshmsg._model.codecs import MsgpackCodec
from meshmsg._model.event import Loss
from meshmsg._receive.incoming_stream import Books, Source
from meshmsg._receive.ready_queue import ReadyQueue
from meshmsg.recovery.stream.receiver import Run
from tests.support.receiving import EPOCH, STREAM, frame, info, link

BIG = 1 << 20


def source(name: str = STREAM, epoch: int = EPOCH) -> Source:
    made = Source(info(name), 1, link(), MsgpackCodec())
    made.books = Books(name, epoch, 0)
    return made


def run(first: int, stop: int) -> Run:
    return Run(frame(first, stop), 0, stop - first)


def loss(first: int, stop: int, reason: str = "overflow", epoch: int = EPOCH) -> Loss:
    return Loss(STREAM, epoch, first, stop, reason)


def places(queue: ReadyQueue) -> list[tuple[int, int]]:
    found = []
    while queue.items:
        _, _, one = queue.take()
        base = 0 if isinstance(one, Loss) else one.frame.first
        ends = (one.first, one.stop) if isinstance(one, Loss) else (one.lo, one.hi)
        found.append((base + ends[0], base + ends[1]))
    return found


def test_deliveries_come_out_in_the_order_of_all_streams() -> None:
    queue, one, other = ReadyQueue(BIG), source(), source("pub/b")
    queue.put(one, [run(0, 2)])
    queue.put(other, [run(5, 6), loss(6, 8)])
    queue.put(one, [run(2, 3)])
    assert [queue.items[n][0] for n in range(4)] == [one, other, other, one]
    assert places(queue) == [(0, 2), (5, 6), (6, 8), (2, 3)]


def test_delivery_keeps_the_books_of_the_epoch_that_it_came_in() -> None:
    queue, one = ReadyQueue(BIG), source()
    queue.put(one, [run(0, 1)])
    before, one.books = one.books, Books(STREAM, EPOCH + 1, 0)
    queue.put(one, [run(0, 1)])
    assert [queue.take()[1], queue.take()[1]] == [before, one.books]


def test_room_is_what_ready_frames_and_the_backlog_leave() -> None:
    item = run(0, 1)
    size = len(item.frame.data)
    queue = ReadyQueue(2 * size)
    queue.put(source(), [item, loss(1, 2)])
    assert (queue.bytes, queue.room, queue.is_full) == (size, size, False)
    queue.backlog_bytes = size
    assert (queue.room, queue.is_full) == (0, False)
    queue.put(source(), [run(2, 3)])
    assert queue.is_full
    places(queue)
    assert (queue.bytes, queue.is_full) == (0, False)


def test_losses_found_piece_by_piece_are_one_report() -> None:
    queue, one = ReadyQueue(BIG), source()
    queue.put(one, [loss(0, 2)])
    queue.put(one, [loss(2, 3), loss(3, 9)])
    assert places(queue) == [(0, 9)]


@pytest.mark.parametrize(
    "second",
    [
        loss(3, 4),  # not next to it
        loss(2, 3, reason="gone"),
        loss(2, 3, epoch=EPOCH + 1),
        Loss("pub/b", EPOCH, 2, 3, "overflow"),
    ],
)
def test_losses_that_differ_stay_apart(second: Loss) -> None:
    queue, one = ReadyQueue(BIG), source()
    queue.put(one, [loss(0, 2), second])
    assert len(places(queue)) == 2


def test_losses_with_events_between_them_stay_apart() -> None:
    queue, one = ReadyQueue(BIG), source()
    queue.put(one, [loss(0, 2), run(2, 3), loss(3, 4)])
    assert places(queue) == [(0, 2), (2, 3), (3, 4)]


def test_who_was_starved_is_fed_once_when_more_than_half_is_free() -> None:
    item = run(0, 1)
    size = len(item.frame.data)
    queue, one = ReadyQueue(4 * size), source()
    queue.put(one, [item, run(1, 2)])
    assert not queue.is_fed()  # nobody was told that there is no room
    queue.starved = True
    assert not queue.is_fed()  # a half is not more than a half
    queue.take()
    assert queue.is_fed()
    assert not queue.is_fed()


def test_withdrawing_cuts_what_lies_beyond_and_leaves_other_streams_and_epochs() -> None:
    queue, one, other = ReadyQueue(BIG), source(), source("pub/b")
    queue.put(one, [run(0, 4), loss(4, 6)])
    queue.put(other, [run(0, 9)])
    one.books = Books(STREAM, EPOCH + 1, 0)
    queue.put(one, [run(7, 8)])
    queue.withdraw(one, EPOCH, 2)
    assert queue.bytes == sum(len(i[2].frame.data) for i in queue.items if isinstance(i[2], Run))
    assert places(queue) == [(0, 2), (0, 9), (7, 8)]


@pytest.mark.parametrize(("seq", "left"), [(0, []), (5, [(0, 4), (4, 5)]), (6, [(0, 4), (4, 6)])])
def test_withdrawing_from_an_event_on(seq: int, left: list[tuple[int, int]]) -> None:
    queue, one = ReadyQueue(BIG), source()
    queue.put(one, [run(0, 4), loss(4, 6)])
    queue.withdraw(one, EPOCH, seq)
    assert places(queue) == left
    assert queue.room == BIG
