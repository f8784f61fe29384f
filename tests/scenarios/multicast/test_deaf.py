"""Receivers that packets stop reaching, or that die: the others go on."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from meshmsg import Multicast, Peer, Stream, Tuning
from meshmsg.testing import lose_packets
from tests.support import numbered
from tests.support.remote import RemotePeer
from tests.support.waiting import wait_until

STEP = 2000


@contextmanager
def readers(group: str, **stream: Any) -> Iterator[tuple[Peer, dict[str, tuple[Peer, Any]]]]:
    """A publisher and two connected subscribers."""
    line = Multicast(group, receiver_timeout="1s", nack_deadline="1s")
    with (
        Peer("pub", streams=[Stream("a.**", transport=line, **stream)]) as pub,
        Peer("good", connect=pub.address) as good,
        Peer("bad", connect=pub.address) as bad,
        good.subscribe("a.**") as ours,
        bad.subscribe("a.**") as theirs,
    ):
        pub.wait_for_subscribers("a.b", count=2, timeout=30)
        yield pub, {"good": (good, ours), "bad": (bad, theirs)}


def read_some(reader: numbered.Reader) -> None:
    """Take what is there."""
    while (batch := next(reader.events.batches(timeout=0), None)) is not None:
        reader._take_losses()
        reader._take(batch)


def figures(pub: Peer) -> dict[str, Any]:
    return dict(pub.stats()["streams"]["a.**"]["multicast"])


def test_receiver_whose_multicast_path_dies_gets_all_by_its_connection_and_stops_nobody(
    group: str, caplog: pytest.LogCaptureFixture
) -> None:
    with readers(group) as (pub, peers), caplog.at_level(logging.WARNING, "meshmsg.peer"):
        good = numbered.Reader(peers["good"][1])
        bad = numbered.Reader(peers["bad"][1])
        numbered.publish(pub, "a.b", 0, STEP)
        good.read(STEP)
        bad.read(STEP)
        count = STEP
        with lose_packets(peers["bad"][0], ratio=1.0):
            while not figures(pub)["unreached"]:
                numbered.publish(pub, "a.b", count, count + STEP)
                count += STEP
                good.read(count, timeout=30)
                read_some(bad)  # one that does not read is slow, whatever reaches it
            assert figures(pub)["unreached"][0].startswith("bad/")
            assert "packets do not reach bad/" in caplog.text
            numbered.publish(pub, "a.b", count, count + STEP)
            count += STEP
            good.read(count, timeout=30)
            assert bad.read(count, timeout=60)["losses"] == []
        # Packets reach it again: it counts again.
        deadline = time.monotonic() + 30
        while figures(pub)["unreached"] and time.monotonic() < deadline:
            numbered.publish(pub, "a.b", count, count + STEP)
            count += STEP
            good.read(count, timeout=30)
            bad.read(count, timeout=30)
        assert figures(pub)["unreached"] == []
        assert good.result()["losses"] == bad.result()["losses"] == []


def test_receiver_that_is_killed_is_not_waited_for(group: str) -> None:
    line = Multicast(group, receiver_timeout="60s")
    patient = Tuning(peer_timeout_s=60)
    with (
        Peer("pub", streams=[Stream("a.**", transport=line)], tuning=patient) as pub,
        Peer("good", connect=pub.address) as good,
        good.subscribe("a.**") as events,
        RemotePeer("bad", connect=pub.address) as bad,
    ):
        bad.run("events = peer.subscribe('a.**')")
        pub.wait_for_subscribers("a.b", count=2, timeout=30)
        reader = numbered.Reader(events)
        numbered.publish(pub, "a.b", 0, STEP)
        reader.read(STEP)
        bad.kill()
        # Its connection is closed: that ends the waiting, long before its time is up.
        wait_until(lambda: figures(pub)["receivers"] == 1, timeout=30)
        numbered.publish(pub, "a.b", STEP, 100 * STEP)
        assert reader.read(100 * STEP)["losses"] == []
