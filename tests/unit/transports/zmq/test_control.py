"""The control channel: parts travel as one message, and what waits to leave is bounded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import zmq

from meshmsg._wire.control import SMALL_BYTES_MAX
from meshmsg.transports.zmq import control
from meshmsg.transports.zmq.context import Context
from meshmsg.transports.zmq.control import (
    LARGE_BYTES,
    NOWHERE,
    PAIR,
    ControlClient,
    ControlServer,
    Unsent,
    join_parts,
    said_in,
    split_parts,
)
from tests.support.waiting import wait_until


@pytest.mark.parametrize("parts", [[b"a"], [b"a", b"frames"], [b"", b""], [b"a", b""]])
def test_parts_travel_as_one(parts: list[bytes]) -> None:
    assert split_parts(join_parts(parts)) == parts


def test_several_frames_become_one_part() -> None:
    assert split_parts(join_parts([b"head", b"one", b"two"])) == [b"head", b"onetwo"]


@pytest.mark.parametrize(
    "data", [b"", b"x", PAIR, PAIR + b"\0\0\0", PAIR + b"\5\0\0\0abcd", PAIR + b"\xff\xff\xff\xff"]
)
def test_what_was_not_joined_is_one_part(data: bytes) -> None:
    assert split_parts(data) == [data]


LARGE = bytes(SMALL_BYTES_MAX + 1)


def test_what_is_large_is_not_copied_before_it_is_looked_at() -> None:
    frame = zmq.Frame(LARGE)
    (said,) = said_in([frame])
    assert isinstance(said, memoryview)
    assert said.obj is frame.buffer.obj
    assert said_in([zmq.Frame(b"small")]) == [b"small"]
    assert isinstance(said_in([zmq.Frame(b"small")])[0], bytes)


@pytest.mark.parametrize("frame", [b"frame", LARGE])
def test_frames_that_go_along_are_not_copied_either(frame: bytes) -> None:
    said, along = said_in([zmq.Frame(join_parts([b"head", frame]))])
    assert (bytes(said), bytes(along)) == (b"head", frame)
    assert isinstance(along, memoryview) == (frame is LARGE)


def test_of_several_parts_nothing_is_read() -> None:
    assert said_in([zmq.Frame(b"a"), zmq.Frame(LARGE)]) == []
    assert said_in([]) == []


class Tracker:
    done = False


def test_what_waits_is_counted_until_it_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "UNSENT_BYTES_MAX", 100)
    unsent = Unsent()
    tracker = Tracker()
    assert unsent.queue(b"a", 60)
    unsent.leave(b"a", 60, tracker)  # type: ignore[arg-type]
    assert (unsent.of(b"a"), unsent.total) == (60, 60)
    assert unsent.queue(b"a", 60)
    assert not unsent.queue(b"a", 1)  # too much waits already
    assert unsent.queue(b"b", 1)
    tracker.done = True
    assert unsent.of(b"a") == 60
    unsent.leave(b"a", 60, None)  # nobody has it
    unsent.leave(b"b", 1, None)
    unsent.sweep()
    assert (unsent.of(b"a"), unsent.total, unsent._waiting) == (0, 0, {})


def test_all_clients_together_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "UNSENT_TOTAL_BYTES_MAX", 100)
    unsent = Unsent()
    assert unsent.queue(b"a", 60)
    assert unsent.queue(b"b", 60)
    assert not unsent.queue(b"c", 1)
    unsent.leave(b"unknown", 5, None)
    assert unsent.total == 120


Ends = tuple[ControlServer, ControlClient]


@pytest.fixture
def ends() -> Iterator[Ends]:
    context = Context()
    server = ControlServer(context)
    client = ControlClient(context, server.bind("tcp://127.0.0.1:*"))
    wait_until(lambda: any(client.monitor.read()))
    yield server, client
    client.close()
    server.close(0.0)
    context.zmq.destroy(linger=0)


def test_a_request_says_where_it_comes_from_and_is_answered(ends: Ends) -> None:
    server, client = ends
    assert server.recv() is None
    assert client.send([b"hello", b"frames"])
    server.wait(30.0)
    request = server.recv()
    assert request is not None
    assert (request.parts, request.host, request.user) == ([b"hello", b"frames"], "127.0.0.1", b"")
    assert request.size > len(b"hellframes")
    assert request.fd >= 0
    for answer in ([b"small"], [b"x", b"y" * 3 * LARGE_BYTES]):
        assert server.may_queue(request.identity, answer)
        assert server.send(request.identity, answer)
        assert client.pollable.poll(30_000)
        assert client.recv() == answer
    assert client.recv() is None
    wait_until(lambda: server.unsent.of(request.identity) == 0)
    assert client.look() == 0


def test_what_is_sent_to_nobody_is_gone_and_waits_for_nobody(ends: Ends) -> None:
    server, _ = ends
    answer = [b"x" * 2 * LARGE_BYTES]
    server.may_queue(b"nobody", answer)
    server.send(b"nobody", answer)
    wait_until(lambda: server.unsent.of(b"nobody") == 0)


def test_without_a_connection_nothing_is_kept_for_later() -> None:
    context = Context()
    client = ControlClient(context, "ipc:///nowhere/at/all")
    assert not client.send([b"x"])
    client.close()
    context.zmq.destroy(linger=0)


def test_one_whose_address_cannot_be_told_is_not_of_this_machine(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, _ = ends
    frames = [zmq.Frame(b"id"), zmq.Frame(b"hello")]  # ZeroMQ knows nothing of these
    stopped = SimpleNamespace(recv_multipart=lambda *args, **more: frames)
    monkeypatch.setattr(server, "_socket", stopped)
    request = server.recv()
    assert request is not None
    assert (request.parts, request.host) == ([b"hello"], NOWHERE)


def test_one_that_comes_by_ipc_has_no_address(tmp_path: Path) -> None:
    context = Context()
    server = ControlServer(context)
    client = ControlClient(context, server.bind(f"ipc://{tmp_path}/s"))
    wait_until(lambda: client.send([b"hello"]))
    server.wait(30.0)
    request = server.recv()
    assert request is not None
    assert request.host == ""
    client.close()
    server.close(0.0)
    context.zmq.destroy(linger=0)
