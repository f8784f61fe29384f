"""A re-request server keeps the newest messages and answers within its budget."""

from __future__ import annotations

import pytest

from meshmsg.moldudp.store import OVERHEAD, MoldStore


def filled(count: int, size: int = 10, **options: float) -> MoldStore:
    store = MoldStore(**options)  # type: ignore[arg-type]
    for n in range(count):
        store.add([b"%d" % (n + 1) + bytes(size - len(b"%d" % (n + 1)))])
    return store


def numbers(messages: list[bytes]) -> list[int]:
    return [int(message.rstrip(b"\0")) for message in messages]


def test_messages_are_numbered_one_after_the_other() -> None:
    store = MoldStore(first=5)
    assert store.add([b"a", b"b"]) == 5
    assert store.add([]) == 7
    assert store.add([b"c"]) == 7
    assert store.next == 8
    assert store.answer(6, 10, 0.0) == (6, [b"b", b"c"])


@pytest.mark.parametrize("first", [0, 4])
def test_what_was_never_there_is_unknown(first: int) -> None:
    store = filled(3)
    assert store.answer(first, 1, 0.0) == (first, [])
    assert store.counters["unknown"] == 1


def test_the_oldest_expire_when_the_bytes_are_too_many() -> None:
    store = filled(10, bytes_max=3 * (10 + OVERHEAD))
    assert (store.first, store.counters["expired"]) == (8, 7)
    assert store.answer(7, 1, 0.0)[1] == []
    assert numbers(store.answer(8, 99, 0.0)[1]) == [8, 9, 10]


def test_one_block_larger_than_the_limit_stays() -> None:
    store = MoldStore(bytes_max=1)
    store.add([b"large"] * 3)
    assert len(store.answer(1, 3, 0.0)[1]) == 3


def test_an_answer_has_no_more_messages_than_are_allowed() -> None:
    store = filled(10, answer_messages_max=4)
    assert numbers(store.answer(3, 99, 0.0)[1]) == [3, 4, 5, 6]
    assert numbers(store.answer(3, 2, 0.0)[1]) == [3, 4]


def test_what_was_skipped_is_not_answered_and_ends_an_answer() -> None:
    store = filled(3)
    store.skip_to(10)
    store.skip_to(2)  # never back
    assert store.add([b"10"]) == 10
    assert store.answer(5, 3, 0.0) == (5, [])
    assert numbers(store.answer(2, 99, 0.0)[1]) == [2, 3]
    assert store.answer(10, 99, 0.0) == (10, [b"10"])


def test_answers_have_a_budget_that_refills_with_time_and_not_beyond_a_second() -> None:
    store = filled(100, size=10, answer_rate_bytes=100.0)
    assert len(store.answer(1, 15, 0.0)[1]) == 15
    assert store.answer(1, 1, 0.0)[1] == []
    assert store.counters["over_budget"] == 1
    assert store.answer(1, 1, 0.4)[1] == []
    assert len(store.answer(1, 1, 0.6)[1]) == 1
    assert len(store.answer(1, 99, 1000.0)[1]) == 99
    assert store.answer(1, 1, 1000.1)[1] == []
    assert store.counters["requests"] == 3
    assert store.counters["resent"] == 15 + 1 + 99
