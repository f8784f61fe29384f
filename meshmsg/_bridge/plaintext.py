"""Edges speak protocols without keys: beyond this machine only where that was said."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshmsg._model.errors import ConfigError
from meshmsg.transports.discovery.addresses import is_loopback, split_target

if TYPE_CHECKING:
    from meshmsg._peer.peer import PeerBase

LOCAL = ("ipc", "unix", "abstract", "inproc")
#: TLS has keys of its own.
WITH_KEYS = ("tls+tcp", "tls+tcp4", "tls+tcp6", "wss")


def check_plain(peer: PeerBase, edge: str, host: str) -> None:
    """Raises `ConfigError` where an edge of a peer with keys would leave this machine unasked."""
    security = peer.config.security
    if security is None or edge in security.plain or is_loopback(host):
        return
    problem = f"{edge} has no keys, and {host} is beyond this machine: use a loopback address"
    raise ConfigError("security", f"{problem}, or say Security(..., plain={edge!r})")


def check_plain_url(peer: PeerBase, edge: str, url: str) -> None:
    """The same for a URL: only schemes that are known to stay here or to have keys may go far."""
    scheme, _, rest = url.partition("://")
    if scheme.lower() not in LOCAL + WITH_KEYS:
        target = split_target("tcp://" + rest.partition("/")[0])
        check_plain(peer, edge, "an unnamed host" if target is None else target.host)
