"""What an attacker has: raw sockets, its keys if it is listed, and a pace that leaves others room.

A `Dialler` dials honest peers and asks; a `Dialled` has them dial it, by a valid `hello`, and then
answers whatever it likes.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import zmq
from msgspec.structs import replace
from zmq.utils import z85

from meshmsg import Security
from meshmsg._access.access_control import _transcript
from meshmsg._access.keyring import Keyring
from meshmsg._model.errors import ProtocolError
from meshmsg._wire import control as c
from meshmsg.transports.zmq.control import join_parts, split_parts
from tests.attack.mutate import Scene, raw
from tests.attack.shape import DATA, Shape, Step

NAME = "mallory"
WELCOME_S = 20.0
#: A link that says nothing for longer is given up by honest peers.
PING_S = 0.5
Said = c.Message | dict[str, Any] | bytes


def encoded(said: Said) -> bytes:
    """A message, its fields, or bytes as they are."""
    if isinstance(said, bytes):
        return said
    return raw(said) if isinstance(said, dict) else c.encode_message(said)


class Attacker:
    """One attack's means: whom it knows, what it may, how fast it goes."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.targets: dict[str, str] = order["targets"]
        self.data: str = order["data"]
        self.messages: int = order["messages"]
        self.seed: int = order["seed"]
        self.rng = random.Random(self.seed)
        self.scene = Scene(streams=dict(order["streams"]))
        keys = order.get("keys")
        self.keyring = None
        self.keys_of: dict[str, bytes] = {}
        if keys is not None:
            self.keyring = Keyring(Security(key_dir=str(Path(keys) / NAME)))
            self.keys_of = {grant.name: key for key, grant in self.keyring.grants.items()}
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.sent = 0
        self.shape = Shape(float(order.get("shape_s", 0)))
        self.steps: list[Step] = order.get("steps", [])  #: what a neutral load is to send
        self.blocked = ""  #: why an attack could not even begin
        self._rate = float(order["rate"])
        self._due = time.monotonic()
        self._deadline = time.monotonic() + float(order["seconds"])
        self._names = 0
        self._open: list[Any] = []

    @property
    def is_listed(self) -> bool:
        return self.keyring is not None

    def is_time_up(self) -> bool:
        return time.monotonic() >= self._deadline

    def count(self, where: str, size: int, *, paced: bool = True) -> None:
        """Wait, if it is faster than its pace; then a message is about to be sent."""
        self.sent += 1
        self._due = max(self._due, time.monotonic() - 0.05) + 1 / self._rate
        ahead = self._due - time.monotonic()
        if paced and ahead > 0.002:
            time.sleep(ahead)
        self.shape.note(where, size)

    def identity(self) -> tuple[str, int]:
        """A name and a number that honest peers take."""
        if self.keyring is not None:
            return NAME, self.keyring.draw_number()
        self._names += 1
        return f"{NAME}-{self._names}", self.rng.getrandbits(62)

    def socket(self, kind: int, address: str, options: dict[str, int], key: bytes = b"") -> Any:
        """A socket that dials; `key` is what the other side's socket has, by default the door's."""
        made = self.context.socket(kind)
        made.setsockopt(zmq.LINGER, 0)
        for name, value in options.items():
            made.setsockopt(getattr(zmq, name), value)
        if self.keyring is not None:
            self.keyring.curve.dial(made, key or self.keyring.curve.doors[0])
        made.connect(address)
        self._open.append(made)
        return made

    def listening(self, kind: int, *, door: bool) -> tuple[Any, str]:
        """A socket that is dialled, and where."""
        made = self.context.socket(kind)
        made.setsockopt(zmq.LINGER, 0)
        if self.keyring is not None:
            curve = self.keyring.curve
            made.setsockopt(zmq.CURVE_SERVER, 1)
            made.setsockopt(
                zmq.CURVE_SECRETKEY, z85.encode((curve.door if door else curve.data).secret)
            )
        port = made.bind_to_random_port("tcp://127.0.0.1")
        self._open.append(made)
        return made, f"tcp://127.0.0.1:{port}"

    def dial(self, target: str = "shop", **options: Any) -> Dialler:
        """A connection to a peer's control port that has been welcomed."""
        return Dialler(self, target, **options)

    def data_socket(self, **options: int) -> Any:
        """A connection to the shop's data port."""
        return self.socket(zmq.XSUB, self.data, options, self.keys_of.get("shop", b""))

    def close(self) -> None:
        for made in self._open:
            made.close()
        self.context.destroy(linger=0)


