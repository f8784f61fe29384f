"""Work for the members of groups in a simulated world: the verbs of `zmq.work_queue`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshmsg.transports.memory.control import Listener, Monitor
from meshmsg.transports.memory.fanout import Inlet
from meshmsg.transports.memory.network import Connection, Machine
from meshmsg.transports.zmq.context import companion


class WorkOutlet(Listener):
    """Sends work to one member, whose credit is the limit."""

    def __init__(self, machine: Machine, member: int, control_addresses: Sequence[str]) -> None:
        super().__init__(machine)
        self.monitor = Monitor(machine.network)
        self.member = member
        self.connected = False
        self.addresses = [(at, self.listen(companion(at))) for at in control_addresses]

    def on_accepted(self, connection: Connection) -> None:
        """See `Acceptor`."""
        super().on_accepted(connection)
        self.monitor.note(True)

    def on_gone(self, connection: Connection) -> None:
        """See `End`."""
        super().on_gone(connection)
        self.monitor.note(False)

    def on_message(self, connection: Connection, message: Any) -> None:
        """A member only takes."""

    def send(self, message: bytes) -> bool:
        """`False` if the member is not connected."""
        for connection in self.open:
            connection.send(self, bytes(message), len(message))
            return True
        return False

    def close(self, linger_s: float) -> None:
        """Close."""
        self.monitor.close()
        self.shut()


class WorkInlet(Inlet):
    """Takes work for one member, of any number of publishers."""
