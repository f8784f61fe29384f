"""Work as a member has it: what is settled of a batch, and what one message says of that."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from meshmsg._groups.work_batch import (
    NACKS_MAX,
    AckRange,
    WorkBatch,
    WorkSource,
    bytes_at_most,
    ranges_of,
    settlement_of,
)
from meshmsg._model.codecs import codec_for
from meshmsg._model.message_fields import ACK_RANGES_MAX
from meshmsg._wire.control import Refusal, Settle, Settlement, StreamInfo, encode_message
from meshmsg._wire.subframe import Work
from tests.support.grouping import EPOCH, WIRE_ID, frame_of

LINK = SimpleNamespace()


class Said:
    """A member that remembers what it was told."""

    def __init__(self, unsaid_max: int = 100) -> None:
        self.unsaid_max = unsaid_max
        self.unsaid: list[int] = []
        self.ranges: list[AckRange] = []
        self.nacks: list[tuple[int, str]] = []

    def on_unsaid(self, count: int) -> None:
        self.unsaid.append(count)

    def ack_ranges(self, source: WorkSource, ranges: Iterable[AckRange], count: int) -> None:
        self.ranges += ranges

    def ack_batch(self, batch: WorkBatch) -> None:
        self.ranges += batch.ranges()

    def nack(self, batch: WorkBatch, index: int, delay_s: float, error: str) -> None:
        self.nacks.append((index, error))


def source_of(*, durable: bool = False) -> WorkSource:
    info = StreamInfo("pub/a", "**", EPOCH, "block", "raw", 1, durable=durable)
    return WorkSource(info, WIRE_ID, LINK, codec_for("msgpack"))


def batch_of(
    said: Said, source: WorkSource, work: dict[str, Any] | None = None, first: int = 10
) -> WorkBatch:
    frame = frame_of(5, first)
    given = {"lo": 0, "hi": 5, "chosen": None, "attempt": 1, **(work or {})}
    return WorkBatch(frame, Work(frame.data, **given), source, said)


@pytest.mark.parametrize(
    ("work", "ranges", "again"),
    [
        ({}, [(10, 15, 1)], 0),
        ({"lo": 1, "hi": 3}, [(11, 13, 1)], 0),
        ({"attempt": 3}, [(10, 15, 3)], 5),
        ({"chosen": [0, 1, 4]}, [(10, 12, 1), (14, 15, 1)], 0),
        ({"attempt": 0, "attempts": [1, 1, 2, 2, 1]}, [(10, 12, 1), (12, 14, 2), (14, 15, 1)], 2),
        ({"chosen": [1, 3], "attempt": 0, "attempts": [2, 2]}, [(11, 12, 2), (13, 14, 2)], 2),
    ],
)
def test_a_batch_is_settled_by_numbers_and_attempts(
    work: dict[str, Any], ranges: list[AckRange], again: int
) -> None:
    batch = batch_of(Said(), source_of(), work)
    assert list(batch.ranges()) == ranges
    assert batch.came_again == again


def test_an_ack_is_told_to_the_member_at_the_first_and_when_there_are_many() -> None:
    said, source = Said(unsaid_max=3), source_of()
    batch = batch_of(said, source)
    for index in range(5):
        batch.ack_at(index)
    assert said.unsaid == [1, 3, 4, 5]
    assert source.acks == [10, 11, 12, 13, 14]


def test_an_ack_of_what_came_again_says_which_attempt() -> None:
    said = Said()
    batch = batch_of(said, source_of(), {"attempt": 0, "attempts": [1, 2, 3, 1, 1]})
    for index in (0, 2):
        batch.ack_at(index)
    assert said.ranges == [(10, 11, 1), (12, 13, 3)]


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError


def test_a_with_block_acknowledges_or_gives_back_with_the_error() -> None:
    said, source = Said(), source_of()
    batch = batch_of(said, source)
    batch.settle(0, None)
    batch.settle(1, ValueError("no such order"))
    batch.settle(2, Mute())  # must not take the place of the error that was raised
    assert source.acks == [10]
    assert said.nacks == [(1, "ValueError: no such order"), (2, "Mute")]


def test_acks_that_came_in_any_order_are_said_as_ranges() -> None:
    source = source_of()
    assert settlement_of(source) is None
    source.acks += [14, 10, 11, 13, 20]
    said = settlement_of(source)
    assert said == Settlement("pub/a", EPOCH, [(10, 12, 1), (13, 15, 1), (20, 21, 1)])
    assert source.acks == []
    assert source.acked == 5
    assert settlement_of(source) is None


def test_what_one_message_does_not_hold_is_said_in_the_next() -> None:
    source = source_of()
    source.ack_ranges = [(2 * n, 2 * n + 1, 2) for n in range(ACK_RANGES_MAX + 1)]
    source.in_ranges = ACK_RANGES_MAX + 1
    source.nacks = [Refusal(n, 1, 0.0, "x") for n in range(NACKS_MAX + 1)]
    source.returned = [(9000, 9001, 1)]
    first, second = settlement_of(source), settlement_of(source)
    assert first is not None
    assert second is not None
    assert (len(first.acks), len(first.nacks), first.returned) == (ACK_RANGES_MAX, NACKS_MAX, [])
    assert (len(second.acks), len(second.nacks), len(second.returned)) == (1, 1, 1)
    assert settlement_of(source) is None
    assert source.acked == ACK_RANGES_MAX + 1


@pytest.mark.parametrize("char", ["x", "é", "\U0001f40d"])
def test_a_settlement_is_never_longer_than_was_counted(char: str) -> None:
    number = (1 << 62) - 1
    said = Settlement(
        char * 100,
        number,
        [(number, number, 1_000_000)] * 10,
        [Refusal(number, 1_000_000, 1e9, char * 2000)] * NACKS_MAX,
        [(number, number, 1_000_000)] * 10,
    )
    empty = len(encode_message(Settle(7, [])))
    assert len(encode_message(Settle(7, [said]))) - empty <= bytes_at_most(said)


def test_ranges_are_of_one_attempt_each() -> None:
    assert ranges_of([(1, 1)]) == [(1, 2, 1)]
    assert ranges_of([(1, 1), (2, 1), (3, 2), (5, 2)]) == [(1, 3, 1), (3, 4, 2), (5, 6, 2)]


def test_another_start_of_a_publisher_has_nothing_to_be_said_of_it() -> None:
    source = source_of(durable=True)
    source.acks.append(1)
    source.delivered = 3
    new = source.renewed(EPOCH + 1)
    assert (new.epoch, new.delivered, new.is_idle, source.is_idle) == (EPOCH + 1, 3, True, False)
    assert new.claims is not None
    old = source.older(EPOCH - 1)
    old.books.delivered += 1
    assert (source.delivered, old.joined) == (4, True)


def test_only_of_a_durable_stream_claims_are_kept() -> None:
    assert source_of().claims is None
    source = source_of(durable=True)
    assert source.claims is not None
    source.claims.take([(1, 2, 1)])
    assert not source.is_idle
