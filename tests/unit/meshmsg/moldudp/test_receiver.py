"""The cores of MoldUDP64: order, gaps, requests, losses; and what can be sent again."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from meshmsg.moldudp.receiver import (
    END_S,
    JUMP_MESSAGES_MAX,
    LINE_S,
    MoldLoss,
    MoldMessages,
    MoldReceiver,
    MoldTiming,
    Wanted,
)
from meshmsg.moldudp.store import MoldStore

TIMING = MoldTiming(delay_s=0.01, retry_s=0.1, deadline_s=1.0)


def receiver(first: int | None = 1, **how: int) -> MoldReceiver:
    return MoldReceiver(None, first, MoldTiming(0.01, 0.1, 1.0, **how))


def feed(core: MoldReceiver, first: int, count: int, now: float = 0.0, ends: bool = False) -> None:
    core.on_packet("S", first, [str(n).encode() for n in range(first, first + count)], ends, now)


def numbers(core: MoldReceiver) -> list[int | MoldLoss]:
    """The messages handed on, by number; each is what it says."""
    found: list[int | MoldLoss] = []
    for item in core.events():
        if isinstance(item, MoldLoss):
            found.append(item)
            continue
        for number, message in enumerate(item.messages, item.first):
            assert message == str(number).encode()
            found.append(number)
    return found


def test_messages_in_order_are_handed_on_at_once() -> None:
    core = receiver()
    feed(core, 1, 3)
    assert list(core.events()) == [MoldMessages("S", 1, [b"1", b"2", b"3"])]
    assert core.deadline() is None


def test_the_other_line_is_a_duplicate() -> None:
    core = receiver()
    feed(core, 1, 3)
    feed(core, 1, 3)
    assert numbers(core) == [1, 2, 3]
    assert core.counters["duplicates"] == 1


def test_asks_for_a_gap_after_the_delay_and_again() -> None:
    core = receiver()
    feed(core, 1, 1)
    feed(core, 4, 2)
    feed(core, 8, 1)
    assert numbers(core) == [1]
    assert core.missing == 4
    assert core.on_deadline(0.005) == []
    assert core.on_deadline(0.01) == [Wanted("S", 2, 4), Wanted("S", 6, 8)]
    assert core.on_deadline(0.05) == []
    assert core.on_deadline(0.11) == [Wanted("S", 2, 4), Wanted("S", 6, 8)]
    feed(core, 2, 2, now=0.12)
    assert numbers(core) == [2, 3, 4, 5]
    feed(core, 6, 2, now=0.12)
    assert numbers(core) == [6, 7, 8]
    assert core.deadline() is None


def test_a_heartbeat_shows_the_last_gap() -> None:
    core = receiver()
    feed(core, 1, 1)
    feed(core, 3, 0)
    assert core.on_deadline(0.01) == [Wanted("S", 2, 3)]


def test_a_part_of_an_answer_is_asked_on_soon() -> None:
    core = receiver()
    feed(core, 100, 1)
    assert core.on_deadline(0.01) == [Wanted("S", 1, 100)]
    feed(core, 1, 50, now=0.02)
    assert core.on_deadline(0.031) == [Wanted("S", 51, 100)]


def test_declares_a_gap_lost_after_the_deadline_and_goes_on() -> None:
    core = receiver()
    feed(core, 1, 1)
    feed(core, 5, 1)
    feed(core, 9, 1)
    assert numbers(core) == [1]
    core.on_deadline(1.1)
    assert numbers(core) == [MoldLoss("S", 2, 5), 5]
    assert core.counters["lost"] == 3
    core.on_deadline(2.2)
    assert numbers(core) == [MoldLoss("S", 6, 9), 9]


def test_live_begins_where_it_is() -> None:
    core = receiver(first=None)
    feed(core, 50, 2)
    assert numbers(core) == [50, 51]


def test_other_sessions_are_counted_and_left_alone() -> None:
    core = receiver()
    feed(core, 1, 1)
    core.on_packet("T", 2, [b"x"], False, 0.0)
    assert numbers(core) == [1]
    assert core.counters["other_sessions"] == 1


def test_a_forged_packet_of_another_session_does_not_take_the_feed() -> None:
    core = receiver()
    core.on_packet("FORGED", 1 << 40, [], False, 0.0)
    feed(core, 1, 2, now=0.1)
    assert numbers(core) == []
    feed(core, 3, 2, now=0.1 + LINE_S)
    assert core.session == "S"
    assert core.on_deadline(0.2 + LINE_S) == [Wanted("S", 1, 3)]
    feed(core, 1, 2, now=0.2 + LINE_S)
    assert numbers(core) == [1, 2, 3, 4]
    assert core.counters["sessions_dropped"] == 1


def test_a_forged_end_of_another_session_does_not_end_the_feed() -> None:
    core = receiver()
    core.on_packet("FORGED", 1, [], True, 0.0)
    for second in range(1, 9):
        feed(core, 1, 3, now=second * LINE_S)
        core.on_deadline(second * LINE_S)
    assert numbers(core) == [1, 2, 3]
    assert not core.ended


def test_a_session_that_goes_on_is_kept_whatever_else_is_heard() -> None:
    core = receiver()
    feed(core, 1, 1)
    feed(core, 2, 1, now=LINE_S)
    for second in range(2, 20):
        core.on_packet("FORGED", 1, [b"x"], False, second * LINE_S)
    feed(core, 3, 1, now=30 * LINE_S)
    assert numbers(core) == [1, 2, 3]
    assert core.counters["other_sessions"] == 18


def test_a_session_that_speaks_between_forged_packets_is_kept() -> None:
    core = receiver()
    feed(core, 1, 1)
    core.on_packet("FORGED", 1, [b"x"], False, 0.1)
    feed(core, 2, 1, now=0.2)
    core.on_packet("FORGED", 1, [b"x"], False, 0.1 + LINE_S)
    assert core.session == "S"
    assert numbers(core) == [1, 2]


def test_the_end_of_a_forged_session_is_not_that_of_the_next() -> None:
    core = receiver()
    core.on_packet("FORGED", 1, [], True, 0.0)
    feed(core, 1, 0, ends=True, now=0.1)
    feed(core, 1, 0, ends=True, now=0.1 + LINE_S)
    assert core.session == "S"
    core.on_deadline(END_S)
    assert not core.ended
    core.on_deadline(0.1 + LINE_S + END_S)
    assert core.ended


def test_a_session_that_the_user_names_is_the_only_one() -> None:
    core = MoldReceiver("S", 1, TIMING)
    for second in range(20):
        core.on_packet("FORGED", 1, [b"x"], False, second * LINE_S)
    feed(core, 1, 1, now=30.0)
    assert numbers(core) == [1]


def test_what_is_held_is_bounded_and_asked_for_again() -> None:
    core = receiver(held_max=3)
    feed(core, 5, 3)
    feed(core, 8, 3)
    assert core.counters["held_full"] == 1
    feed(core, 1, 4)
    assert numbers(core) == [1, 2, 3, 4, 5, 6, 7]
    assert core.on_deadline(9.0) == []
    assert numbers(core) == [MoldLoss("S", 8, 11)]


def test_complete_when_the_session_has_ended_and_all_is_here() -> None:
    core = receiver()
    feed(core, 3, 1)
    feed(core, 4, 0, ends=True)
    assert not core.complete
    feed(core, 1, 2)
    assert not core.complete
    assert numbers(core) == [1, 2, 3]
    assert not core.complete  # one packet of whoever sent it is not enough
    feed(core, 4, 0, ends=True, now=1.0)
    assert core.deadline() == 1.0 + END_S
    core.on_deadline(1.0 + END_S)
    assert core.complete


# What anybody can send ---------------------------------------------------------------------------


def test_one_heartbeat_from_far_ahead_is_not_believed() -> None:
    core = receiver()
    feed(core, 1, 2)
    feed(core, 1 << 63, 0, now=0.1)
    for n in range(3, 1000):
        feed(core, n, 1, now=n / 10)
        core.on_deadline(n / 10)
    assert numbers(core) == list(range(1, 1000))
    assert core.counters["far_packets"] == 1


def test_far_ahead_is_believed_when_the_line_says_nothing_else() -> None:
    core = receiver()
    feed(core, 1, 2)
    far = 3 + 2 * JUMP_MESSAGES_MAX
    for n in range(11):
        feed(core, far + n, 1, now=1.0 + n / 8)
    assert numbers(core) == [1, 2]
    assert core.counters["far_packets"] == 8
    assert core.missing == far + 8 - 3


def test_first_packet_may_be_from_anywhere() -> None:
    core = receiver()
    feed(core, 1 << 40, 1)
    assert core.missing == (1 << 40) - 1


def test_number_that_the_line_contradicts_is_forgotten_before_it_is_lost() -> None:
    core = MoldReceiver(None, 1, MoldTiming())
    feed(core, 1, 2)
    feed(core, 1_000_000, 0, now=0.1)
    feed(core, 2_000_000, 1, now=0.1)
    for n in range(3, 100):
        now = n / 10
        feed(core, n, 1, now=now)
        core.on_deadline(now)
    assert numbers(core) == list(range(1, 100))
    assert (core.missing, core.counters["set_back"]) == (0, 1)


def test_receiver_goes_back_to_where_it_was_after_a_false_loss() -> None:
    core = receiver()
    feed(core, 1, 2)
    feed(core, 1_000, 0, now=0.1)
    core.on_deadline(0.2)
    core.on_deadline(2.0)
    assert numbers(core) == [1, 2, MoldLoss("S", 3, 1_000)]
    for n in range(20):  # what it had already, and heartbeats
        feed(core, 1, 2, now=3.0 + n / 10)
        feed(core, 3, 0, now=3.0 + n / 10)
    feed(core, 3, 4, now=6.0)
    assert numbers(core) == [3, 4, 5, 6]


def test_line_that_comes_long_after_the_other_brings_nothing_twice() -> None:
    core = receiver()
    feed(core, 1, 50)
    for n in range(1, 51):
        feed(core, n, 1, now=n / 10)
    assert numbers(core) == list(range(1, 51))
    assert core.counters["set_back"] == 0
    feed(core, 51, 1, now=9.0)
    assert numbers(core) == [51]


def test_end_that_the_line_contradicts_is_none() -> None:
    core = receiver()
    feed(core, 1, 2)
    feed(core, 3, 0, ends=True, now=0.1)
    for n in range(1, 60):
        feed(core, 3, 0, now=float(n))  # heartbeats
        feed(core, 3, 0, now=n + 0.5, ends=True)
        core.on_deadline(n + 0.9)
    assert numbers(core) == [1, 2]
    assert not core.complete
    feed(core, 3, 1, now=100.0)
    assert numbers(core) == [3]


def test_answer_that_nobody_asked_for_moves_nothing() -> None:
    core = receiver()
    feed(core, 1, 2)
    core.on_packet("S", 1000, [b"x"], True, 0.0, asked=True)
    assert (core.missing, core.deadline(), core.counters["far_packets"]) == (0, None, 1)


def test_what_is_held_is_bounded_in_bytes() -> None:
    core = receiver(held_bytes_max=100_000)
    for n in range(100):
        core.on_packet("S", 10 + n, [bytes(30_000)], False, 0.0)
    assert core.counters["held_full"] == 97
    assert core._held_bytes <= 100_000
    feed(core, 1, 9)
    assert core._held_bytes == 0


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), loss=st.floats(0, 0.6), forget=st.booleans())
def test_everything_comes_once_in_order_or_is_declared_lost(
    seed: int, loss: float, forget: bool
) -> None:
    """Two lines, packets lost, late, twice and cut otherwise by the server, which may forget."""
    rng = random.Random(seed)
    store = MoldStore(bytes_max=3000 if forget else 10**9, answer_messages_max=rng.randint(1, 30))
    core = MoldReceiver(None, 1, TIMING)
    total, now, sent = rng.randint(1, 200), 0.0, 1
    late: list[tuple[int, list[bytes], bool]] = []
    found: list[int | MoldLoss] = []
    for _ in range(20_000):
        now += 0.005
        if sent <= total:
            messages = [
                str(n).encode() for n in range(sent, min(total + 1, sent + rng.randint(1, 9)))
            ]
            store.add(messages)
            late += [(sent, messages, False)] * 2
            sent += len(messages)
        else:
            late.append((sent, [], True))
        rng.shuffle(late)
        for _ in range(rng.randint(0, 4)):
            if late:
                packet = late.pop()
                if rng.random() >= loss:
                    core.on_packet("S", *packet, now)
        for wanted in core.on_deadline(now):
            first, messages = store.answer(wanted.first, wanted.stop - wanted.first, now)
            if messages and rng.random() >= loss:
                core.on_packet("S", first, messages, False, now, asked=True)
        found += numbers(core)
        if core.complete:
            break
    assert core.complete
    expected = 1
    for item in found:
        if isinstance(item, MoldLoss):
            assert item.first == expected
            expected = item.stop
        else:
            assert item == expected
            expected += 1
    assert expected == total + 1
    if not forget and loss == 0:
        assert core.counters["lost"] == 0


# The store -------------------------------------------------------------------------------------


def test_store_answers_what_it_has() -> None:
    store = MoldStore(answer_messages_max=4)
    assert store.add([b"1", b"2", b"3"]) == 1
    assert store.add([b"4", b"5"]) == 4
    assert store.answer(2, 2, 0.0) == (2, [b"2", b"3"])
    assert store.answer(3, 60_000, 0.0) == (3, [b"3", b"4", b"5"])
    assert store.answer(1, 60_000, 0.0) == (1, [b"1", b"2", b"3", b"4"])
    assert store.answer(6, 1, 0.0) == (6, [])
    assert store.counters["unknown"] == 1


def test_store_forgets_the_oldest() -> None:
    store = MoldStore(bytes_max=500)
    for n in range(10):
        store.add([bytes([n]) * 36])
    assert store.first == 6
    assert store.answer(5, 1, 0.0)[1] == []
    assert store.answer(6, 1, 0.0)[1] == [bytes([5]) * 36]
    assert store.counters["expired"] == 5


def test_numbers_that_were_skipped_stay_unknown() -> None:
    store = MoldStore()
    store.add([b"1"])
    store.skip_to(5)
    store.add([b"5"])
    assert store.answer(1, 10, 0.0) == (1, [b"1"])
    assert store.answer(2, 10, 0.0) == (2, [])
    assert store.answer(5, 1, 0.0) == (5, [b"5"])


def test_answers_have_a_budget() -> None:
    store = MoldStore(answer_rate_bytes=10)
    store.add([b"x" * 30])
    assert store.answer(1, 1, 0.0)[1]
    assert store.answer(1, 1, 0.1)[1] == []
    assert store.counters["over_budget"] == 1
    assert store.answer(1, 1, 9.0)[1]
