"""What publishers are told of our subscriptions: how far each is in each stream, some at a time.

A publisher may have thousands of streams, and asks for the status of a subscription as often as it
likes (`status?`).  So a report is made page by page, a slice of a turn at a time, and each
publisher has only a part of the I/O thread's time for its reports (`SHARE`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from meshmsg import _platform
from meshmsg._model.message_fields import ENTRIES_MAX
from meshmsg._runtime.turns import Slice
from meshmsg._wire import control as c

if TYPE_CHECKING:
    from meshmsg._links.outbound_peer import Link
    from meshmsg._receive.incoming_stream import Source
    from meshmsg._receive.subscription_io import Intake

#: Of the time of the I/O thread, for the reports that one publisher gets.
SHARE = 0.1
NEVER = float("inf")


class _Report:
    """One that is being made."""

    def __init__(self, intake: Intake, link: Link, answers: int) -> None:
        self.intake = intake
        self.link = link
        self.answers = answers
        self.left: list[Source] | None = None  #: to be told of; `None` before it is begun
        self.took_s = 0.0


class StatusReports:
    """Those of all subscriptions of a peer; on the I/O thread."""

    def __init__(self, send: Callable[[Link, list[bytes]], bool]) -> None:
        self._send = send
        self._wanted: dict[tuple[Intake, Link], _Report] = {}
        self._under_way: deque[_Report] = deque()
        self._rests: dict[Link, float] = {}  # until when

    def want(self, intake: Intake, links: Iterable[Link], answers: int = 0) -> None:
        """Tell these publishers, or one that asked, how far a subscription is."""
        for link in links:
            report = self._wanted.setdefault((intake, link), _Report(intake, link, 0))
            report.answers = max(report.answers, answers)

    def on_tick(self, now: float) -> float:
        """Make as much of the reports as a turn has time for; returns when to come again."""
        self._rests = {link: until for link, until in self._rests.items() if until > now}
        for key in [key for key in self._wanted if key[1] not in self._rests]:
            self._under_way.append(self._wanted.pop(key))
        part = Slice()
        while self._under_way and not part.is_over():
            self._go_on(self._under_way.popleft())
        if self._under_way:
            return now
        return min((self._rests[link] for _, link in self._wanted), default=NEVER)

    def _go_on(self, report: _Report) -> None:
        began = _platform.monotonic()
        intake, link = report.intake, report.link
        if report.left is None:
            report.left = intake.sources_of(link)
        some, report.left = report.left[:ENTRIES_MAX], report.left[ENTRIES_MAX:]
        if some or report.answers:
            is_last = not report.left
            self.say(intake, link, some, answers=report.answers if is_last else 0)
        now = _platform.monotonic()
        report.took_s += now - began
        if report.left:
            self._under_way.append(report)
        else:
            self._rests[link] = max(self._rests.get(link, 0.0), now + report.took_s / SHARE)

    def say(
        self,
        intake: Intake,
        link: Link,
        sources: list[Source],
        *,
        answers: int = 0,
        closed: bool = False,
    ) -> None:
        """Tell a publisher how far a subscription is in some streams; any thread."""

        def make(some: list[c.Figures], page: c.Page) -> c.Status:
            last = page.is_last
            return c.Status(intake.sub, some, answers if last else 0, closed and last)

        for page in c.encode_pages(make, intake.figures_of(sources)):
            self._send(link, [page])
