"""Multicast groups in a simulated world: the verbs of `udp.multicast`, a datagram a packet."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

from meshmsg._model.multicast_config import Multicast
from meshmsg.transports.memory.network import Machine, Signal, wait_for
from meshmsg.transports.udp import multicast as udp
from meshmsg.transports.udp.multicast import (
    REQUEST_BUFFER_BYTES,
    SOON_S,
    WINDOW_PART,
    Address,
    Data,
    Datagram,
    Fault,
    Group,
    groups_of,
    lose,
)


class Port:
    """Takes what is sent to an address, as much as its buffer holds."""

    def __init__(self, machine: Machine, address: Address, buffer_bytes: int) -> None:
        self.machine = machine
        self.address = address
        self.drops = 0
        self._buffer_bytes = buffer_bytes
        self._waiting: deque[tuple[bytes, Address]] = deque()
        self._bytes = 0
        self.signal = Signal(machine.network.scheduler, lambda: bool(self._waiting))
        machine.datagrams[self] = None

    def on_datagram(self, data: bytes, source: Address) -> None:
        """One came."""
        if self._bytes + len(data) > self._buffer_bytes:
            self.drops += 1
            return
        self._bytes += len(data)
        self._waiting.append((data, source))
        self.signal.notify()

    def recv(self) -> tuple[bytes, Address] | None:
        """The next one, `None` when there is none now."""
        if not self._waiting:
            return None
        data, source = self._waiting.popleft()
        self._bytes -= len(data)
        return data, source

    def close(self) -> None:
        """Take no more."""
        self.machine.datagrams.pop(self, None)
        self._waiting.clear()


class Inlet(udp.Inlet):
    """Brings requests and reports of receivers."""

    def __init__(self, server: MulticastServer, port: Port) -> None:
        self.server: Any = server
        self.port = port
        self.pollable: Any = port.signal

    def recv(self) -> tuple[bytes, Address] | None:
        """The next request or report, `None` when there is none now."""
        return self.port.recv()


class MulticastServer:
    """The publisher's side of one stream."""

    def __init__(self, machine: Machine, config: Multicast, default_interface: str) -> None:
        self.counters: Counter[str] = Counter()
        self.fault: Fault | None = None
        self.fault_at: tuple[str, int] | None = None
        self.lines: list[tuple[Group, Port]] = []
        self.inlets: list[Inlet] = []
        self._machine = machine
        for group in groups_of(config, default_interface):
            source = (group.interface.address, machine.network.new_port())
            line = Port(machine, source, REQUEST_BUFFER_BYTES)
            asked = group.at(config.request_port or 0).address
            self.lines.append((group, line))
            self.inlets.append(Inlet(self, line))
            self.inlets.append(Inlet(self, Port(machine, asked, REQUEST_BUFFER_BYTES)))

    @property
    def sources(self) -> list[tuple[str, int]]:
        """Where packets come from, for receivers to know ours from others."""
        return [line.address[:2] for _, line in self.lines]

    def send(self, data: Data, packet_bytes: int) -> None:
        """Send a burst on every line."""
        self._machine.check()
        burst = bytes(data)
        kept = burst
        if self.fault is not None:
            kept = lose(self.fault, burst, packet_bytes, self.counters)
        for group, line in self.lines:
            sent = kept if self.fault_at in (None, group[:2]) else burst
            for at in range(0, len(sent), packet_bytes):
                packet = sent[at : at + packet_bytes]
                self._machine.network.datagram(packet, line.address, group.address, self._machine)

    def stats(self) -> list[dict[str, Any]]:
        """Figures of each line."""
        return [{"group": group.host, "port": group.port} for group, _ in self.lines]

    def close(self) -> None:
        """Close at once."""
        for inlet in self.inlets:
            inlet.port.close()


class MulticastClient:
    """A subscription's side for one group."""

    def __init__(self, machine: Machine, group: Group, buffer_bytes: int) -> None:
        self.group = group
        self.counters: Counter[str] = Counter()
        self.fault: Fault | None = None
        self.granted_bytes = buffer_bytes
        self._machine = machine
        self._port = Port(machine, group.address, buffer_bytes)
        self._source = (group.interface.address, machine.network.new_port())
        self.fd = self._port.signal

    @property
    def window_bytes(self) -> int:
        """Bytes of packets that may be on their way to this socket."""
        return max(32 * 1024, self.granted_bytes // WINDOW_PART)

    def recv(self) -> Datagram | None:
        """What is there now, `None` if nothing is."""
        received = self._port.recv()
        if received is None:
            return None
        data, source = received
        packet_bytes = max(1, len(data))
        if self.fault is not None:
            data = lose(self.fault, data, packet_bytes, self.counters)
        return Datagram(data, packet_bytes, source)

    def recv_soon(self) -> Datagram | None:
        """What comes within `SOON_S`; deaf to wake-up calls meanwhile."""
        self._machine.check()
        wait_for(self._machine.network.scheduler, [self.fd], SOON_S)
        return self.recv()

    @property
    def kernel_drops(self) -> int:
        """Packets that found the receive buffer full."""
        return self._port.drops

    def request(self, packet: bytes, port: int) -> None:
        """Ask the group for something."""
        self._send(packet, self.group.at(port).address)

    def report(self, packet: bytes, to: Address) -> None:
        """Report to the sender."""
        self._send(packet, to)

    def _send(self, packet: bytes, to: Address) -> None:
        self._machine.network.datagram(bytes(packet), self._source, to, self._machine)

    def stats(self) -> dict[str, Any]:
        """Figures of the line."""
        return {
            "group": self.group.host,
            "port": self.group.port,
            "interface": self.group.interface.name,
            "kernel_drops": self.kernel_drops,
            "buffer_bytes": self.granted_bytes,
            **self.counters,
        }

    def close(self) -> None:
        """Leave the group."""
        self._port.close()
