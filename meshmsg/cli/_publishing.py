"""What the verbs that publish and then end (pub, replay) have in common."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from meshmsg import Event, Peer, PeerRefused, WaitTimeout
from meshmsg.cli._guard import note
from meshmsg.cli._items import Item

#: After this long a person should know what the command is waiting for.
EXPLAIN_AFTER_S = 1.0
POLL_S = 0.1

Published = TypeVar("Published", Item, Event)


@dataclass(frozen=True, slots=True)
class Audience:
    """Whom the first event waits for."""

    count: int
    timeout_s: float
    quiet: bool

    def wait(self, peer: Peer, topic: str) -> None:
        """Until there are enough subscribers; raises `WaitTimeout` that says why there are not."""
        if self.count:
            _wait(peer, topic, self.count, self.timeout_s, self.quiet)


def publish_all(
    peer: Peer,
    items: Iterable[Published],
    tally: Tally,
    audience: Audience,
    turn: Callable[[Published], None] | None,
) -> None:
    """Publish when the audience is there, each event when `turn` returns."""
    for item in items:
        if tally.events == 0:
            audience.wait(peer, item.topic)
            tally.start()
        if turn is not None:
            turn(item)
        peer.publish(item.topic, item.data, key=item.key, headers=item.headers or None)
        tally.events += 1


class Tally:
    """What was published, told in one line when the block is left, by Ctrl-C too."""

    def __init__(self, peer: Peer, *, quiet: bool) -> None:
        self.events = 0
        self.dropped: int | None = None
        self._peer = peer
        self._quiet = quiet
        self._started = 0.0

    def start(self) -> None:
        """Publishing begins: the wait for subscribers does not count."""
        self._started = time.monotonic()

    def __enter__(self) -> Tally:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:  # it may have come when an event had its number, and was not counted
            self.events = min(self.events + 1, self._published())
        if self.events:
            note(self._summary(time.monotonic() - self._started), quiet=self._quiet)

    def _summary(self, took_s: float) -> str:
        plural = "" if self.events == 1 else "s"
        text = f"published {self.events:,} event{plural} in {took_s:.2f} s"
        if self.events > 1:
            text += f" ({self.events / max(took_s, 1e-6):,.0f}/s)"
        if self.dropped is not None:
            text += f"; {self.dropped:,} of {self._sent()} were dropped on purpose"
        return text

    def _published(self) -> int:
        return sum(stream["published"] for stream in self._peer.stats()["streams"].values())

    def _sent(self) -> str:
        streams = self._peer.stats()["streams"].values()
        packets = sum(stream.get("multicast", {}).get("sent", 0) for stream in streams)
        if packets:
            return f"{packets:,} packets"
        return f"{sum(stream['frames'] for stream in streams):,} frames"


def _wait(peer: Peer, topic: str, count: int, timeout_s: float, quiet: bool) -> None:
    """As the peer's own, and tells meanwhile what it waits for, and why in vain."""
    started = time.monotonic()
    explained = quiet
    while True:
        left = timeout_s - (time.monotonic() - started)
        try:
            peer.wait_for_subscribers(topic, count, timeout=max(0.0, min(left, POLL_S)))
            return
        except WaitTimeout:
            links = peer.stats()["links"]
        _check_refused(links)
        if left <= 0:
            raise WaitTimeout(_nobody(peer, topic, count, timeout_s, links))
        if not explained and time.monotonic() - started > EXPLAIN_AFTER_S:
            explained = True
            note(f"waiting for {_subscribers(count)} of {topic} ({timeout_s:g} s at most)")


def _check_refused(links: list[dict[str, Any]]) -> None:
    if links and all(link["state"] == "refused" for link in links):
        raise PeerRefused(links[0]["address"], links[0]["reason"])


def _nobody(
    peer: Peer, topic: str, count: int, timeout_s: float, links: list[dict[str, Any]]
) -> str:
    silent = [link["address"] for link in links if link["state"] in ("dialling", "greeting")]
    if silent:
        why = f"nobody answers at {', '.join(silent)}"
    elif links:
        why = "the peer there does not subscribe to it, or cannot reach us: see --bind"
    else:
        why = f"start one with: meshmsg sub {topic} --connect {peer.address}"
    return (
        f"no {_subscribers(count)} of {topic} after {timeout_s:g} s: {why}; "
        f"--wait 0 publishes all the same"
    )


def _subscribers(count: int) -> str:
    return "subscriber" if count == 1 else f"{count} subscribers"