class Dialler:
    """A raw control connection to one peer."""

    def __init__(
        self, attacker: Attacker, target: str, *, hello: bool = True, unread: bool = False
    ) -> None:
        self._attacker = attacker
        self._target = target
        options = {"RCVHWM": 1, "RCVBUF": 4096} if unread else {"RCVHWM": 100_000}
        options |= {"SNDHWM": 1000, "SNDTIMEO": 2000}
        address = attacker.targets[target]
        self._socket = attacker.socket(zmq.DEALER, address, options)
        self.name, self.instance = attacker.identity()
        self.welcome: c.Welcome | None = None
        self._pinged = 0.0
        self._is_stuck = False
        if hello:
            self.greet()

    def hello(self, **changes: Any) -> c.Hello:
        fields: dict[str, Any] = {"peer": self.name, "instance": self.instance, "mesh": "default"}
        return c.Hello(**(fields | changes))

    def greet(self, **changes: Any) -> None:
        self.say(self.hello(**changes))
        deadline = time.monotonic() + WELCOME_S
        while self.welcome is None and time.monotonic() < deadline:
            said = self.hear(0.5)
            if isinstance(said, c.Welcome):
                self.welcome = said
            elif isinstance(said, c.Refused):
                raise RuntimeError(f"refused: {said.reason}")

    def say(self, said: Said, *, paced: bool = True) -> bool:
        """Send; what the other side does not take in time is not sent."""
        data = encoded(said)
        self._attacker.count(self._target, len(data), paced=paced)
        try:
            self._socket.send(data, zmq.NOBLOCK if self._is_stuck else 0)
        except zmq.Again:
            self._is_stuck = True  # from now on, nobody waits for it
            self._attacker.sent -= 1
            return False
        self._is_stuck = False
        return True

    def hear(self, timeout_s: float = 5.0) -> c.Message | None:
        if not self._socket.poll(timeout_s * 1000):
            return None
        try:
            return c.decode_message(bytes(split_parts(self._socket.recv())[0]))
        except ProtocolError:
            return None

    def drain(self) -> int:
        """Read and forget what is there."""
        count = 0
        with contextlib.suppress(zmq.Again):
            while True:
                self._socket.recv(zmq.NOBLOCK)
                count += 1
        return count

    def keep(self) -> None:
        """A sign of life, if it is time for one."""
        if time.monotonic() - self._pinged > PING_S:
            self._pinged = time.monotonic()
            with contextlib.suppress(zmq.Again):
                self._socket.send(encoded(c.Ping(1)), zmq.NOBLOCK)

    def close(self) -> None:
        self._socket.close()


