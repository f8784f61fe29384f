"""Machines, connections and datagrams."""

from typing import Any

import pytest

from meshmsg._model.errors import BindError, ClosedError
from meshmsg.transports.memory.network import (
    BREAKS_AFTER_S,
    Connection,
    Dialler,
    Machine,
    Network,
    Signal,
    Way,
    wait_for,
)
from meshmsg.transports.memory.platform import MemoryPlatform


class Server:
    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.open: list[Connection] = []
        self.got: list[Any] = []

    def on_accepted(self, connection: Connection) -> None:
        self.open.append(connection)

    def on_message(self, connection: Connection, message: Any) -> None:
        connection.taken(self)
        self.got.append(message)

    def on_gone(self, connection: Connection) -> None:
        self.open.remove(connection)


class World:
    def __init__(self, seed: int = 0, way: Way | None = None) -> None:
        self.platform = MemoryPlatform(seed, way)
        self.network: Network = self.platform.network
        self.a, self.b = self.platform.machine("a"), self.platform.machine("b")
        self.server = Server(self.a)
        self.address = self.network.listen("tcp://127.0.0.1:*", self.server)
        self.got: list[Any] = []
        self.events: list[str] = []
        self.dialler = Dialler(
            self.b,
            self.address,
            lambda: self.events.append("opened"),
            lambda connection, message: self.got.append(message),
            lambda: self.events.append("gone"),
        )
        self.wait(0.1)

    def wait(self, seconds: float) -> None:
        self.platform.sleep(seconds)


def test_messages_come_in_order_both_ways() -> None:
    world = World(way=Way(jitter_s=0.05, loss=0.2))
    world.wait(10)
    for n in range(50):
        assert world.dialler.send(n, 1)
    world.server.open[0].send(world.server, "back", 4)
    world.wait(30)
    assert world.server.got == list(range(50))
    assert world.got == ["back"]


def test_bandwidth_makes_large_messages_late() -> None:
    world = World(way=Way(bytes_per_s=1000.0))
    world.dialler.send("large", 5000)
    world.wait(4.0)
    assert not world.server.got
    world.wait(2.0)
    assert world.server.got == ["large"]


def test_port_that_is_taken_is_not_given_again() -> None:
    world = World()
    with pytest.raises(BindError, match="taken"):
        world.network.listen(world.address, Server(world.b))


def test_who_dials_nobody_tries_until_somebody_listens() -> None:
    world = World()
    events: list[str] = []
    Dialler(world.b, "tcp://h:1", lambda: events.append("opened"), lambda c, m: None, lambda: None)
    world.wait(5)
    assert not events
    world.network.listen("tcp://h:1", Server(world.a))
    world.wait(2)
    assert events == ["opened"]


def test_broken_connection_loses_what_is_on_its_way_and_is_dialled_again() -> None:
    world = World()
    world.dialler.send("lost", 1)
    world.server.open[0].break_off()
    assert world.events == ["opened", "gone"]
    assert not world.dialler.send("refused", 1)
    world.wait(1)
    world.dialler.send("new", 1)
    world.wait(1)
    assert world.server.got == ["new"]
    assert len(world.server.open) == 1


def test_what_is_sent_before_the_end_still_comes() -> None:
    world = World()
    world.dialler.send("last", 4)
    world.dialler.close()
    world.wait(1)
    assert world.server.got == ["last"]
    assert not world.server.open


def test_short_cut_delays_and_a_long_one_breaks() -> None:
    world = World()
    world.network.own_way("b", "a").is_cut = True
    world.dialler.send("late", 4)
    world.wait(1)
    assert not world.server.got
    world.network.own_way("b", "a").is_cut = False
    world.wait(1)
    assert world.server.got == ["late"]
    world.network.own_way("b", "a").is_cut = True
    world.dialler.send("never", 5)
    world.wait(BREAKS_AFTER_S + 2)
    assert world.server.got == ["late"]
    assert world.events[-1] == "gone"


@pytest.mark.parametrize("power", [False, True])
def test_dead_machine_is_noticed_at_once_or_after_a_while(power: bool) -> None:
    world = World()
    world.platform.kill("a", power=power)
    world.wait(0.5)
    assert world.events == (["opened"] if power else ["opened", "gone"])
    world.wait(BREAKS_AFTER_S)
    assert world.events == ["opened", "gone"]
    with pytest.raises(ClosedError, match="a was killed"):
        world.a.check()


class Ear:
    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.address = ("239.1.1.1", 9000)
        self.got: list[bytes] = []
        machine.datagrams[self] = None

    def on_datagram(self, data: bytes, source: Any) -> None:
        self.got.append(data)


def test_datagrams_are_lost_doubled_and_overtaken_one_at_a_time() -> None:
    world = World(3, Way(loss=0.1, duplication=0.1, jitter_s=0.01))
    ear, other = Ear(world.b), Ear(world.platform.machine("c"))
    for n in range(200):
        world.network.datagram(b"%d" % n, ("h", 1), ("239.1.1.1", 9000), world.a)
    world.wait(1)
    for got in (ear.got, other.got):
        assert 150 < len(set(got)) < 200
        assert len(got) > len(set(got))
        assert got != sorted(got, key=int)
    assert ear.got != other.got


def test_waiting_for_signals_ends_with_the_time() -> None:
    world = World()
    ready: list[int] = []
    signal = Signal(world.platform.scheduler, lambda: bool(ready))
    assert wait_for(world.platform.scheduler, [signal], 1.0) == []
    world.platform.scheduler.at(world.platform.scheduler.now + 1, lambda: ready.append(1))
    world.platform.scheduler.at(world.platform.scheduler.now + 1, signal.notify)
    assert wait_for(world.platform.scheduler, [signal], 5.0) == [signal]
