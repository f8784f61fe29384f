"""Reading in another process, for `RemotePeer.use`: what came, by its numbers."""

from __future__ import annotations

import threading

from meshmsg import Peer, Subscription


def seqs_aside(peer: Peer, pattern: str) -> list[int]:
    """Subscribe and read on a thread; the list grows with every event."""
    events, seen = peer.subscribe(pattern), list[int]()

    def read() -> None:
        for event in events:
            seen.append(event.seq)

    threading.Thread(target=read, daemon=True).start()
    return seen


def read_seqs(peer: Peer, events: Subscription, stop: int) -> list[int]:
    """Read up to the event before `stop`."""
    got: list[int] = []
    while not got or got[-1] < stop - 1:
        more = events.get_many(1000, timeout=30)
        assert more, (len(got), events.losses)
        got += [event.seq for event in more]
    return got


def read_numbers(peer: Peer, events: Subscription, stop: int) -> list[int]:
    """Read events of numbers, up to the one before `stop`."""
    got: list[int] = []
    while not got or got[-1] < stop - 1:
        event = events.get(timeout=30)
        assert event is not None, (len(got), events.losses)
        got.append(int(event.data))
    return got


def read_all(peer: Peer, events: Subscription, least: int) -> list[int]:
    """Read all that is there, and wait for so many."""
    got: list[int] = []
    while more := events.get_many(100_000, timeout=0 if len(got) >= least else 30):
        got += [event.seq for event in more]
    return got


def count_all(peer: Peer, events: Subscription, stop: int) -> int:
    """How many of so many events came, when the others are known to be lost."""
    got = 0
    while got + events.lost < stop:
        got += sum(len(batch) for batch in events.batches(timeout=0.2))
    return got


def take_aside(peer: Peer, events: Subscription) -> list[int]:
    """Handle a group's events on a thread; the list grows with each, before it is acknowledged."""
    done: list[int] = []

    def take() -> None:
        for event in events:
            done.append(event.data)
            events.ack(event)

    threading.Thread(target=take, daemon=True).start()
    return done
