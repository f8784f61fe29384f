"""A connection for reading a peer's logs: answers, and the end of the connection."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from meshmsg.transports.zmq.context import Context
from meshmsg.transports.zmq.control import ControlServer
from meshmsg.transports.zmq.replay_socket import Disconnected, ReplaySocket
from tests.support.ports import free_port


class Bench:
    def __init__(self) -> None:
        self.context = Context()
        self.server = ControlServer(self.context)
        self.client = ReplaySocket(self.server.bind("tcp://127.0.0.1:*"))

    def close_server(self) -> None:
        self.server.close(0.0)
        self.context.zmq.destroy(linger=0)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.client.close()


def test_a_question_is_answered_in_parts(bench: Bench) -> None:
    assert bench.client.send(b"ask")
    bench.server.wait(30.0)
    request = bench.server.recv()
    assert request is not None
    assert request.parts == [b"ask"]
    bench.server.send(request.identity, [b"head", b"frames"])
    parts = bench.client.recv(30.0)
    assert parts is not None
    assert [bytes(part) for part in parts] == [b"head", b"frames"]
    bench.close_server()


def test_no_answer_is_none_when_the_time_is_up(bench: Bench) -> None:
    assert bench.client.recv(0.01) is None
    bench.close_server()


def test_what_came_before_the_end_is_read_before_it_is_told(bench: Bench) -> None:
    bench.client.send(b"ask")
    bench.server.wait(30.0)
    request = bench.server.recv()
    assert request is not None
    bench.server.send(request.identity, [b"last"])
    assert bench.client.recv(30.0) is not None
    bench.close_server()
    with pytest.raises(Disconnected):
        bench.client.recv(60.0)


def test_nobody_there_is_no_answer() -> None:
    client = ReplaySocket(f"tcp://127.0.0.1:{free_port()}")
    assert client.recv(0.05) is None
    client.close()
