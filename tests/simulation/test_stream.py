"""A stream's cores in one thread under a seed, joined by links that drop, delay and restart.

One publisher and one to five subscribers, modelled after the peer that joins the cores to ZeroMQ:

- the live path keeps order and drops: the newest when its queue is full, any message by chance
  (in some worlds it repeats and swaps messages too, as multicast will);
- the control path (nack, repair, gone, status, tail) keeps order and delays, and may lose by chance
  or be cut for longer than a repair may take;
- consumers are slow, stop for a while, or their whole process does;
- the publisher may be restarted, with notice or without, and comes back under a new epoch.

The invariant: every number from a subscriber's start on is delivered once, in order, with the right
payload, or stands in exactly one `Loss`; and in the end nothing is left open.  `SIM_SEEDS` says how
many worlds are tried.  A failure prints its seed; that seed then becomes a named test below.
"""

from __future__ import annotations

import os

import pytest

from tests.simulation.world import simulate

SEEDS = int(os.environ.get("SIM_SEEDS", "300"))
CHUNK = 50


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_event_is_delivered_once_or_reported_lost(first: int) -> None:
    for seed in range(first, min(first + CHUNK, SEEDS)):
        simulate(seed)


def test_recorder_that_lies_changes_nothing() -> None:
    """Its claims are asked for in vain, and what it makes up beyond them is not taken."""
    told = 0
    for seed in range(SEEDS // 3):
        told += simulate(seed, liar=True).counters["lies"]
    assert told > SEEDS


# Seeds that found something ---------------------------------------------------------------------


def test_large_frame_pushes_nothing_out_that_is_still_waited_for() -> None:
    """Under `buffer`, a frame larger than the buffer's slack dropped events yet to be taken."""
    simulate(3)


def test_return_from_eviction_waits_until_its_losses_are_told() -> None:
    """What had fallen out did not count as behind, and was then reported as another's overflow."""
    simulate(18)


def test_process_that_was_stopped_does_not_give_up_what_lies_unread() -> None:
    """The deadline ran while the receiver stood still, with the repairs waiting to be read."""
    simulate(15)


def test_gap_is_not_given_up_while_those_before_it_are_repaired() -> None:
    """Answers are limited and come lowest first: a later gap saw no progress of its own."""
    simulate(53)
