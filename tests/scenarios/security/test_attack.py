"""The short form of `make attack`: a few hundred hostile messages, and honest peers as ever.

Nothing here is about time: how late events may be, and how long a publisher may wait, is judged in
the long form only.
"""

from __future__ import annotations

import pytest

from tests.attack.attacks import ATTACKS
from tests.attack.play import Options, Result, play
from tests.attack.run import details

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
