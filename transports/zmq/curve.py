"""CURVE: the keys of ZeroMQ sockets, and how sockets put them on.

Whoever listens has a key that those who dial must know; whoever dials shows a key of its own, which
the listening side judges (`zap`).  Which keys these are is decided elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import zmq
from zmq.utils import z85

from meshmsg._model.errors import ConfigError

KEY_BYTES = 32
#: Who listens, as the one who judges is told: the control channel, fan-out, work for one member.
CONTROL = b"control"
DATA = b"data"
WORK = b"work:"


@dataclass(frozen=True, slots=True)
class Pair:
    """A public key and its secret one, 32 bytes each."""

    public: bytes
    secret: bytes = field(repr=False)


def pair_of(secret: bytes) -> Pair:
    """The pair of a secret key; raises `ConfigError` where ZeroMQ was built without CURVE."""
    if not zmq.has("curve"):
        raise ConfigError("security", "this pyzmq has no CURVE: pip install --upgrade pyzmq")
    return Pair(z85.decode(zmq.curve_public(z85.encode(secret))), secret)


@dataclass(frozen=True, slots=True)
class Curve:
    """The keys of one peer's sockets."""

    door: Pair
    """Of its control channel, where everyone comes who knows the mesh key."""
    data: Pair
    """Of its data sockets."""
    own: Pair
    """What it shows where it dials."""
    doors: tuple[bytes, ...]
    """Public keys of others' control channels: one for each mesh key, the one in use first."""

    def listen(self, socket: zmq.Socket[bytes], domain: bytes) -> None:
        """Have a socket that will be bound let in only those who may."""
        pair = self.door if domain == CONTROL else self.data
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, pair.secret)
        socket.setsockopt(zmq.ZAP_DOMAIN, domain)
        # Without anybody who judges, nobody comes in.
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)

    def dial(self, socket: zmq.Socket[bytes], key: bytes) -> None:
        """Have a socket show who we are in what it connects from now on, and to whom."""
        socket.setsockopt(zmq.CURVE_PUBLICKEY, self.own.public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.own.secret)
        socket.setsockopt(zmq.CURVE_SERVERKEY, key)
