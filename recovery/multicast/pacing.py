"""A token bucket: so many bytes a second, with a little saved up for a burst."""

from __future__ import annotations

from meshmsg.recovery.stream.loss_detector import NEVER

#: What may be saved up: this many seconds' worth, but at least one burst of packets.
BURST_S = 0.004
BURST_BYTES_MIN = 128 * 1024


class TokenBucket:
    """Says when the next bytes may leave.  A rate of `None` lets all pass.

    What is spent may exceed what is there once: a burst leaves whole, and the debt is waited for.

    >>> bucket = TokenBucket(1_000_000, burst_bytes=1000)
    >>> bucket.ready_at(now=0.0), bucket.spend(3000, now=0.0), bucket.ready_at(now=0.0)
    (0.0, None, 0.002000001)
    """

    __slots__ = ("_at", "_burst", "_rate", "_tokens")

    def __init__(self, rate: float | None, *, burst_bytes: float | None = None) -> None:
        self._rate = rate
        if burst_bytes is None:
            burst_bytes = max(BURST_BYTES_MIN, (rate or 0.0) * BURST_S)
        self._burst = burst_bytes
        self._tokens = burst_bytes
        self._at = -NEVER

    def ready_at(self, *, now: float) -> float:
        """When something may be sent: `now`, or later."""
        if self._rate is None:
            return now
        if self._at == -NEVER:
            self._at = now
        if now > self._at:
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
            self._at = now
        # A nanosecond past: a clock's rounding must not make it wait again for nothing.
        return now if self._tokens > 0 else now - self._tokens / self._rate + 1e-9

    def spend(self, size: int, *, now: float) -> None:
        """Bytes leave; call `ready_at` before."""
        if self._rate is not None:
            self._tokens -= size
