"""A member of the demo's risk desk, a process of its own."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from market.demo.workers import say, stop_asked
from market.exchange import RISK, STREAMS
from market.risk import Risk
from meshmsg import Peer, Tuning

REPORT_S = 0.1
IDLE_S = 0.05
PREFETCH = 512


def main(settings: Mapping[str, Any]) -> None:
    """Sum up orders, acknowledge, report, until asked to stop."""
    stop = stop_asked()
    desk = Risk()
    tuning = Tuning(**settings["tuning"])
    with (
        Peer(settings["name"], connect=settings["connect"], discovery="none", tuning=tuning) as me,
        me.subscribe(STREAMS[2], group=RISK, prefetch=PREFETCH) as events,
    ):
        events.wait_for_publishers(timeout=60)
        reported = 0.0
        while not stop.is_set():
            found = events.get_many(PREFETCH, timeout=IDLE_S)
            for event in found:
                desk.on_order(event.data)
            events.ack(found)
            now = time.monotonic()
            if not found or now - reported > REPORT_S:
                reported = now
                exposure = {} if found else dict(desk.exposure)
                report = {"handled": desk.handled, "again": desk.again, "over": len(desk.over)}
                say(report | {"exposure": exposure})
