"""Checks of this machine: the installation, interfaces, multicast, buffers, disk, Spark."""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import subprocess
import time
from collections.abc import Iterator
from importlib import metadata, util
from pathlib import Path

from meshmsg._model.errors import ConfigError
from meshmsg._model.multicast_config import Multicast
from meshmsg._native import COMPILED
from meshmsg._peer.peer import __version__
from meshmsg._wire.control import PROTOCOL_VERSION
from meshmsg.doctor.findings import FAIL, OK, SKIP, WARN, Finding
from meshmsg.transports.probes import granted_buffers, multicast_echo
from meshmsg.transports.udp.interfaces import all_interfaces, find_interface, interface_mtu

try:
    import resource
except ImportError:  # pragma: no cover - not on this system
    resource = None  # type: ignore[assignment]

ECHO_S = 2.0
FILES_MIN = 1024
#: Open files that one connected peer takes, at most.
FILES_PER_PEER = 6
SYNCS = 20
SYNC_SLOW_S = 0.02
SPACE_MIN_BYTES = 100_000_000
SPACE_LOW_BYTES = 1_000_000_000
ETHERNET_MTU = 1500
JAVA_S = 10.0


def software() -> Iterator[Finding]:
    """Versions, and whether the compiled core is there."""
    parts = [f"meshmsg {__version__}", f"protocol {PROTOCOL_VERSION}"]
    parts += [f"Python {platform.python_version()}"]
    for package in ("pyzmq", "zeroconf"):
        try:
            parts.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            yield Finding("software", FAIL, f"{package} is not installed", f"pip install {package}")
    text = ", ".join(parts)
    if COMPILED:
        yield Finding("software", OK, f"{text}, compiled core")
    else:
        why = "MESHMSG_PURE is set" if os.environ.get("MESHMSG_PURE") else "it was not built"
        fix = "unset MESHMSG_PURE, or install a C compiler and reinstall meshmsg"
        yield Finding("software", WARN, f"{text}, no compiled core ({why}): events are slower", fix)


def interfaces(wanted: str) -> Iterator[Finding]:
    """Those there are, and whether the one asked for is among them."""
    known = ", ".join(f"{i.name} {i.address or '(no IPv4)'}" for i in all_interfaces())
    try:
        chosen = find_interface("--interface", wanted)
    except ConfigError as error:
        yield Finding("interface", FAIL, str(error), "name one of these with --interface")
        return
    text = f"{chosen.name} {chosen.address or wanted} of: {known}"
    reach = "peers on this machine only" if chosen.is_loopback else "peers on that network"
    yield Finding("interface", OK, f"{text}; reaches {reach}")


def mtu(wanted: str) -> Iterator[Finding]:
    """Whether packets of the default size fit."""
    found = interface_mtu(find_interface("--interface", wanted))
    if found is None:
        yield Finding("mtu", SKIP, "this system does not tell")
    elif found < ETHERNET_MTU:
        fix = f"multicast streams: Multicast(..., mtu={found})"
        yield Finding("mtu", WARN, f"{found} bytes: less than Ethernet's {ETHERNET_MTU}", fix)
    else:
        yield Finding("mtu", OK, f"{found} bytes")


def multicast(wanted: str) -> Iterator[Finding]:
    """A packet to a group, sent and received on the interface."""
    interface = find_interface("--interface", wanted)
    if not interface.address:
        yield Finding("multicast", SKIP, f"{interface.name} has no IPv4 address")
        return
    fix = (
        f"ip link set {interface.name} multicast on; let udp through the firewall; in a container "
        f"use host networking, or do without: streams over ZeroMQ, peers by connect= or seeds="
    )
    try:
        took_s = multicast_echo(interface, ECHO_S)
    except TimeoutError:
        text = f"sent on {interface.name}, and not received in {ECHO_S:g} s"
        yield Finding("multicast", FAIL, text, fix)
    except OSError as error:
        yield Finding("multicast", FAIL, f"cannot be used on {interface.name}: {error}", fix)
    else:
        text = f"sent and received on {interface.name} in {took_s * 1e3:.1f} ms"
        yield Finding("multicast", OK, text)


