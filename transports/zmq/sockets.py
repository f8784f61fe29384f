"""All ZeroMQ sockets of one peer, made in one place."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meshmsg.transports.wakeup import Wakeup
from meshmsg.transports.zmq.context import Context, Poller
from meshmsg.transports.zmq.control import ControlClient, ControlServer
from meshmsg.transports.zmq.fanout import FanoutClient, FanoutServer
from meshmsg.transports.zmq.per_publisher import ApartFanoutClient, ApartWorkInlet
from meshmsg.transports.zmq.unread_limit import MEASURED
from meshmsg.transports.zmq.work_queue import WorkInlet, WorkOutlet
from meshmsg.transports.zmq.zap import ZapServer


class ZmqSockets(Context):
    """A context that makes the sockets, too; `transports.memory` has one with the same verbs."""

    #: Whether anything is known of what connections are ahead (`unread_limit`).
    measured = MEASURED

    def poller(self) -> Poller:
        """Waits for several of them."""
        return Poller()

    def wakeup(self) -> Wakeup:
        """A call that a poller can wait for."""
        return Wakeup()

    def control_server(self) -> ControlServer:
        """Listens for control messages."""
        return ControlServer(self)

    def control_client(self, address: str, key: bytes = b"") -> ControlClient:
        """Dials a peer."""
        return ControlClient(self, address, key)

    def fanout_server(
        self, queue_frames: int, may: Callable[[bytes, bytes], bool] | None = None
    ) -> FanoutServer:
        """Sends frames to subscribers."""
        return FanoutServer(self, queue_frames, may)

    def fanout_client(self, queue_frames: int, *, apart: bool = False) -> FanoutClient:
        """Takes frames for a subscription; `apart`, by a socket for each publisher."""
        return (ApartFanoutClient if apart else FanoutClient)(self, queue_frames)

    def work_outlet(self, member: int, addresses: Sequence[str], user: bytes = b"") -> WorkOutlet:
        """Sends work to one member of a group; raises `BindError`."""
        return WorkOutlet(self, member, addresses, user)

    def work_inlet(self, credit: int, *, apart: bool = False) -> WorkInlet:
        """Takes work for a member; `apart`, by a socket for each publisher."""
        return (ApartWorkInlet if apart else WorkInlet)(self, credit)

    def zap_server(self) -> ZapServer:
        """Hears who wants in, where there are keys."""
        return ZapServer(self)
