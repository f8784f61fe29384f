"""What ZeroMQ sockets share: limits, addresses, polling, and who came and went."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from meshmsg._model.errors import BindError
from meshmsg.transports.wakeup import Wakeup
from meshmsg.transports.zmq import context as zmq_context
from meshmsg.transports.zmq.context import (
    MESSAGE_BYTES_MAX,
    Context,
    Monitor,
    Poller,
    bind,
    companion,
    milliseconds,
    source_fd,
    user_id,
)
from tests.support.waiting import wait_until

#: The greeting of ZMTP 3.0 without security, and a command that nobody greets with.
STRANGE = b"\xff" + bytes(8) + b"\x7f\x03\0" + b"NULL".ljust(20, b"\0") + bytes(32) + b"\4\6\5HELLO"


@pytest.fixture
def context() -> Iterator[Context]:
    made = Context()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0, 0), (-1, 0), (0.0001, 1), (0.001, 1), (0.0011, 2), (2, 2000)]
)
def test_waits_are_rounded_up(seconds: float, expected: int) -> None:
    assert milliseconds(seconds) == expected


def test_an_ipc_address_lets_in_its_own_user_and_nobody_else(
    context: Context, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket has to be short
    for name, own in ("ours", zmq_context.own_users()), ("theirs", {os.geteuid() + 1}):
        monkeypatch.setattr(zmq_context, "own_users", lambda own=own: own)
        server = context.socket(zmq.PULL, send_queue=0, recv_queue=0)
        events = zmq_context.watch(server, zmq.EVENT_ACCEPTED | zmq.EVENT_ACCEPT_FAILED)
        address = bind(server, f"ipc://{name}")
        os.chmod(name, 0o777)
        client = context.socket(zmq.PUSH, send_queue=0, recv_queue=0)
        client.connect(address)
        came = int.from_bytes(events.recv_multipart()[0][:2], "little") == zmq.EVENT_ACCEPTED
        assert came == (os.geteuid() in own)
        zmq_context.unwatch(server)
        for one in (events, client, server):
            one.close(linger=0)


def test_the_data_address_is_beside_the_control_address() -> None:
    assert companion("tcp://1.2.3.4:7000") == "tcp://1.2.3.4:*"
    assert companion("tcp://[::1]:7000") == "tcp://[::1]:*"
    assert companion("ipc:///tmp/x") == "ipc:///tmp/x.data"


def test_every_socket_has_limits(context: Context) -> None:
    made = context.socket(zmq.DEALER, send_queue=7, recv_queue=8, ipv6=True)
    assert made.getsockopt(zmq.SNDHWM) == 7
    assert made.getsockopt(zmq.RCVHWM) == 8
    assert made.getsockopt(zmq.MAXMSGSIZE) == MESSAGE_BYTES_MAX
    assert made.getsockopt(zmq.LINGER) == 0
    assert made.getsockopt(zmq.IPV6) == 1
    made.close()


@pytest.mark.parametrize("port", ["*", "0"])
def test_a_free_port_is_taken_and_told(context: Context, port: str) -> None:
    made = context.socket(zmq.ROUTER, send_queue=1, recv_queue=1)
    address = bind(made, f"tcp://127.0.0.1:{port}")
    assert int(address.rpartition(":")[2]) > 0
    made.close()


def test_a_port_that_cannot_be_bound_is_told_in_words(context: Context) -> None:
    made = context.socket(zmq.ROUTER, send_queue=1, recv_queue=1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(BindError, match="the port is taken"):
            bind(made, address)
    with pytest.raises(BindError, match="no interface of this machine"):
        bind(made, "tcp://203.0.113.7:*")
    with pytest.raises(BindError):
        bind(made, "nonsense")
    made.close()


def test_a_poller_waits_for_those_it_was_given(context: Context) -> None:
    class Owner:
        def __init__(self) -> None:
            self.wakeup = Wakeup()
            self.pollable = self.wakeup.fd

    one, other = Owner(), Owner()
    poller = Poller()
    poller.add(one)
    poller.add(other)
    assert poller.wait(0) == []
    one.wakeup.set()
    assert poller.wait(30) == [one]
    poller.remove(one)
    poller.remove(one)  # again: nothing
    assert poller.wait(0) == []
    for owner in (one, other):
        owner.wakeup.close()


def test_a_number_that_is_anothers_by_now_is_not_removed() -> None:
    class Owner:
        def __init__(self, fd: int) -> None:
            self.pollable = fd

    wakeup = Wakeup()
    poller = Poller()
    old, new = Owner(wakeup.fd), Owner(wakeup.fd)
    poller.add(old)
    poller.add(new)
    poller.remove(old)
    wakeup.set()
    assert poller.wait(30) == [new]
    wakeup.close()


def test_a_monitor_tells_of_connections_and_not_of_strangers(context: Context) -> None:
    server = context.socket(zmq.ROUTER, send_queue=9, recv_queue=9)
    address = bind(server, "tcp://127.0.0.1:*")
    monitor = Monitor(server)
    seen: list[bool] = []

    def has_seen(*expected: bool) -> bool:
        seen.extend(monitor.read())
        return tuple(seen) == expected

    with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))) as stranger:
        stranger.sendall(STRANGE)
        wait_until(lambda: list(monitor.read()) == [] and monitor.failures > 0)
    client = context.socket(zmq.DEALER, send_queue=9, recv_queue=9)
    context.connect(client, address)
    wait_until(lambda: has_seen(True))
    assert len(monitor.open_fds()) >= 1
    assert monitor.ended_at is None or monitor.failures
    client.send(b"x")
    server.poll(30_000)
    frame = server.recv_multipart(copy=False)[-1]
    assert source_fd(frame) in monitor.open_fds()
    assert user_id(frame) == b""
    client.close()
    wait_until(lambda: has_seen(True, False))
    assert monitor.ended_at is not None
    monitor.close()
    server.close()
