"""The multicast cores in one thread under a seed: a sender, 1 to 100 receivers, and a bad network.

Each receiver stands as the peer has it: `PacketReceiver` under `StreamReceiver`, with a control
channel or without.  The network loses (each receiver for itself, in bursts, or for all at once),
repeats, reorders, delays and is cut; requests and reports get lost, too; senders and receivers are
restarted; consumers are slow and processes stand still; buffers are ample or tiny.

The invariant: every event from a receiver's start on is delivered once, in order, with the right
payload, or stands in exactly one `Loss`, and was then really gone or waited for until its deadline.
Where buffers and deadlines suffice, nothing is lost.  The ledger reconciles at every report.  In
the end everybody is at the tail.  And the bounds hold at every moment:

- no receiver asks for the same packet again within `retry_s` less the spread of the back-off;
- no packet is repaired twice within the linger;
- repairs keep to their budget, and what receivers hold to theirs.

`make simulate SEEDS=... START=...` tries as many worlds as wanted, and shrinks those that fail.
"""

from __future__ import annotations

import os
from collections import Counter
from unittest import mock

import pytest

from meshmsg.recovery.multicast.packet_receiver import PacketReceiver
from tests.simulation.multicast.options import MulticastOptions
from tests.simulation.multicast.run import explain, run_all
from tests.simulation.multicast.shrink import shrink
from tests.simulation.multicast.world import MulticastWorld, simulate

SEEDS = int(os.environ.get("SIM_SEEDS", "2000"))


@pytest.mark.timeout(600)  # about 15 s on two idle cores
def test_every_event_is_delivered_once_or_reported_lost() -> None:
    counters: Counter[str] = Counter()
    failed: list[int] = []
    for some, bad in run_all(0, SEEDS):
        counters.update(some)
        failed += bad
    assert not failed, f"seeds {sorted(failed)[:20]} fail\n\n{explain(min(failed))}"
    assert counters["worlds"] == SEEDS
    for seen in ("nacks", "repairs", "kernel_drops", "lost deadline", "lost overflow", "lost gone"):
        assert counters[seen], f"no world had any {seen}"


# Suppression ------------------------------------------------------------------------------------

LAN = MulticastOptions(
    events=100,
    event_bytes=200,
    pause_s=0.001,
    delay_s=0.0001,
    jitter_s=0.0004,
    warm_up_s=0.05,
)


def figures(receivers: int, seeds: range, **chosen: float) -> tuple[int, int, int, int]:
    """Packets sent, packets lost (repairs among them), NACKs and repairs of several worlds."""
    sent = lost = nacks = repairs = 0
    for seed in seeds:
        world = MulticastWorld(seed, LAN, receivers=receivers, **chosen).run()
        sent += world.publisher.packets.counters["packets"]
        lost += world.counters["lost for all"]
        nacks += world.counters["nacks"]
        repairs += world.counters["repairs"]
    return sent, lost, nacks, repairs


@pytest.mark.parametrize("receivers", [50, 100])
@pytest.mark.parametrize("loss", [0.05, 0.2])
def test_receivers_behind_one_lossy_link_ask_for_each_packet_hardly_more_than_once(
    receivers: int, loss: float
) -> None:
    _, lost, nacks, repairs = figures(receivers, range(4), shared_loss=loss)
    assert lost >= 15
    assert nacks / lost < 3
    assert repairs / lost < 1.2


@pytest.mark.parametrize(
    ("receivers", "loss", "nacks_max", "repairs_max"),
    [(50, 0.01, 0.6, 0.6), (50, 0.05, 1.5, 1.5), (100, 0.05, 2.0, 2.0), (50, 0.2, 3.5, 3.5)],
)
def test_loss_at_each_receiver_for_itself_is_repaired_for_all_at_once(
    receivers: int, loss: float, nacks_max: float, repairs_max: float
) -> None:
    """For each packet sent; at 50 receivers and 20 % each packet is lost by ten of them."""
    sent, _, nacks, repairs = figures(receivers, range(2), loss=loss)
    assert nacks / sent < nacks_max
    assert repairs / sent < repairs_max


# The simulation itself --------------------------------------------------------------------------


def test_same_seed_gives_the_same_world() -> None:
    one, two = (MulticastWorld(7, trace=True).run().trace for _ in range(2))
    assert one == two


def test_failing_world_is_shrunk_to_a_short_trace() -> None:
    deaf = mock.patch.object(PacketReceiver, "_on_beat")  # the loss of the last is never found
    with deaf:
        seed = next(seed for seed in range(100) if _fails(seed))
        failure = shrink(seed, budget_s=10)
    assert failure.options.receivers == 1
    assert failure.options.events == 1
    assert len(failure.only or ()) <= 2
    assert len(failure.trace) < 300
    assert f"seed {failure.seed}" in failure.text()


def _fails(seed: int) -> bool:
    try:
        MulticastWorld(seed).run()
    except AssertionError:
        return True
    return False


# Seeds that found something ---------------------------------------------------------------------


def test_events_dropped_before_they_were_sent_are_not_told_as_sent() -> None:
    """A heartbeat named the newest event of all as the next one, and others were given up."""
    simulate(48)
    simulate(139)


def test_receiver_that_missed_the_start_of_a_lost_frame_reports_it_once() -> None:
    simulate(681)
