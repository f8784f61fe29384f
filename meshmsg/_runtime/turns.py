"""How the I/O thread divides its time: nobody has more than a slice of it in one turn.

The thread serves all connections, and while it runs all other threads of the process wait for the
interpreter's lock: consumers, and whoever publishes.  One connection can have it busy all the time,
with messages that are all valid.  So

- a message is small, and costs less than a millisecond (`_model.message_fields`);
- of one connection, or one socket that many share, messages are handled for `TURN_S` in a turn,
  then come the others; what answers take is divided likewise;
- one peer has a part of the thread's time, and waits when that is used up
  (`recovery.stream.time_shares`);
- what every peer does once in a while, it does at one moment with the others of its process
  (`next_beat`): their messages come together then, and take a turn instead of one each;
- after a turn that took so long, the thread lets go of the lock for a moment (`give_way`).  A
  thread that waits for it gets it then.  Otherwise it would wait for 5 ms, the interpreter's switch
  interval, and again whenever the I/O thread had let go of the lock too shortly to be noticed.
"""

from __future__ import annotations

from meshmsg import _platform

#: What one connection has of a turn: so many messages, for so long.
MESSAGES_A_TURN = 256
TURN_S = 0.0005
#: The shortest sleep: with the kernel's timer slack, about 0.1 ms.
PAUSE_S = 0.00005


def next_beat(now: float, every_s: float) -> float:
    """Return the next of the moments, so far apart, that all peers of this process share.

    One that comes within half of that time is passed over: a turn that is a little early takes the
    moment that it is early for.
    """
    soon = now + every_s / 2
    return soon + every_s - (soon - _platform.current().phase_s) % every_s


class Slice:
    """A slice of a turn that begins now."""

    __slots__ = ("_stop",)

    def __init__(self) -> None:
        self._stop = _platform.monotonic() + TURN_S

    def is_over(self) -> bool:
        """Return True when it is the turn of others."""
        return _platform.monotonic() >= self._stop

    def give_way(self) -> None:
        """Let other threads run, if it is over."""
        if self.is_over():
            _platform.sleep(PAUSE_S)
