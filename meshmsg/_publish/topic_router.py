"""Which stream a topic belongs to, and whether the streams of a peer are in a rush.

Both are asked while publishing: what is rare may cost something, what is not must not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from meshmsg._model.topics import ANY, ONE, Pattern

T = TypeVar("T")

#: Streams that become due in a row, each within `gap_ns` of the one before, before it is a rush.
RUSH_DUES = 8


class Routes(Generic[T]):
    """Streams by the topics they take; of several, the one that was declared first.

    >>> routes = Routes[str]()
    >>> routes.add("orders.**", "orders")
    >>> routes.add("orders.eu", "never")
    >>> routes.find("orders.eu")
    'orders'
    """

    __slots__ = ("_exact", "_wild")

    def __init__(self) -> None:
        # A thousand streams of one topic each are one look-up, not a thousand.
        self._exact: dict[str, tuple[int, T]] = {}
        self._wild: list[tuple[int, Pattern, T]] = []

    def add(self, pattern: str, target: T) -> None:
        """The next one; raises TopicError for a malformed pattern."""
        number = len(self._exact) + len(self._wild)
        compiled = Pattern(pattern)
        if {ONE, ANY}.isdisjoint(pattern.split(".")):
            self._exact.setdefault(pattern, (number, target))
        else:
            self._wild.append((number, compiled, target))

    def find(self, topic: str) -> T | None:
        """Where a topic goes, one that `check_topic` accepts; `None`: nowhere."""
        exact = self._exact.get(topic)
        for pattern, target in self._before(exact):
            if pattern.matches(topic):
                return target
        return None if exact is None else exact[1]

    def _before(self, exact: tuple[int, T] | None) -> Iterator[tuple[Pattern, T]]:
        for number, pattern, target in self._wild:
            if exact is not None and number > exact[0]:
                return
            yield pattern, target


class Rush:
    """Whether many streams become due one right after the other.

    A stream that is idle sends its next event at once.  Of a hundred streams that are written to in
    turn each is idle, and a frame for every event costs thirty times what an event costs: while
    that goes on, events gather in the open frames, and the I/O thread sends what it finds.
    """

    __slots__ = ("_count", "_gap_ns", "_last_ns")

    def __init__(self, gap_ns: int) -> None:
        self._gap_ns = gap_ns
        self._last_ns = 0
        self._count = 0

    def is_on(self, now_ns: int) -> bool:
        """A stream is due now."""
        gap_ns, self._last_ns = now_ns - self._last_ns, now_ns
        self._count = self._count + 1 if 0 <= gap_ns < self._gap_ns else 0
        return self._count > RUSH_DUES

    def pass_over(self, took_ns: int) -> None:
        """The thread that published has not run meanwhile."""
        self._last_ns += took_ns
