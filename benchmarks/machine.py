"""What the figures of a run depend on: the machine, and the versions of everything."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import zmq

import meshmsg


@dataclass(frozen=True, slots=True)
class Machine:
    """Where and when a run was made."""

    date: str
    cpu: str
    cores: int
    kernel: str
    python: str
    pyzmq: str
    libzmq: str
    meshmsg: str

    def text(self) -> str:
        """In one sentence."""
        return (
            f"{self.date}: {self.cores} cores ({self.cpu}), {self.kernel}, "
            f"Python {self.python}, pyzmq {self.pyzmq} with libzmq {self.libzmq}, "
            f"meshmsg {self.meshmsg}."
        )

    def as_dict(self) -> dict[str, str | int | float]:
        """Plain data, for JSON."""
        return asdict(self)


def this_machine() -> Machine:
    """The one that this runs on, now."""
    return Machine(
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        cpu=_cpu(),
        cores=len(cores()),
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        pyzmq=zmq.pyzmq_version(),
        libzmq=zmq.zmq_version(),
        meshmsg=meshmsg.__version__,
    )


def cores() -> list[int]:
    """The processors that we may use."""
    try:
        return sorted(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        return list(range(os.cpu_count() or 1))


@contextmanager
def kept_awake() -> Iterator[None]:
    """Keep the processors from sleeping: on each, a process that runs when nobody else wants to."""
    code = (
        "import os; os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\n"
        f"while os.getppid() == {os.getpid()}: sum(range(10_000))"
    )
    idle = hasattr(os, "SCHED_IDLE")
    spinning = [subprocess.Popen([sys.executable, "-c", code]) for _ in cores() if idle]
    try:
        for process, core in zip(spinning, cores(), strict=False):
            os.sched_setaffinity(process.pid, {core})
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


class Neighbours:
    """What everybody else used of the processors since this was made."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._busy_s = _busy_s()
        self._ours_s = _ours_s()

    def part(self) -> float | None:
        """Of the time that the processors had; `None` where it cannot be found out."""
        busy_s = _busy_s()
        if busy_s is None or self._busy_s is None:
            return None
        others_s = busy_s - self._busy_s - (_ours_s() - self._ours_s)
        had_s = (time.monotonic() - self._began) * len(cores())
        return min(1.0, max(0.0, others_s / had_s)) if had_s > 0 else None

    def text(self) -> str:
        """In one sentence."""
        part = self.part()
        return (
            "" if part is None else f"Other programs used {part:.0%} of the processors meanwhile."
        )


def _busy_s() -> float | None:
    """Seconds that the processors of this machine worked for someone, since it started."""
    try:
        fields = Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]
        user, nice, system, _idle, _waiting, interrupt, soft_interrupt, stolen = map(int, fields)
    except (OSError, ValueError):
        return None
    busy = user + nice + system + interrupt + soft_interrupt + stolen
    return busy / os.sysconf("SC_CLK_TCK")


def _ours_s() -> float:
    """Seconds that this process and those that it started and that have ended were running."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)
