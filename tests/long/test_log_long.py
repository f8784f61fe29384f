"""The log's simulation and its kills, for minutes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.scenarios import test_away, test_groups_exactly_once, test_replay_kill
from tests.scenarios.test_log_kill import kill_many
from tests.simulation.log_world import simulate

SEEDS = int(os.environ.get("LOG_SEEDS", "5000"))
#: A kill takes about a second, most of it the start of the next process.
KILLS = int(os.environ.get("LOG_KILLS", "200"))


@pytest.mark.slow
@pytest.mark.usefixtures("quiet_logs")
def test_acknowledged_events_outlive_thousands_of_crashes() -> None:
    for seed in range(10_000, 10_000 + SEEDS):
        simulate(seed)


@pytest.mark.slow
@pytest.mark.parametrize("fsync", ["always", "batch"])
def test_writer_killed_two_hundred_times_has_kept_all(tmp_path: Path, fsync: str) -> None:
    kill_many(tmp_path, fsync, KILLS)


@pytest.mark.slow
@pytest.mark.parametrize("fsync", ["always", "batch"])
def test_publisher_killed_two_hundred_times_has_delivered_all(tmp_path: Path, fsync: str) -> None:
    test_replay_kill.kill_many(tmp_path, fsync, KILLS)


@pytest.mark.slow
def test_publisher_killed_two_hundred_times_gives_no_group_anything_twice(tmp_path: Path) -> None:
    test_groups_exactly_once.kill_under_groups(tmp_path, KILLS)


@pytest.mark.slow
def test_consumers_back_after_a_million_events_reach_the_live_edge(tmp_path: Path) -> None:
    test_away.be_away(tmp_path, 1_000_000, consumers=10)
