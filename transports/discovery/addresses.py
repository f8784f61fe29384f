"""Names, addresses and ports: what a host resolves to, what is ours, what can be reached."""

from __future__ import annotations

import errno
import functools
import hashlib
import ipaddress
import os
import socket
import time
from typing import NamedTuple

from meshmsg.transports.udp.interfaces import local_addresses

WILDCARDS = ("*", "0.0.0.0", "::")
EVERYONE = ipaddress.ip_address("255.255.255.255")
#: Those whose meaning is remembered.
ADDRESSES_MAX = 4096


@functools.cache  # all peers of a program have one, wherever it goes
def folder_scope() -> str:
    """Return a number for the machine, user and folder in which this program runs.

    Services run in `/` together, so there a session of processes stands for the folder.  Containers
    may share the host's name and network, and have a folder of one name: what tells them apart is
    that they see other processes, and that the folder is another one on the disk.
    """
    try:
        folder, disk = os.getcwd(), os.stat(".")
    except OSError:  # it was removed
        folder, disk = "/", os.stat("/")
    place = [socket.gethostname(), _container(), str(os.getuid()), folder]
    place += [f"{disk.st_dev}:{disk.st_ino}"]
    if folder == "/":
        place.append(str(os.getsid(0)))
    return hashlib.blake2b(os.fsencode("\n".join(place)), digest_size=8).hexdigest()


def _container() -> str:
    """A name for all the processes that are seen here; empty where the system gives none."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


class Target(NamedTuple):
    """The parts of a `tcp://` address."""

    host: str
    port: int


def split_target(address: str) -> Target | None:
    """Host and port of `tcp://host:port`; `None` for anything else."""
    if not address.startswith("tcp://"):
        return None
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    if not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536) or not host:
        return None
    return Target(host.strip("[]"), int(port))


def join_target(host: str, port: int) -> str:
    """A `tcp://` address."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def is_ip(host: str) -> bool:
    """Whether it is an address and not a name."""
    return _address(host) is not None


def is_loopback(host: str) -> bool:
    """Whether an address stays on this machine; names are not looked up, but for one."""
    found = _address(host)
    return host == "localhost" if found is None else found.is_loopback


def is_host(host: str) -> bool:
    """Whether an address is that of one host: not all of ours, of a group or of everyone."""
    found = _address(host)
    return found is not None and not (
        found.is_unspecified or found.is_multicast or found == EVERYONE
    )


@functools.lru_cache(maxsize=ADDRESSES_MAX)  # peers tell the same ones again and again
def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """What a text stands for, in whichever of its many forms: `::ffff:127.0.0.1` is loopback."""
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def concrete(address: str) -> list[str]:
    """Where others can connect to, where we listen at this: a wildcard means all of ours."""
    target = split_target(address)
    if target is None:
        return [address]
    if target.host not in WILDCARDS:
        return [address]
    hosts = local_addresses()
    # Others first need the addresses that they can reach.
    hosts.sort(key=is_loopback)
    return [join_target(host, target.port) for host in hosts] or [address]


def resolve(host: str) -> list[str]:
    """All addresses that a name stands for; raises `OSError` that says why there are none."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # no name can be like that
        raise OSError(errno.EINVAL, str(error)) from None
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def why_unreachable(address: str, timeout_s: float) -> str:
    """Connect and hang up; empty if that works, else the reason in words."""
    target = split_target(address)
    if target is None:
        return "" if address.startswith("ipc://") else f"{address!r} is not an address"
    try:
        with socket.create_connection(target, timeout=timeout_s):
            return ""
    except TimeoutError:
        return f"no answer in {timeout_s:g} s: a firewall, or nobody has that address"
    except ConnectionRefusedError:
        return "connection refused: nobody listens at that port"
    except (OSError, UnicodeError) as error:
        return getattr(error, "strerror", None) or str(error)


def round_trip_s(address: str, timeout_s: float) -> float:
    """How long a connection takes to be made; raises `OSError`."""
    target = split_target(address)
    assert target is not None
    began = time.perf_counter()
    with socket.create_connection(target, timeout=timeout_s):
        return time.perf_counter() - began
