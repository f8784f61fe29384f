"""What cannot be delivered: dead letters, endpoints that are disabled, backlogs that are too long.

A dead letter is published before the book says that the delivery is dead: killed in between, it
is published twice, and never not at all.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from meshmsg._model.errors import ConfigError, EventTooLarge, MeshError
from meshmsg._peer.peer import Peer, node_of
from meshmsg.webhooks.delivery_queue import Line
from meshmsg.webhooks.retry import Lane, Verdict
from meshmsg.webhooks.store import FORGET_MAX, Book, wall
from meshmsg.webhooks.types import Endpoint, unpack

log = logging.getLogger("meshmsg.webhooks")

PREFIX = "dead.webhook"
PUBLISH_TIMEOUT_S = 2.0
#: A dead letter that cannot be published now is tried again after this.
AGAIN_S = 30.0
#: Buried at a time, so that endpoints that live wait no longer than that takes.
BURY_MAX = 500
FORGET_EVERY_S = 600.0


#: Endpoint, its deliveries, what became of them, the status.
Outcome = tuple[str, list[Line], Verdict, int | None]


class Undertaker:
    """Works in the book's thread."""

    def __init__(self, peer: Peer, book: Book, counters: Counter[str]) -> None:
        self._peer = peer
        self._book = book
        self._counters = counters
        self._forgot = 0.0
        self._blocked_until = 0.0

    def bury(self, endpoint: Endpoint, lines: list[Line], verdict: Verdict) -> Verdict:
        """Publish deliveries as dead letters; the verdict that then holds."""
        if time.monotonic() < self._blocked_until:
            return _later(lines, verdict)
        try:
            for line in lines:
                self._publish(endpoint, line, verdict)
        except MeshError as error:
            return self._unpublished(lines, verdict, error)
        return verdict

    def make_safe(self, outcomes: Iterable[Outcome]) -> list[Outcome]:
        """Dead letters are on the disk before the book says that their deliveries are dead."""
        found = list(outcomes)
        if all(verdict.word in ("delivered", "retry") for _, _, verdict, _ in found):
            return found
        try:
            node_of(self._peer).publisher.durable.flush(PUBLISH_TIMEOUT_S)
            return found
        except MeshError as error:
            return [
                (name, lines, verdict, status)
                if verdict.word in ("delivered", "retry")
                else (name, lines, self._unpublished(lines, verdict, error), status)
                for name, lines, verdict, status in found
            ]

    def _unpublished(self, lines: list[Line], verdict: Verdict, error: MeshError) -> Verdict:
        self._counters["dead_unpublished"] += 1
        log.error("a dead letter of a webhook waits: %s", error)
        # Where one had to wait in vain the next would too, and all endpoints with it.
        self._blocked_until = time.monotonic() + AGAIN_S / 2
        return _later(lines, verdict)

    def _publish(self, endpoint: Endpoint, line: Line, verdict: Verdict) -> None:
        event = line.event
        key, headers, data = unpack(event.content)
        history = {
            "dead.stream": event.stream,
            "dead.epoch": event.epoch,
            "dead.seq": event.seq,
            "dead.topic": event.topic,
            "dead.attempts": verdict.attempts,
            "dead.endpoint": endpoint.name,
            "dead.url": endpoint.url,
            "dead.message": event.message,
            "dead.reason": verdict.word,
            "dead.error": verdict.reason,
        }
        topic = f"{PREFIX}.{endpoint.name}"
        options: dict[str, Any] = {"key": key, "timeout": PUBLISH_TIMEOUT_S}
        try:
            self._peer.publish(topic, data, headers={**headers, **history}, **options)
        except (EventTooLarge, ConfigError):
            # With its history, or for this stream: it stays in the other's log.
            history["dead.data"] = "too large"
            self._peer.publish(topic, None, headers=history, **options)

    def consider(
        self, endpoint: Endpoint, lines: list[Line], verdict: Verdict, status: int | None
    ) -> None:
        """Disable an endpoint that is gone, or where nothing succeeded for a whole schedule.

        One that answers may only refuse this event: it takes another that dies to disable it.
        """
        if verdict.word == "gone":
            self._disable(endpoint, "it answered 410: gone")
        elif self._book.failing_since(endpoint.name, lines[0]) and (
            status is None or self._book.others_died(endpoint.name, lines)
        ):
            tries = len(endpoint.schedule_s)
            problem = f"no delivery succeeded in all {tries} attempts at one; the last error: "
            self._disable(endpoint, problem + verdict.reason)

    def _disable(self, endpoint: Endpoint, reason: str) -> None:
        try:
            now = self._book.endpoint(endpoint.name)
        except ConfigError:  # removed meanwhile
            return
        if now.state == "active" and now.url == endpoint.url:
            log.warning("webhook %s is disabled: %s", endpoint.name, reason)
            self._counters["disabled"] += 1
            self._book.put(msgspec.structs.replace(now, state="disabled", reason=reason))

    def upkeep(
        self, endpoints: Iterable[Endpoint], lanes: Mapping[str, Lane], forget_before: float
    ) -> bool:
        """Dead letters of disabled endpoints and of backlogs that are too long; old deliveries.

        Whether there is more to do at once.
        """
        waiting = self._book.waiting()
        more = False
        left = BURY_MAX
        for endpoint in endpoints:
            have = waiting.get(endpoint.name, 0)
            busy = lanes[endpoint.name].in_flight if endpoint.name in lanes else set()
            if endpoint.state != "active":
                excess, word, reason = have, "disabled", endpoint.reason
            else:
                excess, word, reason = have - endpoint.backlog_max, "overflow", "too many wait"
            if excess <= 0:
                continue
            if not left:
                more = True
                break
            buried = self._clear(endpoint, min(excess, left), busy, word, reason)
            more |= buried > 0 and excess > left
            left = max(0, left - buried)
        if time.monotonic() >= self._forgot:
            if self._book.forget(forget_before) == FORGET_MAX:
                return True
            self._forgot = time.monotonic() + FORGET_EVERY_S
        return more

    def _clear(self, endpoint: Endpoint, most: int, busy: set[int], word: str, reason: str) -> int:
        """Bury the oldest that wait; what is on the way at this moment may still succeed."""
        outcomes: list[Outcome] = []
        lead: int | None = None
        for line in self._book.waiting_lines(endpoint.name, most + len(busy) + endpoint.batch):
            # A batch that was sent keeps its company: under its id it may have been taken.
            if line.id in busy or (len(outcomes) >= most and (lead is None or line.lead != lead)):
                continue
            verdict = Verdict(word, line.attempts, reason=reason)
            buried = self.bury(endpoint, [line], verdict)
            if buried.word == "retry":
                break
            outcomes.append((endpoint.name, [line], buried, None))
            lead = line.lead
        outcomes = [one for one in self.make_safe(outcomes) if one[2].word != "retry"]
        if outcomes:
            self._book.record(outcomes, now=wall())
            self._counters["dead"] += len(outcomes)
        return len(outcomes)


def _later(lines: list[Line], verdict: Verdict) -> Verdict:
    return Verdict("retry", lines[0].attempts, wall() + AGAIN_S, 0.0, verdict.reason)
