"""SP sockets over inproc: who gets what, how many a call, and what is waited for."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from meshmsg._model.errors import BindError
from tests.support.waiting import wait_until

pytest.importorskip("pynng")

from meshmsg.nanomsg.sp_socket import SpSocket

Pair = tuple[SpSocket, SpSocket]
_numbers = itertools.count()


def address() -> str:
    return f"inproc://meshmsg-unit-{next(_numbers)}"


@contextmanager
def pair(sends: str, receives: str, prefixes: tuple[bytes, ...] = (b"",)) -> Iterator[Pair]:
    url = address()
    sender = SpSocket(sends, url, listen=True)
    receiver = SpSocket(receives, url, listen=False, prefixes=prefixes)
    wait_until(lambda: sender.peers == receiver.peers == 1)
    yield sender, receiver
    receiver.close()
    sender.close()


@pytest.fixture
def push() -> Iterator[Pair]:
    with pair("push", "pull") as both:
        yield both


def test_messages_come_in_order_and_no_more_than_asked_for(push: Pair) -> None:
    sender, receiver = push
    sent = [b"", b"a", b"b" * 100_000]
    found: list[bytes] = []
    for message in sent:
        assert sender.send(message, 30.0)
        found += receiver.receive(1, 30.0)
    assert found == sent


def test_all_that_is_there_comes_at_once() -> None:
    with pair("pub", "sub") as (publisher, subscriber):
        for message in (b"1", b"2", b"3"):
            assert publisher.send(message, 30.0)
        found: list[bytes] = []
        wait_until(lambda: found.extend(subscriber.receive(10, 0.1)) or len(found) == 3)
        assert found == [b"1", b"2", b"3"]


def test_subscriber_gets_what_begins_as_it_said() -> None:
    with pair("pub", "sub", (b"a", b"cc")) as (publisher, subscriber):
        for message in (b"a1", b"b2", b"c3", b"cc4"):
            publisher.send(message, 30.0)
        found: list[bytes] = []
        wait_until(lambda: found.extend(subscriber.receive(10, 0.1)) or len(found) == 2)
        assert found == [b"a1", b"cc4"]


def test_nothing_comes_when_the_time_is_up(push: Pair) -> None:
    began = time.monotonic()
    assert push[1].receive(10, 0.02) == []
    assert time.monotonic() - began >= 0.02


def test_push_holds_nothing_that_nobody_takes() -> None:
    lonely = SpSocket("push", address(), listen=True)
    assert not lonely.send(b"work", 0.01)
    assert lonely.peers == 0
    lonely.close()


def test_address_says_which_port_it_got() -> None:
    socket = SpSocket("pub", "tcp://127.0.0.1:0", listen=True)
    assert socket.url.startswith("tcp://127.0.0.1:")
    assert not socket.url.endswith(":0")
    with pytest.raises(BindError, match="127"):
        SpSocket("pub", socket.url, listen=True)
    dialler = SpSocket("sub", socket.url, listen=False)
    assert dialler.url == socket.url
    dialler.close()
    socket.close()


@pytest.mark.parametrize("url", ["", "nonsense", "tcp://127.0.0.1:99999", "udp://x:1"])
def test_address_that_is_none_is_an_error(url: str) -> None:
    with pytest.raises(BindError):
        SpSocket("pub", url, listen=True)
