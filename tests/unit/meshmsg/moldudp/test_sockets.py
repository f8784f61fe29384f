"""MoldUDP64 over loopback: a session, a re-request, and processes with very many descriptors."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

import pytest

from meshmsg._model.errors import BindError, ClosedError, ConfigError
from meshmsg.moldudp.receiver import MoldMessages
from meshmsg.moldudp.sockets import MoldListener, MoldSender, split_address
from tests.scenarios.multicast.conftest import new_group


def received(feed: MoldListener, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        items = feed.get(timeout=60)
        assert items, "nothing came"
        for item in items:
            assert isinstance(item, MoldMessages), item
            found += item.messages
    return found


def test_messages_come_in_order_and_what_was_lost_is_asked_for() -> None:
    line = new_group()
    with (
        MoldSender([line], session="DAY1", heartbeat_s=0.02) as sender,
        MoldListener([line], server=sender.address, session="DAY1") as feed,
    ):
        sender.fault = lambda packet: True
        assert sender.send([b"lost"]) == 1
        sender.fault = None
        assert sender.send([b"a", b"b"]) == 2
        assert received(feed, 3) == [b"lost", b"a", b"b"]
        assert feed.stats()["repaired"] == 1
        assert sender.stats()["server_resent"] >= 1


def test_numbers_are_used_once_and_in_order() -> None:
    with MoldSender([new_group()], session="DAY1") as sender:
        assert sender.send([b"a"], number=5) == 5
        with pytest.raises(ConfigError, match="5 was used: next is 6"):
            sender.send([b"b"], number=5)
    with pytest.raises(ClosedError):
        sender.send([b"c"])


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """More open files than `select` can name."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4096 if hard == resource.RLIM_INFINITY else min(4096, hard)
    assert wanted > 1200
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    yield
    for fd in taken:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_descriptors")
def test_a_process_with_very_many_descriptors_sends_and_listens() -> None:
    line = new_group()
    with (
        MoldSender([line], session="DAY1", heartbeat_s=0.02) as sender,
        MoldListener([line], server=sender.address) as feed,
    ):
        sender.send([b"a"])
        assert received(feed, 1) == [b"a"]
        assert not sender.counters["io_errors"]


@pytest.mark.parametrize("address", ["", "host", "host:", ":1", "host:x", "host:65536"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    assert split_address("serve", "127.0.0.1:30009") == ("127.0.0.1", 30009)
    with pytest.raises(ConfigError, match="is not of the form"):
        split_address("serve", address)


def test_lines_are_one_or_two_and_a_place_that_cannot_be_served_at_is_told() -> None:
    for lines in ([], [new_group()] * 3):
        with pytest.raises(ConfigError, match="not one line or two"):
            MoldSender(lines, session="DAY1")
    with pytest.raises(BindError), MoldSender([new_group()], session="D", serve="203.0.113.7:1"):
        pass
    with pytest.raises(ClosedError):
        MoldListener([new_group()]).get(0)
