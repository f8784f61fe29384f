"""A durable stream in one thread under a seed: its publisher dies at every point, on a bad disk.

The real log, sender and receivers; a disk that fails, and forgets what was not synced when the
machine dies; consumers that are there, come late, or go on where they committed, some of which hold
the log.  The invariant: what `publish` acknowledged (under power failures, what was on the disk) is
delivered once and in order to everyone who should have it, whatever died between append, sync, send
and ack; everything else is delivered or reported with its exact range; and no number names two
events.  `DURABLE_SEEDS` says how many worlds are tried, `make simulate` tries more.
"""

from __future__ import annotations

import os

import pytest

from meshmsg._replay.log_reads import Replay
from meshmsg.recovery.log.appender import Appender
from meshmsg.recovery.log.cursors import Cursors
from meshmsg.recovery.log.tail import Tail
from tests.simulation.durable.run import try_seeds
from tests.simulation.durable.world import simulate

SEEDS = int(os.environ.get("DURABLE_SEEDS", "500"))
CHUNK = 50

pytestmark = pytest.mark.usefixtures("quiet_logs")


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_acknowledged_events_come_once_whatever_died_when(first: int) -> None:
    for seed in range(first, min(first + CHUNK, SEEDS)):
        simulate(seed)


def test_worlds_are_as_bad_as_they_should_be() -> None:
    """Crashes at every kind of point, power failures, losses that are told, replays from disk."""
    counters, failed = try_seeds(range(1000, 1030))
    assert failed == []
    for what in ("crashes", "power_failures", "promised", "delivered", "consumer_crashes"):
        assert counters[what] > 10, counters


@pytest.mark.parametrize("fsync", ["always", "batch", "never"])
def test_every_event_is_promised_where_only_the_process_dies(fsync: str) -> None:
    for seed in range(2000, 2010):
        world = simulate(seed, fsync=fsync, power=0.0, disk_errors=0.0, retention_bytes=None)
        assert world.counters["lost_expired"] == 0
        assert len(world.promised) >= world.options.events


def test_held_log_expires_for_nobody_who_holds_it() -> None:
    for seed in range(3000, 3020):
        simulate(seed, retention_bytes=8000, segment_bytes=4096 + 600, events=100)


# What it has to find out -------------------------------------------------------------------------


def failures(seeds: range) -> int:
    return len(try_seeds(seeds)[1])


def test_sync_that_does_nothing_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Appender, "_sync_files", lambda *args, **named: None)
    monkeypatch.setattr(Tail, "sync", lambda self: None)
    assert failures(range(60)) > 3


def test_log_that_ignores_who_holds_it_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cursors, "held", lambda self: None)
    assert failures(range(100)) > 1


def test_restart_that_forgets_the_epochs_before_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Replay, "chapters", lambda self, folder, start, current: ([], None))
    assert failures(range(40)) > 3
