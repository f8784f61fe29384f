"""A feed handler of the demo that speaks MoldUDP64 and knows nothing of meshmsg."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from typing import Any

from market.demo.parts.handler import figures_of
from market.demo.workers import say, stop_asked
from market.follow import follow_mold
from market.handler import Handler
from meshmsg.moldudp import MoldListener

REPORT_S = 0.1


def main(settings: Mapping[str, Any]) -> None:
    """Listen, lose, ask again, report, until asked to stop."""
    stop = stop_asked()
    handler = Handler(settings["check_every"])
    rng = random.Random(settings["seed"])
    with MoldListener(settings["lines"], server=settings["server"]) as listener:
        listener.fault = lambda packet: rng.random() < settings["drop"]
        reported = 0.0
        for count in follow_mold(listener, handler):
            now = time.monotonic()
            if not count or now - reported > REPORT_S:
                reported = now
                stats = listener.stats()
                report = {"dropped": stats.get("injected_drops", 0), "lost": 0, **stats}
                say(report | {"repaired": stats.get("answers", 0)} | figures_of(handler))
            if stop.is_set():
                return
    stop.wait()
