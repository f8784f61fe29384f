"""What the figures of a run depend on: the machine, and the versions of everything."""

from __future__ import annotations

import os
import platform
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
    load: float
    """Processes that wanted to run in the minute before: others', where it is not near zero."""

    def text(self) -> str:
        """In one sentence or two."""
        return (
            f"{self.date}: {self.cores} cores ({self.cpu}), {self.kernel}, "
            f"Python {self.python}, pyzmq {self.pyzmq} with libzmq {self.libzmq}, "
            f"meshmsg {self.meshmsg}. Load of the machine before the run: {self.load:.1f}."
        )

    def as_dict(self) -> dict[str, str | int | float]:
        """Plain data, for JSON."""
        return asdict(self)


def this_machine() -> Machine:
    """The one that this runs on, now."""
    return Machine(
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        cpu=_cpu(),
        cores=_cores(),
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        pyzmq=zmq.pyzmq_version(),
        libzmq=zmq.zmq_version(),
        meshmsg=meshmsg.__version__,
        load=os.getloadavg()[0],
    )


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        return os.cpu_count() or 1


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
