"""Which packets of one sender were taken already: each is taken once, in whatever order they come.

A set of what is missing instead of a bitmap of what came: where nothing is lost it is empty, and
a counter that follows the last one costs a comparison.  Repairs are sealed anew and have counters
of their own, so what is missing here mostly stays so.
"""

from __future__ import annotations

from meshmsg.recovery.stream.ranges import RangeSet

#: A packet that so many others have overtaken is refused, whether it came before or not.
WINDOW_PACKETS = 1 << 16
#: Gaps that are remembered; when there are more, the older half is forgotten.
GAPS_MAX = 4096


class ReplayWindow:
    """The counters of one sender.

    >>> window = ReplayWindow(5)
    >>> window.take(7)
    >>> [window.is_new(counter) for counter in (4, 5, 7, 8)]
    [False, True, False, True]
    """

    __slots__ = ("_missing", "next")

    def __init__(self, first: int) -> None:
        self.next = first  #: one past the highest counter that was taken
        self._missing = RangeSet()

    def is_new(self, counter: int) -> bool:
        """Whether a packet may be taken; changes nothing, for it has not proved itself yet."""
        return counter >= self.next or counter in self._missing

    def take_run(self, first: int, count: int) -> None:
        """So many packets in a row, none of which was taken before, have proved themselves."""
        if first == self.next:
            self.next += count
        else:
            for counter in range(first, first + count):
                self.take(counter)

    def take(self, counter: int) -> None:
        """A packet that is new has proved itself."""
        ahead = counter - self.next
        missing = self._missing
        if ahead < 0:
            missing.remove(counter, counter + 1)
            return
        self.next = counter + 1
        if ahead:
            missing.add(max(counter - ahead, self.next - WINDOW_PACKETS), counter)
            if len(missing) > GAPS_MAX:
                firsts = [first for first, _ in missing]
                missing.discard_before(firsts[GAPS_MAX // 2])
        if missing and missing.bounds[0] <= counter - 2 * WINDOW_PACKETS:
            # Not at each step: to take from the front moves all the rest.
            missing.discard_before(self.next - WINDOW_PACKETS)
