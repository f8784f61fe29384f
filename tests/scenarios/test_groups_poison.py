"""An event that kills every worker that opens it: it alone is given up, whoever had what beside it.

Workers are processes; the poison ends theirs with SIGKILL from within, the moment it is opened.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from meshmsg import Peer, Stream
from tests.support import processes
from tests.support.waiting import wait_until

JOBS = 100
POISON = 40
ATTEMPTS = 3
#: Workers that die of it before it is alone, beside those whose attempts count.
CRASHES_MAX = ATTEMPTS + 3


class Workers:
    """Workers of one address, each of them followed by another when it dies."""

    def __init__(self, address: str, way: str, order: str, folder: Path) -> None:
        arguments = (address, way, order, ATTEMPTS, POISON)
        self._command = processes.program("poisoned_worker", *arguments)
        self._folder = folder
        self._running: list[subprocess.Popen[bytes]] = []
        self.died = self._made = 0

    def keep(self, count: int) -> None:
        """Have so many of them running."""
        alive = [worker for worker in self._running if worker.poll() is None]
        self.died += len(self._running) - len(alive)
        self._running = alive
        while len(self._running) < count:
            self._made += 1
            journal = self._folder / f"{self._made}.journal"
            self._running.append(processes.start([*self._command, str(journal)]))

    def stop(self) -> None:
        for worker in self._running:
            processes.end(worker)

    def done(self) -> Counter[int]:
        lines = "".join(path.read_text() for path in self._folder.glob("*.journal")).splitlines()
        return Counter(int(line.split()[0]) for line in lines if not line.startswith("poison"))


def group_of(boss: Peer) -> dict[str, Any]:
    return dict(boss.stats()["streams"]["jobs.**"]["groups"][0])


@pytest.mark.parametrize(
    ("way", "order", "durability"),
    [
        ("iterate", "none", "log"),
        ("get", "key", "log"),
        ("batches", "none", "none"),
        ("asyncio", "none", "none"),
        ("threads", "none", "log"),
    ],
)
def test_poison_is_given_up_and_nothing_else(
    tmp_path: Path, way: str, order: str, durability: str
) -> None:
    stream = Stream("jobs.**", durability=durability, groups=("workers",))
    with (
        Peer("boss", streams=[stream], data_dir=tmp_path / "data") as boss,
        Peer("clerk", connect=boss.address) as clerk,
        clerk.subscribe("dead.workers", start="earliest") as dead,
    ):
        for n in range(JOBS):
            boss.publish("jobs.x", n, key=f"k{n % 50}")
        workers = Workers(boss.address, way, order, tmp_path)

        def all_settled() -> bool:
            workers.keep(2)
            return bool(group_of(boss)["lag"] == 0)

        wait_until(all_settled, 120)
        letter = dead.get(timeout=30)
        assert letter is not None
        assert letter.data == POISON
        assert letter.headers["dead.reason"] == "connection lost"
        group = group_of(boss)
        workers.stop()
        done = workers.done()
        assert dead.get(timeout=0.1) is None
    assert (group["dead"], group["acked"]) == (1, JOBS - 1)
    assert ATTEMPTS <= letter.headers["dead.attempts"] == workers.died <= CRASHES_MAX
    assert done.keys() == set(range(JOBS)) - {POISON}
