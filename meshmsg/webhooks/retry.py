"""What becomes of a delivery to a webhook: done, tried again (when?), given up, endpoint gone.

The schedule and the meaning of answers are those of the Standard Webhooks specification.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from random import Random

#: Seconds before each attempt: the first at once, the last after about three days in all.
SCHEDULE_S = (0.0, 5.0, 300.0, 1_800.0, 7_200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0, 86_400.0)
#: Each wait is longer by up to this part, at random: what failed together does not come together.
JITTER = 0.2
#: An endpoint may ask for so much patience, and no more.
RETRY_AFTER_MAX_S = 86_400.0
#: An endpoint that says it is asked too often, and not for how long it wants peace.
THROTTLE_S = 5.0
#: And it is not asked again sooner than this, whatever it says.
THROTTLE_MIN_S = 1.0
GONE = 410
THROTTLED = (429, 502, 503, 504)
#: After so many failures in a row an endpoint gets one request at a time, until one succeeds.
FAILURES_MAX = 3
#: An endpoint of which nothing but failures came for so long was away: its first success is the end
#: of that, and what waits for the endpoint is tried at once.  Not more often than every few
#: minutes, or an endpoint that now and then takes something would use up the attempts of the rest.
OUTAGE_S = 5.0
WAKE_EVERY_S = 300.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: a status, or an error in words."""

    status: int | None = None
    retry_after: str | None = None
    error: str = ""
    local: bool = False
    """It failed on this side (no more sockets), which says nothing about the endpoint."""

    @property
    def good(self) -> bool:
        """Whether the event was taken."""
        return self.status is not None and 200 <= self.status < 300


@dataclass(frozen=True, slots=True)
class Verdict:
    """What follows: `word` is `delivered`, `retry`, `dead` or `gone`."""

    word: str
    attempts: int
    due: float = 0.0
    """When it is tried again, with `retry`."""
    hold_until: float = 0.0
    """Until then nothing is sent to the endpoint at all."""
    reason: str = ""


def judge(
    answer: Answer,
    attempts: int,
    schedule_s: Sequence[float],
    *,
    now: float,
    rng: Random,
    patient: bool = True,
) -> Verdict:
    """The verdict on the answer to a delivery that was tried `attempts` times before.

    An endpoint that asks for a later attempt gets it then, and it costs none: it has said nothing
    about the event.  Without patience, which is the lane's to say, it costs one like every failure.
    """
    if answer.local:
        return Verdict("retry", attempts, now + 1.0, now + 1.0, answer.error)
    tried = attempts + 1
    if answer.good:
        return Verdict("delivered", tried)
    reason = answer.error or f"status {answer.status}"
    if answer.status == GONE:
        return Verdict("gone", tried, reason=reason)
    asked_s = None
    if answer.status in THROTTLED:
        asked_s = retry_after_s(answer.retry_after, now=now)
        if asked_s is None and answer.status == 429:
            asked_s = THROTTLE_S * (1.0 + JITTER * rng.random())
    hold = 0.0 if asked_s is None else now + max(asked_s, THROTTLE_MIN_S)
    if hold and patient:
        return Verdict("retry", attempts, hold, hold, reason)
    if tried >= len(schedule_s):  # and yet the others have to wait as it asked
        return Verdict("dead", tried, hold_until=hold, reason=reason)
    due = now + schedule_s[tried] * (1.0 + JITTER * rng.random())
    return Verdict("retry", tried, max(due, hold), hold, reason)


def retry_after_s(text: str | None, *, now: float) -> float | None:
    """Seconds that `Retry-After` asks for, as a number or a date; `None` if it says neither."""
    if not text:
        return None
    text = text.strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), RETRY_AFTER_MAX_S)
    try:
        moment = parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
    return min(max(0.0, moment - now), RETRY_AFTER_MAX_S)


class Alarms:
    """When to look at which endpoint again."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []
        #: An endpoint that waits for a day is looked at whenever an event comes for it, and says
        #: the same time again and again.
        self._known: set[tuple[float, str]] = set()

    def __len__(self) -> int:
        return len(self._heap)

    def ring(self, at: float, name: str) -> None:
        """Look then; once, however often it is said."""
        if (at, name) not in self._known:
            self._known.add((at, name))
            heapq.heappush(self._heap, (at, name))

    def due(self, *, now: float) -> set[str]:
        """The endpoints whose time has come."""
        names = set()
        while self._heap and self._heap[0][0] <= now:
            alarm = heapq.heappop(self._heap)
            self._known.discard(alarm)
            names.add(alarm[1])
        return names

    def wait_s(self, most_s: float, *, now: float) -> float:
        """How long until the next one, and no longer than this."""
        return max(0.0, min(most_s, self._heap[0][0] - now)) if self._heap else most_s


class Lane:
    """What is on the way to one endpoint, and how much more may be."""

    def __init__(self, order: str, concurrency: int) -> None:
        self.order = order
        self.concurrency = concurrency
        #: Ids of the deliveries that are on the way.
        self.in_flight: set[int] = set()
        self.requests = 0
        self.failures = 0
        self.hold_until = 0.0
        self._failing_since = self._throttled_since = 0.0  # 0: it is not
        self._wake_after = 0.0

    def room(self, *, now: float) -> int:
        """How many requests more may begin."""
        if now < self.hold_until:
            return 0
        ailing = self.order == "all" or self.failures >= FAILURES_MAX
        return max(0, (1 if ailing else self.concurrency) - self.requests)

    def begin(self, ids: Sequence[int]) -> None:
        """A request with these deliveries goes out."""
        self.requests += 1
        self.in_flight.update(ids)

    def is_patient(self, schedule_s: Sequence[float], *, now: float) -> bool:
        """Return True until an endpoint has only put us off for as long as its schedule lasts."""
        most_s = max(RETRY_AFTER_MAX_S, sum(schedule_s))
        return not self._throttled_since or now - self._throttled_since < most_s

    def end(self, ids: Sequence[int], verdict: Verdict, *, now: float) -> bool:
        """It came back; return True if that ends an outage, and all that waits is to be tried."""
        self.requests -= 1
        self.in_flight.difference_update(ids)
        self.hold_until = max(self.hold_until, verdict.hold_until)
        if verdict.word != "delivered":
            self.failures += 1
            self._failing_since = self._failing_since or now
            self._throttled_since = (self._throttled_since or now) if verdict.hold_until else 0.0
            return False
        was_away = self.failures >= FAILURES_MAX and now - self._failing_since >= OUTAGE_S
        self.failures = 0
        self._failing_since = self._throttled_since = 0.0
        if not was_away or now < self._wake_after:
            return False
        self._wake_after = now + WAKE_EVERY_S
        return True
