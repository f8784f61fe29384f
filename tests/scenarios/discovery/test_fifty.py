"""Fifty peers: all find each other through one seed, ten are killed, and nobody raises an alarm."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from tests.support.processes import start
from tests.support.remote import RemotePeer
from tests.support.waiting import wait_until

PROCESSES = 10
EACH = 5
PEERS = PROCESSES * EACH
KILLED = 2  # processes: ten peers
PING_S = 1.0
TIMEOUT_S = 10.0
#: A loaded machine may take its time; what must hold is printed.
PATIENCE_S = 100.0


@pytest.fixture
def load() -> Iterator[None]:
    """As many busy processes as the machine has cores, besides all the peers."""
    command = [sys.executable, "-c", "while True: pass"]
    busy = [start(command) for _ in range(os.cpu_count() or 2)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def known(process: RemotePeer) -> list[int]:
    found: list[int] = process.eval("[len(p.peers()) for p in peers]")
    return found


@pytest.mark.timeout(300)
def test_fifty_converge_and_ten_killed_are_seen_by_all_without_false_alarms(
    mesh: str, load: None
) -> None:
    with contextlib.ExitStack() as stack:
        processes: list[RemotePeer] = []
        starts = [
            threading.Thread(
                target=lambda n=n: processes.append(RemotePeer(f"boss-{n}", discovery="none"))
            )
            for n in range(PROCESSES)
        ]
        for thread in starts:
            thread.start()
        for thread in starts:
            thread.join()
        for process in processes:
            stack.callback(process.close)
        assert len(processes) == PROCESSES
        for process in processes:
            process.use("many_peers")
        times = {"ping_s": PING_S, "silence_s": TIMEOUT_S}
        opened_by = "peers = open_peers(prefix, each, mesh, seeds=seeds, **times)"
        names = {"times": times, "mesh": mesh, "each": EACH}
        processes[0].run(opened_by, seeds=[], prefix="p0", **names)
        seeds = [processes[0].eval("peers[0].address")]
        for n, process in enumerate(processes[1:], 1):
            process.send(opened_by, seeds=seeds, prefix=f"p{n}", **names)
        for process in processes[1:]:
            process.answer()
        opened = time.monotonic()
        for process in processes:
            wait_until(lambda p=process: known(p) == [PEERS - 1] * EACH, PATIENCE_S)
        say(f"{PEERS} peers know each other {time.monotonic() - opened:.1f} s after all were open")
        for process in processes:
            process.run("watches = [p.watch_peers() for p in peers]")
            process.run(f"for w in watches: [w.get(30) for _ in range({PEERS - 1})]")

        dead, alive = processes[-KILLED:], processes[:-KILLED]
        killed_at = time.time()
        for process in dead:
            process.kill()
        left = PEERS - KILLED * EACH - 1
        for process in alive:
            wait_until(lambda p=process: known(p) == [left] * EACH, PATIENCE_S)
        # And nobody else, for as long as it takes to lose one that gives no sign.
        time.sleep(TIMEOUT_S)
        gone = {f"p{n}-{k}" for n in range(PROCESSES - KILLED, PROCESSES) for k in range(EACH)}
        last = 0.0
        for process in alive:
            for changes in process.eval("changes(watches)"):
                assert {name for _, name, _ in changes} == gone
                assert {kind for kind, _, _ in changes} == {"lost"}
                assert len(changes) == len(gone)
                last = max(last, *(at for _, _, at in changes))
            assert known(process) == [left] * EACH
        say(
            f"ten killed: lost to all forty after at most {last - killed_at:.1f} s of {TIMEOUT_S} s"
        )


def say(text: str) -> None:
    sys.stdout.write(f"\n{text}\n")
