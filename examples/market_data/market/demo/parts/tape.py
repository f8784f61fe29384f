"""The tape reader of the demo: one-second bars from the trades, as they come."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from market.bars import Bars, add_prints
from market.demo.workers import say, stop_asked
from market.exchange import STREAMS
from market.follow import packet_figures
from market.simulator import Print
from meshmsg import Loss, Peer, Tuning
from meshmsg.testing import lose_packets

REPORT_S = 0.1
IDLE_S = 0.05


def main(settings: Mapping[str, Any]) -> None:
    """Make bars, report, until asked to stop; the bars themselves whenever nothing comes."""
    stop = stop_asked()
    bars: Bars = {}
    lost: list[Loss] = []
    count = 0
    with (
        Peer(
            settings["name"],
            connect=settings["connect"],
            discovery="none",
            tuning=Tuning(**settings["tuning"]),
        ) as me,
        me.subscribe(STREAMS[1], start="earliest", on_loss=lost.append) as events,
    ):
        events.wait_for_publishers(timeout=60)
        with lose_packets(me, settings["drop"], settings["seed"]) as path:
            reported, told = 0.0, -1
            while not stop.is_set():
                found = events.get_many(1000, timeout=IDLE_S)
                add_prints(bars, [Print(**event.data) for event in found])
                count += len(found)
                now = time.monotonic()
                if found and now - reported < REPORT_S:
                    continue
                reported = now
                report: dict[str, Any] = {"trades": count, "dropped": path.data_dropped}
                report |= {"lost": sum(loss.count for loss in lost), **packet_figures(events)}
                if not found and told != count:
                    told = count
                    report |= {"bars": [[*place, *bar] for place, bar in bars.items()]}
                    report |= {"bars_of": count}
                say(report)
