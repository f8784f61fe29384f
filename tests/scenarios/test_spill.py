"""`overflow="spill"`: what a stalled consumer has not taken is on disk, and comes back in order."""

from __future__ import annotations

import contextlib
import errno
import tempfile
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from meshmsg import Multicast, Peer, PublishTimeout, Stream, Subscription, Tuning
from meshmsg._publish.spill import TEMPORARY
from meshmsg.recovery.log.files import File
from meshmsg.recovery.log.spill import UnsyncedFiles
from tests.scenarios.multicast.conftest import new_group
from tests.support.remote import RemotePeer
from tests.support.waiting import wait_until as wait_for

#: A consumer that does not read holds this much, and no more comes to it.
STALLED = Tuning(inbox_bytes_max=64 * 1024, queue_frames=4)
BUFFER = 256 * 1024
EVENTS = 1000
SIZE = 1000
wait_until = partial(wait_for, timeout=60)  # on a machine that is busy


def spilling(**more: Any) -> Stream:
    return Stream("a.**", overflow="spill", buffer_bytes=BUFFER, **more)


def figures(pub: Peer, label: str = "a.**") -> dict[str, Any]:
    found: dict[str, Any] = pub.stats()["streams"][label]
    return found


def payload(n: int) -> bytes:
    return b"%0*d" % (SIZE, n)


def publish(pub: Peer, first: int, stop: int, **more: Any) -> None:
    for n in range(first, stop, 10):
        pub.publish_many("a.b", [payload(n + i) for i in range(10)], timeout=60, **more)


def publish_until_blocked(pub: Peer, first: int) -> tuple[int, PublishTimeout]:
    """Publish until that takes long; one past the last event that was taken."""
    while True:
        try:
            pub.publish_many("a.b", [payload(first + i) for i in range(10)], timeout=0.5)
        except PublishTimeout as error:
            return first, error
        first += 10


def read(events: Subscription, first: int, stop: int) -> None:
    for n in range(first, stop):
        event = events.get(timeout=60)
        assert event is not None, f"{n} did not come"
        assert event.data == payload(n)
    assert not events.losses


@contextlib.contextmanager
def reading_aside(events: Subscription, first: int, stop: int) -> Iterator[None]:
    """Read on a thread of its own; at the end all of it must have come."""
    done: list[bool] = []
    thread = threading.Thread(target=lambda: done.append(read(events, first, stop) is None))
    thread.start()
    yield
    thread.join(60)
    assert done == [True]


@contextlib.contextmanager
def mesh(stream: Stream, **config: Any) -> Iterator[tuple[Peer, Subscription, Subscription]]:
    """A publisher, a subscriber that reads, and one that does so when the test says so."""
    with (
        Peer("pub", streams=[stream], tuning=STALLED, **config) as pub,
        Peer("quick", connect=pub.address) as quick,
        Peer("slow", connect=pub.address, tuning=STALLED) as slow,
        quick.subscribe("a.**") as reading,
        slow.subscribe("a.**") as stalled,
    ):
        pub.wait_for_subscribers("a.b", count=2, timeout=60)
        yield pub, reading, stalled


def test_stalled_subscriber_gets_everything_later_and_nobody_waits() -> None:
    with mesh(spilling()) as (pub, reading, stalled):
        with reading_aside(reading, 0, EVENTS * 5):
            publish(pub, 0, EVENTS * 5)
        wait_until(lambda: figures(pub)["spill"]["events"] > EVENTS * 3)
        spill = figures(pub)["spill"]
        assert figures(pub)["buffer_bytes"] < BUFFER * 2
        assert pub.stats()["counters"].get("publish_waits", 0) == 0
        read(stalled, 0, EVENTS * 5)
        pub.flush(timeout=60)
        wait_until(lambda: figures(pub)["spill"]["bytes"] == 0)
        assert pub.stats()["counters"]["replayed_frames"] > 0
        assert pub.ledger().reconciles
        folder = Path(spill["path"])
        assert len(list(folder.glob("*.seg"))) == 1
        publish(pub, EVENTS * 5, EVENTS * 6)  # and again, in the same place
        read(reading, EVENTS * 5, EVENTS * 6)
        read(stalled, EVENTS * 5, EVENTS * 6)
    assert not folder.exists()
    assert not folder.parent.exists()


