"""StatsD in: metrics a second on one core, beside a plain receive loop that only counts lines.

    python benchmarks/statsd.py [--seconds 3] [--rate 200000] [--check] [--json FILE]

A sender paces metrics (counters, timers with tags and sample rates, gauges) at a rate over
loopback; the receiver runs in a process of its own, on one core.  Two things are measured: whether
anything was lost at that rate, and what a metric costs in CPU time, from which follows how many a
core can take.  The plain loop receives the same packets and counts their lines.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import socket
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

WAYS = ("plain", "meshmsg", "meshmsg-raw")
SHAPES = {"packed": 1_400, "single": 1}  # bytes a packet
PACKETS = 2_000
BUFFER_BYTES = 4 * 1024 * 1024
#: Metrics a second that have to be taken without loss on one core, one by one and packed.
TARGET = 200_000

processes = multiprocessing.get_context("spawn")


def main(arguments: list[str] | None = None) -> int:
    """Measure, show; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each run")
    parser.add_argument("--rate", type=int, default=TARGET, help="metrics a second sent")
    parser.add_argument("--check", action="store_true", help="exit with 1 if anything was lost")
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    options = parser.parse_args(arguments)
    found: list[dict[str, Any]] = []
    for shape in SHAPES:
        plain = 0.0
        for way in WAYS:
            if way == "meshmsg-raw" and shape == "single":
                continue
            one = measure(way, shape, options.rate, options.seconds)
            plain = plain or one["per_core"]
            one["of_plain"] = one["per_core"] / plain
            found.append(one)
            print(
                f"{shape:<7} {way:<12} sent {one['sent']:>9,} at {one['rate']:>9,.0f}/s  lost "
                f"{one['lost']:>7,}  CPU {one['cpu_us']:5.2f} us a metric = "
                f"{one['per_core']:>10,.0f}/s a core  {one['of_plain']:.3f} of plain",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    lossy = [one for one in found if one["way"] == "meshmsg" and one["lost"]]
    return 1 if options.check and lossy else 0


def measure(way: str, shape: str, rate: int, seconds: float) -> dict[str, Any]:
    """One run: a sender here, a receiver in another process."""
    ours, theirs = processes.Pipe()
    receiver = processes.Process(target=receive, args=(way, theirs), daemon=True)
    receiver.start()
    theirs.close()  # so that a receiver that dies is an EOFError here, and no wait for ever
    try:
        address = ours.recv()
        packets = make_packets(shape)
        ours.send("go")
        ours.recv()
        sent, took = send(packets, address, rate, seconds)
        time.sleep(0.5)
        ours.send("stop")
        lines, cpu_s = ours.recv()
    finally:
        receiver.join(30)
        if receiver.is_alive():
            receiver.kill()
    return {
        "way": way,
        "shape": shape,
        "sent": sent,
        "rate": sent / took,
        "lost": sent - lines,
        "cpu_us": cpu_s / max(lines, 1) * 1e6,
        "per_core": lines / cpu_s,
    }


def make_packets(shape: str) -> list[tuple[bytes, int]]:
    """Packets with the number of metrics in each."""
    rng = random.Random(5)
    bytes_max = SHAPES[shape]
    packets, lines, size = [], [], 0
    while len(packets) < PACKETS:
        name = f"app.service{rng.randrange(8)}.endpoint{rng.randrange(50)}"
        line = rng.choice(
            (
                f"{name}.requests:1|c",
                f"{name}.latency:{rng.uniform(1, 900):.2f}|ms",
                f"{name}.bytes:{rng.randrange(10_000)}|h|@0.5|#env:prod,host:a{rng.randrange(3)}",
                f"{name}.depth:{rng.randrange(99)}|g",
            )
        ).encode()
        if lines and size + len(line) >= bytes_max:
            packets.append((b"\n".join(lines), len(lines)))
            lines, size = [], 0
        lines.append(line)
        size += len(line) + 1
    return packets


def send(
    packets: list[tuple[bytes, int]], address: tuple[str, int], rate: int, seconds: float
) -> tuple[int, float]:
    """At this many metrics a second, in steps of a millisecond; how many, in what time."""
    pin(1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(address)
        sent = at = 0
        began = time.perf_counter()
        while (now := time.perf_counter() - began) < seconds:
            due = min(now * rate, sent + rate * 0.005)  # after a hiccup no flood
            while sent < due:
                packet, lines = packets[at]
                sock.send(packet)
                sent += lines
                at = (at + 1) % len(packets)
            time.sleep(0.0002)
        return sent, time.perf_counter() - began


def pin(core: int) -> None:
    """Onto one core, where the system can and there are several."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else []
    if len(cores) > 1:
        os.sched_setaffinity(0, {cores[core % len(cores)]})


def receive(way: str, pipe: Connection) -> None:
    """The other process."""
    pin(0)
    count_lines(pipe) if way == "plain" else serve(way, pipe)


def count_lines(pipe: Connection) -> None:
    """The plain loop."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        sock.bind(("127.0.0.1", 0))
        sock.settimeout(0.1)
        pipe.send(sock.getsockname())
        pipe.recv()
        pipe.send("ready")
        lines, began = 0, time.process_time()
        while True:
            try:
                lines += sock.recv(65_535).count(b"\n") + 1
            except TimeoutError:
                if pipe.poll():
                    break
        pipe.recv()
        pipe.send((lines, time.process_time() - began))


def serve(way: str, pipe: Connection) -> None:
    """A StatsD server, and nobody who subscribes."""
    from meshmsg import Peer, Stream
    from meshmsg.statsd import StatsdServer

    raw = way == "meshmsg-raw"
    with Peer("metrics", streams=[Stream("statsd.**", overflow="drop_oldest")]) as peer:
        server = StatsdServer(peer, "127.0.0.1:0", interval="1s", raw=raw)
        with server:
            pipe.send(server.address)
            pipe.recv()
            pipe.send("ready")
            began = time.process_time()
            pipe.recv()
            server.flush(timeout=30)
            cpu_s = time.process_time() - began
            pipe.send((server.stats()["accepted"], cpu_s))


if __name__ == "__main__":
    sys.exit(main())
