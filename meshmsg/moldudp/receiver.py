"""The receiving side of MoldUDP64: order, gaps, when to ask again, and when to give up.

Pure: packets and `now` in; messages, losses and requests out.  One session at a time: sequence
numbers mean something within it only.

Authority: the protocol has no seals, so that no packet of a line is believed for good.  A number
far ahead counts when the line says so for a while and nothing else.  If all that a line says for a
while lies behind what was heard of, it is right: what lies beyond is forgotten, and the receiver
goes back to where it handed on messages last.  The end of a session counts when nothing contradicts
it for a while.  No message is handed on twice.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

#: Requests that one turn makes at most; the gaps behind them wait for the next.
REQUESTS_MAX = 8
#: What one request asks for at most: the format has two bytes for it.
COUNT_MAX = 0xFFFE


#: A packet further ahead than this is not believed at once.
JUMP_MESSAGES_MAX = 1 << 22
#: What a line says for this long, and nothing else, is so.
LINE_S = 1.0
#: A session has ended if this long nothing but its end was said: a line has a heartbeat a second.
END_S = 2.5
#: What a message that is held takes beside its bytes.
MESSAGE_COST_BYTES = 64


class MoldLoss(NamedTuple):
    """Messages `first` to `stop` (half-open) of the session will not come."""

    session: str
    first: int
    stop: int

    @property
    def size(self) -> int:
        """How many they are."""
        return self.stop - self.first


class MoldMessages(NamedTuple):
    """Messages in order, without a gap: `first` is the number of the first one."""

    session: str
    first: int
    messages: Sequence[bytes]


class Wanted(NamedTuple):
    """To be asked of the re-request server."""

    session: str
    first: int
    stop: int


@dataclass(frozen=True, slots=True)
class MoldTiming:
    """When a receiver asks, and for how long; seconds."""

    delay_s: float = 0.003
    """A gap may close by itself for this long: the other line brings it, or packets overtook."""
    retry_s: float = 0.1
    """A request without an answer is repeated after this time."""
    deadline_s: float = 5.0
    """A gap for which nothing came for this long is declared lost."""
    held_max: int = 200_000
    """Messages that are held behind a gap; what comes beyond is asked for again later."""
    held_bytes_max: int = 64 * 1024 * 1024
    """Memory that they may take, about."""


class MoldReceiver:
    """One session, from message `first` on; `None`: from where it is when first heard."""

    def __init__(
        self, session: str | None = None, first: int | None = 1, timing: MoldTiming | None = None
    ) -> None:
        self.session = session
        self._first = first
        # The first packet says which session it is, unless the user does.  That packet may be
        # forged: the session is certain when it goes on.
        self._is_certain = session is not None
        self._adopted_at = 0.0
        self._rival: tuple[str, float] | None = None  # heard since then, and not ours
        self.next = first  #: the next message to hand on; `None` before anything is known
        self.counters: Counter[str] = Counter()
        self.ended = False
        self._timing = timing or MoldTiming()
        self._stop = first or 0  # one past the highest number heard of
        self._starts: list[int] = []  # of held packets, ascending
        self._held: dict[int, Sequence[bytes]] = {}
        self._held_count = self._held_bytes = 0
        self._heard = False
        self._handed_on = first or 0  # one past the last message that was
        self._far_since: float | None = None  # packets from far ahead come, and no others
        self._behind_since: float | None = None  # the lines speak of less than we heard of
        self._behind_stop = 0  # ... and of this
        self._ends_since: float | None = None
        self._ready: deque[MoldMessages | MoldLoss] = deque()
        self._ask_at: float | None = None
        self._give_up_at = 0.0

    @property
    def complete(self) -> bool:
        """The session has ended, and all of it was handed on."""
        return self.ended and self.next == self._stop and not self._ready

    @property
    def missing(self) -> int:
        """Messages that are known of and not here."""
        return 0 if self.next is None else self._stop - self.next - self._held_count

    def on_packet(
        self,
        session: str,
        first: int,
        messages: Sequence[bytes],
        ends: bool,
        now: float,
        *,
        asked: bool = False,
    ) -> None:
        """A packet came on a line, or, if it was `asked` for, from the server."""
        if not self._is_ours(session, asked, now):
            self.counters["other_sessions"] += 1
            return
        if self.next is None:
            self.next = self._stop = self._handed_on = first
        stop = first + len(messages)
        if asked:
            if stop > self._stop:
                self.counters["far_packets"] += 1  # nobody can have asked for it
                return
        elif self._is_far(stop, now):
            return
        else:
            self._hear(stop, ends, now)
        if not messages:
            self.counters["heartbeats"] += not ends
        elif stop <= self.next:
            self.counters["duplicates"] += 1
        elif first <= self.next:
            self._hand_on(messages[self.next - first :])
            self._drain(now)
        else:
            self._hold(first, messages)
        self._watch(now)

    def _is_ours(self, session: str, asked: bool, now: float) -> bool:
        """Return True for a packet of the session that is received, which it may begin."""
        if session == self.session:
            if not asked:
                self._rival = None
                self._is_certain = self._is_certain or now - self._adopted_at >= LINE_S
            return True
        if self.session is not None:
            if self._is_certain or asked:
                return False
            if self._rival is None or self._rival[0] != session:
                self._rival = (session, now)
            if now - self._rival[1] < LINE_S:
                return False
            self._start_over()  # only that one is heard: ours was one forged packet
        self.session, self._adopted_at = session, now
        return True

    def _start_over(self) -> None:
        """Forget what was heard of another session."""
        self.counters["sessions_dropped"] += 1
        self.next, self._stop, self._handed_on = self._first, self._first or 0, self._first or 0
        while self._starts:
            self._drop(len(self._starts) - 1)
        self._heard, self.ended, self._rival, self._ask_at = False, False, None, None
        self._far_since = self._behind_since = self._ends_since = None

    def _is_far(self, stop: int, now: float) -> bool:
        """Whether a packet is from too far ahead to be believed (yet)."""
        near = stop - self._stop <= JUMP_MESSAGES_MAX
        if near or not self._heard:
            self._heard, self._far_since = True, None
            return False
        if self._far_since is None:
            self._far_since = now
        if now - self._far_since >= LINE_S:
            return False
        self.counters["far_packets"] += 1
        return True

    def _hear(self, stop: int, ends: bool, now: float) -> None:
        """A line says how far the session is."""
        if not ends:
            self._ends_since = None
        elif self._ends_since is None:
            self._ends_since = now
        if stop >= self._stop:
            self._stop, self._behind_since = stop, None
            return
        if self._behind_since is None:
            self._behind_since, self._behind_stop = now, stop
        self._behind_stop = max(self._behind_stop, stop)
        if now - self._behind_since >= LINE_S:
            self._behind_since = None
            if self._stop > self._handed_on:  # else it is a line that comes behind the other
                self._set_back(self._behind_stop)

    def _set_back(self, stop: int) -> None:
        """The session has not come as far as somebody said."""
        self.counters["set_back"] += 1
        while self._starts and self._starts[-1] >= stop:
            self._drop(len(self._starts) - 1)
        self.next = self._handed_on
        held = self._starts[-1] + len(self._held[self._starts[-1]]) if self._starts else 0
        self._stop = max(self.next, stop, held)
        self._ask_at = None

    def _hand_on(self, messages: Sequence[bytes]) -> None:
        assert self.session is not None
        assert self.next is not None
        self.counters["messages"] += len(messages)
        self._ready.append(MoldMessages(self.session, self.next, messages))
        self.next += len(messages)
        self._handed_on = self.next

    def _hold(self, first: int, messages: Sequence[bytes]) -> None:
        if (
            self._held_count + len(messages) > self._timing.held_max
            or self._held_bytes + _cost(messages) > self._timing.held_bytes_max
        ):
            self.counters["held_full"] += 1
            return
        # Two lines cut their packets alike, a re-request server may not: keep what is new of it.
        parts = list(self._new_parts(first, messages))
        self.counters["duplicates"] += not parts
        for at, part in parts:
            insort(self._starts, at)
            self._held[at] = part
            self._held_count += len(part)
            self._held_bytes += _cost(part)

    def _new_parts(
        self, first: int, messages: Sequence[bytes]
    ) -> Iterator[tuple[int, Sequence[bytes]]]:
        """The stretches of a packet that are not held yet."""
        stop, at = first + len(messages), first
        place = max(0, bisect_left(self._starts, first) - 1)
        for start in self._starts[place:]:
            held_stop = start + len(self._held[start])
            if start >= stop:
                break
            if at < start:
                yield at, messages[at - first : start - first]
            at = max(at, held_stop)
        if at < stop:
            yield at, messages[at - first :]

    def _drain(self, now: float) -> None:
        """What was held behind a gap that has closed; and there was progress."""
        assert self.next is not None
        while self._starts and (start := self._starts[0]) <= self.next:
            messages = self._drop(0)
            known = self.next - start  # an answer was cut otherwise than this
            if known < len(messages):
                self._hand_on(messages[known:])
        self._give_up_at = now + self._timing.deadline_s
        if self._ask_at is not None:  # part of an answer: ask for the rest without waiting long
            self._ask_at = min(self._ask_at, now + self._timing.delay_s)

    def _drop(self, place: int) -> Sequence[bytes]:
        """Hold a packet no longer."""
        messages = self._held.pop(self._starts.pop(place))
        self._held_count -= len(messages)
        self._held_bytes -= _cost(messages)
        return messages

    def _watch(self, now: float) -> None:
        """Set or stop the timer, by whether something is missing."""
        if not self.missing:
            self._ask_at = None
        elif self._ask_at is None:
            self._ask_at = now + self._timing.delay_s
            self._give_up_at = now + self._timing.deadline_s

    # --- time ---

    def deadline(self) -> float | None:
        """When `on_deadline` wants to be called."""
        if self._ends_since is None or self.ended:
            return self._ask_at
        ends_at = self._ends_since + END_S
        return ends_at if self._ask_at is None else min(self._ask_at, ends_at)

    def on_deadline(self, now: float) -> list[Wanted]:
        """Give up what is overdue, and say what to ask for now."""
        if self._ends_since is not None and now - self._ends_since >= END_S:
            self.ended = True
        if self._ask_at is None or now < self._ask_at:
            return []
        if now >= self._give_up_at:
            self._give_up(now)
            if self._ask_at is None:
                return []
        self._ask_at = now + self._timing.retry_s
        assert self.session is not None
        found = [
            Wanted(self.session, first, min(stop, first + COUNT_MAX))
            for first, stop in self._gaps(REQUESTS_MAX)
        ]
        self.counters["requests"] += len(found)
        return found

    def _gaps(self, most: int) -> Iterator[tuple[int, int]]:
        assert self.next is not None
        at = self.next
        for start in (*self._starts, self._stop):
            if at < start:
                yield at, start
                most -= 1
                if not most:
                    return
            at = max(at, start + len(self._held.get(start, ())))

    def _give_up(self, now: float) -> None:
        """The first gap is lost; what is behind it goes on."""
        assert self.session is not None
        first, stop = next(self._gaps(1))
        self.counters["lost"] += stop - first
        self._ready.append(MoldLoss(self.session, first, stop))
        self.next = stop
        self._drain(now)
        self._ask_at = None
        self._watch(now)

    def events(self) -> Iterator[MoldMessages | MoldLoss]:
        """All that is ready, in order of its numbers."""
        while self._ready:
            yield self._ready.popleft()


def _cost(messages: Sequence[bytes]) -> int:
    return sum(map(len, messages)) + MESSAGE_COST_BYTES * len(messages)
