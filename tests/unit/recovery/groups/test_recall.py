"""Members that come back to a work group: what they have done, have in hand, and have refused."""

from __future__ import annotations

from typing import Any

import pytest

from meshmsg.recovery.groups import group as work_group
from meshmsg.recovery.groups import recall as group_recall
from meshmsg.recovery.groups.recall import Failure
from meshmsg.recovery.stream.ranges import RangeSet
from tests.unit.recovery.groups.test_group import A, B, Bench


class Restarted(Bench):
    """A group of a publisher that was killed: nothing is dealt out yet."""

    def __init__(self, **policy: Any) -> None:
        super().__init__(**policy)
        self.group.recalling = True

    def back(
        self,
        member: int,
        done: list[tuple[int, int, int]] | None = None,
        held: list[tuple[int, int, int]] | None = None,
        failed: list[tuple[int, int]] | None = None,
        most: int = 100,
    ) -> int:
        """The member joins again; while the group is paused it was awaited."""
        awaited = self.group.recalling
        self.group.dealt = self.next if awaited else 0
        self.group.detach(member, now=self.now)
        self.join(member)
        self.group.pause(member)
        failures = [Failure(seq, attempt, 0.0, "boom") for seq, attempt in failed or []]
        stale = self.group.recall(
            member,
            done or [],
            held or [],
            failures,
            awaited=awaited,
            most=most,
            sealed=self.next,
            now=self.now,
        )
        self.join(member)
        return stale

    def go_on(self) -> dict[int, list[tuple[int, int]]]:
        self.group.recalling = False
        return self.deal()


def test_what_was_done_and_is_in_hand_is_not_dealt_out() -> None:
    bench = Restarted()
    bench.publish(10)
    bench.back(A, done=[(0, 3, 1), (5, 6, 1)], held=[(3, 5, 1)])
    assert bench.deal() == {}
    assert bench.go_on() == {A: [(seq, 1) for seq in range(6, 10)]}
    assert bench.ack(A, 3, 4, *range(6, 10)) == 0
    assert (bench.group.floor, bench.group.stale, bench.group.recalled) == (10, 0, 6)


@pytest.mark.parametrize(("stop", "stale"), [(3, 0), (4, 1), (1 << 62, 10 - 3)])
def test_ack_of_what_the_cursor_has_yet_to_reach_counts_as_it_is(stop: int, stale: int) -> None:
    bench = Restarted()
    bench.publish(10)
    bench.back(A, held=[(0, 3, 1)])
    assert bench.group.ack(A, [(0, stop, 1)], now=0.0) == stale
    assert (bench.group.acked, bench.group.stale) == (3, stale)


def test_claims_are_harmless_when_repeated() -> None:
    bench = Restarted()
    bench.publish(4)
    for _ in range(3):
        bench.back(A, done=[(0, 2, 1)], held=[(2, 3, 1)])
    assert bench.group.acked == 2
    assert bench.go_on() == {A: [(3, 1)]}


def test_claims_beyond_the_stream_and_backwards_are_nothing() -> None:
    bench = Restarted()
    bench.publish(2)
    bench.back(A, done=[(1, 1 << 62, 1), (9, 3, 1)], held=[(5, 1 << 62, 1), (7, 2, 3)])
    assert bench.group.acked == 1
    assert bench.go_on() == {A: [(0, 1)]}


def test_member_that_claims_too_much_holds_no_more_than_it_can() -> None:
    bench = Restarted()
    bench.publish(10)
    bench.back(A, held=[(0, 1 << 62, 1)], most=3)
    bench.join(B)
    assert bench.group.members[A].in_flight == 3
    dealt = bench.go_on()
    assert sorted(dealt[A] + dealt[B]) == [(seq, 1) for seq in range(7)], "the newest are its own"


@pytest.mark.parametrize("first", [A, B])
def test_later_attempt_has_the_event_whoever_speaks_first(first: int) -> None:
    """The one had too little time, the other got it as well, and neither is on disk."""
    bench = Restarted()
    bench.publish(2)
    for member in (first, A + B - first):
        if member == A:
            bench.back(A, held=[(0, 2, 1)])
        else:
            bench.back(B, done=[(0, 1, 2)], held=[(1, 2, 2)])
    assert bench.go_on() == {}
    assert bench.ack(A, 0, 1) == 2
    assert bench.ack(B, 1, attempt=2) == 0
    assert bench.group.floor == 2


