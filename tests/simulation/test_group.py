"""The cores of work groups in one thread under a seed, with members that die, hang and are cut off.

One or two publishers, one or two groups of up to four members.  Acknowledgements are lost, repeated
and late; members are killed, leave, are suspected though they live, forget events; publishers run
out of buffer.  What must hold:

- each event goes at least once to each group, or is dead-lettered or reported lost;
- it comes again only where an acknowledgement was lost, it was given back, or its member was
  suspected, and then says so by its attempt;
- under `order="key"` nothing is sent while an earlier event of its key is unsettled;
- the ledger reconciles at every step, and nothing is left open in the end.

Half as many worlds as `SIM_SEEDS` says are tried.  A failing seed becomes a named test below.
"""

from __future__ import annotations

import os

import pytest

from tests.simulation.group_world import simulate_groups

SEEDS = int(os.environ.get("SIM_SEEDS", "300")) // 2
CHUNK = 50


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_event_is_handled_by_each_group_or_accounted_for(first: int) -> None:
    for seed in range(first, min(first + CHUNK, SEEDS)):
        simulate_groups(seed)


# Seeds that found something ---------------------------------------------------------------------


def test_event_sent_again_to_the_same_member_is_not_timed_out_with_its_first_lease() -> None:
    """Both leases ran out at once, and the event was put in line twice."""
    simulate_groups(98)