def test_consumers_that_are_in_time_cost_no_disk() -> None:
    with mesh(spilling()) as (pub, reading, stalled):
        for first in range(0, EVENTS, 100):
            publish(pub, first, first + 100)
            read(reading, first, first + 100)
            read(stalled, first, first + 100)
            pub.flush(timeout=60)
        spill = figures(pub)["spill"]
        assert spill["spilled_events"] == 0
        assert not Path(spill["path"]).exists()


def test_subscriber_that_leaves_frees_the_disk(tmp_path: Path) -> None:
    with mesh(spilling(), data_dir=tmp_path) as (pub, reading, stalled):
        publish(pub, 0, EVENTS)
        assert figures(pub)["spill"]["path"].startswith(str(tmp_path))
        read(reading, 0, EVENTS)
        wait_until(lambda: figures(pub)["spill"]["events"] > 0)
        stalled.close()
        wait_until(lambda: figures(pub)["spill"]["bytes"] == 0)
    assert not (tmp_path / "spill").exists()


def test_at_its_bound_the_publisher_waits_and_goes_on_when_there_is_room() -> None:
    with mesh(spilling(spill_bytes="1MiB")) as (pub, reading, stalled):
        taken, error = publish_until_blocked(pub, 0)
        assert any(name.startswith("slow/") for name in error.subscribers)
        assert figures(pub)["blocked"]
        assert figures(pub)["spill"]["bytes"] < 2 * 1024 * 1024
        read(reading, 0, taken)
        read(stalled, 0, taken)
        publish(pub, taken, taken + 100)
        read(stalled, taken, taken + 100)


class FullFiles(UnsyncedFiles):
    """A disk that can be full."""

    full = False

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        file: Any = super().open(path, write=write, create=create)
        write_at = file.write_at

        def refuse(parts: Any, offset: int) -> int:
            if self.full:
                raise OSError(errno.ENOSPC, "No space left on device")
            return int(write_at(parts, offset))

        file.write_at = refuse
        return file


def test_full_disk_makes_the_publisher_wait_and_loses_nothing() -> None:
    with mesh(spilling()) as (pub, reading, stalled):
        files = FullFiles()
        spill = pub._node.publisher._outlets["pub/a.**"].spill  # type: ignore[union-attr]
        assert spill is not None
        spill._files = files
        publish(pub, 0, EVENTS)
        files.full = True
        taken, _ = publish_until_blocked(pub, EVENTS)
        assert "No space left" in figures(pub)["spill"]["problem"]
        assert figures(pub)["spill"]["spill_failures"] > 0
        files.full = False
        publish(pub, taken, taken + EVENTS)  # it is noticed that there is space again
        assert figures(pub)["spill"]["problem"] is None
        read(reading, 0, taken + EVENTS)
        read(stalled, 0, taken + EVENTS)


def test_evicted_subscriber_gets_a_loss_and_the_newest() -> None:
    stream = spilling(spill_bytes="1MiB", evict_after=0.2)
    with mesh(stream) as (pub, reading, stalled):
        with reading_aside(reading, 0, EVENTS * 4):
            publish(pub, 0, EVENTS * 4)
        assert figures(pub)["spill"]["bytes"] < 2 * 1024 * 1024
        got, lost = 0, 0
        while got + lost < EVENTS * 4:
            batch = stalled.get(timeout=60)
            assert batch is not None
            got += 1
            lost = sum(loss.count for loss in stalled.losses)
        assert lost > 0
        assert {loss.reason for loss in stalled.losses} == {"evicted"}
        assert pub.ledger().reconciles


