"""Publishing from the thread of a bridge: waits where the stream waits, until it is to end."""

from __future__ import annotations

import threading
from typing import Any

from meshmsg._model.errors import PublishTimeout
from meshmsg._peer.peer import Peer

LOOK_S = 0.5


def publish_patiently(
    peer: Peer, stopping: threading.Event, topic: str, data: Any, key: str | None = None
) -> None:
    """Publish, however long the stream is blocked; `PublishTimeout` only if told to stop."""
    while True:
        try:
            # At the end there may be many, and each is tried once more.
            timeout = 0.0 if stopping.is_set() else LOOK_S
            peer.publish(topic, data, key=key, timeout=timeout)
            return
        except PublishTimeout:
            if stopping.is_set():
                raise
