"""A durable publisher is killed again and again under its groups: nothing is done twice.

Groups of several members, in one process and in two, that acknowledge in every way there is.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from meshmsg import Event, Peer, Stream, Subscription
from tests import processes
from tests.ports import free_port
from tests.remote import wait_until

KILLS = 8
#: Name, order, how members acknowledge.
GROUPS = [
    ("single", "key", "one by one"),
    ("bulk", "none", "batches"),
    ("auto", "none", "auto"),
    ("mixed", "key", "out of order"),
    ("apart", "none", "one by one"),
]

PUBLISHER = """
import random, sys
from meshmsg import Peer, Stream

data_dir, address, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
rng = random.Random(seed)
groups = sys.argv[4].split()
stream = Stream("a.**", durability="log", fsync="always", segment_bytes="64KiB", groups=groups)
with Peer("victim", bind=address, streams=[stream], data_dir=data_dir) as peer:
    while True:
        count = rng.choice([1, 1, 1, 20])
        if count == 1:
            last = peer.publish("a.b", b"x", key=rng.choice([None, "k", "l", "m"]))
        else:
            last = peer.publish_many("a.b", [b"x"] * count)
        sys.stdout.write(f"{last.epoch} {last.seq + 1 - count} {last.seq + 1}\\n")
        sys.stdout.flush()
"""

# Says what it was given before it does anything with it.
MEMBER = """
import sys
from meshmsg import Peer

with (
    Peer("apart", connect=sys.argv[1]) as peer,
    peer.subscribe("a.**", group=sys.argv[2], order="none", prefetch=50) as events,
):
    for event in events:
        sys.stdout.write(f"{event.position.epoch} {event.position.seq} {event.key}\\n")
        sys.stdout.flush()
        events.ack(event)
"""

Name = tuple[int, int]


class Group:
    """What the applications of one group were given, together."""

    def __init__(self, name: str, order: str, way: str) -> None:
        self.name = name
        self.order = order
        self.way = way
        self.lock = threading.Lock()
        self.given: Counter[Name] = Counter()
        self.by_key: defaultdict[str, list[Name]] = defaultdict(list)
        self.stop = threading.Event()
        self.problems: list[str] = []

    def note(self, name: Name, key: str | None) -> None:
        with self.lock:
            self.given[name] += 1
            if key is not None:
                self.by_key[key].append(name)

    def note_event(self, event: Event) -> None:
        self.note((event.position.epoch, event.position.seq), event.key)

    def work(self, address: str, seed: int) -> None:
        """One member."""
        options: dict[str, Any] = {"group": self.name, "order": self.order, "prefetch": 50}
        with (
            Peer(f"{self.name}-{seed}", connect=address) as peer,
            peer.subscribe("a.**", auto_ack=self.way == "auto", **options) as events,
        ):
            rng = Random(seed)
            while not self.stop.is_set():
                self._some(events, rng)
            self.problems += map(str, events.losses)

    def _some(self, events: Subscription, rng: Random) -> None:
        if self.way == "batches":
            for batch in events.batches(timeout=0.1):
                for event in batch:
                    self.note_event(event)
                events.ack(batch)
            return
        got = events.get_many(rng.choice([1, 5, 40]), timeout=0.1)
        for event in got:
            self.note_event(event)
        if self.way == "out of order":
            rng.shuffle(got)
            if rng.random() < 0.1:
                time.sleep(0.01)  # with some in hand
        if self.way != "auto":
            for event in got:
                events.ack(event)

    def listen(self, child: subprocess.Popen[bytes]) -> None:
        """One member in a process of its own."""
        assert child.stdout is not None
        for line in child.stdout:
            epoch, seq, key = line.split()
            self.note((int(epoch), int(seq)), None if key == b"None" else key.decode())


@contextmanager
def members(groups: list[Group], address: str) -> Iterator[None]:
    """Two of each group; of one, the second is apart."""
    threads, children = [], []
    for group in groups:
        for seed in range(2):
            target: Any = group.work
            args: tuple[Any, ...] = (address, seed)
            if group.name == "apart" and seed:
                child = processes.start(
                    [sys.executable, "-c", MEMBER, address, group.name], stdout=subprocess.PIPE
                )
                children.append(child)
                target, args = group.listen, (child,)
            threads.append(threading.Thread(target=target, args=args))
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for group in groups:
            group.stop.set()
        for child in children:
            child.kill()
            child.wait()
        for thread in threads:
            thread.join(60)
        for child in children:
            assert child.stdout is not None
            child.stdout.close()


def one_life(arguments: list[str], rng: Random) -> set[Name]:
    """Start a publisher and kill it; what it acknowledged."""
    child = processes.start([sys.executable, "-c", PUBLISHER, *arguments], stdout=subprocess.PIPE)
    assert child.stdout is not None
    lines = [child.stdout.readline() for _ in range(1 + rng.randrange(300))]
    time.sleep(rng.choice([0.0, rng.random() * 0.2]))
    child.send_signal(signal.SIGKILL)
    lines += child.stdout.read().split(b"\n")[:-1]  # the last one may have been cut
    child.wait()
    child.stdout.close()
    rows = [[int(word) for word in line.split()] for line in lines]
    return {(epoch, seq) for epoch, first, stop in rows for seq in range(first, stop)}


def lags(peer: Peer) -> list[int]:
    return [group["lag"] for group in peer.stats()["streams"]["a.**"]["groups"]]


def kill_under_groups(data_dir: Path, kills: int) -> None:
    """Kill a publisher this many times; every event is given once to each group, in its order."""
    rng = Random(5)
    address = f"tcp://127.0.0.1:{free_port()}"
    groups = [Group(*what) for what in GROUPS]
    names = [group.name for group in groups]
    acknowledged: set[Name] = set()
    with members(groups, address):
        for seed in range(kills):
            arguments = [str(data_dir), address, str(seed), " ".join(names)]
            acknowledged |= one_life(arguments, rng)
        stream = Stream("a.**", durability="log", groups=names)
        with Peer("victim", bind=address, streams=[stream], data_dir=data_dir) as last:
            wait_until(lambda: lags(last) == [0] * len(groups), timeout=120)
            assert last.stats()["counters"].get("members_not_back", 0) == 0
    for group in groups:
        twice = {name: count for name, count in group.given.items() if count > 1}
        assert not twice, f"{group.name}: {len(twice)} events were given twice: {min(twice)}"
        assert acknowledged <= group.given.keys(), group.name
        assert group.problems == []
        if group.order == "key":
            assert all(found == sorted(found) for found in group.by_key.values()), group.name


def test_publisher_is_killed_and_no_member_gets_anything_twice(tmp_path: Path) -> None:
    kill_under_groups(tmp_path, KILLS)
