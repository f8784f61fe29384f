"""A group goes on after a restart where its record says, whatever epoch that was in."""

from __future__ import annotations

from meshmsg._wire.frame import encode_frame
from meshmsg.recovery.groups.group import WorkGroup
from meshmsg.recovery.groups.numbering import Line, Shelf
from meshmsg.recovery.groups.policy import GroupPolicy
from meshmsg.recovery.groups.resume import line_of, record_of, resume
from meshmsg.recovery.groups.store import GroupRecord
from meshmsg.recovery.log.journal import Epoch
from meshmsg.recovery.stream.retransmit_buffer import RetransmitBuffer

OLD, NEW = 7, 9
POLICY = GroupPolicy("none", 4, ("a.*",))


def group_on(line: Line) -> WorkGroup:
    buffer = RetransmitBuffer(1_000_000)
    shelf = Shelf(buffer, line, durable=True)
    return WorkGroup("g", buffer, line.start, POLICY, takes_all=True, shelf=shelf)


def test_what_a_restart_saves_is_what_it_gets_back() -> None:
    line = Line(OLD)
    buffer = RetransmitBuffer(1_000_000)
    buffer.claim(0)
    buffer.append(0, 10, encode_frame(5, OLD, 0, "a.b", [b"x"] * 10, 0))
    group = WorkGroup("g", buffer, 0, POLICY, takes_all=True, shelf=Shelf(buffer, line))
    group.join(1, "m1", 10, 30.0, now=0)
    group.dispatch(10, now=0)
    group.ack(1, [(0, 3, 1), (5, 7, 1)], now=1)
    group.nack(1, 4, 1, 0.0, "no", now=1)
    record = record_of(group, [3, 1])
    assert record.floor == (OLD, 3)
    assert record.settled == [(OLD, 5, 7)]
    assert record.attempts == [(OLD, 4, 2)]
    assert (record.order, record.max_attempts, record.patterns) == ("none", 4, ("a.*",))
    assert record.members == (1, 3)

    later = line_of(record, [Epoch(OLD, 0, 10)], NEW, 0)
    again = group_on(later)
    resume(again, record)
    assert again.state()[0] == later.start
    rest = record_of(again, [1, 3])
    assert (rest.floor, rest.settled, rest.attempts) == (
        record.floor,
        record.settled,
        record.attempts,
    )


def test_a_line_begins_at_the_floor_and_leaves_out_epochs_before_it() -> None:
    record = GroupRecord("g", (7, 4))
    epochs = [Epoch(5, 0, 100), Epoch(7, 0, 10), Epoch(8, 0, 3)]
    line = line_of(record, epochs, NEW, 0)
    assert [(part.epoch, part.first, part.stop) for part in line.past] == [(7, 4, 10), (8, 0, 3)]
    assert (line.start, line.end) == (-9, 0)


def test_a_floor_behind_the_end_of_its_epoch_leaves_nothing_of_it() -> None:
    line = line_of(GroupRecord("g", (7, 50)), [Epoch(7, 0, 10)], NEW, 0)
    assert line.past == []


def test_an_epoch_without_an_end_and_the_new_one_are_not_past() -> None:
    epochs = [Epoch(7, 0, None), Epoch(NEW, 0, 5)]
    assert line_of(GroupRecord("g", (7, 0)), epochs, NEW, 0).past == []


def test_what_is_not_on_the_line_is_left_out() -> None:
    record = GroupRecord(
        "g", (7, 4), settled=[(6, 0, 9), (7, 6, 8), (7, 9, 90)], attempts=[(6, 1, 2), (7, 5, 3)]
    )
    line = line_of(record, [Epoch(7, 0, 10)], NEW, 0)
    group = group_on(line)
    resume(group, record)
    floor, settled, attempts = group.state()
    assert line.place(floor) == (7, 4)
    assert [line.place(first) for first, _ in settled] == [(7, 6), (7, 9)]
    assert attempts == {line.number(7, 5): 3}


def test_a_record_without_a_mark_takes_all_before_the_new_epoch_as_dealt() -> None:
    line = line_of(GroupRecord("g", (7, 4)), [Epoch(7, 0, 10)], NEW, 0)
    group = group_on(line)
    resume(group, GroupRecord("g", (7, 4)))
    assert (group.is_marked, group.dealt) == (False, 0)
    marked = group_on(line)
    resume(marked, GroupRecord("g", (7, 4), dealt=(7, 6)))
    assert (marked.is_marked, line.place(marked.dealt)) == (True, (7, 6))
