"""Whole messages in and out by calls that never wait, alike by both ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import zmq

from meshmsg.transports.zmq.port import PlainPort, Port, port_of, settle_loans
from meshmsg.transports.zmq.unread_limit import MESSAGE_COST

Ends = tuple["zmq.Socket[bytes]", "zmq.Socket[bytes]"]
each_way = pytest.mark.parametrize("make", [port_of, PlainPort])
Make = Callable[["zmq.Socket[bytes]"], Port]


@pytest.fixture
def ends() -> Iterator[Ends]:
    with zmq.Context() as context:
        left, right = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
        left.setsockopt(zmq.SNDHWM, 10)
        right.setsockopt(zmq.RCVHWM, 10)
        left.bind("inproc://port")
        right.connect("inproc://port")
        yield left, right
        left.close(linger=0)
        right.close(linger=0)


@each_way
def test_messages_come_whole_and_are_counted(make: Make, ends: Ends) -> None:
    out, into = make(ends[0]), make(ends[1])
    assert into.recv() is None
    assert into.emptied == 1
    large = bytes(range(256)) * 1000
    for message in (b"a", b"", large):
        assert out.send(message)
        ends[1].poll(30_000)
        assert into.recv() == message
    assert into.got_bytes == 1 + len(large) + 3 * MESSAGE_COST
    out.close()
    into.close()
    settle_loans()


@each_way
def test_a_full_queue_takes_nothing_and_does_not_wait(make: Make, ends: Ends) -> None:
    out = make(ends[0])
    taken = 0
    while out.send(b"x"):
        taken += 1
        assert taken < 1000
    assert taken >= 1
    out.close()