class Dialled:
    """A peer that honest ones dial: it says hello with a stream, and they dial it back."""

    def __init__(self, attacker: Attacker, targets: Iterable[str], **welcome: Any) -> None:
        self._attacker = attacker
        self._router, self.address = attacker.listening(zmq.ROUTER, door=True)
        self._xpub, self.data = attacker.listening(zmq.XPUB, door=False)
        self.name, self.instance = attacker.identity()
        self.streams: list[c.StreamInfo] = [
            replace(one, name=one.name.replace(f"{NAME}/", f"{self.name}/", 1))
            for one in welcome.get("streams", [])
        ]
        self.recorded: list[c.StreamInfo] = welcome.get("recorded", [])
        self.names: dict[bytes, str] = {}  #: who has dialled, by routing id
        self.subs: dict[bytes, list[int]] = {}
        #: What is answered to a request beside a welcome and a pong.
        self.answers: Callable[[bytes, c.Message], Iterable[Said]] = lambda who, said: ()
        self.pong: Callable[[int], Said] = lambda n: c.Pong(n, self.instance, [])
        self.diallers: list[Dialler] = []
        for target in targets:
            dialler = attacker.dial(target, hello=False)
            dialler.name, dialler.instance = self.name, self.instance
            dialler.greet(listen=[self.address], streams=[f"{self.name}/x"])
            self.diallers.append(dialler)

    def welcome(self, hello: c.Hello) -> c.Welcome:
        """What it says to whom dials it, proved where keys are in use."""
        made = c.Welcome(
            self.name,
            self.instance,
            "default",
            self.streams,
            [(self.address, self.data)],
            recorded=self.recorded,
        )
        keyring = self._attacker.keyring
        key = self._attacker.keys_of.get(hello.peer)
        if keyring is None or key is None:
            return made
        proof = keyring.prove(key.hex().encode(), hello.nonce, _transcript(made))
        fields = {name: getattr(made, name) for name in made.__struct_fields__}
        return c.Welcome(**(fields | {"key": keyring.curve.own.public, "proof": proof}))

    def say(self, who: bytes, said: Said, frame: bytes | None = None) -> None:
        data = join_parts([encoded(said)] if frame is None else [encoded(said), frame])
        self._attacker.count(self.names.get(who, "shop"), len(data))
        with contextlib.suppress(zmq.ZMQError):
            self._router.send_multipart([who, data], zmq.NOBLOCK)

    def say_all(self, said: c.Message) -> None:
        """To each subscription of each peer that has dialled, as if it were meant for it."""
        fields = {name: getattr(said, name) for name in said.__struct_fields__}
        for who, subs in list(self.subs.items()):
            for sub in subs:
                own = {"sub": sub} if "sub" in fields else {}
                self.say(who, type(said)(**(fields | own)))

    def serve(self, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Answer for so long, or until a condition holds; returns whether it does."""
        deadline = time.monotonic() + seconds
        while not until():
            left = deadline - time.monotonic()
            if left <= 0 or self._attacker.is_time_up():
                return until()
            for dialler in self.diallers:
                dialler.keep()
                dialler.drain()
            if self._router.poll(min(left, 0.05) * 1000):
                self._read()
        return True

    def _read(self) -> None:
        for _ in range(1000):
            try:
                who, *parts = self._router.recv_multipart(zmq.NOBLOCK)
                said = c.decode_message(bytes(split_parts(parts[0])[0]))
            except zmq.Again:
                return
            except (ProtocolError, IndexError):
                continue
            if isinstance(said, c.Hello):
                self.names[who] = said.peer
                self.say(who, self.welcome(said))
            elif isinstance(said, c.Ping):
                self.say(who, self.pong(said.number))
            elif isinstance(said, c.Subscribe | c.Join):
                known = self.subs.setdefault(who, [])
                if said.sub not in known:
                    known.append(said.sub)
            for answer in self.answers(who, said):
                self.say(who, answer)

    def frames(self, data: bytes) -> None:
        """To whoever subscribed to it."""
        self._attacker.count(DATA, len(data))
        self._xpub.send(data, zmq.NOBLOCK)

    def prefixes(self) -> list[bytes]:
        """What others have subscribed to."""
        found = []
        with contextlib.suppress(zmq.Again):
            while True:
                found.append(self._xpub.recv(zmq.NOBLOCK)[1:])
        return found

    def close(self) -> None:
        for dialler in self.diallers:
            dialler.close()
        self._router.close()
        self._xpub.close()


class EndlessMessage:
    """A connection that sends one ZMTP message whose last part never comes."""

    def __init__(self, address: str, kind: bytes) -> None:
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=5)
        greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL".ljust(23, b"\0") + bytes(32)
        self._socket.sendall(greeting[:64])
        self._read(64)
        ready = b"\x05READY" + _property(b"Socket-Type", kind) + _property(b"Identity", b"")
        self._socket.sendall(b"\x04" + bytes([len(ready)]) + ready)
        self._read(2)

    def _read(self, count: int) -> None:
        while count > 0:
            data = self._socket.recv(count)
            if not data:
                raise ConnectionError("it hung up")
            count -= len(data)

    def send(self, part: bytes) -> None:
        """One more part; raises `OSError` once the other side has hung up."""
        head = b"\x03" + struct.pack(">Q", len(part)) if len(part) > 255 else bytes((1, len(part)))
        self._socket.sendall(head + part)

    def close(self) -> None:
        self._socket.close()


def _property(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + struct.pack(">I", len(value)) + value
