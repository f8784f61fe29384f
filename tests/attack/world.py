"""The processes of one attack: honest peers, the attacker, and what the machine says of them."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from meshmsg._access.allow_list import Grant
from meshmsg._access.key_files import allow, new_folder
from tests.attack.attacks import Attack
from tests.attack.hostile import NAME
from tests.support.processes import start

ROOT = Path(__file__).parents[2]
START_S = 60.0
ANSWER_S = 120.0
#: An attack that got an honest peer this far has succeeded, and is ended for the machine's sake.
RSS_BYTES_END = 2_000_000_000
#: ... and one that goes on growing without the attacker is ended itself.
RSS_BYTES_KILL = 3_000_000_000
SAMPLE_S = 0.05
HONEST = ("shop", "reader", "crew", "recorder")


class Dead(Exception):
    """An honest process has ended, or does not answer."""


class Process:
    """A program that takes and gives lines of JSON."""

    def __init__(self, module: str, order: dict[str, Any]) -> None:
        self.role = str(order.get("role", "attacker"))
        self.process = start(
            [sys.executable, "-W", "ignore", "-m", module, json.dumps(order)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"MESHMSG_DISCOVERY": "none"},
        )

    def line(self, timeout_s: float) -> dict[str, Any]:
        """The next thing that it says."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], max(0.0, timeout_s))[0]:
            raise Dead(f"{self.role} did not answer in {timeout_s:g} s")
        text = self.process.stdout.readline()
        if not text:
            raise Dead(f"{self.role} ended with {self.process.wait(10)}")
        said: dict[str, Any] = json.loads(text)
        return said

    def has_said(self) -> bool:
        assert self.process.stdout is not None
        return bool(select.select([self.process.stdout], [], [], 0)[0])

    def do(self, what: str, timeout_s: float = ANSWER_S, **arguments: Any) -> Any:
        """Have it do something; returns the answer."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"do": what} | arguments) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Dead(f"{self.role} ended with {self.process.wait(10)}") from None
        reply = self.line(timeout_s)
        if "error" in reply:
            raise Dead(f"{self.role}: {what}: {reply['error']}")
        return reply["value"]

    def leave(self) -> None:
        """Have it end."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()

    def end(self) -> None:
        """End it now."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


class Sampler:
    """Memory and files of honest processes, looked at all the time."""

    def __init__(self, processes: dict[str, Process]) -> None:
        self._processes = processes
        self.before = self.now()
        self.rss_peak = {role: rss for role, (rss, _) in self.before.items()}
        self.files_peak = {role: files for role, (_, files) in self.before.items()}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def now(self) -> dict[str, tuple[int, int]]:
        pids = {role: process.process.pid for role, process in self._processes.items()}
        return {role: (_rss(pid), _files(pid)) for role, pid in pids.items()}

    def is_too_much(self) -> bool:
        return max(self.rss_peak.values()) > RSS_BYTES_END

    def _run(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            for role, (rss, files) in self.now().items():
                self.rss_peak[role] = max(self.rss_peak[role], rss)
                self.files_peak[role] = max(self.files_peak[role], files)
                if rss > RSS_BYTES_KILL:
                    self._processes[role].process.kill()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()


def _rss(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _files(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


class World:
    """Honest peers that know each other, with traffic between them."""

    def __init__(self, attack: Attack, folder: Path, seed: int, first: bool) -> None:
        self.attack = attack
        self._folder = folder
        self._first = first
        self.keys = str(_make_keys(folder / "keys", attack)) if attack.keys else None
        group = f"239.{192 + seed % 60}.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"
        self._all: list[Process] = []
        shop = self._start("shop", group=f"{group}:{20_000 + seed % 4000 * 2}")
        shop.line(START_S)
        self.address = shop.do("address")
        self.honest = {"shop": shop}
        for role in HONEST[1:]:
            self.honest[role] = self._start(role, connect=self.address)
        self.late = self._start("late", connect=self.address)
        for process in (*list(self.honest.values())[1:], self.late):
            process.line(START_S)
        shop.do("wait", counts={"vol": 2, "log": 2, "mc": 2, "work": 2})
        shop.do("backlog", jobs=attack.jobs, big=attack.big)

    def _start(self, role: str, **options: Any) -> Process:
        (self._folder / role).mkdir()
        order = {"role": role, "folder": str(self._folder / role), "keys": self.keys}
        order |= {"first": self._first, **options}
        process = Process("tests.attack.honest", order)
        self._all.append(process)
        return process

    def begin_attack(self, **how: Any) -> Process:
        """Let the attacker loose, or what is compared with it."""
        shop = self.honest["shop"]
        order = {
            "attack": self.attack.name,
            "targets": {role: p.do("address") for role, p in self.honest.items()},
            "data": shop.do("data_address"),
            "streams": shop.do("streams"),
            "keys": self.keys,
            "first": self._first,
            **how,
        }
        attacker = Process("tests.attack.attacks", order)
        self._all.append(attacker)
        return attacker

    def kill(self) -> None:
        """End all processes, from another thread: who waits for one hears that it is gone."""
        for process in self._all:
            process.process.kill()

    def close(self) -> None:
        for process in self._all:
            process.end()


def _make_keys(folder: Path, attack: Attack) -> Path:
    """Key folders of all, each with the same allow list."""
    mesh_key = secrets.token_urlsafe(32)
    grants = []
    for name in (*HONEST, "late", NAME):
        made = new_folder(folder / name, name, mesh_key)
        rights = attack.rights if name == NAME else {}
        grants.append(Grant(name, made.key, **rights))
    for path in folder.iterdir():
        for grant in grants:
            allow(path, grant)
    return folder


@contextlib.contextmanager
def world(attack: Attack, seed: int, *, first: bool) -> Iterator[World]:
    """All of it, and nothing left behind; honest processes run `first`, if this user may."""
    folder = Path(tempfile.mkdtemp(prefix="meshmsg-attack-"))
    made: World | None = None
    try:
        made = World.__new__(World)
        made._all = []
        World.__init__(made, attack, folder, seed, first)
        yield made
    finally:
        if made is not None:
            made.close()
        shutil.rmtree(folder, ignore_errors=True)


class Machine:
    """What other programs use of the machine meanwhile: delays are worth little beside them."""

    def __init__(self, scene: World) -> None:
        self._scene = scene
        self._began = time.monotonic()
        self._others_s = _busy_s() - self._ours_s()

    def others(self) -> float:
        """Return which part of all processors others have used so far."""
        took = (time.monotonic() - self._began) * (os.cpu_count() or 1)
        return max(0.0, _busy_s() - self._ours_s() - self._others_s) / max(took, 0.001)

    def _ours_s(self) -> float:
        """What this process and those of the world used, of which some may have ended."""
        own = os.times()
        ticks = sum(_ticks(process.process.pid) for process in self._scene._all)
        ended = own.children_user + own.children_system
        return own.user + own.system + ended + ticks / os.sysconf("SC_CLK_TCK")


def _busy_s() -> float:
    """What ran on all processors since the machine was started."""
    counts = Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]
    idle = int(counts[3]) + int(counts[4])
    return (sum(map(int, counts)) - idle) / os.sysconf("SC_CLK_TCK")


def _ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


def wait_for(seconds: float, until: Any = lambda: False) -> bool:
    """Wait for a condition, or so long; returns whether it came."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if until():
            return True
        time.sleep(0.02)
    return bool(until())
