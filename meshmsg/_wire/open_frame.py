"""`OpenFrame`: the open frame of a stream, and the fields that publishing an event looks at.

Compiled where the compiled core is in use; here is the same in Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshmsg._native import COMPILED
from meshmsg._wire.frame import FrameBuilder
from meshmsg._wire.tail_frame import TailFrame

if TYPE_CHECKING or not COMPILED:

    class OpenFrame(FrameBuilder):
        """A frame builder with what decides whether its frame is to be sent."""

        __slots__ = (
            "dirty",
            "due_ns",
            "epoch",
            "gated",
            "holds",
            "large_max",
            "sent_ns",
            "size_max",
            "stream",
            "tail",
        )

        dirty: bool
        due_ns: int
        epoch: int
        gated: bool
        holds: bool
        large_max: int
        sent_ns: int
        size_max: int
        stream: str
        tail: TailFrame | None

else:
    from meshmsg._speed import OpenFrame

__all__ = ["OpenFrame"]
