"""SIGTERM at every instruction of a verb's wait for it, one after the other.

    python tests/support/programs/stopped_anywhere.py

Prints at how many there was one; ends with the stack where one was waited for in vain.
"""

from __future__ import annotations

import faulthandler
import signal
import sys
from types import FrameType
from typing import Any

from meshmsg.cli._figures import stopping

HUNG_S = 20.0
POINTS_MAX = 5000


class SignalAt:
    """A tracer that sends SIGTERM at the n-th instruction of what is called while it is on."""

    def __init__(self, point: int) -> None:
        self.left = point

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode" and self.left:
            self.left -= 1
            if not self.left:
                signal.raise_signal(signal.SIGTERM)  # its handler runs at once, and here
        return self


def main() -> None:
    faulthandler.dump_traceback_later(HUNG_S, exit=True)
    for point in range(1, POINTS_MAX):
        tracer = SignalAt(point)
        with stopping() as stop:
            sys.settrace(tracer)
            stop.wait(0.001)
            sys.settrace(None)
            ended = stop.wait(0)
        if tracer.left:
            print(point - 1)
            return
        if not ended:
            raise AssertionError(f"told to end at instruction {point}, and goes on")


if __name__ == "__main__":
    main()
