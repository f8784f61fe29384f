"""What cannot be delivered: dead letters, endpoints that are disabled, backlogs that are too long.

A dead letter is published before the book says that the delivery is dead: killed in between, it
is published twice, and never not at all.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from meshmsg._errors import ConfigError, MeshError
from meshmsg._peer import Peer
from meshmsg._webhook_book import Book, Line, wall
from meshmsg._webhook_types import Endpoint, unpack
from meshmsg.recovery.webhook_retry import Lane, Verdict

log = logging.getLogger("meshmsg.webhooks")

PREFIX = "dead.webhook"
PUBLISH_TIMEOUT_S = 2.0
#: A dead letter that cannot be published now is tried again after this.
AGAIN_S = 30.0
#: Buried of one endpoint at a time, so that the others wait no longer than that takes.
BURY_MAX = 500
FORGET_EVERY_S = 600.0


class Undertaker:
    """Works in the book's thread."""

    def __init__(self, peer: Peer, book: Book, counters: Counter[str]) -> None:
        self._peer = peer
        self._book = book
        self._counters = counters
        self._forgot = 0.0

    def bury(self, endpoint: Endpoint, lines: list[Line], verdict: Verdict) -> Verdict:
        """Publish deliveries as dead letters; the verdict that then holds."""
        try:
            for line in lines:
                self._publish(endpoint, line, verdict)
        except MeshError as error:
            self._counters["dead_unpublished"] += 1
            log.error("a dead letter of webhook %s waits: %s", endpoint.name, error)
            later = wall() + AGAIN_S
            return Verdict("retry", lines[0].attempts, later, 0.0, verdict.reason)
        return verdict

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
        self._peer.publish(
            topic, data, key=key, headers={**headers, **history}, timeout=PUBLISH_TIMEOUT_S
        )

    def consider(self, endpoint: Endpoint, line: Line, verdict: Verdict) -> None:
        """Disable an endpoint that is gone, or where nothing succeeded for a whole schedule."""
        if verdict.word == "gone":
            self._disable(endpoint, "it answered 410: gone")
        elif self._book.failing_since(endpoint.name, line):
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
        for endpoint in endpoints:
            have = waiting.get(endpoint.name, 0)
            busy = lanes[endpoint.name].in_flight if endpoint.name in lanes else set()
            if endpoint.state != "active":
                excess, word, reason = have, "disabled", endpoint.reason
            else:
                excess, word, reason = have - endpoint.backlog_max, "overflow", "too many wait"
            if excess > 0 and self._clear(endpoint, min(excess, BURY_MAX), busy, word, reason):
                more |= excess > BURY_MAX
        if time.monotonic() >= self._forgot:
            self._forgot = time.monotonic() + FORGET_EVERY_S
            self._book.forget(forget_before)
        return more

    def _clear(self, endpoint: Endpoint, most: int, busy: set[int], word: str, reason: str) -> bool:
        """Bury the oldest that wait; what is on the way at this moment may still succeed."""
        now = wall()
        outcomes: list[tuple[str, list[Line], Verdict, int | None]] = []
        for line in self._book.waiting_lines(endpoint.name, most + len(busy)):
            if line.id in busy or len(outcomes) == most:
                continue
            verdict = Verdict(word, line.attempts, reason=reason)
            buried = self.bury(endpoint, [line], verdict)
            if buried.word == "retry":
                break
            outcomes.append((endpoint.name, [line], buried, None))
        if outcomes:
            self._book.record(outcomes, now=now)
            self._counters["dead"] += len(outcomes)
        return bool(outcomes)
