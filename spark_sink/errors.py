"""What the Spark source raises beyond `meshmsg`'s own errors; each says what to do.

::

    ConfigError                    an option that cannot be used
     |- JavaMissing                Spark needs a Java and there is none
     |- OtherCheckpoint            the checkpoint belongs to another query
    EventsLost
     |- LossInRange                events of this batch are lost, and `failOnLoss` is true
    LogError
     |- ShortRead                  there is less than was planned: to be tried again
"""

from __future__ import annotations

import errno

from meshmsg import ConfigError, EventsLost, LogError, Loss

REASON_CHARACTERS_MAX = 500


class JavaMissing(ConfigError):
    """Spark runs on Java and none was found."""


class OtherCheckpoint(ConfigError):
    """The positions in a checkpoint are not of the streams that this query reads."""

    def __init__(self, problem: str) -> None:
        super().__init__(
            "checkpointLocation",
            f"{problem}. Give each query a checkpoint of its own: name another folder, or delete "
            f"this one to begin again at startingPosition",
        )


class LossInRange(EventsLost):
    """Events that a batch should have are lost."""

    def __init__(self, loss: Loss) -> None:
        super().__init__(loss)
        self.args = (
            f"{loss}. To go on without them set option failOnLoss=false; what is lost can then be "
            f"read as a table with option rows=losses. To have 'expired' events back, keep more "
            f"(retention) or hold it by a cursor",
        )


class ShortRead(LogError):
    """There is less than was planned: nothing is left out, the read is to be tried again."""

    def __init__(self, where: str, stream: str, epoch: int, at: int, stop: int) -> None:
        super().__init__(
            where,
            f"{stream} epoch {epoch} should have events {at} to {stop - 1}, which were there when "
            f"the batch was planned, and does not. Was the log put back to an older state, or is "
            f"this another folder of the same name on this machine?",
        )


def reason_of(error: BaseException | str) -> str:
    """The line of an error that says why: Java's innermost cause, or the last line of a trace.

    The first line of what Spark passes on from Python is the same for every error.
    """
    full = isinstance(error, OSError) and error.errno == errno.ENOSPC
    text = str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    told = [line for line in lines if not line.startswith(("at ", "... ", "File ", "JVM stack"))]
    found = (causes or told or [type(error).__name__])[-1]
    if full or "No space left on device" in text:
        found = f"the disk is full: {found}"
    return found[:REASON_CHARACTERS_MAX]
