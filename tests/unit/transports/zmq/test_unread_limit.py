"""How far a connection is ahead: only what was not read counts, and only after all was read."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from meshmsg.transports.zmq import unread_limit
from meshmsg.transports.zmq.unread_limit import DialledMeter, Limits, Meter, is_foreign, taken_bytes

LIMITS = Limits(message=1000, queued=10_000)


def test_what_waits_unread_is_not_an_unfinished_message() -> None:
    """A slow reader: nine messages wait, and are read later."""
    meter = Meter(LIMITS)
    assert not meter.is_over(9000, 0, 0)
    for read in range(1, 10):
        assert not meter.is_over(0, read * 1000, 0)
    assert not meter.is_over(0, 9000, 1)
    assert meter.ahead == 0


def test_what_is_left_after_all_was_read_is_an_unfinished_message() -> None:
    meter = Meter(LIMITS)
    assert not meter.is_over(1001, 0, 5)
    assert not meter.is_over(0, 0, 5)  # nobody has read since
    assert meter.is_over(0, 0, 6)


def test_what_came_since_is_not_held_against_it() -> None:
    """It was seen empty after the last look; of what came later nothing is known."""
    meter = Meter(LIMITS)
    for look in range(100):
        assert not meter.is_over(5000, look * 5000, look)


def test_where_all_is_never_read_only_so_much_may_wait() -> None:
    meter = Meter(LIMITS)
    assert not meter.is_over(10_000, 0, 0)
    assert meter.is_over(1, 0, 0)


def test_cost_that_was_estimated_too_high_is_no_credit() -> None:
    meter = Meter(LIMITS)
    for look in range(1000):
        assert not meter.is_over(100, look * 164, look)
    assert not meter.is_over(2000, 1000 * 164, 1000)
    assert meter.is_over(0, 1000 * 164, 1001)


def test_the_kernel_knows_what_was_read() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as one,
    ):
        other, _ = server.accept()
        with other:
            one.sendall(bytes(50_000))
            assert len(other.recv(20_000, socket.MSG_WAITALL)) == 20_000
            assert taken_bytes(other.fileno()) == 20_000
        assert taken_bytes(server.fileno()) in (0, None)
    left, right = socket.socketpair()
    with left, right:
        assert taken_bytes(left.fileno()) is None
    assert taken_bytes(10_000_000) is None


def test_a_connection_over_ipc_to_another_user_is_cut(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket has to be short
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as one:
        server.bind("s")
        server.listen()
        one.connect("s")
        meter = DialledMeter(LIMITS)
        assert not is_foreign(one.fileno())
        assert meter.look([one.fileno()], 0, 0) == 0
        monkeypatch.setattr(unread_limit, "own_users", lambda: {os.geteuid() + 1})
        assert meter.look([one.fileno()], 0, 0) == 1
        assert one.recv(1) == b"", "it was shut"


def test_a_connection_over_tcp_is_to_nobodys_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread_limit, "own_users", set)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as one,
    ):
        assert not is_foreign(one.fileno())
    assert not is_foreign(one.fileno())
