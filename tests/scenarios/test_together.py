"""Threads that publish single events with `fsync="always"` share frames and syncs."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from meshmsg import ClosedError, EventTooLarge, LogFull, Peer, Position, PublishTimeout, Stream
from meshmsg.recovery.log.faults import Faults, FaultyFiles
from meshmsg.recovery.log.writer import LogWriter
from tests.scenarios.test_durable_streams import in_log
from tests.scenarios.test_replay import taken
from tests.support.pairs import pair
from tests.support.remote import RemotePeer
from tests.support.waiting import wait_until

THREADS = 16
EACH = 50


def always(**more: Any) -> Stream:
    return Stream("a.**", durability="log", fsync="always", **more)


def in_threads(work: Any, count: int = THREADS) -> None:
    problems: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "a thread waits for ever"
    assert problems == []


def test_events_of_many_threads_share_frames_and_keep_their_order(tmp_path: Path) -> None:
    places: dict[Position, Any] = {}
    with pair(always(), data_dir=tmp_path) as (pub, _, events):

        def work(number: int) -> None:
            for n in range(EACH):
                key = f"k{number}" if n % 3 else None
                headers = {"n": n} if n % 5 == 0 else None
                data = b"%d %d" % (number, n) if n % 2 else [number, n]
                place = pub.publish(f"a.{number % 3}", data, key=key, headers=headers)
                assert place not in places
                places[place] = (f"a.{number % 3}", data, key, headers or {})

        in_threads(work)
        got = taken(events, THREADS * EACH)
        assert [event.position.seq for event in got] == list(range(THREADS * EACH))
        assert {e.position: (e.topic, e.data, e.key, e.headers) for e in got} == places
        stats = pub.stats()["streams"]["a.**"]
        assert stats["frames"] < stats["published"]
        assert stats["log"]["syncs"] < stats["published"]
        assert stats["log"]["durable"] == stats["published"]
    assert [seq for _, seq, _ in in_log(tmp_path)] == list(range(THREADS * EACH))


def test_full_disk_tells_every_thread_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = FaultyFiles(Random(1), Faults())
    monkeypatch.setattr(
        "meshmsg._publish.durable_streams.LogWriter", partial(LogWriter, files=files)
    )
    told: Counter[str] = Counter()
    with Peer("pub", streams=[always()], data_dir=tmp_path) as pub:
        pub.publish("a.b", b"first")
        files.faults.capacity_bytes = files.used_bytes()

        def work(number: int) -> None:
            for _ in range(EACH):
                try:
                    pub.publish("a.b", bytes(100_000))
                    told["good"] += 1
                except LogFull:
                    told["full"] += 1

        in_threads(work)
        assert told["full"] >= THREADS * (EACH - 1)
        files.faults.capacity_bytes = None
        before = pub.publish("a.b", b"again").seq
        assert before == 1 + told["good"]
        in_threads(lambda number: pub.publish("a.b", b"good"))
        assert pub.stats()["streams"]["a.**"]["published"] == before + 1 + THREADS


def test_large_events_and_shut_gates(tmp_path: Path) -> None:
    stream = always(window_bytes="64KiB", buffer_bytes="256KiB", event_bytes_max="1MiB")
    told: Counter[str] = Counter()
    with pair(stream, data_dir=tmp_path) as (pub, _, events):
        with pytest.raises(EventTooLarge):
            pub.publish("a.b", bytes(2_000_000))

        def work(number: int) -> None:
            for n in range(20):
                try:
                    pub.publish("a.b", bytes(200_000 if n == 5 else 5000), timeout=0.2)
                    told["good"] += 1
                except PublishTimeout:
                    told["late"] += 1

        in_threads(work, 8)
        assert told["late"]  # nobody reads
        assert len(taken(events, told["good"])) == told["good"]
        assert events.losses == []
        assert pub.publish("a.b", b"open again", timeout=30).seq == told["good"]


def test_threads_that_wait_at_the_gate_are_told_when_the_peer_closes(tmp_path: Path) -> None:
    stream = always(window_bytes="16KiB", buffer_bytes="64KiB")
    with Peer("sub") as sub, sub.subscribe("a.**"):
        pub = Peer("pub", streams=[stream], data_dir=tmp_path, connect=sub.address).open()
        pub.wait_for_subscribers("a.b", count=1, timeout=30)

        def publish_on() -> None:
            while True:
                pub.publish("a.b", bytes(1000))

        def work(number: int) -> None:
            with pytest.raises(ClosedError):
                publish_on()

        threads = threading.Thread(target=in_threads, args=(work, 8))
        threads.start()
        wait_until(lambda: pub.stats()["streams"]["a.**"]["blocked"])
        pub.close(timeout=0.1)
        threads.join(60)
        assert not threads.is_alive()


def test_interrupted_thread_leaves_nobody_waiting(tmp_path: Path) -> None:
    """Ctrl-C hits the main thread at any point, also while it writes for the others."""
    streams = [{"topics": "a.**", "durability": "log", "fsync": "always"}]
    with RemotePeer("pub", data_dir=str(tmp_path), streams=streams) as pub:
        pub.use("loads")
        pub.run("crowd = start_crowd()")
        for _ in range(20):
            pub.send("crowd.publish_until_interrupted()")
            threading.Event().wait(0.03)
            pub.signal(signal.SIGINT)
            pub.answer()
        assert pub.eval("crowd.interrupts") == 20
        pub.run("before = list(crowd.counts)")
        wait_until(lambda: pub.eval("all(a > b for a, b in zip(crowd.counts, before))"), 20)
        assert pub.eval("crowd.stop()")
        total = pub.eval("sum(crowd.counts) + crowd.own")
        pub.run("peer.flush(30)")
        published = pub.eval("peer.stats()['streams']['a.**']['published']")
    assert total <= published <= total + 20
    assert len(in_log(tmp_path)) == published
