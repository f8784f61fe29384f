"""A work group's core: credit, acknowledgements, redelivery, key order, dead letters, books."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from meshmsg._wire.frame import Frame, encode_frame
from meshmsg._wire.subframe import Work
from meshmsg.recovery.groups.group import WorkGroup
from meshmsg.recovery.groups.policy import GroupPolicy
from meshmsg.recovery.groups.rendezvous import owner_of
from meshmsg.recovery.stream.loss_detector import NEVER
from meshmsg.recovery.stream.retransmit_buffer import RetransmitBuffer

A, B, C = 1, 2, 3


class Bench:
    """A buffer that is filled by hand, and a group on it."""

    def __init__(self, bytes_max: int = 1_000_000, **policy: Any) -> None:
        self.buffer = RetransmitBuffer(bytes_max)
        self.buffer.claim(0)
        patterns = policy.pop("patterns", ("**",))
        self.group = WorkGroup(
            "g",
            self.buffer,
            0,
            GroupPolicy(policy.pop("order", "none"), policy.pop("max_attempts", 5), patterns),
            takes_all="**" in patterns,
        )
        self.next = 0
        self.now = 0.0

    def publish(
        self, count: int = 1, *, keys: Sequence[str | None] = (), topics: Sequence[str] = ()
    ) -> None:
        count = max(count, len(keys), len(topics))
        first = self.next
        frame = encode_frame(
            5,
            1,
            first,
            list(topics) or "t",
            [b"%d" % seq for seq in range(first, first + count)],
            0,
            keys={n: key for n, key in enumerate(keys) if key is not None},
        )
        self.next += count
        self.buffer.append(first, self.next, frame)

    def join(self, *members: int, prefetch: int = 10, ack_timeout_s: float = 30.0) -> None:
        for member in members:
            self.group.join(member, f"m{member}", prefetch, ack_timeout_s, now=self.now)

    def deal(self) -> dict[int, list[tuple[int, int]]]:
        """Dispatch: number and attempt of each event, by member."""
        dealt: dict[int, list[tuple[int, int]]] = {}
        for member, work in self.group.dispatch(self.next, now=self.now):
            dealt.setdefault(member, []).extend(events_of(work))
        told = self.group.acked + self.group.filtered + self.group.dead + self.group.lost.total()
        assert told + self.group.pending(self.next) + self.group.in_flight == self.next
        return dealt

    def ack(self, member: int, *seqs: int, attempt: int = 1) -> int:
        ranges = [(seq, seq + 1, attempt) for seq in seqs]
        return self.group.ack(member, ranges, now=self.now)

    def nack(self, member: int, seq: int, attempt: int = 1, delay_s: float = 0.0) -> bool:
        return self.group.nack(member, seq, attempt, delay_s, "boom", now=self.now)


def events_of(work: Work) -> list[tuple[int, int]]:
    frame = Frame(work.data)
    places = range(work.lo, work.hi) if work.chosen is None else work.chosen
    attempts = work.attempts or [work.attempt] * len(places)
    for place in places:
        assert frame.payload_at(place) == b"%d" % (frame.first + place)
    return [(frame.first + place, attempt) for place, attempt in zip(places, attempts, strict=True)]


# Credit ------------------------------------------------------------------------------------------


def test_member_gets_no_more_than_its_credit() -> None:
    bench = Bench()
    bench.join(A, prefetch=3)
    bench.publish(10)
    assert bench.deal() == {A: [(0, 1), (1, 1), (2, 1)]}
    assert bench.deal() == {}
    bench.ack(A, 0, 1)
    assert bench.deal() == {A: [(3, 1), (4, 1)]}


def test_idle_members_share_what_there_is() -> None:
    bench = Bench()
    bench.join(A, B, prefetch=100)
    bench.publish(10)
    assert {member: len(events) for member, events in bench.deal().items()} == {A: 5, B: 5}


def test_slow_member_gets_less() -> None:
    bench = Bench()
    bench.join(A, B, prefetch=4)
    bench.publish(100)
    handled = {A: 0, B: 0}
    for _ in range(10):
        dealt = bench.deal()
        bench.ack(A, *(seq for seq, _ in dealt.get(A, [])))  # B never answers
        for member, events in dealt.items():
            handled[member] += len(events)
    assert handled[B] == 4
    assert handled[A] == 40


def test_single_events_go_to_whoever_has_most_credit() -> None:
    bench = Bench()
    bench.join(A, B)
    for _ in range(4):
        bench.publish()
        bench.deal()
    held = {number: member.in_flight for number, member in bench.group.members.items()}
    assert held == {A: 2, B: 2}


def test_backlog_waits_for_a_good_piece_of_credit() -> None:
    bench = Bench()
    bench.join(A, prefetch=40)
    bench.publish(100)
    bench.deal()
    bench.ack(A, *range(9))
    assert bench.deal() == {}, "9 of 40 free is a sliver"
    bench.ack(A, 9)
    assert len(bench.deal()[A]) == 10
    bench.ack(A, *range(10, 50))
    assert len(bench.deal()[A]) == 40
    bench.ack(A, *range(50, 60))
    assert len(bench.deal()[A]) == 10, "the last ones"
    bench.publish(5)
    bench.ack(A, *range(60, 65))
    assert len(bench.deal()[A]) == 5, "no more is waiting: a sliver is all there is"


def test_events_wait_where_there_is_no_member() -> None:
    bench = Bench()
    bench.publish(5)
    assert bench.deal() == {}
    assert bench.group.pending(bench.next) == 5
    bench.join(A)
    assert len(bench.deal()[A]) == 5


# Acknowledgements --------------------------------------------------------------------------------


def test_floor_is_the_oldest_event_that_is_not_settled() -> None:
    bench = Bench()
    bench.join(A)
    bench.publish(5)
    bench.deal()
    bench.ack(A, 1, 2, 4)
    assert bench.group.floor == 0
    bench.ack(A, 0)
    assert bench.group.floor == 3
    bench.ack(A, 3)
    assert bench.group.floor == 5
    assert bench.group.acked == 5


@pytest.mark.parametrize(
    ("member", "ranges", "stale"),
    [
        (A, [(0, 5, 1), (0, 5, 1)], 5),
        (A, [(0, 5, 2)], 5),
        (B, [(0, 5, 1)], 5),
        (9, [(0, 5, 1)], 5),
        (A, [(3, 1 << 60, 1)], 3),  # it counts as what there is, of which two are its own
        (A, [(0, 1 << 60, 7)], 5),
        (A, [(5, 2, 1)], 0),
    ],
)
def test_stale_and_strange_acks_are_refused_and_counted(
    member: int, ranges: list[tuple[int, int, int]], stale: int
) -> None:
    bench = Bench()
    bench.join(A, prefetch=10)
    bench.publish(5)
    bench.deal()
    bench.join(B)
    assert bench.group.ack(member, ranges, now=0.0) == stale
    assert bench.group.stale == stale
    assert bench.group.acked + bench.group.in_flight == 5


def test_ack_of_an_earlier_attempt_is_stale_after_redelivery() -> None:
    bench = Bench()
    bench.join(A, ack_timeout_s=1.0)
    bench.publish()
    bench.deal()
    bench.now = 1.0
    bench.join(B)
    bench.group.on_deadline(now=bench.now)
    assert bench.deal() == {B: [(0, 2)]}
    assert bench.ack(A, 0) == 1
    assert bench.group.acked == 0
    assert bench.ack(B, 0, attempt=2) == 0
    assert bench.group.acked == 1


def test_ack_of_the_attempt_before_is_stale_at_the_same_member() -> None:
    bench = Bench()
    bench.join(A)
    bench.publish()
    for attempt in (1, 2):
        bench.deal()
        assert bench.nack(A, 0, attempt=attempt)
    assert bench.deal() == {A: [(0, 3)]}
    assert bench.ack(A, 0, attempt=2) == 1
    assert bench.group.acked == 0
    assert bench.ack(A, 0, attempt=3) == 0


# Redelivery --------------------------------------------------------------------------------------


def test_nack_comes_again_after_its_delay_to_another_member() -> None:
    bench = Bench()
    bench.join(A)
    bench.publish()
    bench.deal()
    bench.join(B)
    assert bench.nack(A, 0, delay_s=5.0)
    bench.now = 4.9
    assert bench.deal() == {}
    assert bench.group.deadline() == 5.0
    bench.now = 5.0
    assert bench.deal() == {B: [(0, 2)]}
    assert bench.group.redelivered == 1


def test_nack_of_what_it_does_not_hold_is_stale() -> None:
    bench = Bench()
    bench.join(A)
    bench.publish()
    assert not bench.nack(A, 0)
    assert bench.group.stale == 1


def test_lost_member_gives_everything_to_the_others() -> None:
    bench = Bench()
    bench.join(A)
    bench.publish(6)
    bench.deal()
    bench.ack(A, 0, 3)
    assert bench.group.leave(A, "killed", now=0.0) == 4
    bench.join(B)
    for seq in (1, 2, 4, 5):  # one of them may have been what killed it
        assert bench.deal() == {B: [(seq, 2)]}
        bench.ack(B, seq, attempt=2)
    assert bench.group.leave(A, "killed", now=0.0) == 0


def test_work_given_back_unopened_keeps_its_attempt() -> None:
    bench = Bench()
    bench.join(A)
    bench.publish(4)
    bench.deal()
    bench.nack(A, 0)
    bench.deal()
    bench.group.give_back(A, [(1, 3, 1), (0, 1, 2)], now=0.0)
    bench.group.leave(A, "left", now=0.0, in_order=True)
    bench.join(B)
    assert sorted(bench.deal()[B]) == [(0, 2), (1, 1), (2, 1), (3, 2)]
    assert bench.group.returned_count == 3


def test_paused_member_gets_nothing_more() -> None:
    bench = Bench()
    bench.join(A)
    bench.group.pause(A)
    bench.group.pause(99)
    bench.publish()
    assert bench.deal() == {}


def test_event_fails_too_often_and_is_dead() -> None:
    bench = Bench(max_attempts=3)
    bench.join(A, B)
    bench.publish()
    for attempt in (1, 2, 3):
        (member, events), *_ = bench.deal().items()
        assert events == [(0, attempt)]
        bench.nack(member, 0, attempt)
    assert bench.deal() == {}
    (letter,) = bench.group.dead_letters
    assert (letter.seq, letter.index, letter.trouble.attempt) == (0, 0, 3)
    assert letter.trouble.members == ["m1", "m2", "m1"]
    assert letter.trouble.error == "boom"
    assert letter.trouble.reason == "nack"
    assert (bench.group.dead, bench.group.floor) == (1, 1)


# Time --------------------------------------------------------------------------------------------


def test_member_that_settles_nothing_loses_its_work() -> None:
    bench = Bench()
    bench.join(A, ack_timeout_s=10.0)
    bench.publish(3)
    bench.deal()
    assert bench.group.deadline() == 10.0
    bench.now = 9.0
    bench.ack(A, 0)
    bench.now = 18.9
    bench.group.on_deadline(now=bench.now)
    assert bench.group.timed_out == 0, "it settled something 9.9 s ago"
    bench.now = 19.0
    bench.group.on_deadline(now=bench.now)
    assert bench.group.timed_out == 2
    assert bench.group.in_flight == 0


def test_event_that_is_left_while_others_are_settled_times_out() -> None:
    bench = Bench()
    bench.join(A, prefetch=2, ack_timeout_s=10.0)
    bench.publish(100)
    bench.deal()
    for seq in range(1, 9):  # every second: event 0 hangs, the others go on
        bench.now = float(seq)
        bench.ack(A, seq)
        bench.group.on_deadline(now=bench.now)
        bench.deal()
    assert bench.group.timed_out == 0
    for seq in range(9, 14):
        bench.now = float(seq)
        bench.ack(A, seq)
        bench.group.on_deadline(now=bench.now)
        bench.deal()
    assert bench.group.timed_out == 1, "overtaken by a whole prefetch at 2 s, and left for 10 s"


def test_idle_group_has_no_deadline() -> None:
    bench = Bench()
    bench.join(A)
    assert bench.group.deadline() == NEVER
    bench.publish()
    bench.deal()
    bench.ack(A, 0)
    assert bench.group.deadline() == NEVER


# Keys --------------------------------------------------------------------------------------------


def test_key_goes_to_its_member_one_event_at_a_time() -> None:
    bench = Bench(order="key")
    bench.join(A, B, C)
    bench.publish(keys=["x", "x", "y", None, "x", "y"])
    dealt = bench.deal()
    place = {seq: member for member, events in dealt.items() for seq, _ in events}
    assert place.keys() == {0, 2, 3}
    assert place[0] == owner_of("x", [A, B, C])
    assert place[2] == owner_of("y", [A, B, C])
    bench.ack(place[0], 0)
    assert bench.deal() == {place[0]: [(1, 1)]}


def test_busy_key_does_not_hold_up_the_others() -> None:
    bench = Bench(order="key")
    bench.join(A, prefetch=3)
    bench.publish(keys=["slow"] * 50 + ["quick"])
    assert bench.deal() == {A: [(0, 1), (50, 1)]}


def test_key_without_credit_waits_for_its_own_member() -> None:
    bench = Bench(order="key")
    bench.join(A, B, prefetch=1)
    mine = [key for key in map(str, range(50)) if owner_of(key, [A, B]) == A][:2]
    bench.publish(keys=mine)
    assert bench.deal() == {A: [(0, 1)]}
    bench.ack(A, 0)
    assert bench.deal() == {A: [(1, 1)]}


def test_key_moves_to_a_new_member_only_when_its_event_is_settled() -> None:
    bench = Bench(order="key")
    bench.join(A)
    moving = next(key for key in map(str, range(50)) if owner_of(key, [A, B]) == B)
    bench.publish(keys=[moving, moving])
    assert bench.deal() == {A: [(0, 1)]}
    bench.join(B)
    assert bench.deal() == {}
    bench.ack(A, 0)
    assert bench.deal() == {B: [(1, 1)]}


def test_order_of_a_key_holds_through_nack_and_loss_of_its_member() -> None:
    bench = Bench(order="key")
    bench.join(A)
    bench.publish(keys=["x", "x", "x"])
    bench.deal()
    bench.nack(A, 0, delay_s=1.0)
    assert bench.deal() == {}, "the next one waits for the first"
    bench.now = 1.0
    assert bench.deal() == {A: [(0, 2)]}
    bench.group.leave(A, "killed", now=bench.now)
    assert bench.deal() == {}
    bench.join(B)
    assert bench.deal() == {B: [(0, 3)]}
    bench.ack(B, 0, attempt=3)
    assert bench.deal() == {B: [(1, 1)]}


def test_dead_event_frees_its_key() -> None:
    bench = Bench(order="key", max_attempts=1)
    bench.join(A)
    bench.publish(keys=["x", "x"])
    bench.deal()
    bench.nack(A, 0)
    assert bench.deal() == {A: [(1, 1)]}
    assert bench.group.dead == 1


def test_key_given_back_unopened_goes_to_its_next_member() -> None:
    bench = Bench(order="key")
    bench.join(A)
    bench.publish(keys=["x", "x"])
    bench.deal()
    bench.group.give_back(A, [(0, 1, 1)], now=0.0)
    bench.group.leave(A, "left", now=0.0)
    bench.join(B)
    assert bench.deal() == {B: [(0, 1)]}


def test_order_none_ignores_keys() -> None:
    bench = Bench(order="none")
    bench.join(A)
    bench.publish(keys=["x", "x"])
    assert bench.deal() == {A: [(0, 1), (1, 1)]}


# Filter and loss ---------------------------------------------------------------------------------


def test_topics_of_others_are_filtered_and_settled() -> None:
    bench = Bench(patterns=("mine", "ours.*"))
    bench.join(A)
    bench.publish(topics=["mine", "theirs", "ours.x", "theirs"])
    bench.publish(topics=["theirs", "theirs"])
    bench.publish(topics=["mine", "mine"])
    assert [seq for seq, _ in bench.deal()[A]] == [0, 2, 6, 7]
    assert bench.group.filtered == 4
    bench.ack(A, 0, 2, 6, 7)
    assert bench.group.floor == 8


@pytest.mark.parametrize("order", ["none", "key"])
def test_what_fell_out_of_the_buffer_is_lost_by_its_reason(order: str) -> None:
    bench = Bench(bytes_max=400, order=order)
    for _ in range(10):
        bench.publish(keys=["x", "y"])
    bench.group.loss_reason = "evicted"
    bench.join(A, prefetch=100)
    dealt = bench.deal()
    kept = bench.buffer.first
    assert kept is not None
    assert dealt[A][0][0] == kept
    assert bench.group.lost == {"evicted": kept}
    assert bench.group.losses == [(0, kept, "evicted")]
    assert bench.group.floor == kept


def test_loss_is_noticed_without_members_too() -> None:
    bench = Bench(bytes_max=400)
    for _ in range(10):
        bench.publish(2)
    bench.deal()
    assert bench.group.lost == {"overflow": bench.buffer.first}


def test_event_in_flight_is_lost_only_if_it_is_needed_again() -> None:
    bench = Bench(bytes_max=400)
    bench.join(A, B, prefetch=1)
    bench.publish()
    bench.publish()
    bench.deal()
    bench.publish(100)
    bench.publish(100)
    bench.ack(A, 0)
    assert bench.group.lost == {}
    bench.nack(B, 1)
    bench.deal()
    assert bench.group.lost["overflow"] > 0
    assert 1 in range(*bench.group.losses[0][:2]) or bench.group.losses[0][0] == 1


def test_group_that_is_given_up_loses_all_that_is_open() -> None:
    bench = Bench()
    bench.join(A, prefetch=2)
    bench.publish(5)
    bench.deal()
    bench.ack(A, 0)
    bench.group.retire(bench.next, "expired")
    assert bench.group.lost == {"expired": 4}


# Policy ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (GroupPolicy("none", 5, ("a", "b")), "order='none'"),
        (GroupPolicy("key", 6, ("a", "b")), "max_attempts=6"),
        (GroupPolicy("key", 5, ("a",)), "the topics a, and the group has a b"),
        (GroupPolicy("key", 5, ("b", "a")), ""),
    ],
)
def test_difference_between_policies_is_named(other: GroupPolicy, words: str) -> None:
    difference = GroupPolicy("key", 5, ("a", "b")).difference(other)
    assert words in difference
    assert bool(words) == bool(difference)


def test_join_again_changes_credit_only() -> None:
    bench = Bench()
    bench.join(A, prefetch=1)
    bench.publish(3)
    assert bench.deal() == {A: [(0, 1)]}
    bench.join(A, prefetch=2)
    assert bench.deal() == {A: [(1, 1)]}


def test_a_range_that_is_nobodys_counts_by_what_there_is() -> None:
    bench = Bench()
    bench.publish(3)
    bench.join(A)
    bench.deal()
    for number in (A, A + B + 1):  # a member, of what it had and far beyond; a stranger
        assert bench.group.ack(number, [(0, 1 << 62, 7)] * 2, now=bench.now) <= 2 * 3
    assert bench.group.stale <= 4 * 3
