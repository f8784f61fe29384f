"""A receiver of `meshmsg demo feed`: loses packets on purpose and checks the quotes it gets.

Every quote carries its number in its data, so the check does not rest on the library's own
numbers: what is missing, doubled or out of order is found here too.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from meshmsg._model.config import Tuning
from meshmsg._peer.peer import Peer
from meshmsg._receive.subscription import Subscription
from meshmsg.cli._demo_worker import Checker
from meshmsg.cli._workers import say, stop_asked
from meshmsg.testing import LossyPath, lose_packets

REPORT_S = 0.02
#: Figures of the multicast receiver that are passed on.
FIGURES = (
    "packets",
    "nacks",
    "asked_packets",
    "suppressed",
    "repaired",
    "late",
    "duplicates",
    "missing",
    "lost_packets",
)


def main(settings: Mapping[str, Any]) -> None:
    """Subscribe, lose, check, report, until asked to stop."""
    stop = stop_asked()
    check = Checker()
    with (
        Peer(
            settings["name"],
            connect=settings["connect"],
            discovery="none",
            tuning=Tuning(**settings["tuning"]),
        ) as me,
        me.subscribe("quotes.**", on_loss=check.on_loss, name="demo") as events,
    ):
        events.wait_for_publishers(timeout=60)
        seed = settings["seeds"][settings["name"]]
        with lose_packets(me, settings["drop"], seed) as path:
            say(report(check, events, path))
            reported = 0.0
            while not stop.is_set():
                found = events.get_many(1000, timeout=REPORT_S)
                for event in found:
                    check.on_event(event.data["n"])
                now = time.monotonic()
                if not found or now - reported > REPORT_S:
                    reported = now
                    say(report(check, events, path))


def report(check: Checker, events: Subscription, path: LossyPath) -> dict[str, Any]:
    """Where we are: the quotes by the numbers in them, and what became of the packets."""
    multicast = events.stats()["sources"][0]["multicast"]
    return {
        **vars(check),
        "dropped": path.dropped,
        "dropped_data": path.data_dropped,
        "multicast": {name: multicast.get(name, 0) for name in FIGURES},
    }
