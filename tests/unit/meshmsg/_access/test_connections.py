"""Who gets in at the two ports of a peer, and whose connection is cut."""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq

from meshmsg import PeerConfig, Security
from meshmsg._access import connections
from meshmsg._access.access_control import Gate
from meshmsg._access.connections import Connections
from meshmsg._access.keyring import Keyring
from meshmsg._links.outbound_peer import LinkTable
from meshmsg._runtime import busy
from meshmsg._runtime.log_limit import LogLimit
from meshmsg.transports.zmq.context import Poller
from meshmsg.transports.zmq.control import ControlServer
from meshmsg.transports.zmq.curve import Curve, pair_of
from meshmsg.transports.zmq.fanout import FanoutServer
from meshmsg.transports.zmq.sockets import ZmqSockets
from tests.support.waiting import wait_until

KEY = "Zq3-uY8hJx0_vB5nRkT2wLmEo7sD1fGc9aXpQi4HyUz"


class Clock:
    """Whoever wants to know when this process is busy."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []
        self.add, self.remove = self.calls.append, self.calls.remove


class World:
    """The two ports of a peer, and those who dial them."""

    def __init__(self, mesh_key: str | None = None, connections_max: int = 100) -> None:
        self.keyring = None if mesh_key is None else Keyring(Security(mesh_key=mesh_key))
        self.counters: Counter[str] = Counter()
        gate = Gate(
            PeerConfig("shop"),
            self.keyring,
            LogLimit(logging.getLogger("meshmsg.peer"), self.counters),
            self.counters,
            LinkTable(),
            {},
            list,
            lambda stream: None,
            lambda sub: [],
            lambda keys, now: None,
        )
        self.context = ZmqSockets(None if self.keyring is None else self.keyring.curve)
        self.server = ControlServer(self.context)
        self.server.bind("tcp://127.0.0.1:*")
        secured = self.keyring is not None
        self.fanout = FanoutServer(
            self.context, 100, (lambda user, prefix: True) if secured else None
        )
        self.fanout.bind(self.server.addresses[0])
        self.poller = Poller()
        self.elsewhere = self.woken = 0
        self.connections = Connections(
            gate,
            self.context,
            self.server,
            self.fanout,
            self.poller,
            connections_max,
            lambda: self.elsewhere,
            self._wake,
        )
        self.gone: dict[str, list[int]] = {"control": [], "data": []}
        self.connections.open(self.gone["control"].append, self.gone["data"].append)
        self.outside: zmq.Context[Any] = zmq.Context()
        self._dialled: list[Any] = []
        self.heard: list[bytes] = []

    def _wake(self) -> None:
        self.woken += 1

    def dial(self, port: str = "control", curve: Curve | None = None, kind: int = 0) -> Any:
        socket = self.outside.socket(kind or (zmq.DEALER if port == "control" else zmq.SUB))
        self._dialled.append(socket)
        socket.setsockopt(zmq.LINGER, 0)
        if curve is not None:
            curve.dial(socket, curve.door.public if port == "control" else curve.data.public)
        address = self.server.addresses[0]
        socket.connect(address if port == "control" else self.fanout.addresses[0][1])
        return socket

    def turn(self) -> dict[str, Any]:
        """What the I/O thread does with what is readable; what is there by then."""
        for owner in self.poller.wait(0.0):
            assert self.connections.on_readable(owner)
        while (request := self.server.recv()) is not None:
            self.connections.spoke(request.fd, request.size)
            self.heard += request.parts
        self.connections.all_read()
        self.fanout.drain()
        return self.connections.stats()

    def has(self, **figures: int) -> bool:
        return figures.items() <= self.turn().items()

    def count(self, counter: str) -> int:
        self.turn()
        return self.counters[counter] + self.connections.tallies()[counter]

    def close(self) -> None:
        self.connections.close()
        self.server.close(0.0)
        self.fanout.close(0.0)
        self.outside.destroy(linger=0)
        self.context.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(busy, "watch", clock)
    return clock


@pytest.fixture
def worlds(clock: Clock) -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def make(*arguments: Any) -> World:
        made.append(World(*arguments))
        return made[-1]

    yield make
    for world in made:
        world.close()


def own_curve(mesh_key: str) -> Curve:
    return Keyring(Security(mesh_key=mesh_key)).curve


def test_who_came_is_silent_until_it_speaks_and_its_end_is_told(
    worlds: Callable[..., World],
) -> None:
    world = worlds()
    one, other = world.dial(), world.dial("data")
    wait_until(lambda: world.has(control=1, data=1, silent=2))
    one.send(b"hello")
    wait_until(lambda: world.has(silent=1))
    one.close()
    other.close()
    wait_until(lambda: world.has(control=0, data=0, silent=0))
    assert [len(fds) for fds in world.gone.values()] == [1, 1]
    assert world.count("connections") == 2


def test_what_is_readable_and_no_door_is_for_others(worlds: Callable[..., World]) -> None:
    assert not worlds().connections.on_readable(object())


@pytest.mark.parametrize("port", ["control", "data"])
def test_the_mesh_key_opens_both_ports_and_another_key_neither(
    worlds: Callable[..., World], port: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = worlds(KEY)
    good = world.dial(port, own_curve(KEY))
    if port == "control":
        good.send(b"hello")
    else:
        good.subscribe(b"streamid")
    wait_until(lambda: world.has(**{port: 1}, silent=0))
    stranger = pair_of(secrets.token_bytes(32))
    known = own_curve(KEY)
    world.dial(port, Curve(known.door, known.data, stranger, known.doors))
    wait_until(lambda: world.count("refused_keys"))
    # Only at the control port it is told that it may not: ZeroMQ gives up what is refused.
    assert (stranger.public.hex() in caplog.text) == (port == "control")


def test_handshakes_that_somebody_can_mend_are_explained_once(
    worlds: Callable[..., World], caplog: pytest.LogCaptureFixture
) -> None:
    world = worlds(KEY)
    for _ in range(2):
        world.dial("control", own_curve(KEY[::-1]))
    wait_until(lambda: world.count("wrong_mesh_keys") >= 2)
    assert caplog.text.count(connections.EXPLAINED["wrong_mesh_keys"]) == 1


def test_silent_connections_beyond_the_limit_are_cut(worlds: Callable[..., World]) -> None:
    world = worlds(None, 2)
    busy_ones = [world.dial() for _ in range(2)]
    for one in busy_ones:
        one.send(b"hello")
    wait_until(lambda: world.has(control=2, silent=0))
    world.dial()
    wait_until(lambda: world.count("connections_cut") >= 1)
    wait_until(lambda: world.has(control=2, silent=0))


def test_connections_are_looked_at_only_while_the_process_is_busy(
    worlds: Callable[..., World], clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    world = worlds()
    world.elsewhere = 3
    assert world.connections.on_tick(1.0) == float("inf")
    [call] = clock.calls
    call()
    assert world.woken == 1
    world.connections.on_tick(2.0)
    assert world.counters["connections_ahead"] == 3
    assert "never finish what they send" in caplog.text
    assert world.connections.on_tick(3.0) == float("inf")
    assert world.counters["connections_ahead"] == 3


def test_a_sender_that_never_finishes_a_message_is_cut(
    worlds: Callable[..., World], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = worlds()
    monkeypatch.setattr(connections, "AHEAD_BYTES_MAX", 1000)
    fast = world.dial()
    wait_until(lambda: world.has(control=1))
    for _ in range(20):
        fast.send(bytes(1000))

    def looked() -> bool:
        """All of it has come, and is not read."""
        for owner in world.poller.wait(0.0):
            world.connections.on_readable(owner)
        clock.calls[0]()
        world.connections.on_tick(float(world.woken))
        return world.counters["connections_ahead"] > 0

    wait_until(looked)
    assert len(world.gone["control"]) == 1


@pytest.mark.parametrize("all_of_them", [False, True])
def test_connections_are_ended_by_their_descriptor_or_all(
    worlds: Callable[..., World], all_of_them: bool
) -> None:
    world = worlds()
    sockets = [world.dial() for _ in range(2)]
    for socket in sockets:
        socket.send(b"hello")
    fds: list[int] = []

    def both_spoke() -> bool:
        while (request := world.server.recv()) is not None:
            fds.append(request.fd)
        return len(fds) == 2

    wait_until(both_spoke)
    if all_of_them:
        assert world.connections.cut_all() >= 2
    else:
        world.connections.cut_greedy(fds[0])
        assert world.counters["connections_greedy"] == 1
        world.connections.cut_greedy(2**31 - 1)  # it is gone already
        assert world.counters["connections_greedy"] == 1
    wait_until(lambda: world.turn() and len(world.gone["control"]) == 1 + all_of_them)


def test_who_talks_nonsense_where_subscriptions_are_made_stays_out_of_there(
    worlds: Callable[..., World], caplog: pytest.LogCaptureFixture
) -> None:
    world = worlds(KEY)
    curve = own_curve(KEY)
    liar = world.dial("data", curve, zmq.XSUB)
    wait_until(lambda: world.has(data=1))
    liar.send(b"no subscription")
    wait_until(lambda: world.count("bad_upstream"))
    wait_until(lambda: world.count("refused_keys"))  # it dials again
    assert "says nonsense where subscriptions are made" in caplog.text
    world.dial("control", curve).send(b"hello")
    wait_until(lambda: world.turn() and world.heard)


def test_nobody_is_called_when_it_is_closed(clock: Clock) -> None:
    world = World()
    assert len(clock.calls) == 1
    world.close()
    assert clock.calls == []
