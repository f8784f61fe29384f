"""A feed handler of the demo, a process of its own that loses packets on purpose."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from market.demo.workers import say, stop_asked
from market.exchange import STREAMS
from market.follow import follow, packet_figures
from market.handler import Handler
from meshmsg import Loss, Peer, Tuning
from meshmsg.testing import lose_packets

REPORT_S = 0.1
#: The slow one sleeps in pieces of at least this.
NAP_S = 0.005


def main(settings: Mapping[str, Any]) -> None:
    """Follow the feed, report, until asked to stop."""
    stop = stop_asked()
    handler = Handler(settings["check_every"])
    folder = Path(settings["folder"])
    keep = folder / "books"
    resumed = handler.applied if handler.load(keep) else 0
    ends = time.monotonic() + settings["slow_s"]
    lost: list[Loss] = []
    with (
        Peer(
            settings["name"],
            connect=settings["connect"],
            discovery="none",
            data_dir=str(folder),
            tuning=Tuning(**settings["tuning"]),
        ) as me,
        me.subscribe(STREAMS[0], start="committed", name="books", on_loss=lost.append) as events,
    ):
        events.wait_for_publishers(timeout=60)
        with lose_packets(me, settings["drop"], settings["seed"]) as path:
            reported = asleep = 0.0
            for count in follow(events, handler, keep):
                asleep += count * settings["pause_s"]
                now = time.monotonic()
                if asleep > NAP_S and now < ends:
                    time.sleep(asleep)
                    asleep = 0.0
                if not count or now - reported > REPORT_S:
                    reported = now
                    report = {"lost": sum(loss.count for loss in lost), "resumed": resumed}
                    report |= {"dropped": path.data_dropped, **packet_figures(events)}
                    say(report | figures_of(handler))
                if stop.is_set():
                    return


def figures_of(handler: Handler) -> dict[str, Any]:
    """Where a handler is; the hash of its books once the day is over."""
    return {
        "applied": handler.applied,
        "skipped": handler.skipped,
        "hashes": handler.hashes,
        "final": handler.books.hash() if handler.closed else None,
        "orders": len(handler.books.orders),
    }
