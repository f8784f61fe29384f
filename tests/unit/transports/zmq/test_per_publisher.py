"""Where it matters who said what, a message counts only from whom its stream belongs to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import zmq

from meshmsg._model.errors import ProtocolError
from meshmsg.transports.zmq.context import Context, bind
from meshmsg.transports.zmq.per_publisher import ApartFanoutClient, ApartWorkInlet
from tests.support.waiting import wait_until

ONE, TWO = b"stream-1", b"stream-2"


class Publisher:
    def __init__(self, context: Context) -> None:
        self.socket = context.socket(zmq.XPUB, send_queue=1000, recv_queue=1000)
        self.address = bind(self.socket, "tcp://127.0.0.1:*")
        self.seen: set[bytes] = set()

    def has(self, *prefixes: bytes) -> bool:
        while self.socket.poll(0):
            self.seen.add(self.socket.recv())
        return {b"\1" + prefix for prefix in prefixes} <= self.seen


class Bench:
    def __init__(self) -> None:
        self.context = Context()
        self.client = ApartFanoutClient(self.context, 1000)
        self.a, self.b = Publisher(self.context), Publisher(self.context)

    def recv(self) -> bytes:
        while (data := self.client.recv()) is None:
            self.client.wait(30.0)
        return data

    def close(self) -> None:
        self.client.close()
        self.a.socket.close(linger=0)
        self.b.socket.close(linger=0)
        self.context.zmq.destroy(linger=0)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


def test_each_publisher_is_asked_for_its_own_streams_and_all_for_tokens(bench: Bench) -> None:
    bench.client.subscribe(b"MMS1token---")
    bench.client.connect(bench.a.address, streams=[ONE])
    bench.client.connect(bench.b.address, streams=[TWO])
    wait_until(lambda: bench.a.has(ONE, b"MMS1token---") and bench.b.has(TWO, b"MMS1token---"))
    assert b"\1" + TWO not in bench.a.seen
    assert len(bench.client.fds) == 2


def test_a_message_in_the_name_of_another_is_dropped_and_counted(bench: Bench) -> None:
    bench.client.subscribe(b"")  # as a token: all that they send would come
    bench.client.connect(bench.a.address, streams=[ONE])
    bench.client.connect(bench.b.address, streams=[TWO])
    wait_until(lambda: bench.a.has(ONE, b"") and bench.b.has(TWO, b""))
    bench.a.socket.send(TWO + b"forged")
    bench.a.socket.send(ONE + b"own")
    assert bench.recv() == ONE + b"own"
    assert bench.client.came_from == bench.a.address
    assert bench.client.foreign == 1
    bench.b.socket.send(TWO + b"own")
    assert bench.recv() == TWO + b"own"


def test_publishers_take_turns(bench: Bench) -> None:
    bench.client.connect(bench.a.address, streams=[ONE])
    bench.client.connect(bench.b.address, streams=[TWO])
    wait_until(lambda: bench.a.has(ONE) and bench.b.has(TWO))
    for _ in range(3):
        bench.a.socket.send(ONE)
        bench.b.socket.send(TWO)
    for line in bench.client._order:
        line.socket.poll(30_000)
    first, second = bench.recv(), bench.recv()
    assert {first, second} == {ONE, TWO}


def test_more_streams_of_a_known_publisher_are_added_and_taken_away(bench: Bench) -> None:
    bench.client.connect(bench.a.address, streams=[ONE])
    bench.client.connect(bench.a.address, streams=[ONE, TWO])
    wait_until(lambda: bench.a.has(ONE, TWO))
    bench.client.unsubscribe(TWO)
    wait_until(lambda: bench.a.has() and b"\0" + TWO in bench.a.seen)
    bench.client.disconnect(bench.a.address)
    bench.client.disconnect(bench.a.address)
    assert bench.client.fds == ()
    assert bench.client.recv() is None
    assert bench.client.recv_soon() is None


def test_an_address_that_cannot_be_dialled_is_the_peers_mistake(bench: Bench) -> None:
    with pytest.raises(ProtocolError):
        bench.client.connect("nonsense", streams=[ONE])
    assert bench.client.fds == ()


def test_work_of_any_publisher_is_taken_and_says_where_it_came_from() -> None:
    context = Context()
    inlet = ApartWorkInlet(context, 100)
    pusher = context.socket(zmq.PUSH, send_queue=10, recv_queue=1)
    address = bind(pusher, "tcp://127.0.0.1:*")
    inlet.connect(address)
    pusher.send(b"work")
    data = None
    while data is None:
        inlet.wait(30.0)
        data = inlet.recv()
    assert (data, inlet.came_from, inlet.foreign) == (b"work", address, 0)
    inlet.close()
    pusher.close(linger=0)
    context.zmq.destroy(linger=0)
