"""Somebody asks for repairs as fast as a process can: live traffic goes on nearly as before."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from meshmsg._model.multicast_config import split_group
from meshmsg._wire.control import stream_wire_id
from tests.support import processes
from tests.support.remote import RemotePeer

WIRE_ID = stream_wire_id("default", "pub/a.**")
COUNT = 40_000
RATE = 20_000
ATTEMPTS = 3


@contextmanager
def flooded(host: str, port: int, epoch: int, stop: int) -> Iterator[None]:
    """While in the block, a process floods that port; it must have sent a lot."""
    flood = processes.start(
        processes.program("flood", host, port, "127.0.0.1", WIRE_ID, epoch, stop),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert flood.stdout is not None
    try:
        assert flood.stdout.readline() == "flooding\n"
        yield
    finally:
        sent, _ = flood.communicate("\n", timeout=30)
    assert int(sent) > 1000


@contextmanager
def decoy(host: str, port: int) -> Iterator[None]:
    """Somebody who listens, so that a flood there costs the kernel as much."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ear:
        ear.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        ear.bind((host, port))
        member = socket.inet_aton(host) + socket.inet_aton("127.0.0.1")
        ear.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
        yield


class Traffic:
    """A publisher and a receiver, and how fast events get from one to the other."""

    def __init__(self, pub: RemotePeer, sub: RemotePeer) -> None:
        self._pub = pub
        self._sub = sub
        self._at = 0

    def rate(self) -> float:
        first, self._at = self._at, self._at + COUNT
        self._sub.send("reader.read(stop, 60)", evaluate=True, stop=self._at)
        publish = "numbered.publish(peer, 'a.b', first, stop, rate=rate)"
        self._pub.send(publish, first=first, stop=self._at, rate=RATE)
        self._pub.answer(60)
        result = self._sub.answer(70)
        assert result["losses"] == []
        return COUNT / float(result["seconds"])


def test_requests_in_a_flood_leave_live_traffic_its_rate(group: str) -> None:
    host, port = split_group("group", group)
    stream = {"topics": "a.**", "overflow": "drop_oldest", "transport": {"group": group}}
    with (
        RemotePeer("pub", streams=[stream]) as pub,
        RemotePeer("sub", connect=pub.address) as sub,
        decoy(host, port + 7),
    ):
        sub.run("import numbered; events = peer.subscribe('a.**')")
        sub.run("events.wait_for_publishers(1, 30); reader = numbered.Reader(events)")
        pub.run("import numbered; peer.wait_for_subscribers('a.b', 1, 30)")
        traffic = Traffic(pub, sub)
        traffic.rate()
        ratios = []
        # The same process floods somebody else meanwhile: it takes its part of the machine, too.
        for _ in range(ATTEMPTS):
            figures: dict[str, Any] = pub.eval("peer.stats()['streams']['a.**']")
            epoch, stop = figures["epoch"], figures["multicast"]["sent"]
            with flooded(host, port + 7, epoch, stop):
                before = traffic.rate()
            with flooded(host, port + 1, epoch, stop):
                meanwhile = traffic.rate()
            ratios.append(meanwhile / before)
            if ratios[-1] >= 0.8:
                break
        assert max(ratios) >= 0.8, ratios
        figures = pub.eval("peer.stats()['streams']['a.**']['multicast']")
        assert figures["nacks"] > 10
        assert figures["repairs"] > 100, "it was served, too, within its budget"
