"""One peer that dialled us.  Plain state: what is done with it stands in `inbound_peers`."""

from __future__ import annotations

from meshmsg._wire import control as c


class Client:
    """A peer that dialled us."""

    __slots__ = ("greeted", "host", "instance", "last_seen", "nonce", "peer", "user")

    def __init__(self, hello: c.Hello, host: str, user: bytes, now: float) -> None:
        self.peer = hello.peer
        self.instance = hello.instance
        self.nonce = hello.nonce  #: what it wants us to prove our key with
        self.host = host
        self.user = user  #: who it is, as its key says
        self.last_seen = now
        self.greeted = False  #: told who we are
