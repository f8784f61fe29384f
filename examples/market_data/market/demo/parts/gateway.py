"""The gateway of the demo: the feed as MoldUDP64, from a process of its own."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from market.demo.workers import say, stop_asked
from market.exchange import STREAMS
from meshmsg import Peer, Tuning
from meshmsg.moldudp import MeshToMold

REPORT_S = 0.1


def main(settings: Mapping[str, Any]) -> None:
    """Forward, report, until asked to stop."""
    stop = stop_asked()
    reported = 0.0

    def go_on() -> bool:
        nonlocal reported
        now = time.monotonic()
        if bridge.sender is not None and now - reported > REPORT_S:
            reported = now
            sender = bridge.sender
            report = {"server": sender.address, "session": sender.session, "next": sender.next}
            say(report | {"lost": bridge.counters["lost"], "sent": sender.stats()})
        return not stop.is_set()

    with Peer(
        settings["name"],
        connect=settings["connect"],
        discovery="none",
        tuning=Tuning(**settings["tuning"]),
    ) as me:
        bridge = MeshToMold(me, STREAMS[0], settings["lines"])
        bridge.run(go_on)
