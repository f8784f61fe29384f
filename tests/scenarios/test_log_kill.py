"""A process that writes a log is killed at random points: what it acknowledged is there."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path
from random import Random

import pytest

from meshmsg._model.event import Loss
from meshmsg.recovery.log.folder import find_logs
from meshmsg.recovery.log.reader import LogReader
from meshmsg.recovery.log.verify import verify
from tests.support import processes

ROUNDS = 20


def one_life(data_dir: Path, fsync: str, seed: int, rng: Random) -> tuple[int, int]:
    """Start a writer and kill it; the epoch and how far it had acknowledged."""
    child = processes.start(
        processes.program("log_writer", data_dir, fsync, seed), stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    word, epoch = child.stdout.readline().split()
    assert word == b"epoch"
    last = b"0"
    for _ in range(rng.randrange(300)):
        last = child.stdout.readline()
    time.sleep(rng.random() * 0.003)
    child.send_signal(signal.SIGKILL)
    rest = child.stdout.read()
    child.wait()
    child.stdout.close()
    lines = rest.split(b"\n")[:-1]  # the last one may have been cut
    return int(epoch), int(lines[-1] if lines else last)


@pytest.mark.parametrize("fsync", ["always", "batch", "never"])
def test_killed_writer_has_kept_all_that_it_acknowledged(tmp_path: Path, fsync: str) -> None:
    """The kernel lives on, so even without any sync nothing may be missing."""
    kill_many(tmp_path, fsync, ROUNDS if fsync == "batch" else ROUNDS // 4)


def kill_many(tmp_path: Path, fsync: str, rounds: int) -> None:
    """Kill a writer this many times, and look at what is left."""
    rng = Random(7)
    acknowledged: dict[int, int] = {}
    for seed in range(rounds):
        epoch, stop = one_life(tmp_path, fsync, seed, rng)
        assert epoch > max(acknowledged, default=0), "an epoch was used twice"
        acknowledged[epoch] = stop
    (folder,) = find_logs(str(tmp_path))
    found: dict[int, int] = {}
    with LogReader(folder) as reader:
        reader.seek_earliest()
        for item in reader.runs():
            assert not isinstance(item, Loss), item
            epoch, first = item.frame.epoch, item.frame.first
            assert first == found.get(epoch, 0), "each event once, in order"
            wanted = [b"%d:%d" % (epoch, n) for n in range(first, item.frame.stop)]
            assert item.frame.payloads.split(0, item.frame.count) == wanted
            found[epoch] = item.frame.stop
    for epoch, stop in acknowledged.items():
        assert found.get(epoch, 0) >= stop
    assert sum(found.values()) > 0
    assert verify(folder).is_good
