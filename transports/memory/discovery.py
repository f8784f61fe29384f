"""Zeroconf in a simulated world: an announcement is heard by all whom the network reaches."""

from __future__ import annotations

from meshmsg.transports.discovery.mdns import SERVICE, Listener, Records, Service
from meshmsg.transports.memory.network import Machine

#: An announcement is made again after these times: each may be lost.
AGAIN_S = (0.0, 0.25, 1.0)


class Beacon:
    """One peer's own service, and its ear for the others; see `discovery.mdns.Beacon`."""

    def __init__(self, machine: Machine, listener: Listener) -> None:
        self._machine = machine
        self._listener = listener
        self._own: Service | None = None
        self._known: dict[str, Service] = {}
        machine.ears[self] = None
        for other in list(machine.network.machines.values()):
            for beacon in [one for one in other.ears if one is not self]:
                beacon.tell(self)

    def tell(self, other: Beacon) -> None:
        """Answer somebody who has come."""
        if self._own is not None:
            self._send(other, True, self._own)

    def _send(self, other: Beacon, there: bool, service: Service) -> None:
        network, to = self._machine.network, other._machine
        way = network.way(self._machine, to)
        if way.is_cut or network.chance(way.loss):
            return
        when = network.scheduler.now + way.delay_s + network.jitter(way)
        network.scheduler.at(when, lambda: other.hear(there, service))

    def hear(self, there: bool, service: Service) -> None:
        """Somebody is there, or has gone."""
        if self._machine.dead or self not in self._machine.ears:
            return
        if there:
            self._known[service.name] = service
        elif self._known.pop(service.name, None) is None:
            return
        self._listener(there, service)

    def announce(self, label: str, hosts: tuple[str, ...], port: int, records: Records) -> None:
        """Be found."""
        self._own = Service(f"{label}.{SERVICE}", hosts, port, dict(records))
        scheduler = self._machine.network.scheduler
        for delay_s in AGAIN_S:
            scheduler.at(scheduler.now + delay_s, self._announce)

    def _announce(self) -> None:
        if self._own is None or self._machine.dead:
            return
        for machine in list(self._machine.network.machines.values()):
            for beacon in list(machine.ears):
                self._send(beacon, True, self._own)

    def known(self) -> list[Service]:
        """All services that are there now, our own among them."""
        return list(self._known.values())

    def close(self) -> None:
        """Say good-bye."""
        own, self._own = self._own, None
        self._machine.ears.pop(self, None)
        if own is not None:
            for machine in list(self._machine.network.machines.values()):
                for beacon in list(machine.ears):
                    self._send(beacon, False, own)
