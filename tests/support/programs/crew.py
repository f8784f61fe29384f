"""A worker of a group and its journal, for `RemotePeer.use`.

The worker writes a line for every event before it acknowledges it: what is in the journal has
happened, whatever became of the process.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from meshmsg import Peer


class Line(NamedTuple):
    """One event that a worker had in hand."""

    at_ns: int
    stream: str
    seq: int
    attempt: int
    key: str
    data: str


def work(peer: Peer, journal: str, pause_s: float, **options: Any) -> None:
    """Handle `jobs.**` on a thread."""
    file = os.open(journal, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def handle_all() -> None:
        with peer.subscribe("jobs.**", group="workers", **options) as events:
            for event in events:
                line = f"{time.monotonic_ns()} {event.position.stream} {event.seq} {event.attempt}"
                os.write(file, f"{line} {event.key} {event.data}\n".encode())
                if pause_s:
                    time.sleep(pause_s)
                events.ack(event)

    threading.Thread(target=handle_all, daemon=True).start()


def lines_of(journal: Path) -> list[Line]:
    """What a worker had in hand, in its order."""
    rows = (line.split(" ", 5) for line in journal.read_text().splitlines())
    return [
        Line(int(at_ns), stream, int(seq), int(attempt), key, data)
        for at_ns, stream, seq, attempt, key, data in rows
    ]
