"""Where the packets of the benchmark go: a network namespace of its own, with loopback only.

Some peers send multicast wherever the system's routes say.  In a namespace that has nothing but
loopback that is loopback, whatever else this machine is connected to; and nobody else's packets
are there.  Where none can be made, those peers are left out, and the tables say so.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from benchmarks.mcast.case import DDS, LCM

GROUP = "239.255.76.67"
INTERFACE = "127.0.0.1"
#: Set for the program that runs in the namespace.
MARK = "MESHMSG_BENCH_NAMESPACE"
PREPARE = "ip link set lo up multicast on && ip route add 224.0.0.0/4 dev lo"
PACKAGES = {DDS: "cyclonedds", LCM: "lcm"}


def enter(arguments: Sequence[str]) -> None:
    """Go on in a namespace of our own; returns if that is where we are, or if it cannot be."""
    if os.environ.get(MARK) or sys.platform != "linux":
        return
    for unshare in (["unshare", "-n"], ["unshare", "-rn"]):
        if _works([*unshare, "sh", "-c", PREPARE]):
            command = [*unshare, "sh", "-c", f'{PREPARE} && exec "$@"', "sh"]
            os.environ[MARK] = "1"
            os.execvp(command[0], [*command, sys.executable, *arguments])


def _works(command: Sequence[str]) -> bool:
    if shutil.which(command[0]) is None or shutil.which("ip") is None:
        return False
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def is_entered() -> bool:
    """Whether there is nothing but loopback here."""
    return bool(os.environ.get(MARK))


def missing_peers() -> dict[str, str]:
    """Those that cannot be measured here, and why."""
    reasons = {}
    for way, package in PACKAGES.items():
        if importlib.util.find_spec(package) is None:
            reasons[way] = f"{package} is not installed (pip install {package})"
    if not is_entered():
        reasons.setdefault(
            LCM, "no network namespace could be made, and its packets would leave this machine"
        )
    return reasons


def peer_versions() -> dict[str, str]:
    """Of those that are installed."""
    found = {}
    for package in PACKAGES.values():
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def free_port() -> int:
    """A port that is free on loopback, with the three after it as far as can be told."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind((INTERFACE, 0))
        port: int = probe.getsockname()[1]
    return min(port, 65_000)
