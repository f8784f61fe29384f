"""The part of one thread's time that each peer may use, and who has to wait for its turn.

A thread that serves everybody can be kept busy by one peer with messages that are all valid.  So a
peer has a budget of the thread's time, which fills by itself: `SHARE` of the time that passes, up
to `BURST_S`.  A peer that has used its budget up waits, and the others do not:

- A peer that was dialled has a socket of its own.  Nobody reads it meanwhile, and what it says
  stays in ZeroMQ's queue, which is bounded (`transports/zmq/unread_limit`).
- All who dial share one socket.  What is read there of a peer that has to wait is put into a queue
  of its own (`TimeShares.put`), and taken by turns (`take`) as budgets fill.  A queue has a bound,
  and so have all of them together: a peer that goes on sending is told apart, and cut.

An honest member of a group at a million events a second uses an eighth of its publisher's I/O
thread, a subscriber that reads a long log a thirtieth.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

#: Of the thread's time, for one peer; and what it may use at once after a rest.
SHARE = 1 / 3
BURST_S = 0.05
#: What one message costs beside what is measured: to be waited for, and to be answered.
MESSAGE_S = 0.00005
#: What may wait of one connection, and of all.
WAITING_MAX = 2048
WAITING_BYTES_MAX = 4 * 1024 * 1024
WAITING_TOTAL_BYTES_MAX = 64 * 1024 * 1024
NEVER = float("inf")

Owner = TypeVar("Owner", bound=Hashable)
Item = TypeVar("Item")


class TimeBudget:
    """What one peer has left."""

    __slots__ = ("_paid_at",)

    def __init__(self) -> None:
        self._paid_at = 0.0  # when all that it used will have come back

    def spend(self, seconds: float, *, now: float) -> None:
        """Count time that was used for it."""
        self._paid_at = max(self._paid_at, now) + (seconds + MESSAGE_S) / SHARE

    @property
    def due(self) -> float:
        """Return when it may go on, which can be in the past."""
        return self._paid_at - BURST_S / SHARE

    def is_full(self, *, now: float) -> bool:
        """Return True when all that it used has come back."""
        return self._paid_at <= now


class _Queue(Generic[Owner, Item]):
    """What waits of one connection."""

    __slots__ = ("items", "owner", "size")

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.items: deque[tuple[Item, int]] = deque()
        self.size = 0


class TimeShares(Generic[Owner, Item]):
    """The budgets of all who share a socket, and what of them waits."""

    def __init__(self) -> None:
        self._budgets: dict[Owner, TimeBudget] = {}
        self._queues: dict[bytes, _Queue[Owner, Item]] = {}  # by connection, the next one first
        self._size = 0

    def __len__(self) -> int:
        return len(self._queues)

    def must_wait(self, link: bytes, owner: Owner, *, now: float) -> bool:
        """Return True for a connection whose owner has no time left, or that waits already."""
        budget = self._budgets.get(owner)
        return link in self._queues or (budget is not None and budget.due > now)

    def spend(self, owner: Owner, seconds: float, *, now: float) -> None:
        """Count time that was used for an owner."""
        budget = self._budgets.get(owner)
        if budget is None:
            budget = self._budgets[owner] = TimeBudget()
        budget.spend(seconds, now=now)

    def put(self, link: bytes, owner: Owner, item: Item, size: int) -> Item | None:
        """Let a message wait.

        Returns a message of the connection of which too much waits now, if there is one.  That
        connection is forgotten, and has to be cut.
        """
        queue = self._queues.get(link)
        if queue is None:
            queue = self._queues[link] = _Queue(owner)
        queue.items.append((item, size))
        queue.size += size
        self._size += size
        if queue.size <= WAITING_BYTES_MAX and len(queue.items) <= WAITING_MAX:
            if self._size <= WAITING_TOTAL_BYTES_MAX:
                return None
            link = max(self._queues, key=lambda one: self._queues[one].size)
        last = self._queues[link].items[-1][0]
        self.forget(link)
        return last

    def take(self, *, now: float) -> Item | None:
        """Return the next message whose time has come: one of each connection, then the next."""
        queues = self._queues.items()
        found = (link for link, one in queues if self._budgets[one.owner].due <= now)
        link = next(found, None)
        if link is None:
            return None
        queue = self._queues.pop(link)  # it goes to the end
        item, size = queue.items.popleft()
        queue.size -= size
        self._size -= size
        if queue.items:
            self._queues[link] = queue
        return item

    def due(self) -> float:
        """Return when the time of the next one comes."""
        owners = {queue.owner for queue in self._queues.values()}
        return min((self._budgets[owner].due for owner in owners), default=NEVER)

    def forget(self, link: bytes) -> None:
        """A connection is gone, and what waits of it with it."""
        queue = self._queues.pop(link, None)
        if queue is not None:
            self._size -= queue.size

    def sweep(self, *, now: float) -> None:
        """Forget the budgets of those who owe nothing."""
        waiting = {queue.owner for queue in self._queues.values()}
        for owner, budget in list(self._budgets.items()):
            if budget.is_full(now=now) and owner not in waiting:
                del self._budgets[owner]
