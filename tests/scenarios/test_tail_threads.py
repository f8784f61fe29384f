"""Many threads publish on one durable stream in every way at once: one order for all."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from meshmsg import LogFull, Peer, Stream
from meshmsg.recovery.log.faults import FaultyFiles
from meshmsg.recovery.log.folder import find_logs
from meshmsg.recovery.log.verify import verify
from meshmsg.recovery.log.writer import LogWriter
from tests.scenarios.test_durable_streams import in_log
from tests.scenarios.test_together import in_threads
from tests.support.pairs import pair

SINGLE, MANY, LARGE = 8, 2, 1
RUN = 37


def data_of(thread: int, n: int) -> bytes:
    size = 50_000 if thread >= SINGLE + MANY else n % 90
    return b"%d %d " % (thread, n) + bytes(size)


class Publishers:
    """Threads that publish, and what they were told of each event."""

    def __init__(self, pub: Peer, each: int) -> None:
        self.told: dict[int, tuple[bytes, str | None, dict[str, Any]]] = {}
        self._pub = pub
        self._each = each
        self._working = SINGLE + MANY + LARGE
        self._lock = threading.Lock()

    def work(self, thread: int) -> None:
        """One of the threads: the last one flushes while the others publish."""
        if thread == SINGLE + MANY + LARGE:
            while self._working:
                self._pub.flush(timeout=30)
            return
        try:
            self._publish(thread)
        finally:
            with self._lock:
                self._working -= 1

    def _publish(self, thread: int) -> None:
        if thread < SINGLE:
            for n in range(self._each):
                self._single(thread, n)
        elif thread < SINGLE + MANY:
            for first in range(0, self._each, RUN):
                payloads = [data_of(thread, n) for n in range(first, first + RUN)]
                last = self._pub.publish_many("a.many", payloads)
                assert last is not None
                for n, payload in enumerate(reversed(payloads)):
                    self._note(last.seq - n, (payload, None, {}))
        else:
            for n in range(max(3, self._each // 50)):
                data = data_of(thread, n)
                self._note(self._pub.publish("a.large", data).seq, (data, None, {}))

    def _single(self, thread: int, n: int) -> None:
        key = f"k{thread}" if n % 3 else None
        headers = {"n": n} if n % 5 == 0 else {}
        data = data_of(thread, n)
        place = self._pub.publish(f"a.{thread % 3}", data, key=key, headers=headers or None)
        self._note(place.seq, (data, key, headers))

    def _note(self, seq: int, what: tuple[bytes, str | None, dict[str, Any]]) -> None:
        assert self.told.setdefault(seq, what) is what, f"number {seq} was given twice"


@pytest.fixture(autouse=True)
def restless() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize(("fsync", "each"), [("batch", 10_000), ("always", 60)])
def test_log_positions_and_delivery_agree(tmp_path: Path, fsync: str, each: int) -> None:
    stream = Stream("a.**", durability="log", fsync=fsync, segment_bytes="256KiB")
    with pair(stream, topic="a.0", data_dir=tmp_path) as (pub, _, events):
        publishers = Publishers(pub, each)
        got: dict[int, Any] = {}
        done = threading.Event()

        def read() -> None:
            while not done.is_set() or len(got) < len(publishers.told):
                for event in events.get_many(1000, timeout=0.2):
                    assert event.position.seq == len(got)
                    got[event.position.seq] = (event.data, event.key, event.headers)

        reader = threading.Thread(target=read)
        reader.start()
        try:
            in_threads(publishers.work, SINGLE + MANY + LARGE + 1)
        finally:
            done.set()
        reader.join(60)
        told = publishers.told
        assert sorted(told) == list(range(len(told)))
        assert got == told
        assert events.losses == []
        pub.flush(timeout=30)
        figures = pub.stats()["streams"]["a.**"]["log"]
        assert figures["next"] == figures["durable"] == len(told)
        before = in_log(tmp_path)
    after = in_log(tmp_path)
    wanted = [told[seq][0] for seq in range(len(told))]
    assert [data for _, _, data in before] == wanted
    assert after == before
    assert verify(find_logs(str(tmp_path))[0]).is_good


@pytest.mark.parametrize("fsync", ["batch", "always"])
def test_full_disk_gives_no_number_twice_to_any_thread(
    tmp_path: Path, fsync: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room comes and goes while all publish: what was refused is nowhere, all else is there."""
    files = FaultyFiles(Random(1))
    monkeypatch.setattr(
        "meshmsg._publish.durable_streams.LogWriter", partial(LogWriter, files=files)
    )
    stream = Stream("a.**", durability="log", fsync=fsync, segment_bytes="64KiB")
    told: dict[int, bytes] = {}
    refused: list[bytes] = []
    with Peer("pub", streams=[stream], data_dir=tmp_path) as pub:

        def work(thread: int) -> None:
            for n in range(400):
                data = data_of(thread, n) + bytes(200)
                try:
                    seq = pub.publish("a.b", data).seq
                except LogFull:
                    refused.append(data)
                    files.faults.capacity_bytes = None
                    continue
                assert told.setdefault(seq, data) is data
                if n % 40 == 20:
                    files.faults.capacity_bytes = files.used_bytes() + 100

        in_threads(work, 8)
        assert refused
        files.faults.capacity_bytes = None
        pub.publish("a.b", b"last")
        folder = LogWriter(str(tmp_path), "pub/a.**", files=files).folder
        found = [data for _, _, data in in_log(tmp_path, (folder,))]
        assert found.pop() == b"last"
        assert set(told.values()) <= set(found)
        assert len(found) == len(set(found))
        assert {seq: found[seq] for seq in told} == told
    assert [data for _, _, data in in_log(tmp_path, (folder,))] == [*found, b"last"]
