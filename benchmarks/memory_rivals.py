"""Zenoh and pynng with a stalled subscriber: their part of `memory`.

Neither lets a publisher give up waiting, so another thread publishes and is looked at from outside.
"""

from __future__ import annotations

import importlib.util
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.meter import rss_mb
from benchmarks.space import free_port

ZENOH, ZENOH_DROP, NNG = "zenoh", "zenoh-drop", "nng"
LABELS = {
    ZENOH: "Zenoh, peers, block",
    ZENOH_DROP: "Zenoh, peers, as it comes (drop)",
    NNG: "pynng PUB/SUB (queues of 8,192)",
}
PACKAGES = {ZENOH: "eclipse-zenoh", ZENOH_DROP: "eclipse-zenoh", NNG: "pynng"}
MODULES = {"eclipse-zenoh": "zenoh", "pynng": "pynng"}
LOOK_S = 0.02
SETTLE_S = 0.3

Send = Callable[[bytes], Any]


def why_not(way: str) -> str:
    """Why it cannot be measured here; empty if it can."""
    package = PACKAGES.get(way)
    if package is None or importlib.util.find_spec(MODULES[package]) is not None:
        return ""
    return f"{package} is not installed (pip install {package})"


class Offer(threading.Thread):
    """Publishes until it is told to stop, or has published enough."""

    def __init__(self, send: Send, pool: Sequence[bytes], most: int) -> None:
        super().__init__(daemon=True)
        self.accepted = 0
        self.stopped = False
        self._send, self._pool, self._most = send, pool, most

    def run(self) -> None:
        """What a send that waits returns to is the end."""
        while not self.stopped and self.accepted < self._most:
            for payload in self._pool:
                self._send(payload)
                if self.stopped:
                    return
                self.accepted += 1


def publish(way: str, seconds: float, boss: Connection, pool: Sequence[bytes], most: int) -> None:
    """As fast as it may, for some seconds; then report, and stay."""
    port = free_port()
    with _zenoh_out(way, port, boss) if way != NNG else _nng_out(port, boss) as send:
        boss.send("ready")
        boss.recv()
        before, peak, end = rss_mb(), 0.0, time.monotonic() + seconds
        offer = Offer(send, pool, most)
        offer.start()
        while time.monotonic() < end and offer.is_alive():
            time.sleep(LOOK_S)
            peak = max(peak, rss_mb())
        offer.stopped = True
        grown = max(peak, rss_mb()) - before
        boss.send({"accepted": offer.accepted, "refused": 0, "publisher_mb": grown, "disk_mb": 0.0})
        boss.recv()


@contextmanager
def _zenoh_out(way: str, port: int, boss: Connection) -> Iterator[Send]:
    import zenoh

    from benchmarks.ways import zenoh_peer

    control = zenoh.CongestionControl
    with zenoh_peer.open_session(listen=f"tcp/127.0.0.1:{port}") as session:
        publisher = session.declare_publisher(
            zenoh_peer.KEY,
            congestion_control=control.BLOCK if way == ZENOH else control.DROP,
            reliability=zenoh.Reliability.RELIABLE,
        )
        boss.send(str(port))
        boss.recv()
        zenoh_peer.wait_for_match(publisher)
        yield publisher.put


@contextmanager
def _nng_out(port: int, boss: Connection) -> Iterator[Send]:
    from benchmarks.ways import nng

    with nng.pub(port) as out:
        boss.send(str(port))
        boss.recv()
        nng.wait_for_pipes(out, 1)
        yield out.send


def subscribe(way: str, address: str, boss: Connection, idle_s: float) -> None:
    """Connect, be stopped, and read what there is afterwards."""
    with _nng_in(address) if way == NNG else _zenoh_in(address) as take:
        boss.send("ready")
        boss.recv()
        received, heard = 0, time.monotonic()
        while time.monotonic() - heard < idle_s:
            if take():
                received += 1
                heard = time.monotonic()
            else:
                time.sleep(LOOK_S)
        boss.send({"received": received, "declared": 0, "subscriber_mb": rss_mb()})
        boss.recv()


@contextmanager
def _zenoh_in(address: str) -> Iterator[Callable[[], bool]]:
    from benchmarks.ways import zenoh_peer

    with zenoh_peer.open_session(connect=f"tcp/127.0.0.1:{address}") as session:
        samples = zenoh_peer.samples_of(session, zenoh_peer.KEY)
        yield lambda: samples.try_recv() is not None


@contextmanager
def _nng_in(address: str) -> Iterator[Callable[[], bool]]:
    import pynng

    from benchmarks.ways import nng

    with nng.sub(int(address)) as into:

        def take() -> bool:
            try:
                return bool(into.recv(block=False))
            except pynng.TryAgain:
                return False

        yield take
