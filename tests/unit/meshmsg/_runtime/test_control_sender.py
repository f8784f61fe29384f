"""`ControlSender`: what is sent to whom, and answers to those who miss events."""

from __future__ import annotations

import pytest

from meshmsg._model.message_fields import NACK_RANGES_MAX
from meshmsg._runtime.control_sender import REPAIR_UNSENT_BYTES_MAX
from meshmsg._wire.control import Gone, Nack, Ping, Repair, Unsubscribed
from tests.support.wire import Wire

NACK = Nack(7, "pub/a", 3, [(0, 9)], 5)


def test_post_sends_a_message_or_its_bytes() -> None:
    wire = Wire()
    wire.sender.post(b"x", Ping(1))
    wire.sender.post(b"y", wire.sent[0][1][0])
    assert [to for to, _ in wire.sent] == [b"x", b"y"]
    assert wire.messages() == [Ping(1), Ping(1)]


def test_post_pages_sends_all_entries_in_as_many_messages_as_that_takes() -> None:
    wire = Wire()
    names = [f"pub/{n}" for n in range(5000)]
    wire.sender.post_pages(b"x", lambda some, _: Unsubscribed(1, some, "why"), names)
    told = [name for m in wire.messages() if isinstance(m, Unsubscribed) for name in m.streams]
    assert len(wire.sent) > 1
    assert told == names


def test_only_the_last_repair_says_that_the_answer_is_complete() -> None:
    wire = Wire()
    wire.sender.answer_nack(b"x", NACK, [b"one", b"two"], {})
    assert wire.messages() == [Repair(7, "pub/a", 0), Repair(7, "pub/a", 5)]
    assert [parts[1] for _, parts in wire.sent] == [b"one", b"two"]
    assert wire.counters["repaired_frames"] == 2


def test_what_is_gone_follows_the_frames_and_ends_the_answer() -> None:
    wire = Wire()
    ranges = [(n, n + 1) for n in range(0, 2 * NACK_RANGES_MAX + 2, 2)]
    wire.sender.answer_nack(b"x", NACK, [b"one"], {"gone": ranges})
    repair, *gone = wire.messages()
    assert repair == Repair(7, "pub/a", 0)
    assert [m.answers for m in gone if isinstance(m, Gone)] == [0, 5]
    assert [tuple(r) for m in gone if isinstance(m, Gone) for r in m.ranges] == ranges


def test_no_answer_at_all_where_there_is_nothing_to_say() -> None:
    wire = Wire()
    wire.sender.answer_nack(b"x", NACK, [], {})
    assert wire.sent == []


@pytest.mark.parametrize(
    ("unsent_bytes", "sent"), [(REPAIR_UNSENT_BYTES_MAX - 1, 1), (REPAIR_UNSENT_BYTES_MAX, 0)]
)
def test_repairs_are_put_off_while_too_much_is_unsent(unsent_bytes: int, sent: int) -> None:
    wire = Wire(unsent_bytes)
    wire.sender.answer_nack(b"x", NACK, [b"one"], {})
    assert len(wire.sent) == sent
    assert wire.counters["repairs_put_off"] == 1 - sent
