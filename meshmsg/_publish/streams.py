"""What the parts of a publisher share: its streams, the data socket, and the lock on both."""

from __future__ import annotations

from collections import Counter

from meshmsg import _platform
from meshmsg._publish.published_stream import Outlet
from meshmsg._runtime.guard import Guard
from meshmsg.transports.zmq.fanout import FanoutServer


class Streams:
    """The streams of a peer, and the data socket that they leave by: one lock guards them all."""

    def __init__(self, peer: str) -> None:
        # Locks are taken in this order: this one, then that of a log (`Appender`).  Whoever writes
        # a log has only the latter, unless it publishes many: sending does not wait for a disk.
        self.lock = _platform.new_rlock()
        #: Somebody came, left, reported or opened.
        self.changed = _platform.new_condition(self.lock)
        self.outlets: dict[str, Outlet] = {}
        self.fanout: FanoutServer | None = None  #: while the peer is open
        self.counters: Counter[str] = Counter()
        self.guard = Guard(f"the publishing side of {peer}", self.counters)