def buffers() -> Iterator[Finding]:
    """What the system grants of what multicast receivers ask for."""
    wanted = int(Multicast("239.255.7.7:30001").receive_buffer)
    receive, send = granted_buffers(wanted)
    text = f"{receive / 2**20:.1f} MiB to receive, {send / 2**20:.1f} MiB to send"
    if receive >= wanted:
        yield Finding("socket buffers", OK, text)
        return
    fix = f"sysctl -w net.core.rmem_max={wanted} net.core.wmem_max={wanted}"
    asked = f"of {wanted / 2**20:.0f} MiB that a multicast receiver asks for"
    yield Finding("socket buffers", WARN, f"{text}, {asked}: bursts may be lost and repaired", fix)


def open_files(peers_max: int) -> Iterator[Finding]:
    """Whether there is room for all connections."""
    if resource is None:  # pragma: no cover
        yield Finding("open files", SKIP, "this system does not tell")
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = max(FILES_MIN, peers_max * FILES_PER_PEER)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        yield Finding("open files", OK, f"{soft}, enough for {peers_max} peers")
        return
    fix = f"ulimit -n {needed if hard < 0 else min(hard, needed)}, or LimitNOFILE= of the service"
    yield Finding("open files", WARN, f"{soft}: may be too few for {peers_max} peers", fix)


def disk(data_dir: Path | None) -> Iterator[Finding]:
    """Space, and how long it takes until something is really on the disk."""
    if data_dir is None:
        yield Finding("disk", SKIP, "no --data-dir given: needed by durable streams only")
        return
    if not data_dir.is_dir():
        fix = f"mkdir -p {data_dir}, as the user that the peer runs as"
        yield Finding("disk", FAIL, f"{data_dir} is not a folder", fix)
        return
    usage = shutil.disk_usage(data_dir)
    free = f"{usage.free / 1e9:.1f} GB free of {usage.total / 1e9:.1f} GB"
    fix = "free some space, or give the streams a retention="
    if usage.free < SPACE_MIN_BYTES:
        yield Finding("disk space", FAIL, free, fix)
    elif usage.free < SPACE_LOW_BYTES:
        yield Finding("disk space", WARN, free, fix)
    else:
        yield Finding("disk space", OK, free)
    try:
        typical_s, worst_s = _sync_times(data_dir)
    except OSError as error:
        fix = "let the user that the peer runs as write there"
        yield Finding("disk fsync", FAIL, f"{data_dir}: {error.strerror}", fix)
        return
    text = f"{typical_s * 1e3:.2f} ms typical, {worst_s * 1e3:.2f} ms at worst"
    if typical_s > SYNC_SLOW_S:
        fix = "a faster disk, publish_many, or fsync='interval:50ms' for the streams"
        yield Finding("disk fsync", WARN, f"{text}: slow with fsync='always'", fix)
    else:
        yield Finding("disk fsync", OK, text)


def _sync_times(folder: Path) -> tuple[float, float]:
    path = folder / f".meshmsg-doctor-{os.getpid()}"
    times = []
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        for _ in range(SYNCS):
            os.write(descriptor, bytes(4096))
            began = time.perf_counter()
            os.fsync(descriptor)
            times.append(time.perf_counter() - began)
    finally:
        os.close(descriptor)
        path.unlink()
    return statistics.median(times), max(times)


def spark(needed: bool) -> Iterator[Finding]:
    """Whether events can be read by Spark here."""
    missing = FAIL if needed else SKIP
    for package, extra in (("pyspark", "spark"), ("pyarrow", "spark")):
        if util.find_spec(package) is None:
            text = f"{package} is not installed" + ("" if needed else ": needed for Spark only")
            yield Finding(package, missing, text, f"pip install 'meshmsg[{extra}]'")
        else:
            yield Finding(package, OK, metadata.version(package))
    yield _java(missing, needed)


def _java(missing: str, needed: bool) -> Finding:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    fix = "install Java 17 or newer, or set JAVA_HOME to where it is"
    if java is None:
        where = f"JAVA_HOME={home} has no bin/java" if home else "no java in PATH, no JAVA_HOME"
        text = where + ("" if needed else ": needed for Spark only")
        return Finding("java", FAIL if home else missing, text, fix)
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=JAVA_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("java", FAIL, f"{java}: {error}", fix)
    lines = (done.stderr or done.stdout).splitlines()
    if done.returncode or not lines:
        return Finding("java", FAIL, f"{java} -version ends with {done.returncode}", fix)
    return Finding("java", OK, f"{lines[0]} ({java})")
