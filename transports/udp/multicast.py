"""UDP multicast sockets: bursts of packets out, datagrams in.  They decide nothing.

Many packets leave with one call and come with one where the kernel can (UDP segmentation and
receive offload); elsewhere each is a call of its own.  Neither class has a lock: whoever calls
holds the one that guards it.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import struct
from collections import Counter
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, NamedTuple

from meshmsg._model.errors import BindError
from meshmsg._model.multicast_config import Multicast, split_group
from meshmsg._native import COMPILED
from meshmsg._wire.multicast_info import RECEIVE_BUFFER_MAX
from meshmsg.transports.inherited import owned
from meshmsg.transports.udp.interfaces import Interface, find_interface, interface_mtu

if COMPILED:
    from meshmsg import _speed

log = logging.getLogger("meshmsg.transports")

SOL_UDP = 17
UDP_SEGMENT = 103
UDP_GRO = 104
SO_RXQ_OVFL = 40
IP_MULTICAST_ALL = 49
IPV6_MULTICAST_ALL = 29
DATAGRAM_BYTES_MAX = 65_535
#: Room for the control messages of one datagram: segment size and drop count.
ANCILLARY_BYTES = 128
SEND_BUFFER_BYTES = 4 * 1024 * 1024
#: Requests and reports wait here; more are dropped, which the protocol bears.
REQUEST_BUFFER_BYTES = 256 * 1024
#: Of what the system grants, this part is filled with payload where the sender waits for us: it
#: fits, beside the system's own bookkeeping.
WINDOW_PART = 4
SOON_S = 0.04
#: After looking in vain, it is not tried again for up to so many waits.
NAPS_MAX = 31
#: What the kernel says where it cannot cut bursts, or not into packets larger than the MTU.
_CANNOT_CUT = (errno.EIO, errno.EINVAL, errno.ENOPROTOOPT, errno.EMSGSIZE)
_SEGMENT = struct.Struct("=H")
_INT = struct.Struct("=i")
_UINT = struct.Struct("=I")
#: Addresses as Linux has them in memory.
_IN = struct.Struct("=H2s4s8x")
_IN6 = struct.Struct("=H2sI16sI")
#: Whether the compiled core receives and sends.
_QUICK = COMPILED and hasattr(_speed, "Datagrams")

sched_yield: Callable[[], None] = getattr(os, "sched_yield", lambda: None)

Address = tuple[Any, ...]
Data = bytes | memoryview  # what is sealed lies in memory that is used again
Fault = Callable[[bytes], bool]
_warned: set[int] = set()


class Datagram(NamedTuple):
    """What one call received: packets of `packet_bytes` each, the last may be shorter."""

    data: bytes
    packet_bytes: int
    source: Address


class Group(NamedTuple):
    """A multicast group on one interface of this machine."""

    host: str
    port: int
    interface: Interface

    @property
    def family(self) -> int:
        """IPv4 or IPv6."""
        return socket.AF_INET6 if ":" in self.host else socket.AF_INET

    @property
    def address(self) -> Address:
        """Where packets are sent."""
        if self.family == socket.AF_INET6:
            return (self.host, self.port, 0, self.interface.index)
        return (self.host, self.port)

    @property
    def packed(self) -> bytes:
        """The same, as the system has it."""
        port = self.port.to_bytes(2, "big")
        if self.family == socket.AF_INET6:
            host = socket.inet_pton(socket.AF_INET6, self.host)
            return _IN6.pack(socket.AF_INET6, port, 0, host, self.interface.index)
        return _IN.pack(socket.AF_INET, port, socket.inet_aton(self.host))

    def at(self, port: int) -> Group:
        """The same group at another port."""
        return Group(self.host, port, self.interface)


def groups_of(config: Multicast, default_interface: str) -> list[Group]:
    """The lines of a stream, one or two; raises `ConfigError` for an unknown interface."""
    name = config.interface or default_interface
    groups = [Group(*config.address, find_interface("interface", name))]
    if config.second is not None:
        name = config.second_interface or name
        interface = find_interface("second_interface", name)
        groups.append(Group(*split_group("second", config.second), interface))
    return groups


def open_group(group: Group, port: int, *, join: bool) -> socket.socket:
    """A socket bound to the group (to receive) or to its interface (to send)."""
    where = f"{group.host}:{port} on {group.interface.name}"
    try:
        sock = owned(socket.socket(group.family, socket.SOCK_DGRAM))
    except OSError as error:  # too many open files
        raise BindError(where, _problem(error)) from None
    host = group.host if join else ""
    if not join:
        host = group.interface.address if group.family == socket.AF_INET else ""
    try:
        if join:  # a port that is sent from is shared with nobody: who did would speak in our name
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if hasattr(socket, "SO_REUSEPORT") and not hasattr(socket, "SO_DOMAIN"):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # pragma: no cover
        if group.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((host, port, 0, group.interface.index if join else 0))
        else:
            sock.bind((host, port))
        if join:
            _join(sock, group)
    except OSError as error:
        sock.close()
        raise BindError(where, _problem(error)) from None
    return sock


def _check_route(group: Group) -> None:
    """Whether packets would leave at all: asked of a socket that sends none."""
    with socket.socket(group.family, socket.SOCK_DGRAM) as probe:
        _prepare_sending(probe, group, 0)
        probe.connect(group.address)


def _problem(error: OSError, group: Group | None = None) -> str:
    if error.errno == errno.ENETUNREACH and group is not None and group.interface.is_loopback:
        name = group.interface.name
        # IPv6 packets come back in only by a route of type local (seen with Linux 6.18).
        route = "-6 route add local ff00::/8" if ":" in group.host else "route add 224.0.0.0/4"
        return (
            f"the system has no route for multicast on {name}: use another interface, or "
            f"ip {route} dev {name}"
        )
    if error.errno == errno.ENETUNREACH:
        return "the system has no route for multicast on this interface"
    if error.errno == errno.EADDRINUSE:
        return "the port is taken by a program that does not share it: choose another"
    if error.errno in (errno.ENODEV, errno.EADDRNOTAVAIL):
        return "the interface has no address of that IP version, or cannot do multicast"
    return f"{error.strerror}"


def _join(sock: socket.socket, group: Group) -> None:
    if group.family == socket.AF_INET6:
        request = socket.inet_pton(socket.AF_INET6, group.host)
        index = struct.pack("@I", group.interface.index)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, request + index)
        _try(sock, socket.IPPROTO_IPV6, IPV6_MULTICAST_ALL, 0)
        return
    request = socket.inet_aton(group.host) + socket.inet_aton(group.interface.address or "0.0.0.0")
    index = struct.pack("@i", group.interface.index)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, request + index)
    # Otherwise groups that other programs joined elsewhere on this machine come in here, too.
    _try(sock, socket.IPPROTO_IP, IP_MULTICAST_ALL, 0)


def _prepare_sending(sock: socket.socket, group: Group, ttl: int | None) -> None:
    """Send to groups over this interface only, and to programs on this machine as well."""
    if ttl is None:
        ttl = 0 if group.interface.is_loopback else 1
    if group.family == socket.AF_INET6:
        index = struct.pack("@I", group.interface.index)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, ttl)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_LOOP, 1)
        return
    address = socket.inet_aton(group.interface.address or "0.0.0.0")
    request = socket.inet_aton("0.0.0.0") + address + struct.pack("@i", group.interface.index)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, request)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, ttl)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)


def _try(sock: socket.socket, level: int, option: int, value: int) -> bool:
    try:
        sock.setsockopt(level, option, value)
    except OSError:
        return False
    return True


def _recv(sock: socket.socket) -> tuple[bytes, Address] | None:
    try:
        return sock.recvfrom(DATAGRAM_BYTES_MAX, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return None
    except OSError:  # an earlier packet of ours was refused somewhere (ICMP)
        return None


def lose(fault: Fault, data: bytes, packet_bytes: int, counters: Counter[str]) -> bytes:
    """What a fault leaves of a burst of packets."""
    lost_of = getattr(fault, "lost_of", None)
    if lost_of is not None:  # it need not be shown each packet
        lost = lost_of(data, packet_bytes)
    else:
        starts = range(0, len(data), packet_bytes)
        lost = [at for at in starts if fault(data[at : at + packet_bytes])]
    if not lost:
        return data
    counters["injected_drops"] += len(lost)
    kept = zip([0, *(at + packet_bytes for at in lost)], [*lost, len(data)], strict=True)
    view = memoryview(data)
    return b"".join([view[first:stop] for first, stop in kept])


class Inlet:
    """Something to poll that brings requests and reports of receivers."""

    def __init__(self, server: MulticastServer, sock: socket.socket) -> None:
        self.server = server
        self.socket = sock
        self.pollable = sock.fileno()

    def recv(self) -> tuple[bytes, Address] | None:
        """The next request or report, `None` when there is none now."""
        return _recv(self.socket)


class SendingLine:
    """One line of a sender: where it sends, and whether the kernel cuts bursts for it."""

    def __init__(self, group: Group, ttl: int | None) -> None:
        self.group = group
        self.socket = open_group(group, 0, join=False)
        self.segments = True
        self.counters: Counter[str] = Counter()
        self._target = group.address
        self._packed = group.packed
        self._port = _speed.Datagrams(self.socket.fileno(), tuple) if _QUICK else None
        try:
            _prepare_sending(self.socket, group, ttl)
            _check_route(group)
        except OSError as error:
            self.socket.close()
            raise BindError(
                f"{group.host} on {group.interface.name}", _problem(error, group)
            ) from None
        _try(self.socket, socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        name: Address = self.socket.getsockname()
        self.source = (name[0], name[1])

    def send(self, data: Data, packet_bytes: int) -> None:
        """Send packets; what the kernel refuses is lost, and asked for again."""
        try:
            if (
                self._port is not None
                and (self.segments or len(data) <= packet_bytes)
                and self._port.send(data, packet_bytes, self._packed)
            ):
                return
            if len(data) <= packet_bytes:
                self.socket.sendto(data, self._target)
            elif self.segments:
                control = [(SOL_UDP, UDP_SEGMENT, _SEGMENT.pack(packet_bytes))]
                self.socket.sendmsg((data,), control, 0, self._target)
            else:
                for at in range(0, len(data), packet_bytes):
                    self.socket.sendto(data[at : at + packet_bytes], self._target)
        except OSError as error:
            self._on_error(error, data, packet_bytes)

    def close(self) -> None:
        """Close at once."""
        if self._port is not None:
            self._port.close()
        self.socket.close()

    def _on_error(self, error: OSError, data: Data, packet_bytes: int) -> None:
        many = len(data) > packet_bytes
        if many and self.segments and error.errno in _CANNOT_CUT:
            self.segments = False  # this kernel or interface cannot: cut here from now on
            self.send(data, packet_bytes)
            return
        self.counters["send_errors"] += 1
        if error.errno == errno.EMSGSIZE and error.errno not in _warned:
            _warned.add(error.errno)
            log.error(
                "packets of %d bytes do not pass %s: give Multicast a smaller mtu",
                packet_bytes,
                self.group.interface.name,
            )
        else:
            log.debug("sending to %s failed: %s", self.group.host, error)


class MulticastServer:
    """The publisher's sockets for one stream: lines out, requests and reports in."""

    def __init__(self, config: Multicast, default_interface: str) -> None:
        self.counters: Counter[str] = Counter()
        #: A test or a demo may lose packets here: called with each, true means dropped.
        self.fault: Fault | None = None
        #: And on this line only, if there is one.
        self.fault_at: tuple[str, int] | None = None
        self.lines: list[SendingLine] = []
        self.inlets: list[Inlet] = []
        try:
            for group in groups_of(config, default_interface):
                self._check_mtu(config, group)
                line = SendingLine(group, config.ttl)
                self.lines.append(line)
                self.inlets.append(Inlet(self, line.socket))
                requests = open_group(group, config.request_port or 0, join=True)
                _try(requests, socket.SOL_SOCKET, socket.SO_RCVBUF, REQUEST_BUFFER_BYTES)
                self.inlets.append(Inlet(self, requests))
        except BaseException:
            self.close()
            raise

    def _check_mtu(self, config: Multicast, group: Group) -> None:
        mtu = interface_mtu(group.interface)
        if mtu is not None and mtu < config.mtu:
            log.warning(
                "%s takes packets of %d bytes, the stream is set to %d: they will be cut in two, "
                "and each half can be lost; give Multicast mtu=%d",
                group.interface.name,
                mtu,
                config.mtu,
                mtu,
            )

    @property
    def sources(self) -> list[tuple[str, int]]:
        """Where packets come from, for receivers to know ours from others."""
        return [line.source for line in self.lines]

    def send(self, data: Data, packet_bytes: int) -> None:
        """Send a burst on every line."""
        if self.fault is not None:
            return self._send_some(bytes(data), packet_bytes)
        for line in self.lines:
            line.send(data, packet_bytes)

    def _send_some(self, data: bytes, packet_bytes: int) -> None:
        assert self.fault is not None
        kept = lose(self.fault, data, packet_bytes, self.counters)
        for line in self.lines:
            sent = kept if self.fault_at in (None, line.group[:2]) else data
            if sent:
                line.send(sent, packet_bytes)

    def stats(self) -> list[dict[str, Any]]:
        """Figures of each line."""
        return [
            {
                "group": line.group.host,
                "port": line.group.port,
                "interface": line.group.interface.name,
                "kernel_segments": line.segments,
                "send_errors": line.counters["send_errors"],
            }
            for line in self.lines
        ]

    def close(self) -> None:
        """Close at once."""
        for line in self.lines:
            line.close()
        for inlet in self.inlets:
            inlet.socket.close()