@pytest.mark.parametrize("durability", ["none", "log"])
def test_group_works_from_disk(tmp_path: Path, durability: str) -> None:
    stream = spilling(durability=durability)
    with (
        Peer("pub", streams=[stream], data_dir=tmp_path) as pub,
        Peer("worker", connect=pub.address) as worker,
        worker.subscribe("a.**", group="g", prefetch=8) as events,
    ):
        pub.wait_for_subscribers("a.b", timeout=60)
        for n in range(EVENTS * 2):
            pub.publish("a.b", payload(n), key=f"k{n % 5}" if n % 2 else None, timeout=60)
        assert figures(pub)["buffer_bytes"] < BUFFER * 2
        for _ in range(EVENTS):  # what is given back is on disk only by then
            event = events.get(timeout=60)
            assert event is not None
            if event.seq % 100 == 0 and event.attempt == 1:
                events.nack(event, delay="100ms", error="not now")
            else:
                events.ack(event)
        while figures(pub)["groups"][0]["acked"] < EVENTS * 2:
            events.ack(events.get_many(1000, timeout=0.1))
        pub.flush(timeout=60)
        group = figures(pub)["groups"][0]
        assert group["acked"] == EVENTS * 2
        assert group["redelivered"] > 0
        assert not group["lost"]
        assert pub.stats()["counters"]["group_fetched_frames"] > 0
        assert pub.ledger().reconciles


def test_stalled_multicast_receiver_gets_everything_later() -> None:
    stream = spilling(transport=Multicast(new_group(), rate="100MB"))
    with mesh(stream) as (pub, reading, stalled):
        with reading_aside(reading, 0, EVENTS * 3):
            publish(pub, 0, EVENTS * 3)
        wait_until(lambda: figures(pub)["spill"]["events"] > 0)
        read(stalled, 0, EVENTS * 3)
        wait_until(lambda: figures(pub)["spill"]["events"] == 0)


@pytest.mark.parametrize("given", [True, False])
def test_what_a_killed_process_left_is_removed(tmp_path: Path, given: bool) -> None:
    more = {"data_dir": str(tmp_path)} if given else {}
    table = {"topics": "a.**", "overflow": "spill", "buffer_bytes": BUFFER}
    victim = RemotePeer("victim", streams=[table], **more)
    victim.run("tuning = meshmsg.Tuning(inbox_bytes_max=1000)")
    victim.run("other = meshmsg.Peer('other', connect=peer.address, tuning=tuning).open()")
    victim.run("events = other.subscribe('a.**')")
    victim.run("peer.wait_for_subscribers('a.b', timeout=60)")
    victim.run("for n in range(50): peer.publish_many('a.b', [bytes(1000)] * 100)")
    path = Path(victim.eval("peer.stats()['streams']['a.**']['spill']['path']"))
    assert list(path.glob("*.seg"))
    victim.kill()
    assert list(path.glob("*.seg"))
    with Peer("victim", streams=[spilling()], **more):
        assert not list(path.glob("*.seg"))
    assert not path.exists()
    if not given:
        assert path.parent.name.startswith(TEMPORARY)
        assert path.parent.parent == Path(tempfile.gettempdir())


def test_memory_of_a_publisher_with_a_stalled_subscriber_is_bounded() -> None:
    """150 MB are published, and the process grows by less than a third of that."""
    table = {"topics": "a.**", "overflow": "spill", "buffer_bytes": "4MiB"}
    tuning = {"queue_frames": 16}
    with (
        RemotePeer("victim", streams=[table], tuning=tuning) as victim,
        Peer("slow", connect=victim.address, tuning=STALLED) as slow,
        slow.subscribe("a.**") as events,
    ):
        victim.run("peer.wait_for_subscribers('a.b', timeout=60)")
        status = f"/proc/{victim.pid}/statm"
        victim.run("for n in range(50): peer.publish_many('a.b', [bytes(1000)] * 100)")
        before = int(Path(status).read_text().split()[1]) * 4096
        victim.run("for n in range(1500): peer.publish_many('a.b', [bytes(1000)] * 100)")
        after = int(Path(status).read_text().split()[1]) * 4096
        assert victim.eval("peer.stats()['streams']['a.**']['spill']['bytes']") > 100_000_000
        assert after - before < 50_000_000
        for seq in range(155_000):
            event = events.get(timeout=60)
            assert event is not None
            assert event.seq == seq
        assert not events.losses
