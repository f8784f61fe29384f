"""The shape of an attacker's traffic: when it sent how much where, and what it used meanwhile."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

#: Moments are told apart by so much.
STEP_S = 0.01
#: Where a message goes that is for nobody's control port: to the shop's data port, or a group.
DATA, GROUP = "data port", "multicast group"
#: The weight of a process, as `nice` has it.
HIGHEST = -20
#: When, what the process had used of the processor by then, and messages and bytes by target.
Step = tuple[float, float, dict[str, tuple[int, int]]]


class Shape:
    """When an attacker sent how much where, and what it had used of the processor by then."""

    def __init__(self, seconds: float) -> None:
        self.began = time.monotonic()
        self._seconds = seconds
        self.steps: list[Step] = []

    def note(self, where: str, size: int) -> None:
        """A message is about to be sent."""
        said = self.look()
        messages, before = said.get(where, (0, 0))
        said[where] = (messages + 1, before + size)

    def look(self) -> dict[str, tuple[int, int]]:
        """Take note of the processor; return what is sent at this moment."""
        at = time.monotonic() - self.began
        if at > self._seconds:
            return {}
        if not self.steps or at >= self.steps[-1][0] + STEP_S:
            self.steps.append((at, time.process_time(), {}))
        return self.steps[-1][2]


def come_first() -> None:
    """Run before all other programs of the machine, if this user may.

    What other programs leave to honest peers is not what is measured.
    """
    with contextlib.suppress(AttributeError, OSError):  # Linux, and root
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def come_second() -> None:
    """Get nearly all that those leave who come first, if this user may.

    That is an ordinary process of the highest weight.  Were the attacker before all others, too,
    the kernel would hold up all who come first, for 50 ms a second, for those who got nothing.
    """
    with contextlib.suppress(AttributeError, OSError):  # Linux, and root
        os.setpriority(os.PRIO_PROCESS, 0, HIGHEST)
        Path("/proc/self/autogroup").write_text(str(HIGHEST), encoding="ascii")
