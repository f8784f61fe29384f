"""Where a peer gets its sockets: ZeroMQ's and UDP's, or those of the platform that it runs on.

This is the one place that asks which transport it is.
"""

from __future__ import annotations

from meshmsg import _platform
from meshmsg._model.multicast_config import Multicast
from meshmsg.transports.discovery import addresses
from meshmsg.transports.discovery.mdns import Beacon, Listener
from meshmsg.transports.udp.multicast import Group, MulticastClient, MulticastServer
from meshmsg.transports.zmq.curve import Curve
from meshmsg.transports.zmq.fanout import FanoutClient
from meshmsg.transports.zmq.sockets import ZmqSockets


def new_context(curve: Curve | None, handshake_s: float) -> ZmqSockets:
    """A context for the sockets of a peer that opens now."""
    own = _platform.current().sockets
    if own is None:
        return ZmqSockets(curve, handshake_s)
    return own.context(curve)  # type: ignore[no-any-return]


def multicast_server(config: Multicast, interface: str) -> MulticastServer:
    """A publisher's sockets for one stream; raises `ConfigError`, `BindError`."""
    own = _platform.current().sockets
    if own is None:
        return MulticastServer(config, interface)
    return own.multicast_server(config, interface)  # type: ignore[no-any-return]


def multicast_client(
    group: Group, buffer_bytes: int, spin_s: float, beside: FanoutClient
) -> MulticastClient:
    """A subscription's sockets for one group, beside its data socket; raises `BindError`."""
    own = _platform.current().sockets
    if own is None:
        return MulticastClient(group, None, buffer_bytes, spin_s)
    return own.multicast_client(group, buffer_bytes, beside)  # type: ignore[no-any-return]


def new_beacon(interfaces: tuple[str, ...], listener: Listener) -> Beacon:
    """A peer's use of mDNS; raises `OSError` where the system does not let us."""
    own = _platform.current().sockets
    return Beacon(interfaces, listener) if own is None else own.beacon(listener)


def why_unreachable(address: str, timeout_s: float) -> str:
    """What is the matter with an address at which nobody answers, in words."""
    own = _platform.current().sockets
    if own is None:
        return addresses.why_unreachable(address, timeout_s)
    return own.why_unreachable(address)  # type: ignore[no-any-return]
