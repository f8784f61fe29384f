"""A publisher and a subscription that have found each other: what most scenarios begin with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from meshmsg import Peer, Stream, Subscription, Tuning

WAIT_S = 60.0


class Pair(NamedTuple):
    """A publisher `pub`, a peer `sub` that is connected to it, and its subscription."""

    pub: Peer
    sub: Peer
    events: Subscription


@contextmanager
def pair(
    stream: Stream | None = None,
    pattern: str = "a.**",
    *,
    topic: str = "a.b",
    tuning: Tuning | None = None,
    subscriber: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    **publisher: Any,
) -> Iterator[Pair]:
    """Open both, and wait until the publisher knows that `topic` is subscribed to.

    The stream is `a.**` if none is given, and the tuning is that of both; beside that, `subscriber`
    has arguments of that peer, `options` those of `subscribe`, and the rest is the publisher's.
    """
    if tuning is not None:
        publisher["tuning"] = tuning
        subscriber = {"tuning": tuning, **(subscriber or {})}
    with (
        Peer("pub", streams=[stream or Stream(pattern)], **publisher) as pub,
        Peer("sub", connect=pub.address, **(subscriber or {})) as sub,
        sub.subscribe(pattern, **(options or {})) as events,
    ):
        events.wait_for_publishers(timeout=WAIT_S)
        pub.wait_for_subscribers(topic, count=1, timeout=WAIT_S)
        yield Pair(pub, sub, events)
