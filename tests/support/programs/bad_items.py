"""`publish_many` of many good events and a bad one, for `RemotePeer.use`."""

from __future__ import annotations

import asyncio
from typing import Any

from meshmsg import AsyncPeer, MeshError, Peer

#: By the error: what is bad, and whether it is an item or a key.
BAD: dict[str, tuple[Any, str]] = {
    "PayloadError": (object(), "item"),
    "EventTooLarge": (b"x" * 5000, "item"),
    "ConfigError": (7, "key"),
}


def attempt(
    peer: Peer, verb: str, bad: str, place: int, count: int
) -> tuple[str, int, int | None, str]:
    """The error of a call whose event at a place is bad: type, `published`, `last`, text."""
    value, what = BAD[bad]
    items: list[Any] = [b"%d" % n for n in range(count)]
    keys: Any = ["k"] * count if what == "key" else None
    (items if keys is None else keys)[place] = value
    try:
        if verb == "sync":
            peer.publish_many("a.b", items, keys=keys)
        else:
            other = AsyncPeer("unopened")
            other._node = peer._node  # the verbs of the other kind of peer, on the same streams
            asyncio.run(other.publish_many("a.b", items, keys=keys))
    except MeshError as error:
        found: Any = error
        last = None if found.last is None else found.last.seq
        return type(found).__name__, found.published, last, str(found)
    raise AssertionError("it was published")
