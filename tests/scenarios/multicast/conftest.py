"""Multicast scenarios: a network of namespaces for each file, peers in it, groups of their own."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.netns import Network
from tests.support.remote import RemotePeer

HOSTS = ("sender", "one", "two", "three")
RECEIVERS = HOSTS[1:]
_groups = itertools.count()


def new_group(version: int = 4) -> str:
    """A group that no other test uses, nor another run of them on this machine."""
    number = next(_groups)
    pid = os.getpid()
    port = 20_000 + (number * 2) % 10_000
    if version == 6:
        return f"[ff12::{pid:x}:{number:x}]:{port}"
    return f"239.{192 + number % 60}.{pid >> 8 & 255}.{pid & 255}:{port}"


@pytest.fixture
def group() -> str:
    return new_group()


@pytest.fixture(scope="module")
def wired() -> Iterator[Network]:
    with Network(HOSTS, lines=2) as net:
        yield net


@pytest.fixture
def net(wired: Network) -> Iterator[Network]:
    yield wired
    wired.heal()


class Mesh:
    """Peers in namespaces: one publisher of numbered events, receivers that check them."""

    def __init__(self, net: Network, group: str, stack: contextlib.ExitStack) -> None:
        self.net = net
        self.group = group
        self._stack = stack

    def publisher(self, *, host: str = "sender", **stream: Any) -> RemotePeer:
        """A peer with the stream `a.**`; `transport` has what goes beside the group."""
        at = self.net[host]
        transport = {"group": self.group, **stream.pop("transport", {})}
        bind = stream.pop("bind", ())
        stream = {"topics": "a.**", **stream, "transport": transport}
        pub = RemotePeer(
            "pub", within=at.command, interface=at.address, bind=bind, streams=[stream]
        )
        self._stack.callback(pub.close)
        pub.run("import numbered")
        return pub

    def receiver(
        self, host: str, to: RemotePeer | str, *, start: str = "live", **arguments: Any
    ) -> RemotePeer:
        """A connected peer that has subscribed."""
        address = to if isinstance(to, str) else to.address
        return self._subscribed(host, start, connect=address, **arguments)

    def by_hand(
        self, host: str, *, start: str = "live", wait: bool = True, **transport: Any
    ) -> RemotePeer:
        """A peer that receives without a connection."""
        feed = {
            "publisher": "pub",
            "topics": "a.**",
            "transport": {"group": self.group, **transport},
        }
        return self._subscribed(host, start, wait=wait, feeds=[feed])

    def _subscribed(
        self, host: str, start: str, *, wait: bool = True, **arguments: Any
    ) -> RemotePeer:
        at = self.net[host]
        sub = RemotePeer(f"sub-{host}", within=at.command, interface=at.address, **arguments)
        self._stack.callback(sub.close)
        sub.run("import numbered; events = peer.subscribe('a.**', start=start)", start=start)
        if wait:
            sub.run("events.wait_for_publishers(1, 30)")
        sub.run("reader = numbered.Reader(events)")
        return sub


@pytest.fixture
def mesh(net: Network, group: str) -> Iterator[Mesh]:
    with contextlib.ExitStack() as stack:
        yield Mesh(net, group, stack)
