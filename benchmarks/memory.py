"""Measure memory with a stalled subscriber: what piles up where, and what becomes of the events.

    python benchmarks/memory.py [--seconds 4] [--only WAY] [--json FILE]

A subscriber is stopped (SIGSTOP) and the publisher goes on as fast as it may; then it is woken up
and reads on.  meshmsg with each word of `overflow`; raw pyzmq as it comes, with XPUB_NODROP, and
without any bound; Zenoh and pynng.  Nothing may vanish: accepted = received + declared lost, or the
row says how many nobody ever mentioned.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks import memory_rivals as rivals
from benchmarks.machine import this_machine
from benchmarks.meter import rss_mb

SIZE_BYTES = 1024
POOL = [n.to_bytes(SIZE_BYTES, "little") for n in range(100)]
TOPIC = "bench.stall"
LIMIT_S = 120.0
#: No more than this is offered, whatever happens: 1 GB.
EVENTS_MAX = 1_000_000
#: A subscriber that has had nothing for so long has had everything.
IDLE_S = 1.5

OVERFLOWS = ("block", "buffer", "drop_oldest", "drop_newest", "spill")
LABELS = {
    **{f"meshmsg-{word}": f"meshmsg, overflow={word}" for word in OVERFLOWS},
    "zmq": "raw pyzmq as it comes (queues of 1,000)",
    "zmq-nodrop": "raw pyzmq, XPUB_NODROP",
    "zmq-unbounded": "raw pyzmq, queues without bound",
    **rivals.LABELS,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and show; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="benchmarks/memory.py", description=__doc__.split("\n")[0]
    )
    add = parser.add_argument
    add("--seconds", type=float, default=4.0, help="how long the subscriber stands still")
    add("--only", action="append", choices=list(LABELS))
    add("--json", type=Path, metavar="FILE", help="write all measurements as JSON")
    options = parser.parse_args(arguments)
    found: dict[str, Any] = {}
    missing: dict[str, str] = {}
    for way in options.only or LABELS:
        reason = rivals.why_not(way)
        if reason:
            missing[way] = reason
            print(f"{LABELS[way]:<42} not available: {reason}", flush=True)
            continue
        found[way] = measure(way, options.seconds)
        print(words(way, found[way]), flush=True)
    if options.json is not None:
        about = {"machine": this_machine().as_dict(), "event_bytes": SIZE_BYTES}
        data = {**about, "ways": found, "missing": missing}
        options.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    silent = [way for way in found if way.startswith("meshmsg") and found[way]["unmentioned"]]
    return 1 if silent else 0


def words(way: str, row: dict[str, Any]) -> str:
    return (
        f"{LABELS[way]:<42} accepted {row['accepted']:>9,}, publisher +{row['publisher_mb']:,.0f} "
        f"MB, disk {row['disk_mb']:,.0f} MB; then received {row['received']:,}, declared lost "
        f"{row['declared']:,}, never mentioned {row['unmentioned']:,}"
    )


def measure(way: str, seconds: float) -> dict[str, Any]:
    """One publisher and one subscriber, each a process."""
    spawn = multiprocessing.get_context("spawn")
    boss, theirs = spawn.Pipe()
    ours, other = spawn.Pipe()
    publisher = spawn.Process(target=publish, args=(way, seconds, theirs), daemon=True)
    subscriber = spawn.Process(target=subscribe, args=(way, other), daemon=True)
    publisher.start()
    subscriber.start()
    try:
        ours.send(_receive(boss))
        _receive(ours)
        boss.send("wait")
        _receive(boss)
        assert subscriber.pid is not None
        os.kill(subscriber.pid, signal.SIGSTOP)
        boss.send("go")
        told = _receive(boss)
        os.kill(subscriber.pid, signal.SIGCONT)
        ours.send("drain")
        heard = _receive(ours)
    finally:
        for process in (publisher, subscriber):
            process.kill()
            process.join()
    missing = told["accepted"] - heard["received"] - heard["declared"] - told["refused"]
    return {**told, **heard, "unmentioned": max(0, missing)}


def _receive(end: Connection) -> Any:
    if not end.poll(LIMIT_S):
        raise AssertionError(f"no answer in {LIMIT_S:g} s")
    return end.recv()


def publish(way: str, seconds: float, boss: Connection) -> None:
    """As fast as it may, for some seconds; then report, and stay."""
    with tempfile.TemporaryDirectory(prefix="bench-stall-") as folder:
        if way.startswith("meshmsg"):
            _publish_ours(way.partition("-")[2], seconds, boss, folder)
        elif way in rivals.LABELS:
            rivals.publish(way, seconds, boss, POOL, EVENTS_MAX)
        else:
            _publish_zmq(way, seconds, boss)


def _publish_ours(overflow: str, seconds: float, boss: Connection, folder: str) -> None:
    from meshmsg import Peer, PublishTimeout, Stream

    stream = Stream(TOPIC, overflow=overflow)
    with Peer("publisher", streams=stream, data_dir=folder) as peer:
        boss.send(peer.address)
        boss.recv()
        peer.wait_for_subscribers(TOPIC, timeout=60)
        boss.send("ready")
        boss.recv()
        before, peak, end, last = rss_mb(), 0.0, time.monotonic() + seconds, None
        while (left := end - time.monotonic()) > 0 and (not last or last.seq < EVENTS_MAX):
            try:
                last = peer.publish_many(TOPIC, POOL, timeout=left)
            except PublishTimeout:
                break
            peak = max(peak, rss_mb())
        # What a batch that waited in vain had published of itself counts as well.
        accepted = int(peer.stats()["streams"][TOPIC]["published"])
        refused = int(peer.stats()["streams"][TOPIC].get("dropped_newest", 0))
        disk = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
        boss.send(
            {
                "accepted": accepted,
                "refused": refused,
                "publisher_mb": max(peak, rss_mb()) - before,
                "disk_mb": disk / 1e6,
            }
        )
        boss.recv()


def _publish_zmq(way: str, seconds: float, boss: Connection) -> None:
    import zmq

    context: Any = zmq.Context()
    out = context.socket(zmq.XPUB)
    if way == "zmq-nodrop":
        out.setsockopt(zmq.XPUB_NODROP, 1)
        out.setsockopt(zmq.SNDHWM, 10_000)
    elif way == "zmq-unbounded":
        out.setsockopt(zmq.SNDHWM, 0)
    port = out.bind_to_random_port("tcp://127.0.0.1")
    boss.send(f"tcp://127.0.0.1:{port}")
    boss.recv()
    out.recv()
    boss.send("ready")
    boss.recv()
    before, peak, end, accepted = rss_mb(), 0.0, time.monotonic() + seconds, 0
    while (left := end - time.monotonic()) > 0 and accepted < EVENTS_MAX:
        out.setsockopt(zmq.SNDTIMEO, max(1, round(left * 1000)))
        try:
            for payload in POOL:
                out.send(payload)
                accepted += 1
        except zmq.Again:
            break
        peak = max(peak, rss_mb())
    grown = max(peak, rss_mb()) - before
    boss.send({"accepted": accepted, "refused": 0, "publisher_mb": grown, "disk_mb": 0.0})
    boss.recv()


def subscribe(way: str, boss: Connection) -> None:
    """Connect, be stopped, and read what there is afterwards."""
    address = boss.recv()
    if way in rivals.LABELS:
        return rivals.subscribe(way, address, boss, IDLE_S)
    if not way.startswith("meshmsg"):
        return _subscribe_zmq(way, address, boss)
    from meshmsg import Peer

    with Peer("subscriber", connect=address) as peer, peer.subscribe(TOPIC) as events:
        events.wait_for_publishers(timeout=60)
        boss.send("ready")
        boss.recv()
        received = 0
        for batch in events.batches(timeout=IDLE_S):
            received += len(batch)
        declared = sum(loss.stop - loss.first for loss in events.losses)
        boss.send({"received": received, "declared": declared, "subscriber_mb": rss_mb()})
        boss.recv()
    return None


def _subscribe_zmq(way: str, address: str, boss: Connection) -> None:
    import zmq

    context: Any = zmq.Context()
    into = context.socket(zmq.SUB)
    if way == "zmq-nodrop":
        into.setsockopt(zmq.RCVHWM, 10_000)
    elif way == "zmq-unbounded":
        into.setsockopt(zmq.RCVHWM, 0)
    into.setsockopt(zmq.SUBSCRIBE, b"")
    into.setsockopt(zmq.RCVTIMEO, round(IDLE_S * 1000))
    into.connect(address)
    boss.send("ready")
    boss.recv()
    received = 0
    try:
        while into.recv():
            received += 1
    except zmq.Again:
        pass
    boss.send({"received": received, "declared": 0, "subscriber_mb": rss_mb()})
    boss.recv()


if __name__ == "__main__":
    sys.exit(main())
