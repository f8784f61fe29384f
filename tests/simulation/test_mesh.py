"""Whole peers in one thread's turn at a time, under a seed: the code that users run, in bad worlds.

A publisher, with or without a log, over connections or multicast, that may be killed with and
without its disk; readers, a work group, a recorder; a network that loses, doubles, delays, breaks
and is cut.  The invariant: a reader gets each epoch's numbers once and in order, or is told that
they are lost; what was published to a log that stays comes to everybody; of each key a group does
events in order; no thread of a peer has failed.  `MESH_SEEDS` says how many worlds are tried.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from meshmsg._model.event import Loss
from meshmsg._receive.repair_sources import Lending
from meshmsg.recovery.groups.group import WorkGroup
from meshmsg.recovery.groups.key_order import KeyOrder
from meshmsg.recovery.log import open_recovery
from meshmsg.recovery.log.writer import LogWriter
from meshmsg.recovery.stream.receiver import StreamReceiver
from tests.simulation.mesh.run import try_seeds
from tests.simulation.mesh.world import simulate

SEEDS = int(os.environ.get("MESH_SEEDS", "60"))
CHUNK = 20

pytestmark = pytest.mark.usefixtures("quiet_logs")


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_everybody_gets_what_they_should_whatever_goes_wrong(first: int) -> None:
    for seed in range(first, min(first + CHUNK, SEEDS)):
        simulate(seed)


def test_worlds_are_as_bad_as_they_should_be() -> None:
    counters, failed = try_seeds(range(1000, 1012))
    assert failed == []
    for what in ("published", "delivered", "done", "dropped", "cuts", "kills"):
        assert counters[what] > 0, counters


@pytest.mark.parametrize("multicast", [False, True])
def test_same_seed_same_run(multicast: bool) -> None:
    first, second = (simulate(7, multicast=multicast, kills=1).trace for _ in range(2))
    assert first == second


# The simulator is proved by defects of the kind that this code has had.


def short_loss(self: Any, out: list[Any], stop: int, reason: str) -> None:
    out.append(Loss(self.stream, self.epoch, self.next, max(self.next + 1, stop - 1), reason))
    self.next = stop


def no_key_waits(self: Any, key: str, seq: int) -> Any:
    self._lines.pop(key, None)
    return ADD(self, key, seq)


ADD, BEGIN, STORE_TAIL = KeyOrder.add, LogWriter.begin, open_recovery._store_tail

DEFECTS: dict[str, tuple[Any, str, Any, int]] = {
    "a loss is reported an event short": (StreamReceiver, "_report", short_loss, 37),
    "a repair is never asked for": (Lending, "ask", lambda *args: None, 1),
    "acknowledgements of a group are dropped": (WorkGroup, "ack", lambda *args, now: 0, 0),
    "events of a key do not wait for each other": (KeyOrder, "add", no_key_waits, 0),
    "an epoch is used again": (LogWriter, "begin", lambda self, clock: BEGIN(self, 1), 8),
    "the end of the tail is forgotten when the log is opened": (
        open_recovery,
        "_store_tail",
        lambda file, salt, end, pieces, found: STORE_TAIL(file, salt, end, pieces[:-1], found),
        5,
    ),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_planted_defect_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, attribute, instead, seed = DEFECTS[name]
    monkeypatch.setattr(where, attribute, instead)
    with pytest.raises(AssertionError):
        simulate(seed)
