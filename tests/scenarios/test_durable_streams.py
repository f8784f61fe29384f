"""Streams with `durability="log"`: what is published is in the log first."""

from __future__ import annotations

import asyncio
import os
import threading
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from meshmsg import AsyncPeer, ConfigError, LogFull, LogLocked, Multicast, Peer, Stream
from meshmsg._model.event import Loss
from meshmsg.recovery.log.faults import Faults, FaultyFiles
from meshmsg.recovery.log.folder import find_logs
from meshmsg.recovery.log.reader import LogReader
from meshmsg.recovery.log.writer import LogWriter
from tests.support.pairs import pair

FSYNC_WORDS = ("always", "batch", "interval:5ms", "never")


def durable(fsync: str = "batch", **more: Any) -> Stream:
    return Stream("a.**", durability="log", fsync=fsync, **more)


def in_log(data_dir: Path, files: Any = None) -> list[tuple[int, int, bytes]]:
    """Epoch, number and payload of every event in the one log there is."""
    found = []
    reader = LogReader(find_logs(str(data_dir))[0]) if files is None else LogReader(*files)
    with reader:
        reader.seek_earliest()
        for item in reader.runs():
            assert not isinstance(item, Loss), item
            frame = item.frame
            payloads = frame.payloads.split(0, frame.count)
            found += [(frame.epoch, frame.first + n, p) for n, p in enumerate(payloads)]
    return found


def test_log_needs_a_place() -> None:
    with pytest.raises(ConfigError, match=r"data_dir: 'a.\*\*' has durability='log'"):
        Peer("pub", streams=[durable()])


@pytest.mark.parametrize(
    ("field", "value"), [("fsync", "sometimes"), ("retention", "7"), ("segment_bytes", 10)]
)
def test_wrong_words_are_named(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=field):
        Stream("a.**", durability="log", **{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("fsync", FSYNC_WORDS)
def test_event_is_in_the_log_when_publish_returns(tmp_path: Path, fsync: str) -> None:
    with Peer("pub", streams=[durable(fsync)], data_dir=tmp_path) as pub:
        for n in range(20):
            position = pub.publish("a.b", b"%d" % n, key="k" if n % 2 else None)
            assert in_log(tmp_path)[-1] == (position.epoch, position.seq, b"%d" % n)
        last = pub.publish_many("a.b", [b"x"] * 1000)
        assert last is not None
        assert len(in_log(tmp_path)) == last.seq + 1 == 1020
        pub.flush(timeout=30)
        figures = pub.stats()["streams"]["a.**"]["log"]
        assert figures["next"] == 1020
        assert fsync == "never" or figures["durable"] == 1020


@pytest.mark.parametrize("fsync", FSYNC_WORDS)
def test_subscribers_get_what_many_threads_publish(tmp_path: Path, fsync: str) -> None:
    with pair(durable(fsync), data_dir=tmp_path) as (pub, _, events):
        positions: list[tuple[int, bytes]] = []

        def work(thread: int) -> None:
            for n in range(50):
                data = b"%d %d" % (thread, n)
                positions.append((pub.publish("a.b", data).seq, data))

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        got = [events.get(timeout=30) for _ in range(200)]
        assert [(e.position.seq, e.data) for e in got if e] == sorted(positions)
        assert [(seq, data) for _, seq, data in in_log(tmp_path)] == sorted(positions)
        assert pub.ledger().reconciles


def test_each_start_has_an_epoch_of_its_own(tmp_path: Path) -> None:
    epochs = []
    for _ in range(3):
        with Peer("pub", streams=[durable()], data_dir=tmp_path) as pub:
            epochs.append(pub.publish("a.b", b"x").epoch)
    assert epochs == sorted(set(epochs))
    assert [(epoch, seq) for epoch, seq, _ in in_log(tmp_path)] == [(e, 0) for e in epochs]


def test_second_writer_is_refused_and_told_who_has_the_log(tmp_path: Path) -> None:
    with Peer("pub", streams=[durable()], data_dir=tmp_path) as pub:
        with pytest.raises(LogLocked, match=f"process {os.getpid()} writes this log"):
            Peer("pub", streams=[durable()], data_dir=tmp_path).open()
        pub.publish("a.b", 1)
    with Peer("pub", streams=[durable()], data_dir=tmp_path):
        pass  # it was let go


@pytest.mark.parametrize("fsync", ["always", "batch"])
def test_full_disk_raises_loses_nothing_and_goes_on(
    tmp_path: Path, fsync: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = FaultyFiles(Random(1), Faults())
    monkeypatch.setattr(
        "meshmsg._publish.durable_streams.LogWriter", partial(LogWriter, files=files)
    )
    stream = durable(fsync, segment_bytes="64KiB")
    with pair(stream, data_dir=tmp_path) as (pub, _, events):
        acknowledged, refused = [], []
        for n in range(300):
            if n == 100:
                files.faults.capacity_bytes = files.used_bytes() + 5000
            if n == 200:
                files.faults.capacity_bytes = None
            try:
                acknowledged.append((pub.publish("a.b", b"%d" % n + bytes(1000)).seq, n))
            except LogFull:
                refused.append(n)
        assert 0 < len(refused) < 100
        assert refused == list(range(refused[0], 200))
        assert [seq for seq, _ in acknowledged] == list(range(len(acknowledged)))
        got = [events.get(timeout=30) for _ in acknowledged]
        assert [(e.position.seq, int(e.data[:-1000])) for e in got if e] == acknowledged
        pub.flush(timeout=30)
        folder = pub._open_node().publisher.durable.logs[0].folder
        kept = [(seq, int(data[:-1000])) for _, seq, data in in_log(tmp_path, (folder,))]
        assert kept == acknowledged
        assert events.losses == []


@pytest.mark.parametrize("fsync", ["always", "batch"])
def test_async_publish_is_in_the_log_too(tmp_path: Path, fsync: str) -> None:
    async def run() -> None:
        async with AsyncPeer("pub", streams=[durable(fsync)], data_dir=tmp_path) as pub:
            await asyncio.gather(*(pub.publish("a.b", b"%d" % n) for n in range(50)))
            assert sorted(int(data) for _, _, data in in_log(tmp_path)) == list(range(50))
            await pub.publish_many("a.b", [b"x"] * 100)
            assert len(in_log(tmp_path)) == 150
            await pub.flush(timeout=30)

    asyncio.run(run())


def test_multicast_stream_is_logged_before_it_is_sent(tmp_path: Path) -> None:
    stream = durable("always", transport=Multicast("239.255.7.9:30917"))
    with pair(stream, data_dir=tmp_path) as (pub, _, events):
        sent = [pub.publish("a.b", b"%d" % n) for n in range(20)]
        got = [events.get(timeout=30) for _ in sent]
        assert [e.position for e in got if e] == sent
        assert len(in_log(tmp_path)) == 20
