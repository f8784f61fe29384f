"""A work group through crashes of its publisher, under a seed: process and power, any moment.

What must hold: each event that was published (and, after a power failure, on the disk) is handled
at least once or given up; what the disk knew to be settled never comes again; with `order="key"` no
event is sent before the earlier ones of its key were handled; the books reconcile at every step.
"""

from __future__ import annotations

import os

import pytest

from tests.simulation.resume_world import ResumeWorld
from tests.simulation.seeds import run_worlds

SEEDS = int(os.environ.get("SIM_SEEDS", "300")) // 3
CHUNK = 25


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_group_goes_on_after_crashes_of_its_publisher(first: int) -> None:
    crashes = fetched = 0
    seeds = range(first, min(first + CHUNK, SEEDS))
    for world in run_worlds(ResumeWorld, seeds, 400):
        crashes += world.crashes
        fetched += world.fetched
    assert crashes > 0
    assert fetched > 0
