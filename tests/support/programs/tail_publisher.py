"""A program that publishes on a durable stream flat out, until it is killed.

    python tests/support/programs/tail_publisher.py DATA_DIR ACKS SETTINGS

SETTINGS is a Python dict: `threads`, `each` (events of a thread at most), `fsync`, `mix` (keys,
headers, large events and `publish_many` too), `group` (of multicast, or None).  When `publish` has
returned an event's position, its number stands in the mapped file ACKS, plus one, at the place of
the thread and the event: what is there was acknowledged, and outlives a kill.
"""

from __future__ import annotations

import ast
import mmap
import sys
import threading
from collections.abc import Iterator
from typing import Any

from meshmsg import Multicast, Peer, Stream

WORD = 8
MANY = 40


def event_of(thread: int, n: int, mix: bool) -> tuple[bytes, str | None, dict[str, Any]]:
    """Payload, key and headers of a thread's event `n`."""
    data = b"%d %d " % (thread, n) * (1 + n % 7)
    if not mix:
        return data, None, {}
    if n % 997 == 0:
        data += bytes(40_000)
    return data, f"k{n % 5}" if n % 3 == 0 else None, {"n": n} if n % 11 == 0 else {}


def acknowledged(acks: memoryview, each: int) -> Iterator[tuple[int, int, int]]:
    """Thread, event and its number in the epoch, of each that was acknowledged."""
    for at, word in enumerate(acks[1:].tolist()):
        if word:
            yield *divmod(at, each), word - 1


def work(peer: Peer, acks: memoryview, thread: int, each: int, mix: bool) -> None:
    """Publish one by one, with some runs of many."""
    n = 0
    while n < each - MANY:
        count = 1
        if mix and n % 1000 == 500:
            count = MANY
            payloads = [event_of(thread, n + i, mix)[0] for i in range(count)]
            last = peer.publish_many("a.many", payloads)
        else:
            data, key, headers = event_of(thread, n, mix)
            last = peer.publish(f"a.{n % 3}", data, key=key, headers=headers or None)
        assert last is not None
        acks[0] = last.epoch
        for i in range(count):
            acks[1 + thread * each + n + i] = last.seq - (count - 1 - i) + 1
        n += count


def main() -> None:
    data_dir, path, text = sys.argv[1:]
    said = ast.literal_eval(text)
    threads, each, mix, group = said["threads"], said["each"], said["mix"], said["group"]
    transport = None if group is None else Multicast(group)
    stream = Stream(
        "a.**",
        durability="log",
        fsync=said["fsync"],
        segment_bytes="256KiB",
        transport=transport,
    )
    with (
        open(path, "r+b") as file,
        mmap.mmap(file.fileno(), 0) as mapped,
        memoryview(mapped) as raw,
        raw.cast("Q") as acks,  # one store a word: a kill leaves it whole or zero
        Peer("victim", streams=[stream], data_dir=data_dir) as peer,
    ):
        others = [
            threading.Thread(target=work, args=(peer, acks, n, each, mix), daemon=True)
            for n in range(1, threads)
        ]
        for thread in others:
            thread.start()
        work(peer, acks, 0, each, mix)
        threading.Event().wait()  # it is killed at the latest now


if __name__ == "__main__":
    main()
