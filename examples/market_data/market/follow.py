"""Following the feed: batch after batch into a handler's books, with snapshots now and then."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from market.handler import Handler
from meshmsg import Subscription
from meshmsg.moldudp import MoldListener, MoldMessages

#: How often books and place are kept.
KEEP_S = 0.5
#: How long nothing may come before the caller has its turn.
IDLE_S = 0.05
#: Of what a stream's source says about packets, this is passed on.
PACKETS = ("packets", "duplicates", "nacks", "asked_packets", "repaired", "late", "missing")


def follow(events: Subscription, handler: Handler, keep: Path | None = None) -> Iterator[int]:
    """Apply what comes, for ever; yields how many messages came, 0 when none did for a moment.

    With `keep`, books and place go there every now and then, and then the subscription's cursor is
    moved: so the cursor is never ahead of the books.
    """
    kept_at = time.monotonic()
    while True:
        for batch in events.batches(timeout=IDLE_S):
            handler.on_messages(batch.first, batch.payloads)
            if keep is not None and time.monotonic() - kept_at >= KEEP_S:
                handler.save(keep)
                events.commit()
                kept_at = time.monotonic()
            yield len(batch)
        yield 0


def follow_mold(listener: MoldListener, handler: Handler) -> Iterator[int]:
    """The same from MoldUDP64, until the session has ended; raises `BookError` after a loss."""
    while not listener.complete:
        for item in listener.get(timeout=IDLE_S):
            if isinstance(item, MoldMessages):
                handler.on_messages(item.first - 1, item.messages)
                yield len(item.messages)
        yield 0


def packet_figures(events: Subscription) -> dict[str, Any]:
    """What became of the feed's packets."""
    found = dict.fromkeys(PACKETS, 0)
    for source in events.stats()["sources"]:
        multicast = source.get("multicast", {})
        for name in PACKETS:
            found[name] += multicast.get(name, 0)
    return found
