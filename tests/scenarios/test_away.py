"""A consumer that was away comes back to the live edge, without a gap or a duplicate."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from meshmsg import Peer, Stream, Subscription
from tests.support.waiting import wait_until

PAYLOADS = [b"%060d" % n for n in range(1000)]
TOPIC = "a.b"
BEFORE = 5000


def test_consumer_back_after_200_000_events_reaches_the_live_edge(tmp_path: Path) -> None:
    be_away(tmp_path, 200_000, consumers=2)


@contextmanager
def publishing(peer: Peer) -> Iterator[list[int]]:
    """Publish all the time, a few thousand events a second; how many there were."""
    sent, stopped = [0], threading.Event()

    def run() -> None:
        while not stopped.wait(0.01):
            peer.publish_many(TOPIC, PAYLOADS[:50])
            sent[0] += 50

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield sent
    finally:
        stopped.set()
        thread.join()


class Audit:
    """A named consumer that commits."""

    def __init__(self, path: Path, address: str, number: int) -> None:
        self.path = path / f"audit{number}"
        self.address = address
        self.next = 0

    @contextmanager
    def reading(self) -> Iterator[Subscription]:
        with (
            Peer(self.path.name, connect=self.address, data_dir=self.path) as peer,
            peer.subscribe("a.**", start="committed", name="audit", hold=True) as events,
        ):
            yield events
            assert list(events.losses) == []
            assert peer.ledger().reconciles

    def read(self, events: Subscription, stop: int) -> None:
        """Read at least so far; every event is the next one."""
        while self.next < stop:
            for batch in events.batches(timeout=60):
                assert batch.frame.first + batch.lo == self.next
                self.next += len(batch)
                if self.next >= stop:
                    break
            else:
                raise AssertionError(f"nothing came after {self.next}")
        events.commit()


def be_away(path: Path, count: int, consumers: int) -> None:
    """So many events while they are away; then they come back while publishing goes on."""
    stream = Stream("a.**", durability="log", retention="1MB", segment_bytes="1MB")
    with Peer("pub", streams=[stream], data_dir=path / "pub") as pub:
        crew = [Audit(path, pub.address, n) for n in range(consumers)]
        for audit in crew:
            with audit.reading() as events:
                pub.wait_for_subscribers(TOPIC, 1, timeout=60)
                if not audit.path.name.endswith("0"):
                    audit.read(events, BEFORE)
                    continue
                for _ in range(BEFORE // 1000):
                    pub.publish_many(TOPIC, PAYLOADS)
                audit.read(events, BEFORE)
        for _ in range(count // 1000):
            pub.publish_many(TOPIC, PAYLOADS)
        with publishing(pub) as sent:
            threads = [threading.Thread(target=_come_back, args=(a, sent, count)) for a in crew]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        total = BEFORE + count + sent[0]
        for audit in crew:
            assert audit.next >= BEFORE + count
            with audit.reading() as events:
                audit.read(events, total)
                assert events.get(timeout=0) is None
            assert audit.next == total
        wait_until(lambda: pub.stats()["streams"]["a.**"]["subscribers"] == [])


def _come_back(audit: Audit, sent: list[int], count: int) -> None:
    """Until what is read was published after we had come back."""
    with audit.reading() as events:
        edge = BEFORE + count + sent[0]
        audit.read(events, edge)
        audit.read(events, BEFORE + count + sent[0])
