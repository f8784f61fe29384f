"""What peers use of a processor while nothing is published, beside a raw pyzmq subscriber.

    python benchmarks/idle.py [--seconds 6] [--json FILE]

A publisher in one process, connected subscribers in another: one or ten peers, whose consumers
wait for events or are busy elsewhere.  Times are those of the process that is named.  Ten peers are
measured twice: connected to the publisher and nobody else, and as a mesh, each with all others.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import zmq

ROOT = Path(__file__).resolve().parent.parent
START_S = 30.0
#: What a peer does in its first seconds is not idling.
SETTLE_S = 4.0
#: ... and to find all others takes longer.
MESH_SETTLE_S = 12.0
TOPIC = "idle.events"
PROCESSES = get_context("spawn")


@dataclass(frozen=True, slots=True)
class Row:
    """One figure."""

    who: str
    peers: int
    cpu_ms: float
    """Of a processor, in each second."""
    most: float | None
    """What is wanted."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One measurement."""

    who: str
    subscriber: Callable[[Connection, int, float, str], None]
    peers: int = 1
    most: float | None = None
    discovery: str = "none"


def _idle_ms(seconds: float, discovery: str = "none") -> float:
    time.sleep(SETTLE_S if discovery == "none" else MESH_SETTLE_S)
    used_s = time.process_time()
    time.sleep(seconds)
    return (time.process_time() - used_s) * 1e3 / seconds


def publisher(boss: Connection, peers: int, seconds: float, discovery: str) -> None:
    """Publish a few events, and nothing more."""
    from meshmsg import Peer, Stream

    with Peer("publisher", streams=Stream(TOPIC), discovery=discovery) as peer:
        boss.send(peer.address)
        peer.wait_for_subscribers(TOPIC, peers, timeout=START_S)
        for _ in range(10):
            peer.publish(TOPIC, b"event")
        peer.flush(timeout=START_S)
        boss.send(_idle_ms(seconds, discovery))
        boss.recv()


def waiting(boss: Connection, peers: int, seconds: float, discovery: str) -> None:
    """Subscribers that wait for events."""
    _subscribers(boss, peers, seconds, discovery, busy=False)


def busy(boss: Connection, peers: int, seconds: float, discovery: str) -> None:
    """Subscribers whose consumers do something else."""
    _subscribers(boss, peers, seconds, discovery, busy=True)


def _subscribers(
    boss: Connection, peers: int, seconds: float, discovery: str, *, busy: bool
) -> None:
    from meshmsg import Peer

    address = boss.recv()
    with ExitStack() as stack:
        subscriptions = []
        for n in range(peers):
            peer = Peer(f"subscriber{n}", connect=address, discovery=discovery)
            stack.enter_context(peer)
            subscriptions.append(stack.enter_context(peer.subscribe(TOPIC, start="earliest")))
        for events in subscriptions:
            assert events.get(timeout=START_S) is not None
            if not busy:
                threading.Thread(target=list, args=(events,), daemon=True).start()
        boss.send(_idle_ms(seconds, discovery))
        boss.recv()


def raw_publisher(boss: Connection, peers: int, seconds: float, discovery: str) -> None:
    """An XPUB socket that was used once."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    out = context.socket(zmq.XPUB)
    out.bind("tcp://127.0.0.1:*")
    boss.send(out.getsockopt_string(zmq.LAST_ENDPOINT))
    out.recv()
    out.send(b"event")
    boss.send(_idle_ms(seconds))
    boss.recv()
    context.destroy(linger=0)


def raw_subscriber(boss: Connection, peers: int, seconds: float, discovery: str) -> None:
    """A SUB socket whose consumer waits."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    into = context.socket(zmq.SUB)
    into.setsockopt(zmq.SUBSCRIBE, b"")
    into.connect(boss.recv())
    into.recv()
    threading.Thread(target=into.poll, daemon=True).start()
    boss.send(_idle_ms(seconds))
    boss.recv()


SETTINGS = (
    Setting("raw pyzmq, a subscriber that waits", raw_subscriber),
    Setting("a peer whose consumer waits", waiting, 1, 2.0),
    Setting("a peer whose consumer is busy", busy, 1, 2.0),
    Setting("ten peers whose consumers wait", waiting, 10, 10.0),
    Setting("ten peers whose consumers are busy", busy, 10, 10.0),
    Setting("a mesh of eleven, ten of them here", waiting, 10, 10.0, "gossip"),
)


def measure(setting: Setting, seconds: float) -> list[Row]:
    """The subscribers' process, and that of their publisher."""
    raw = setting.subscriber is raw_subscriber
    roles = (raw_publisher if raw else publisher, setting.subscriber)
    lines = [PROCESSES.Pipe() for _ in roles]
    processes = [
        PROCESSES.Process(
            target=role, args=(line[1], setting.peers, seconds, setting.discovery), daemon=True
        )
        for role, line in zip(roles, lines, strict=True)
    ]
    for process in processes:
        process.start()
    try:
        (out, _), (into, _) = lines
        into.send(out.recv())
        rows = [
            Row(setting.who, setting.peers, into.recv(), setting.most),
            Row(f"the publisher of: {setting.who}", setting.peers, out.recv(), None),
        ]
        for line in (out, into):
            line.send("end")
        for process in processes:
            process.join(START_S)
        return rows
    finally:
        for process in processes:
            process.kill()


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every setting, and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    rows = []
    for setting in SETTINGS:
        for row in measure(setting, options.seconds):
            rows.append(row)
            wanted = "" if row.most is None else f" (at most {row.most:g})"
            print(f"{row.who:55} {row.cpu_ms:7.2f} ms of CPU a second{wanted}", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(row) for row in rows]), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.path[0] = str(ROOT)
    sys.exit(main())
