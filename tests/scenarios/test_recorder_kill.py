"""A recorder is killed again and again under load, then the publisher for good: all is there."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

from meshmsg import Peer
from meshmsg._replay.log_client import ReplayClient
from meshmsg.recovery.log.folder import find_logs
from meshmsg.recovery.log.verify import verify
from tests.support.ports import free_port
from tests.support.remote import RemotePeer
from tests.support.waiting import wait_until

ROUNDS = 3


def start_recorder(data_dir: Path, address: str, fsync: str, bind: str = "") -> RemotePeer:
    record = {"topics": "a.**", "fsync": fsync, "segment_bytes": "64KiB"}
    more = {"bind": bind} if bind else {}
    return RemotePeer("rec", record=record, data_dir=str(data_dir), connect=address, **more)


def recorded(data_dir: Path) -> int:
    """Bytes in the logs, as far as they are used."""
    return sum(path.stat().st_size for path in data_dir.glob("*/*.seg"))


VOLATILE = {"topics": "a.**"}
DURABLE = {"topics": "a.**", "durability": "log", "buffer_bytes": "64KiB"}


@pytest.mark.parametrize(
    ("stream", "fsync"), [(VOLATILE, "batch"), (DURABLE, "always")], ids=["volatile", "durable"]
)
def test_killed_recorder_goes_on_and_loses_nothing(
    tmp_path: Path, stream: dict[str, Any], fsync: str
) -> None:
    kill_recorder(tmp_path, stream, fsync, ROUNDS)


def kill_recorder(tmp_path: Path, stream: dict[str, Any], fsync: str, rounds: int) -> None:
    """Kill a recorder this many times, and its publisher in the end; the recorder has it all."""
    rng = Random(5)
    address = f"tcp://127.0.0.1:{free_port()}"
    data_dir = tmp_path / "rec"
    pub = RemotePeer("pub", streams=[stream], bind=address, data_dir=str(tmp_path / "pub"))
    pub.use("loads")
    pub.run("load = start_load()")
    for _ in range(rounds):
        recorder = start_recorder(data_dir, address, fsync)
        before = recorded(data_dir)
        wait_until(lambda before=before: recorded(data_dir) != before, 30, "it records")
        time.sleep(rng.random() * 0.1)
        recorder.kill()
    with Peer("rec", record="a.**", data_dir=data_dir, connect=address) as rec:
        count = pub.eval("load.stop()")
        wait_until(lambda: rec.stats()["recorder"]["streams"][0]["next"] == count, 60)
        pub.kill()  # for good
        with (
            Peer("late", connect=rec.address) as late,
            late.subscribe("a.**", start="earliest") as events,
        ):
            got: list[int] = []
            while len(got) < count:
                found = events.get_many(10_000, timeout=30)
                assert found, f"{len(got)} of {count}: {events.losses}"
                got += [int(event.payload) for event in found]
            assert got == list(range(count))
            assert events.losses == []
            assert len({event.position.epoch for event in found}) == 1
        with ReplayClient(rec.address) as client:
            (log,) = client.logs()
            assert [(e.first, e.stop) for e in log.epochs] == [(0, count)]
    (folder,) = find_logs(str(data_dir))
    assert not verify(folder).problems


def test_publisher_and_recorder_are_killed_in_turn(tmp_path: Path) -> None:
    """What anybody got of an epoch stays; a consumer of both sees each event once, in order."""
    rng = Random(6)
    address, there = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
    data_dir = tmp_path / "rec"
    got: list[tuple[int, int]] = []
    with Peer("con", connect=[address, there]) as con, con.subscribe("a.**") as events:
        for round_ in range(2):
            with RemotePeer("pub", streams=[{"topics": "a.**"}], bind=address) as pub:
                pub.use("loads")
                pub.run("load = start_load()")
                recorder = start_recorder(data_dir, address, "batch", bind=there)
                epochs = len({epoch for epoch, _ in got})
                began = time.monotonic()
                deadline = began + 0.5 + rng.random()
                while time.monotonic() < deadline or len({e for e, _ in got}) == epochs:
                    assert time.monotonic() < began + 60, events.stats()
                    got += [(e.position.epoch, e.seq) for e in events.get_many(1000, timeout=0.1)]
                if round_ % 2:
                    recorder.kill()
                pub.kill()
                if not round_ % 2:
                    time.sleep(rng.random() * 0.3)
                    recorder.kill()
        lost = {(x.epoch, seq) for x in events.losses for seq in range(x.first, x.stop)}
    assert got == sorted(set(got))
    assert len({epoch for epoch, _ in got}) == 2
    have = set(got)
    for epoch in {epoch for epoch, _ in got}:
        numbers = [seq for known, seq in have | lost if known == epoch]
        assert sorted(numbers) == list(range(min(numbers), max(numbers) + 1))
    assert not have & lost
