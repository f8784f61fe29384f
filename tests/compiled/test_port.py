"""Ports to ZeroMQ sockets: the compiled one and pyzmq's do the same; lent bytes come back."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator

import pytest
import zmq

from meshmsg._native import COMPILED
from meshmsg.transports.zmq.port import PlainPort, Port, port_of, settle_loans
from tests.support.waiting import wait_until

LARGE = bytes(range(256)) * 400  # lent
SMALL = b"small"

WAYS = [
    pytest.param(PlainPort, id="pyzmq"),
    pytest.param(
        port_of,
        id="compiled",
        marks=pytest.mark.skipif(not COMPILED, reason="the compiled core is not in use"),
    ),
]
Pair = tuple["zmq.Socket[bytes]", "zmq.Socket[bytes]"]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A PUSH socket that is bound, and a PULL socket that has yet to connect."""
    with zmq.Context() as context:
        out, into = context.socket(zmq.PUSH), context.socket(zmq.PULL)
        for one in (out, into):
            one.setsockopt(zmq.LINGER, 0)
        out.bind("tcp://127.0.0.1:*")
        yield out, into
        out.close()
        into.close()


def connect(pair: Pair) -> None:
    out, into = pair
    into.connect(out.getsockopt_string(zmq.LAST_ENDPOINT))
    assert out.poll(10_000, zmq.POLLOUT)


def take(port: Port, into: zmq.Socket[bytes]) -> bytes:
    assert into.poll(10_000)
    data = port.recv()
    assert data is not None
    return data


@pytest.mark.parametrize("way", WAYS)
def test_messages_pass_whole_and_in_order(way: Callable[..., Port], pair: Pair) -> None:
    out, into = pair
    sender, receiver = way(out), way(into)
    assert sender.send(SMALL) is False, "nobody is connected, and it does not wait"
    assert sender.send(LARGE) is False
    assert receiver.recv() is None
    connect(pair)
    sent = [b"", SMALL, LARGE, b"x" * 8191, b"y" * 8192, b"z" * (1 << 20)]
    assert [sender.send(message) for message in sent] == [True] * len(sent)
    assert [take(receiver, into) for _ in sent] == sent
    assert receiver.recv() is None


@pytest.mark.parametrize("way", WAYS)
def test_closed_port_says_so(way: Callable[..., Port], pair: Pair) -> None:
    out, into = pair
    sender, receiver = way(out), way(into)
    for port, socket in ((sender, out), (receiver, into)):
        port.close()
        socket.close()
    with pytest.raises((OSError, zmq.ZMQError)):
        sender.send(SMALL)
    with pytest.raises((OSError, zmq.ZMQError)):
        sender.send(LARGE)
    with pytest.raises((OSError, zmq.ZMQError)):
        receiver.recv()


@pytest.mark.skipif(not COMPILED, reason="the compiled core is not in use")
def test_lent_bytes_come_back(pair: Pair) -> None:
    out, into = pair
    port = port_of(out)
    assert type(port).__name__ == "Port", "found libzmq"
    message = bytes(bytearray(100_000))
    before = sys.getrefcount(message)
    assert port.send(message) is False
    settle_loans()
    assert sys.getrefcount(message) == before, "what was not taken is not kept"
    connect(pair)
    assert port.send(message)
    assert sys.getrefcount(message) == before + 1, "lent"
    assert into.poll(10_000)
    assert into.recv() == message

    def is_back() -> bool:
        settle_loans()
        return sys.getrefcount(message) == before

    wait_until(is_back)


@pytest.mark.skipif(not COMPILED, reason="the compiled core is not in use")
def test_lent_bytes_outlive_their_owner(pair: Pair) -> None:
    out, into = pair
    port = port_of(out)
    connect(pair)
    count = 200
    for n in range(count):
        assert port.send(b"%06d" % n * 10_000)  # nobody else keeps it
    gc.collect()
    time.sleep(0.01)
    garbage = [bytes(60_000) for _ in range(count)]  # over what was freed too early
    for n in range(count):
        assert into.poll(10_000)
        assert into.recv() == b"%06d" % n * 10_000
    assert len(garbage) == count


@pytest.mark.skipif(not COMPILED, reason="the compiled core is not in use")
def test_what_is_no_bytes_is_refused(pair: Pair) -> None:
    port = port_of(pair[0])
    with pytest.raises(TypeError, match="bytes"):
        port.send(bytearray(10))  # type: ignore[arg-type]


def test_another_pyzmq_is_used_as_it_is(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    from zmq.backend.cython import _zmq

    monkeypatch.delattr(_zmq, "__file__")
    assert isinstance(port_of(pair[0]), PlainPort)
