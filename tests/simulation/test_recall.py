"""A durable work group whose publisher is killed between any two steps, under a seed.

What must hold: what a living member's application was given, no application is given again; what a
dead member had comes again; every event is done in the end, and keys are in order.
"""

from __future__ import annotations

import os

import pytest

from tests.simulation.recall_world import RecallWorld
from tests.simulation.seeds import run_worlds

SEEDS = int(os.environ.get("SIM_SEEDS", "300"))
CHUNK = 50


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_living_members_get_nothing_again(first: int) -> None:
    kills = recalled = 0
    seeds = range(first, min(first + CHUNK, SEEDS))
    for world in run_worlds(RecallWorld, seeds, 1000):
        kills += world.kills
        recalled += world.recalled
    assert kills > 0
    assert recalled > 0
