"""A real cluster: tasks on two Workers read from a peer, and one Worker is killed in mid-batch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from meshmsg import Peer, Stream
from tests.conftest import JAVA
from tests.spark.cluster import ROOT, START_S, Cluster
from tests.support import processes

EVENTS = 60_000  # so many that it takes two tasks
ORDERS = Stream("orders.**", durability="log", fsync="never")


@pytest.mark.timeout(1200)
def test_a_killed_worker_changes_nothing(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    with (
        Peer("shop", streams=[ORDERS], data_dir=str(tmp_path / "data")) as peer,
        Cluster(tmp_path / "cluster") as cluster,
    ):
        for first in range(0, EVENTS, 10_000):
            peer.publish_many("orders.eu", [{"n": n} for n in range(first, first + 10_000)])
        with (tmp_path / "driver.log").open("wb") as log:
            driver = processes.start(
                processes.program(
                    "spark_cluster_driver",
                    *(cluster.url, peer.address, work, JAVA),
                    options=("-W", "ignore"),
                ),
                env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE,
                stderr=log,
            )
        try:
            deadline = time.monotonic() + START_S
            while len(list(work.glob("started-*"))) < 2:  # one on each Worker
                said = (tmp_path / "driver.log").read_text(errors="replace")[-3000:]
                assert driver.poll() is None, said
                assert time.monotonic() < deadline, said
                time.sleep(0.1)
            victim = cluster.workers[0]
            os.kill(victim.pid, signal.SIGKILL)
            victim.wait(30)
            (work / "go").touch()
            out, _ = driver.communicate(timeout=500)
        finally:
            driver.kill()
            driver.wait(30)
    said = (tmp_path / "driver.log").read_text(errors="replace")
    assert driver.returncode == 0, said[-3000:]
    total = EVENTS * (EVENTS - 1) // 2
    assert json.loads(out.splitlines()[-1]) == [EVENTS, EVENTS, 0, EVENTS - 1, total, None]
    # It did hit a task: that one was begun again elsewhere.
    assert len(list(work.glob("started-*"))) == 3
