"""Keys for tests: folders as `meshmsg keys` makes them, and sockets of those who have none."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from meshmsg import Security
from meshmsg._access.allow_list import Grant
from meshmsg._access.key_files import allow, new_folder, revoke
from meshmsg._access.keyring import Keyring, read_pair
from meshmsg._wire.control import Message, decode_message, encode_message
from meshmsg.transports.zmq.control import split_parts
from meshmsg.transports.zmq.curve import Curve, Pair, pair_of

#: A condition that a loaded machine takes its time for.
WAIT_S = 60.0


class Keys:
    """The key folders of one mesh; every one has the same allow-list."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.grants: list[Grant] = []
        self.mesh_key = secrets.token_urlsafe(32)

    def peer(self, name: str, **rights: Any) -> Security:
        """The security of a new peer, which all others allow."""
        made = new_folder(self.folder / name, name, self.mesh_key)
        grant = Grant(name, made.key, **rights)
        self.grants.append(grant)
        for path in self.folder.iterdir():
            for known in self.grants:
                allow(path, known)
        return Security(key_dir=str(self.folder / name))

    def revoke(self, name: str, at: str) -> None:
        assert revoke(self.folder / at, name)

    def change(self, at: str, name: str, **rights: Any) -> None:
        grant = next(grant for grant in self.grants if grant.name == name)
        allow(self.folder / at, Grant(name, grant.key, **rights))

    def number(self, name: str) -> int:
        """What a peer of this name may call its number."""
        return Keyring(Security(key_dir=str(self.folder / name))).draw_number()

    def pair(self, name: str) -> Pair:
        return read_pair(self.folder / name / "peer.key")

    def public(self, name: str) -> bytes:
        return self.pair(name).public


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path / "keys")


@pytest.fixture
def mesh_key() -> str:
    return secrets.token_urlsafe(32)


class Intruder:
    """Raw ZeroMQ sockets, with whatever keys it got hold of."""

    def __init__(self) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._sockets: list[zmq.Socket[bytes]] = []

    def socket(self, kind: int, address: str, curve: Curve | None = None, key: bytes = b"") -> Any:
        socket = self.context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        if curve is not None:
            curve.dial(socket, key or curve.doors[0])
        socket.connect(address)
        self._sockets.append(socket)
        return socket

    def listen(self, kind: int) -> Any:
        socket = self.context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        self._sockets.append(socket)
        return socket

    def say(self, socket: Any, message: Message) -> None:
        socket.send(encode_message(message))

    def hear(self, socket: Any, timeout_s: float = WAIT_S) -> Message:
        assert socket.poll(timeout_s * 1000), "nothing was said"
        return decode_message(split_parts(socket.recv())[0])

    def close(self) -> None:
        for socket in self._sockets:
            socket.close()
        self.context.term()


@pytest.fixture
def intruder() -> Iterator[Intruder]:
    found = Intruder()
    yield found
    found.close()


def curve_of(mesh_key: str, own: Pair | None = None) -> Curve:
    """What somebody has who knows the mesh key, and a key of its own or none that counts."""
    known = Keyring(Security(mesh_key=mesh_key)).curve
    own = own or pair_of(secrets.token_bytes(32))
    return Curve(known.door, known.data, own, known.doors)
