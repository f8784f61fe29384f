"""Publishing in another process, for `RemotePeer.use`: loops, and threads that go on."""

from __future__ import annotations

import queue
import sys
import threading
import time

from meshmsg import Peer
from tests.support import numbered


def publish_padded(peer: Peer, first: int, stop: int, pad: str) -> None:
    """Numbered events, slowly enough for those who read to keep up."""
    for n in range(first, stop, 50):
        peer.publish_many("a.b", [b"%d " % i + pad.encode() for i in range(n, n + 50)])
        time.sleep(0.001)


def publish_jobs(peer: Peer, count: int) -> None:
    """Jobs with their number; every other one has a key."""
    keys = [f"k{n % 97}" if n % 2 else None for n in range(100)]
    for n in range(0, count, 100):
        peer.publish_many("jobs.x", range(n, n + 100), keys=keys)


def publish_numbered_aside(peer: Peer, count: int, rate: int) -> None:
    """Events of `tests.support.numbered` on a thread, so many a second."""
    arguments = (peer, "a.b", 0, count)
    threading.Thread(target=numbered.publish, args=arguments, kwargs={"rate": rate}).start()


def publish_until_told(peer: Peer, accepted: list[int]) -> None:
    """Publish until an error or a signal; adds each number, and leaves as a `with` block does."""
    try:
        while True:
            accepted.append(peer.publish("a.b", b"x" * 1000, timeout=60).seq)
    finally:
        peer.__exit__(*sys.exc_info())


class Load:
    """Publishes numbers on a thread until it is told to stop."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._stopped = threading.Event()
        self._count = 0
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        while not self._stopped.is_set():
            first = self._count
            self._count += 20
            self._peer.publish_many("a.b", [b"%d" % n for n in range(first, first + 20)])
            self._stopped.wait(0.002)
        self._peer.flush()

    def stop(self) -> int:
        """How many were published."""
        self._stopped.set()
        self._thread.join()
        return self._count


def start_load(peer: Peer) -> Load:
    """Begin to publish numbers."""
    return Load(peer)


class Paced:
    """Publishes what it is told to, so many a second, on a thread."""

    def __init__(self, peer: Peer, topics: int) -> None:
        self._peer = peer
        self._topics = topics
        self._next = 0
        self._todo: queue.Queue[tuple[int, int]] = queue.Queue()
        threading.Thread(target=self._work, daemon=True).start()

    def put(self, count: int, rate: int) -> None:
        """Publish so many more when the others are out."""
        self._todo.put((count, rate))

    def _work(self) -> None:
        while True:
            self._publish(*self._todo.get())

    def _publish(self, count: int, rate: int) -> None:
        began, n = time.monotonic(), 0
        while n < count:
            first, some = self._next, min(max(1, rate // 20), count - n)
            events = [{"n": i, "price": i / 4} for i in range(first, first + some)]
            self._peer.publish_many(f"quotes.t{first % self._topics}", events)
            n += some
            self._next += some
            time.sleep(max(0.0, began + n / rate - time.monotonic()))


def start_pacing(peer: Peer, topics: int = 5) -> Paced:
    """Have a thread that publishes quotes."""
    return Paced(peer, topics)


class Crowd:
    """Four threads that publish one by one, and the main one, which is interrupted."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._stopped = threading.Event()
        self.counts = [0] * 4
        self.own = 0
        self.interrupts = 0
        self._threads = [threading.Thread(target=self._work, args=(n,)) for n in range(4)]
        for thread in self._threads:
            thread.start()

    def _work(self, n: int) -> None:
        while not self._stopped.is_set():
            self._peer.publish("a.b", b"x")
            self.counts[n] += 1

    def publish_until_interrupted(self) -> None:
        try:
            while True:
                self._peer.publish("a.b", b"main")
                self.own += 1
        except KeyboardInterrupt:
            self.interrupts += 1

    def stop(self) -> bool:
        """Whether all threads end."""
        self._stopped.set()
        for thread in self._threads:
            thread.join(30)
        return not any(thread.is_alive() for thread in self._threads)


def start_crowd(peer: Peer) -> Crowd:
    """Begin to publish on four threads."""
    return Crowd(peer)