class MulticastClient:
    """A subscription's sockets for one group: data in, requests and reports out."""

    def __init__(
        self, group: Group, ttl: int | None, buffer_bytes: int, spin_s: float = 0.0
    ) -> None:
        self.group = group
        self.counters: Counter[str] = Counter()
        self._spin_ns = int(spin_s * 1e9)
        self._misses = self._naps = 0  # looks in vain in a row, waits for which it does not look
        #: A test or a demo may lose packets here: called with each, true means dropped.
        self.fault: Fault | None = None
        self._socket = open_group(group, group.port, join=True)
        try:
            self._tx = open_group(group, 0, join=False)
            self._prepare(ttl)
        except BaseException:
            self._socket.close()
            raise
        self._drops = 0
        self._offload = _try(self._socket, SOL_UDP, UDP_GRO, 1)
        _try(self._socket, socket.SOL_SOCKET, SO_RXQ_OVFL, 1)
        timeout = struct.pack("@ll", 0, int(SOON_S * 1e6))
        self._soon = _has(self._socket, timeout)
        self.granted_bytes = self._ask_buffer(buffer_bytes)
        self.fd = self._socket.fileno()
        self._port = _speed.Datagrams(self.fd, Datagram) if _QUICK else None

    def _prepare(self, ttl: int | None) -> None:
        try:
            _prepare_sending(self._tx, self.group, ttl)
        except OSError as error:
            self._tx.close()
            where = f"{self.group.host} on {self.group.interface.name}"
            raise BindError(where, _problem(error, self.group)) from None

    def _ask_buffer(self, wanted: int) -> int:
        wanted = min(wanted, RECEIVE_BUFFER_MAX)
        _try(self._socket, socket.SOL_SOCKET, socket.SO_RCVBUF, wanted)
        granted = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        # Linux doubles what is asked for, to have room for its own bookkeeping, and says so.
        if granted < wanted and granted not in _warned:
            _warned.add(granted)
            log.warning(
                "the system grants a receive buffer of %d bytes instead of %d: bursts may be lost "
                "and repaired; raise it with: sysctl -w net.core.rmem_max=%d",
                granted,
                wanted,
                wanted,
            )
        return granted

    @property
    def window_bytes(self) -> int:
        """Bytes of packets that may be on their way to this socket."""
        return max(32 * 1024, self.granted_bytes // WINDOW_PART)

    def recv(self) -> Datagram | None:
        """What is there now, `None` if nothing is."""
        if self._port is None:
            return self._recv(socket.MSG_DONTWAIT)
        return self._without_lost(self._port.recv())

    def recv_soon(self) -> Datagram | None:
        """What comes within `SOON_S`; deaf to wake-up calls meanwhile.

        Where packets come quickly one after the other, it looks for a little while before it goes
        to sleep: to be woken up costs more than all else on the way of a single event.
        """
        datagram = None
        if self._naps:
            self._naps -= 1
            if self._port is not None:
                datagram = self.recv()
        elif self._spin_ns:
            datagram = self._look()
        if datagram is not None:
            return datagram
        return self._recv(0 if self._soon else socket.MSG_DONTWAIT)

    def _look(self) -> Datagram | None:
        """Ask again and again, for `spin_s`; each time in vain makes it rarer."""
        if self._port is not None:
            datagram = self._without_lost(self._port.look(self._spin_ns))
        else:
            until = perf_counter_ns() + self._spin_ns
            while (datagram := self._recv(socket.MSG_DONTWAIT)) is None:
                if perf_counter_ns() > until:
                    break
                sched_yield()
        if datagram is None:
            self._misses = min(2 * self._misses + 1, NAPS_MAX)
            self._naps = self._misses
        else:
            self._misses = 0
        return datagram

    def _recv(self, flags: int) -> Datagram | None:
        try:
            data, control, _, source = self._socket.recvmsg(
                DATAGRAM_BYTES_MAX, ANCILLARY_BYTES, flags
            )
        except OSError:  # nothing there, or an earlier packet of ours was refused (ICMP)
            return None
        packet_bytes = len(data)
        for level, kind, value in control:
            if kind == UDP_GRO and level == SOL_UDP:
                packet_bytes = _INT.unpack(value)[0]
            elif kind == SO_RXQ_OVFL:
                self._drops = _UINT.unpack(value)[0]
        return self._without_lost(Datagram(data, max(1, packet_bytes), source))

    def _without_lost(self, datagram: Datagram | None) -> Datagram | None:
        fault = self.fault
        if fault is None or datagram is None:
            return datagram
        data, packet_bytes, source = datagram
        spares = getattr(fault, "spares", None)  # others have to be shown each packet
        if spares is not None and spares(-(-len(data) // packet_bytes)):
            return datagram
        left = lose(fault, data, packet_bytes, self.counters)
        return datagram if left is data else Datagram(left, packet_bytes, source)

    @property
    def kernel_drops(self) -> int:
        """Packets that found the receive buffer full, as far as the kernel told."""
        return self._drops if self._port is None else max(self._drops, self._port.drops)

    def request(self, packet: bytes, port: int) -> None:
        """Ask the group for something."""
        self._send(packet, self.group.at(port).address)

    def report(self, packet: bytes, to: Address) -> None:
        """Report to the sender."""
        self._send(packet, to)

    def _send(self, packet: bytes, to: Address) -> None:
        try:
            self._tx.sendto(packet, to)
        except OSError as error:  # it will be sent again
            self.counters["send_errors"] += 1
            log.debug("sending to %s failed: %s", to, error)

    def stats(self) -> dict[str, Any]:
        """Figures of the line."""
        return {
            "group": self.group.host,
            "port": self.group.port,
            "interface": self.group.interface.name,
            "kernel_batches": self._offload,
            "kernel_drops": self.kernel_drops,
            "buffer_bytes": self.granted_bytes,
            **self.counters,
        }

    def close(self) -> None:
        """Leave the group."""
        if self._port is not None:
            self._port.close()
        self._socket.close()
        self._tx.close()


def _has(sock: socket.socket, timeout: bytes) -> bool:
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
    except OSError:  # pragma: no cover - not on this system
        return False
    return True
