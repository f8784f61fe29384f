"""The short form of `make attack`: a few hundred hostile messages, and honest peers as ever.

Nothing here is about time: how late events may be, and how long a publisher may wait, is judged in
the long form only.
"""

from __future__ import annotations

import threading

import pytest

from tests.attack.attacks import ATTACKS
from tests.attack.play import Options, Result, bounded, play
from tests.attack.run import OTHERS_MAX, details, is_open, judged, judged_together

#: Changed messages of each attack that takes any number of them.
MESSAGES = 300
OPTIONS = Options(
    rate=20_000, quiet_s=0.5, attack_s=0.5, late_s=60, late=("subscriber",), timing=False
)
#: What takes little time.
SHORT = (
    "mutate-dialler",
    "mutate-dialled",
    "mutate-dialler-listed",
    "mutate-frames",
    "mutate-packets",
    "claims",
    "claimed-streams",
    "false-tail",
    "group-names",
    "welcome-buffer",
)


def text_of(result: Result) -> str:
    return "\n".join(
        [f"seed 1: make attack ATTACK_FLAGS='--attack {result.attack}'", *details(result)]
    )


@pytest.mark.parametrize("name", SHORT)
def test_honest_peers_get_everything_once_and_in_order_under(name: str) -> None:
    result = play(ATTACKS[name], OPTIONS, MESSAGES, seed=1)
    assert not result.problems, text_of(result)
    assert not result.blocked, text_of(result)
    assert result.sent >= (MESSAGES if ATTACKS[name].share else 1)
    for row in result.honest.values():
        assert row["delivered"] == row["published"] > 0


def played(excess: float, others: float = 0.0) -> Result:
    slow = ["late"] if excess > 1 else []
    return Result("x", "", False, others=others, excess=excess, slow=slow)


@pytest.mark.parametrize(
    ("excesses", "good"),
    [([0.9], True), ([1.1, 1.2], False), ([1.1, 0.2, 0.3], True), ([1.1, 0.2, 1.3], False)],
)
def test_what_is_only_late_is_judged_by_the_median_of_its_plays(
    excesses: list[float], good: bool
) -> None:
    plays = [played(excess) for excess in excesses]
    assert [is_open(plays[:n]) for n in range(1, len(plays) + 1)] == [True] * (len(plays) - 1) + [
        False
    ]
    assert judged(plays).is_good is good
    assert judged(plays).tries == excesses


def test_beside_other_programs_more_plays_are_judged() -> None:
    plays = [played(1.1, 2 * OTHERS_MAX), played(1.2), played(0.5), played(0.6)]
    assert is_open(plays)
    assert judged([*plays, played(0.7)]).is_good


@pytest.mark.parametrize(
    ("excesses", "good"), [([1.1, 0.9, 0.8], True), ([1.1, 0.9, 1.2], False), ([0.5] * 4, True)]
)
def test_of_an_attack_of_several_rounds_the_one_in_the_middle_decides(
    excesses: list[float], good: bool
) -> None:
    rows = judged_together([played(excess) for excess in excesses])
    assert [row.excess for row in rows] == excesses
    assert all(row.is_good for row in rows) is good
    lost = Result("x", "", False, problems=["1 lost"])
    assert not all(row.is_good for row in judged_together([*rows, lost]))


class Scene:
    """Processes that can be ended."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    def kill(self) -> None:
        self.ended.set()


def test_a_play_that_does_not_end_is_ended_and_says_so() -> None:
    scene, result = Scene(), Result("x", "", False)
    with bounded(scene, Options(play_s_max=0.01), result):
        assert scene.ended.wait(60)
    assert result.problems == ["it did not end in 0.01 s"]


def test_a_play_that_ends_in_time_is_let_alone() -> None:
    scene, result = Scene(), Result("x", "", False)
    with bounded(scene, Options(play_s_max=60), result):
        pass
    assert not scene.ended.is_set()
    assert not result.problems


def test_what_is_lost_counts_whatever_other_plays_were_like() -> None:
    bad = Result("x", "", False, problems=["1 lost"])
    assert not is_open([bad])
    assert not judged([played(1.1), bad]).is_good
