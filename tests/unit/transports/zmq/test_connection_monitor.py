"""Connections of a bound socket: who is there, who gives way, and how one is cut."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator

import pytest
import zmq

from meshmsg.transports.zmq import connection_monitor as doors
from meshmsg.transports.zmq.connection_monitor import (
    Connection,
    Door,
    connections_allowed,
    cut,
    cut_all,
    files_over,
)
from meshmsg.transports.zmq.context import Context, bind
from meshmsg.transports.zmq.unread_limit import limits_of
from tests.support.waiting import wait_until

LIMITS = limits_of(1024, 1 << 20)
#: The greeting of ZMTP 3.0 without security, and a command that nobody greets with.
STRANGE = b"\xff" + bytes(8) + b"\x7f\x03\0" + b"NULL".ljust(20, b"\0") + bytes(32) + b"\4\6\5HELLO"


class Bench:
    def __init__(self) -> None:
        self.context = Context()
        self.server = self.context.socket(zmq.ROUTER, send_queue=9, recv_queue=9)
        self.address = bind(self.server, "tcp://127.0.0.1:*")
        self.door = Door(self.server, LIMITS)
        self.gone: list[int] = []
        self.door.gone = self.gone.append

    def dial(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", int(self.address.rpartition(":")[2])))

    def has(self, count: int) -> bool:
        self.door.read()
        return len(self.door.open) == count

    def close(self) -> None:
        self.door.close()
        self.server.close()
        self.context.zmq.destroy(linger=0)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


def test_who_comes_and_goes_is_noted(bench: Bench) -> None:
    with bench.dial():
        wait_until(lambda: bench.has(1))
        [fd] = bench.door.open
        assert bench.door.open[fd].host == "127.0.0.1"
        assert list(bench.door.silent) == [fd]
        bench.door.spoke(fd, 10)
        assert not bench.door.silent
        assert bench.door.open[fd].got > 10
        bench.door.spoke(99_999, 10)  # one that is gone
    wait_until(lambda: bench.has(0))
    assert bench.gone == [fd]
    assert bench.door.counters["connections"] == 1


def test_strangers_are_counted(bench: Bench) -> None:
    with bench.dial() as stranger:
        stranger.sendall(STRANGE)
        wait_until(lambda: bench.has(0) and bench.door.counters["strange_connections"] > 0)
    assert bench.door.counters["handshakes_failed"] > 0


def test_a_connection_of_ours_is_cut_and_nothing_else(bench: Bench) -> None:
    other = socket.create_server(("127.0.0.1", 0))
    guest = socket.create_connection(other.getsockname())
    with bench.dial() as client, other, guest:
        client.settimeout(60.0)
        wait_until(lambda: bench.has(1))
        descriptors = [guest.fileno(), other.fileno(), -1, 99_999]
        assert cut(descriptors, [bench.address]) == 0
        assert cut(bench.door.open, []) == 0
        assert cut(bench.door.open, [bench.address]) == 1
        while client.recv(100):
            pass  # its greeting, and then the end
        wait_until(lambda: bench.has(0))
        guest.sendall(b"still there")
    with bench.dial():  # what listens goes on doing so
        wait_until(lambda: bench.has(1))


def test_all_connections_to_an_address_are_cut(bench: Bench) -> None:
    clients = [bench.dial() for _ in range(3)]
    wait_until(lambda: bench.has(3))
    assert cut_all([bench.address]) == 3
    wait_until(lambda: bench.has(0))
    for client in clients:
        client.close()


def put(door: Door, hosts: list[str], silent: set[int]) -> None:
    for fd, host in enumerate(hosts, 1000):
        door.open[fd] = Connection(host, LIMITS)
        if fd - 1000 in silent:
            door.silent[fd] = None


def test_silent_ones_give_way_first_then_the_newest_of_the_host_with_most(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doors, "files_over", lambda: 0)
    put(bench.door, ["a", "b", "b", "b", "a"], {0})
    assert bench.door.superfluous(5) == []
    assert bench.door.superfluous(4) == [1000]
    assert bench.door.superfluous(2) == [1000, 1003, 1002]
    monkeypatch.setattr(doors, "files_over", lambda: 2)
    assert bench.door.superfluous(100) == [1000, 1003]
    bench.door.open.clear()
    assert bench.door.superfluous(100) == []


def test_a_connection_that_is_too_far_ahead_is_told(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(bench.door, ["a", "a", "b"], set())
    taken = {1000: 0, 1001: 0, 1002: 0}
    monkeypatch.setattr(doors, "taken_bytes", taken.get)
    assert bench.door.look(1 << 30) == []
    taken[1000] = 1 << 30
    assert bench.door.look(1 << 60) == [1000]
    taken[1002] = None  # type: ignore[assignment]
    assert 1002 not in bench.door.look(1 << 60)


def test_when_all_together_are_too_far_ahead_the_heaviest_host_gives_way(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(bench.door, ["a", "a", "b"], set())
    taken = dict.fromkeys((1000, 1001, 1002), 0)
    monkeypatch.setattr(doors, "taken_bytes", taken.get)
    bench.door.look(1 << 30)
    for fd, size in ((1000, 40_000), (1001, 60_000), (1002, 50_000)):
        taken[fd] = size
    over = bench.door.look(100_000)
    assert over
    assert set(over) <= {1000, 1001}
    assert over[0] == 1001


def test_a_share_of_the_files_is_for_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda what: (1000, 1000))
    assert connections_allowed(10_000, 0.5) == 500
    assert connections_allowed(100, 0.5) == 100
    monkeypatch.setattr(resource, "getrlimit", lambda what: (resource.RLIM_INFINITY, -1))
    assert connections_allowed(10_000, 0.5) == 10_000
    assert files_over() == 0


def test_files_run_short_by_the_lowest_that_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    monkeypatch.setattr(resource, "getrlimit", lambda what: (8, 8))
    assert files_over() == max(0, lowest - 7)
    monkeypatch.setattr(resource, "getrlimit", lambda what: (1 << 20, 1 << 20))
    assert files_over() == 0

    def full(*_: object) -> int:
        raise OSError

    monkeypatch.setattr(resource, "getrlimit", lambda what: (80, 80))
    monkeypatch.setattr(doors.os, "open", full)
    assert files_over() == 10
