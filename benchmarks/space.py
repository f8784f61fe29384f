"""Where the packets of the benchmark go: a network namespace of its own, with loopback only.

Some rivals send multicast wherever the system's routes say.  In a namespace that has nothing but
loopback that is loopback, whatever else this machine is connected to; nobody else's packets are
there, and some of ours can be dropped.  Where none can be made, what needs one is left out, and
the tables say so.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.way import C_GSO, C_TCP, DDS, ICEORYX, LCM, NATS, NNG, WAYS, ZENOH

GROUP = "239.255.76.67"
INTERFACE = "127.0.0.1"
#: Set for the program that runs in the namespace.
MARK = "MESHMSG_BENCH_NAMESPACE"
PREPARE = "ip link set lo up multicast on && ip route add 224.0.0.0/4 dev lo"
#: What is imported of each package.
IMPORTS = {
    "raw-list": "msgpack",
    "tcp": "msgpack",
    ZENOH: "zenoh",
    NNG: "pynng",
    NATS: "nats",
    DDS: "cyclonedds",
    LCM: "lcm",
    ICEORYX: "iceoryx2",
}
TABLE = "bench"
#: Beside the packages of the ways: what the sections run.
SECTION_PACKAGES = ("lmdb", "pika", "pyspark", "pyarrow")
SERVERS = ("nats-server", "rabbitmq_server")
SAYS_VERSION = ("nats-server",)
SERVER_FOLDER = Path("/usr/lib/rabbitmq/lib")


class Missing(Exception):
    """Something that is needed is not installed, or does not work here."""


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


def missing_ways() -> dict[str, str]:
    """The ways that cannot be measured here, and why."""
    reasons = {}
    for way, module in IMPORTS.items():
        if importlib.util.find_spec(module) is None:
            package = WAYS[way].package
            reasons[way] = f"{package} is not installed (pip install {package})"
    if not is_entered():
        reasons.setdefault(
            LCM, "no network namespace could be made, and its packets would leave this machine"
        )
    if shutil.which("nats-server", path=f"{os.environ.get('PATH', '')}:/usr/sbin") is None:
        reasons.setdefault(NATS, "nats-server is not installed (Debian: apt install nats-server)")
    if shutil.which("gcc") is None and shutil.which("cc") is None:
        reasons |= dict.fromkeys((C_TCP, C_GSO), "there is no C compiler (gcc or cc)")
    return reasons


def versions() -> dict[str, str]:
    """Of everything that is measured and is installed, servers included."""
    found = {}
    packages = [way.package for way in WAYS.values() if way.package]
    for package in (*packages, *SECTION_PACKAGES):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    for server in SERVERS:
        number = _server_version(server)
        if number:
            found[server] = number
    return found


def _server_version(server: str) -> str:
    """As it says itself, or as its folder does: RabbitMQ would take seconds to say it."""
    found = [path.name.rpartition("-")[2] for path in SERVER_FOLDER.glob(f"{server}-*")]
    program = shutil.which(server, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found or program is None or server not in SAYS_VERSION:
        return found[0] if found else ""
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    number = re.search(r"\d+(\.\d+)+", done.stdout + done.stderr)
    return number[0] if number else ""


def free_port() -> int:
    """A port that is free on loopback, with the three after it as far as can be told."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind((INTERFACE, 0))
        port: int = probe.getsockname()[1]
    return min(port, 65_000)


@contextmanager
def losing(part: float) -> Iterator[None]:
    """Have the kernel drop a part of what comes by loopback; raises `Missing` where it cannot.

    It drops what it handles as one: a packet, or a run of them that was sent in one call.
    """
    if not is_entered():
        raise Missing("packets are dropped only in a network namespace of our own")
    if shutil.which("nft", path=f"{os.environ.get('PATH', '')}:/usr/sbin") is None:
        raise Missing("nft is not installed (Debian: apt install nftables)")
    rules = (
        f"add table inet {TABLE}; "
        f"add chain inet {TABLE} in {{ type filter hook input priority 0; }}; "
        f"add rule inet {TABLE} in numgen random mod 1000 < {round(part * 1000)} counter drop"
    )
    done = subprocess.run(["nft", rules], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Missing(f"nft says: {done.stderr.strip().splitlines()[0]}")
    try:
        yield
    finally:
        subprocess.run(["nft", f"delete table inet {TABLE}"], capture_output=True, check=False)
