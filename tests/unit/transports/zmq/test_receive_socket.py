"""A socket that takes messages of many publishers, and can be woken up."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import zmq

from meshmsg._model.errors import ProtocolError
from meshmsg.transports.zmq.context import Context, bind
from meshmsg.transports.zmq.receive_socket import ZmqInlet
from meshmsg.transports.zmq.unread_limit import limits_of
from tests.support.waiting import wait_until


class Bench:
    def __init__(self) -> None:
        self.context = Context()
        socket = self.context.socket(zmq.PULL, send_queue=0, recv_queue=100)
        self.inlet = ZmqInlet(self.context, socket, limits_of(1 << 20, 1 << 20))
        self.pushers: list[zmq.Socket[bytes]] = []

    def publisher(self) -> tuple[zmq.Socket[bytes], str]:
        made = self.context.socket(zmq.PUSH, send_queue=100, recv_queue=1)
        self.pushers.append(made)
        return made, bind(made, "tcp://127.0.0.1:*")

    def recv(self) -> bytes | None:
        while (data := self.inlet.recv()) is None:
            self.inlet.wait(30.0)
        return data

    def close(self) -> None:
        self.inlet.close()
        for pusher in self.pushers:
            pusher.close(linger=0)
        self.context.zmq.destroy(linger=0)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


def test_messages_of_all_publishers_come(bench: Bench) -> None:
    for word in (b"one", b"two"):
        pusher, address = bench.publisher()
        bench.inlet.connect(address)
        bench.inlet.connect(address)  # a second time: nothing
        pusher.send(word)
    assert {bench.recv(), bench.recv()} == {b"one", b"two"}
    assert bench.inlet.recv() is None
    assert bench.inlet.look() == 0


def test_a_message_that_comes_soon_is_taken_and_none_is_none(bench: Bench) -> None:
    pusher, address = bench.publisher()
    bench.inlet.connect(address)
    assert bench.inlet.recv_soon() is None
    pusher.send(b"x")
    found = None
    while found is None:
        found = bench.inlet.recv_soon()
    assert found == b"x"


def test_a_publisher_that_was_left_is_not_heard(bench: Bench) -> None:
    pusher, address = bench.publisher()
    bench.inlet.connect(address)
    pusher.send(b"x")
    assert bench.recv() == b"x"
    bench.inlet.disconnect(address)
    bench.inlet.disconnect(address)  # again: nothing
    wait_until(lambda: bench.inlet.recv() is None and not pusher.poll(0, zmq.POLLOUT))


def test_an_address_that_zeromq_does_not_take_is_the_peers_mistake(bench: Bench) -> None:
    with pytest.raises(ProtocolError, match="nonsense"):
        bench.inlet.connect("nonsense")
    with pytest.raises(ProtocolError):
        bench.inlet.connect("tcp://a:b:c")


def test_a_wake_up_call_ends_a_wait(bench: Bench) -> None:
    caller = threading.Timer(0.01, bench.inlet.wakeup.set)
    caller.start()
    bench.inlet.wait(60.0)
    caller.join()
    bench.inlet.wait(0.0)  # and was cleared
