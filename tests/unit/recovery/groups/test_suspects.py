"""Events that end their members: what is lost together is tried apart, and only the poison dies."""

from __future__ import annotations

import pytest

from meshmsg.recovery.groups.attempts import LOTS_MAX
from tests.unit.recovery.groups.test_group import A, B, Bench


def live(bench: Bench, number: int, poison: int, *, acks: bool = True, rounds: int = 1000) -> bool:
    """A member works until it is killed by the poison; False if it had none for a while."""
    bench.join(number, prefetch=64)
    queue: list[tuple[int, int]] = []
    for _ in range(rounds):
        bench.now += 0.01
        queue += [one for some in bench.deal().values() for one in some]
        if not queue:
            return False
        seq, attempt = queue.pop(0)
        if seq == poison:
            bench.group.leave(number, "killed", now=bench.now)
            return True
        if acks or not queue:
            bench.ack(number, seq, attempt=attempt)
    return False


@pytest.mark.parametrize("keys", [[], [f"k{n % 40}" for n in range(400)]])
@pytest.mark.parametrize("poison", [0, 7, 63, 150])
def test_poison_dies_alone_after_a_few_more_members_than_attempts(
    poison: int, keys: list[str]
) -> None:
    bench = Bench(max_attempts=3, order="key" if keys else "none")
    bench.publish(400, keys=keys)
    killed = 0
    while live(bench, 10 + killed, poison):
        killed += 1
        assert killed <= 5
    assert [letter.seq for letter in bench.group.dead_letters] == [poison]
    assert bench.group.dead_letters[0].trouble.counted == 3
    assert bench.group.dead_letters[0].trouble.attempt == killed
    assert (bench.group.floor, bench.group.acked) == (400, 399)


def test_poison_in_a_large_batch_is_found_in_smaller_and_smaller_lots() -> None:
    bench = Bench(max_attempts=2)
    bench.publish(10_000)
    bench.join(A, prefetch=8192)
    bench.deal()
    lots = []
    number = A
    while not bench.group.dead_letters:
        held = bench.group.members[number].in_flight
        lots.append(held)
        bench.group.leave(number, "killed", now=bench.now)  # the whole batch was opened
        while True:
            number += 1
            bench.join(number, prefetch=8192)
            dealt = [event for events in bench.deal().values() for event in events]
            if not dealt or any(seq == 5000 for seq, _ in dealt):
                break
            for seq, attempt in dealt:
                bench.ack(number, seq, attempt=attempt)
            bench.group.leave(number, "left", now=bench.now, in_order=True)
    assert lots == [8192, 8192 // LOTS_MAX, 2, 1, 1]
    assert [letter.seq for letter in bench.group.dead_letters] == [5000]


def test_what_lay_in_the_queue_of_dead_members_never_counts() -> None:
    """Members die of something else, again and again, with all that they hold unopened."""
    bench = Bench(max_attempts=1)
    bench.publish(64)
    for number in range(100):
        bench.join(number, prefetch=64)
        if number % 2:
            bench.join(1000 + number, prefetch=64)
        bench.deal()
        held = {n: m.in_flight for n, m in bench.group.members.items()}
        for n, count in held.items():
            if count == 1:  # it might be what kills
                bench.group.give_back(n, bench.group.members[n].holdings(), now=bench.now)
            bench.group.leave(n, "killed", now=bench.now)
    assert not bench.group.dead_letters


def test_others_get_fresh_work_while_a_suspect_is_tried() -> None:
    bench = Bench()
    bench.join(A, prefetch=4)
    bench.publish(4)
    bench.deal()
    bench.group.leave(A, "killed", now=0.0)
    bench.join(B, A, prefetch=4)
    bench.publish(2)
    dealt = bench.deal()
    assert dealt == {B: [(0, 2)], A: [(1, 2)]}
    bench.ack(B, 0, attempt=2)
    bench.ack(A, 1, attempt=2)
    assert bench.deal() == {B: [(2, 2)], A: [(3, 2)]}
    bench.ack(B, 2, attempt=2)
    assert bench.deal() == {B: [(4, 1), (5, 1)]}


def test_suspect_waits_until_its_member_has_nothing_else_but_not_for_ever() -> None:
    bench = Bench()
    bench.join(B, prefetch=2)
    bench.publish(2)
    assert bench.deal() == {B: [(0, 1), (1, 1)]}
    bench.join(A, prefetch=4)
    bench.publish(2)
    bench.deal()
    bench.group.leave(A, "killed", now=0.0)
    bench.publish(4)
    bench.ack(B, 1)
    assert bench.deal() == {}, "what it has may be done in a moment"
    bench.now = 1.1
    assert bench.deal() == {B: [(2, 2)]}, "or take an hour"


def test_member_that_gathers_events_gets_others_after_a_while() -> None:
    bench = Bench()
    bench.join(A, prefetch=4)
    bench.publish(2)
    bench.deal()
    bench.group.leave(A, "killed", now=0.0)
    bench.publish(3)
    bench.join(B, prefetch=4)
    assert bench.deal() == {B: [(0, 2)]}
    assert bench.deal() == {}
    bench.now = 1.1
    assert bench.deal() == {B: [(2, 1), (3, 1), (4, 1)]}


def test_event_that_is_tried_counts_whatever_came_after_it() -> None:
    """It takes its time to kill: its member has other work by then."""
    bench = Bench(max_attempts=2)
    bench.join(A, prefetch=4)
    bench.publish(2)
    bench.deal()
    bench.group.leave(A, "killed", now=0.0)
    bench.join(B, prefetch=4)
    assert bench.deal() == {B: [(0, 2)]}
    bench.publish(2)
    bench.now = 2.0
    assert bench.deal() == {B: [(2, 1), (3, 1)]}
    bench.group.leave(B, "killed", now=2.0)
    assert bench.group._trouble[0].counted == 2
    assert bench.group._trouble[2].counted == 1
    assert not bench.group.dead_letters