def test_attempt_that_was_over_before_is_not_taken_back() -> None:
    bench = Restarted()
    bench.publish(2)
    bench.group.restore([], {0: 3})
    bench.back(A, held=[(0, 2, 1)])
    assert bench.go_on() == {A: [(0, 3)]}
    assert bench.ack(A, 1) == 0


def test_refusal_that_was_not_saved_counts() -> None:
    bench = Restarted(max_attempts=2)
    bench.publish(2)
    bench.back(A, failed=[(0, 1), (1, 1), (1, 2)])
    assert bench.go_on() == {A: [(0, 2)]}
    assert [letter.seq for letter in bench.group.dead_letters] == [1]


def test_key_of_what_is_in_hand_is_busy() -> None:
    bench = Restarted(order="key")
    bench.publish(keys=["k", "l", "k", "l"])
    bench.back(A, held=[(0, 1, 1)])
    assert bench.go_on() == {A: [(1, 1)]}
    bench.ack(A, 0)
    assert bench.deal() == {A: [(2, 1)]}


def test_two_of_a_key_in_hand_are_dealt_out_to_nobody_else() -> None:
    """The first had died for good, and that was not saved."""
    bench = Restarted(order="key")
    bench.publish(keys=["k", "k", "k"])
    bench.back(A, held=[(0, 1, 1)])
    bench.back(B, held=[(1, 2, 1)])
    assert bench.go_on() == {}
    bench.ack(A, 0)
    assert bench.deal() == {}
    bench.ack(B, 1)
    assert list(bench.deal().values()) == [[(2, 1)]]


def test_second_of_a_key_in_hand_may_be_done_first() -> None:
    bench = Restarted(order="key")
    bench.publish(keys=["k", "k", "k"])
    bench.back(A, held=[(0, 2, 1)])
    assert bench.go_on() == {}
    bench.ack(A, 1)
    assert bench.deal() == {}
    bench.ack(A, 0)
    assert bench.deal() == {A: [(2, 1)]}


def test_head_in_hand_that_waits_for_credit_elsewhere_is_not_offered_twice() -> None:
    for end in ("ack", "nack"):
        bench = Restarted(order="key")
        bench.publish(keys=["k", "k", "k"])
        bench.back(A, held=[(0, 1, 1)])
        bench.back(B, held=[(1, 2, 1)])
        bench.go_on()
        bench.join(A, B, prefetch=0)
        bench.ack(A, 0)
        assert bench.deal() == {}
        if end == "ack":
            bench.ack(B, 1)
        else:
            bench.nack(B, 1)
        assert bench.deal() == {}
        bench.join(A, B)
        dealt = [event for events in bench.deal().values() for event in events]
        assert dealt == ([(2, 1)] if end == "ack" else [(1, 2)])


def test_second_of_a_key_that_is_refused_waits_for_its_turn() -> None:
    bench = Restarted(order="key")
    bench.publish(keys=["k", "k", "k"])
    bench.back(A, held=[(0, 2, 1)])
    assert bench.go_on() == {}
    bench.nack(A, 1)
    assert bench.deal() == {}
    bench.ack(A, 0)
    assert bench.deal() == {A: [(1, 2)]}
    bench.ack(A, 1, attempt=2)
    assert bench.deal() == {A: [(2, 1)]}


def test_what_is_given_back_before_its_key_was_read_keeps_its_order() -> None:
    bench = Restarted(order="key")
    bench.publish(keys=["k", "k"])
    bench.back(A, held=[(0, 2, 1)])
    bench.group.give_back(A, [(1, 2, 1)], now=bench.now)
    assert bench.go_on() == {}
    bench.ack(A, 0)
    assert bench.deal() == {A: [(1, 1)]}


def test_member_that_comes_back_while_the_publisher_lives_goes_on() -> None:
    bench = Restarted()
    bench.join(A)
    bench.publish(6)
    assert len(bench.go_on()[A]) == 6
    bench.back(A, done=[(0, 2, 1)], held=[(2, 4, 1)])
    assert bench.deal() == {A: [(4, 1), (5, 1)]}  # they were on their way
    assert bench.ack(A, 2, 3, 4, 5) == 0


