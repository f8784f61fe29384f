"""Network interfaces: what a user calls one, and what the system wants to know of it."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from meshmsg._model.errors import ConfigError

try:
    import fcntl
except ImportError:  # pragma: no cover - not on this system
    fcntl = None  # type: ignore[assignment]

SIOCGIFADDR = 0x8915
SIOCGIFMTU = 0x8921


@dataclass(frozen=True, slots=True)
class Interface:
    """One interface: its IPv4 address where it has one, its index, its name."""

    name: str
    index: int
    address: str  # IPv4, empty where it has none

    @property
    def is_loopback(self) -> bool:
        """Whether packets stay on this machine."""
        if self.address:
            return ipaddress.ip_address(self.address).is_loopback
        return self.name in ("lo", "lo0")


def find_interface(field: str, wanted: str) -> Interface:
    """The interface of that name or address; raises `ConfigError` that lists what there is."""
    known = all_interfaces()
    for interface in known:
        if interface.name == wanted:
            return interface
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(wanted.partition("%")[0])
        for interface in known:
            if interface.address == str(address):
                return interface
        if address.version == 6:
            name = _ipv6_names().get(address)
            for interface in known:
                if interface.name == name:
                    return interface
        if address.version == 4 and address.is_loopback:
            loopback = [i for i in known if i.is_loopback]
            if loopback:  # any address of 127/8 is there
                return Interface(loopback[0].name, loopback[0].index, str(address))
    names = ", ".join(f"{i.name} ({i.address or 'no IPv4'})" for i in known)
    raise ConfigError(field, f"{wanted!r} is no interface of this machine: it has {names}")


def all_interfaces() -> list[Interface]:
    """Every interface of this machine."""
    return [_describe(name, index) for index, name in socket.if_nameindex()]


def local_addresses() -> list[str]:
    """The IPv4 addresses of this machine."""
    return [interface.address for interface in all_interfaces() if interface.address]


def interface_mtu(interface: Interface) -> int | None:
    """The interface's MTU, where the system tells."""
    answer = _ask(interface.name, SIOCGIFMTU)
    return None if answer is None else int(struct.unpack_from("i", answer, 16)[0])


def _describe(name: str, index: int) -> Interface:
    answer = _ask(name, SIOCGIFADDR)
    return Interface(name, index, "" if answer is None else socket.inet_ntoa(answer[20:24]))


def _ask(name: str, what: int) -> bytes | None:
    if fcntl is None:  # pragma: no cover
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            return fcntl.ioctl(probe.fileno(), what, struct.pack("256s", name.encode()[:15]))
        except OSError:
            return None


def _ipv6_names() -> dict[ipaddress.IPv4Address | ipaddress.IPv6Address, str]:
    """IPv6 addresses of this machine by interface (Linux)."""
    names: dict[ipaddress.IPv4Address | ipaddress.IPv6Address, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            fields = line.split()
            names[ipaddress.IPv6Address(int(fields[0], 16))] = fields[-1]
    return names
