"""The gates of a peer's streams: who publishes where subscribers are behind waits here.

A stream is shut by whoever sends the frame that is too much (`Outlet.gated`), and opened by what
subscribers report, by their leaving, or by who has waited long enough.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from meshmsg import _platform
from meshmsg._model.errors import ClosedError, NameInUse, PublishTimeout
from meshmsg._publish.published_stream import Outlet
from meshmsg._publish.streams import Streams

#: Waits are cut to this, so that Ctrl-C is noticed.
SIGNALS_S = 0.5


class StreamGates:
    """Lets publishers wait, and calls them when their streams open."""

    def __init__(self, streams: Streams, routes: Mapping[str, Outlet]) -> None:
        self._changed = streams.changed
        self._routes = routes
        self._counters = streams.counters
        self.closed = False  #: nothing is published any more
        self.closed_text = "the peer is closed"  #: what those are told who would go on
        #: Streams that are taken from another peer of our name, and where that one is.
        self.rivals: Mapping[str, str] = {}

    # --- any thread ---

    def wait(
        self, outlet: Outlet, timeout: float | None, on_gate: Callable[[], None] | None
    ) -> bool:
        """Wait for the stream to open, or say no."""
        with self._changed:
            if self.closed:
                raise ClosedError(self.closed_text)
            if not outlet.gated:
                return True
            self.check_name(outlet)
            if on_gate is not None:
                if on_gate not in outlet.gate_waiters:
                    outlet.gate_waiters.append(on_gate)
                return False
            self._counters["publish_waits"] += 1
            began = _platform.monotonic()
            deadline = None if timeout is None else began + timeout
            while outlet.gated and not self.closed:
                self.check_name(outlet)
                left = SIGNALS_S if deadline is None else deadline - _platform.monotonic()
                if left <= 0 and not outlet.is_full():
                    self.open(outlet)  # it would have been better to wait, and was not asked for
                elif left <= 0:
                    outlet.note_wait(_platform.monotonic() - began)
                    names = list(outlet.blockers().values())
                    raise PublishTimeout(outlet.stream, timeout or 0.0, names)
                else:
                    self._changed.wait(min(left, SIGNALS_S))
            outlet.note_wait(_platform.monotonic() - began)
            if self.closed:
                raise ClosedError(f"{self.closed_text}, while the stream was blocked")
            return True

    def forget_waiter(self, topic: str, on_gate: Callable[[], None]) -> None:
        """Nobody waits for the stream to open by this callback any more."""
        with self._changed:
            outlet = self._routes.get(topic)
            if outlet is not None and on_gate in outlet.gate_waiters:
                outlet.gate_waiters.remove(on_gate)

    def lets_through(self, topic: str) -> bool:
        """Whether a stream on which somebody has waited long enough was shut for a moment only."""
        with self._changed:
            outlet = self._routes[topic]
            through = not (self.closed or outlet.is_full() or outlet.stream in self.rivals)
            if through:
                self.open(outlet)
            return through

    def blockers(self, topic: str) -> tuple[str, list[str]]:
        """The stream of a topic and the subscribers that block it."""
        with self._changed:
            outlet = self._routes[topic]
            return outlet.stream, list(outlet.blockers().values())

    # --- with the lock held ---

    def check_name(self, outlet: Outlet) -> None:
        """Raise `NameInUse` where nobody takes the stream from us."""
        if outlet.stream in self.rivals:
            raise NameInUse(outlet.stream, self.rivals[outlet.stream])

    def reopen(self, outlet: Outlet) -> None:
        """Something has changed: open the stream if nobody is in the way any more."""
        shut = self.closed or outlet.stream in self.rivals
        if outlet.gated and not shut and not outlet.is_shut():
            self.open(outlet)

    def open(self, outlet: Outlet) -> None:
        """Let everybody through."""
        outlet.gated = False
        for claim in outlet.sender.flow.claims.values():
            claim.blocked_since = None
        self.call_waiters(outlet)
        self._changed.notify_all()

    def call_waiters(self, outlet: Outlet) -> None:
        """Have those look again who asked to be called."""
        waiters, outlet.gate_waiters = outlet.gate_waiters, []
        for waiter in waiters:
            waiter()