def test_member_that_was_taken_for_dead_keeps_what_nobody_else_got() -> None:
    bench = Restarted()
    bench.join(A)
    bench.publish(6)
    assert len(bench.go_on()[A]) == 6
    bench.group.leave(A, "silent", now=bench.now)
    bench.join(B, prefetch=2)
    others = [seq for seq, _ in bench.deal()[B]]
    bench.back(A, done=[(0, 3, 1)], held=[(3, 6, 1)])
    mine = [seq for seq in range(3, 6) if seq not in others]
    assert bench.group.members[A].in_flight == len(mine)
    assert bench.ack(A, *mine) == 0
    assert bench.ack(B, *others, attempt=2) == 0
    assert bench.group.floor == 6


def test_member_that_timed_out_does_not_get_its_event_back() -> None:
    bench = Restarted()
    bench.join(A, ack_timeout_s=1)
    bench.publish()
    bench.go_on()
    bench.now = 2.0
    bench.group.on_deadline(now=bench.now)
    bench.back(A, held=[(0, 1, 1)])
    assert bench.deal() == {A: [(0, 2)]}


def test_head_that_waits_for_credit_is_taken_back_by_who_had_it() -> None:
    bench = Restarted(order="key")
    bench.join(A, prefetch=1)
    bench.publish(keys=["k", "k"])
    assert bench.go_on() == {A: [(0, 1)]}
    bench.group.detach(A, now=bench.now)  # and it waits, for nobody
    bench.back(A, done=[(0, 1, 1)])
    assert bench.deal() == {A: [(1, 1)]}


