"""Whether a subscription is there, as its publisher sees it, and what is done for one that is not.

| it | is waited for | what is kept for it |
|---|---|---|
| is there | yes | all that it has yet to take |
| is silent, and its connection stands | for `wait_s` | the same |
| is silent for longer, or its connection is closed | no | what the buffer holds, and the spill |
| has been away for `return_s` | no | nothing: it is forgotten |

One that is silent may be stopped or suspended; a closed connection is mostly a process that has
ended.  Waiting holds others up and is short; keeping costs room and is long.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Absence:
    """Since when a subscription is not there."""

    silent_since: float | None = None
    """Its last sign of life, once that is too long ago."""
    detached_at: float | None = None
    """When its data connection closed."""

    @property
    def since(self) -> float | None:
        """Since when it is away; `None` while it is there."""
        times = [t for t in (self.silent_since, self.detached_at) if t is not None]
        return min(times, default=None)

    def is_waited_for(self, wait_s: float, *, now: float) -> bool:
        """Return True while others may be held up for it."""
        if self.detached_at is not None:
            return False
        return self.silent_since is None or now - self.silent_since < wait_s

    def is_over(self, return_s: float, *, now: float) -> bool:
        """Return True when it has been away for so long that it is not expected back."""
        return self.since is not None and now - self.since >= return_s
