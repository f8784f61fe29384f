"""A durable publisher is killed again and again: every event that it acknowledged is delivered."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from pathlib import Path
from random import Random

import pytest

from meshmsg import Peer, Stream
from tests.support import processes
from tests.support.ports import free_port
from tests.support.waiting import wait_until

ROUNDS = 6

Names = dict[tuple[int, int], bytes]


def one_life(data_dir: Path, address: str, fsync: str, seed: int, rng: Random) -> Names:
    """Start a publisher and kill it; what it acknowledged."""
    settings = {"seed": seed, "fsync": fsync, "groups": ["g"], "threads": 2, "many": 50}
    settings["times"] = 1 << 60
    command = processes.program("killed_publisher", data_dir, address, json.dumps(settings))
    child = processes.start(command, stdout=subprocess.PIPE)
    assert child.stdout is not None
    lines = [child.stdout.readline() for _ in range(1 + rng.randrange(300))]
    time.sleep(rng.random() * 0.003)
    child.send_signal(signal.SIGKILL)
    lines += child.stdout.read().split(b"\n")[:-1]  # the last one may have been cut
    child.wait()
    child.stdout.close()
    acknowledged: Names = {}
    for line in lines:
        epoch, first, stop, *words = line.split()
        for seq in range(int(first), int(stop)):
            assert (int(epoch), seq) not in acknowledged, "a number was used twice"
            acknowledged[int(epoch), seq] = b" ".join(words)
    return acknowledged


class Reader:
    """Notes what a subscriber gets, and that it is in order."""

    def __init__(self) -> None:
        self.got: Names = {}
        self.last = (0, -1)
        self.ended = threading.Event()
        self.left = threading.Event()  #: never set: to wait by
        self.problems: list[str] = []

    def read(self, address: str, start: str) -> None:
        with Peer("reader", connect=address) as peer, peer.subscribe("a.**", start=start) as events:
            while not self.ended.is_set():
                for event in events.get_many(1000, timeout=30):
                    self.note(event.position.epoch, event.position.seq, event.data)
            self.problems += map(str, events.losses)
            if not peer.ledger().reconciles:
                self.problems.append("the ledger does not reconcile")

    def read_now_and_then(self, address: str, data_dir: Path, rng: Random) -> None:
        """Mostly away: comes back, goes on where it committed, reads a little, leaves."""
        while not self.ended.is_set():
            with (
                Peer("away", connect=address, data_dir=data_dir) as peer,
                peer.subscribe("a.**", start="committed", name="audit", hold=True) as events,
            ):
                for _ in range(rng.randrange(1, 20)):
                    for event in events.get_many(5000, timeout=1):
                        self.note(event.position.epoch, event.position.seq, event.data)
                    events.commit()
                    if self.ended.is_set():
                        break
                self.problems += map(str, events.losses)
            self.left.wait(rng.random())

    def note(self, epoch: int, seq: int, data: bytes) -> None:
        if (epoch, seq) <= self.last:
            self.problems.append(f"{epoch} {seq} after {self.last}")
        if epoch == self.last[0] and seq != self.last[1] + 1:
            self.problems.append(f"{epoch} {seq} follows {self.last}")
        self.last = (epoch, seq)
        self.got[epoch, seq] = data
        if data == b"the end":
            self.ended.set()


class Worker:
    """The member of a group: notes what it does, and that a key's events come in order."""

    def __init__(self) -> None:
        self.done: Names = {}
        self.again = 0  #: what came once more
        self.ended = threading.Event()
        self.problems: list[str] = []

    def work(self, address: str) -> None:
        last: dict[str, tuple[int, int]] = {}
        with (
            Peer("worker", connect=address) as peer,
            peer.subscribe("a.**", group="g", order="key", prefetch=200) as events,
        ):
            while not self.ended.is_set():
                for event in events.get_many(100, timeout=0.2):
                    name = (event.position.epoch, event.position.seq)
                    if name in self.done:
                        self.again += 1
                    elif event.key is not None:
                        if name < last.get(event.key, (0, 0)):
                            self.problems.append(f"{name} after {last[event.key]}")
                        last[event.key] = name
                    self.done[name] = event.data
                    events.ack(event)
            self.problems += map(str, events.losses)


@pytest.mark.parametrize("fsync", ["always", "batch"])
def test_killed_publisher_has_delivered_all_that_it_acknowledged(
    tmp_path: Path, fsync: str
) -> None:
    kill_many(tmp_path, fsync, ROUNDS if fsync == "always" else ROUNDS // 2)


def kill_many(data_dir: Path, fsync: str, rounds: int) -> None:
    """Kill a publisher this many times under its subscribers; then another one comes, late."""
    rng = Random(11)
    address = f"tcp://127.0.0.1:{free_port()}"
    live, late, away = Reader(), Reader(), Reader()
    worker = Worker()
    threads = [
        threading.Thread(target=live.read, args=(address, "earliest")),
        threading.Thread(
            target=away.read_now_and_then, args=(address, data_dir / "away", Random(12))
        ),
    ]
    busy = threading.Thread(target=worker.work, args=(address,))
    for thread in (*threads, busy):
        thread.start()
    acknowledged: Names = {}
    try:
        for seed in range(rounds):
            fresh = one_life(data_dir, address, fsync, seed, rng)
            assert not fresh.keys() & acknowledged.keys(), "a number was used twice"
            acknowledged |= fresh
        stream = Stream("a.**", durability="log", fsync=fsync, groups=["g"])
        with Peer("victim", bind=address, streams=[stream], data_dir=data_dir) as last:
            last.publish("a.b", b"the end")
            late.read(address, "earliest")
            for thread in threads:
                thread.join(120)
            wait_until(lambda: _lag(last) == 0, timeout=120)
    finally:
        for ended in (live.ended, away.ended, worker.ended):
            ended.set()
        for thread in (*threads, busy):
            thread.join(60)
    assert worker.problems == []
    missing = acknowledged.keys() - worker.done.keys()
    assert not missing, f"{len(missing)} events were not for the group: {min(missing)}"
    assert all(worker.done[name] == data for name, data in acknowledged.items())
    for reader in (live, late, away):
        assert reader.problems == []
        missing = acknowledged.keys() - reader.got.keys()
        assert not missing, f"{len(missing)} acknowledged events did not come: {min(missing)}"
        assert all(reader.got[name] == data for name, data in acknowledged.items())
    assert live.got == late.got == away.got == worker.done
    assert worker.again == 0


def _lag(peer: Peer) -> int:
    (group,) = peer.stats()["streams"]["a.**"]["groups"]
    lag: int = group["lag"]
    return lag