def test_group_waits_where_there_are_too_many_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies beyond would not be on disk, and would come again."""
    monkeypatch.setattr(work_group, "GAPS_MAX", 3)
    bench = Restarted()
    bench.join(A, prefetch=10)
    bench.publish(8)
    bench.go_on()
    bench.publish(8)
    bench.ack(A, 1, 3, 5, 7)
    assert bench.deal() == {}
    bench.ack(A, 0, 2)
    assert bench.deal()[A][0] == (8, 1)


def test_group_that_is_paused_wants_nobody_to_come_round() -> None:
    """A refusal is due, and nothing can be done about it: asking again and again is no use."""
    bench = Restarted()
    bench.publish(2)
    bench.back(A, failed=[(0, 1)])
    assert bench.group.deadline() > bench.now
    bench.group.recalling = False
    assert bench.group.deadline() <= bench.now
    assert bench.deal() == {A: [(0, 2), (1, 1)]}


# Who may say what --------------------------------------------------------------------------------

FAR = 1 << 62


def entries(bench: Bench) -> int:
    """What a group has in memory: whatever somebody says, this is what it can make grow."""
    group = bench.group
    sets = [group._settled, group._done, group._returned, group._restored, group._unkeyed]
    for member in group.members.values():
        sets += [member.first_time, *member.again.values()]
    lines = [group._trouble, group._retries, group._due, group._suspects, group._absent]
    return sum(map(len, sets)) + sum(map(len, lines))


@pytest.mark.parametrize("order", ["none", "key"])
@pytest.mark.parametrize("claims", ["done", "held", "failed"])
def test_stranger_claims_everything_and_gets_nothing(order: str, claims: str) -> None:
    bench = Restarted(order=order)
    bench.join(B, prefetch=5)
    bench.publish(10)
    bench.group.recalling = False
    bench.deal()
    before = entries(bench)
    failed = [(seq, 1) for seq in range(10)]
    said: Any = {"done": [(0, FAR, 1)], "held": [(0, FAR, 2)], "failed": failed}[claims]
    stale = bench.back(A, **{claims: said})
    assert stale == 10 + (claims != "failed"), "and numbers that are not there yet"
    assert entries(bench) == before
    assert (bench.group.acked, bench.group.members[A].in_flight) == (0, 0)
    bench.group.leave(A, "left", now=0.0, in_order=True)
    while bench.group.floor < 10:
        bench.ack(B, *range(10))
        bench.deal()
    assert bench.group.acked == 10


def test_member_speaks_only_of_what_was_taken_from_it_and_once() -> None:
    bench = Restarted()
    bench.group.recalling = False
    bench.join(A, B, prefetch=3)
    bench.publish(20)
    dealt = bench.deal()
    mine = [seq for seq, _ in dealt[A]]
    assert bench.back(A, done=[(0, FAR, 1)]) == 20 - len(mine) + 1
    assert bench.group.acked == len(mine)
    bench.group.detach(B, now=0.0)
    bench.join(A, prefetch=0)
    assert bench.back(A, done=[(0, FAR, 1)]) == 20 - len(mine) + 1, "nor of what others had"
    assert bench.group.acked == len(mine)


def test_member_speaks_under_the_attempt_that_it_had() -> None:
    bench = Restarted()
    bench.group.recalling = False
    bench.join(A, prefetch=3)
    bench.publish(3)
    bench.deal()
    assert bench.back(A, held=[(0, 3, 99)], done=[(0, 3, 2)]) == 3
    assert bench.deal() == {A: [(0, 1), (1, 1), (2, 1)]}


def test_member_that_is_awaited_speaks_of_nothing_that_was_not_dealt_out() -> None:
    bench = Restarted()
    bench.publish(10)
    bench.join(A)
    bench.group.dealt = 6
    said = [(0, FAR, 1)]
    stale = bench.group.recall(A, said, said, awaited=True, most=10, sealed=10, now=0.0)
    assert (bench.group.acked, bench.group.floor, stale) == (6, 6, 4 + 2)
    assert bench.go_on() == {A: [(seq, 1) for seq in range(6, 10)]}


@pytest.mark.parametrize("order", ["none", "key"])
def test_huge_range_in_hand_costs_a_few_entries_and_no_more_than_the_prefetch(order: str) -> None:
    """What a member says costs as much as it takes to say it, not as much as is in it."""
    bench = Restarted(order=order)
    for _ in range(20):
        bench.publish(10_000, keys=[f"k{n}" for n in range(10_000)] if order == "key" else ())
    before = entries(bench)
    bench.back(A, held=[(0, FAR, 1)], most=1_000_000)
    assert bench.group.members[A].in_flight == 200_000
    assert entries(bench) <= before + 4
    bench.back(B, held=[(0, FAR, attempt) for attempt in range(2, 50)], most=1_000_000)
    assert entries(bench) <= before + 4 + 4 * group_recall.AGAIN_MAX


def test_keys_of_much_that_is_in_hand_are_read_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_recall, "KEYS_A_TURN", 10)
    bench = Restarted(order="key")
    bench.publish(keys=[f"k{n % 50}" for n in range(100)])
    bench.back(A, held=[(0, 50, 1)])
    for turn in range(1, 5):
        assert bench.go_on() == {}
        assert len(bench.group._keys._key_of) == 10 * turn
        assert bench.group.deadline() <= bench.now, "the next turn is due at once"
    bench.join(A, prefetch=100)
    assert bench.deal() == {}, "of each key one is in hand"
    bench.ack(A, *range(50))
    assert len(bench.deal()[A]) == 50


def test_many_stale_ranges_are_looked_at_once_each() -> None:
    """65,536 times everything, of a member that has a thousand events for the second time."""
    bench = Bench()
    bench.join(A, prefetch=1000)
    bench.publish(1000)
    bench.deal()
    for seq in range(1000):
        bench.nack(A, seq)
    bench.deal()
    looked = 0

    class Watched(RangeSet):
        def overlap(self, first: int, stop: int) -> list[tuple[int, int]]:
            nonlocal looked
            found = super().overlap(first, stop)
            looked += 1 + len(found)
            return found

    member = bench.group.members[A]
    member.again = {n: Watched(ranges) for n, ranges in member.again.items()}
    stale = bench.group.ack(A, [(0, FAR, 7)] * 65_536, now=0.0)
    assert stale == 65_536 * 1000
    assert looked == 0, "nothing of it is held under that attempt"
    bench.group.ack(A, [(0, FAR, 2)] * 65_536, now=0.0)
    assert looked <= 2
    assert bench.group.acked == 1000


def test_events_of_a_member_that_is_not_back_say_that_they_may_come_again() -> None:
    bench = Restarted()
    bench.publish(10)
    bench.group.restore([], {5: 3}, {5: 1})
    bench.group.is_marked = True
    bench.back(A, done=[(0, 2, 1)], held=[(2, 4, 1)])
    bench.group.dealt = 6
    bench.group.doubt()
    assert bench.group.doubtful == [(4, 6)]
    assert bench.go_on() == {A: [(4, 2), (5, 4), *((seq, 1) for seq in range(6, 10))]}
    assert bench.group.spared == {4: 1, 5: 2}
    assert bench.group.doubtful == []
