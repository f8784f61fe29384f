"""Secured beside unsecured streams, in one run: events a second with batches, and how they compare.

    python benchmarks/security.py [--passes 5] [--sizes 64 1024] [--json FILE]

A publisher and a subscriber in processes of their own, on loopback.  The ways take turns, so that
what else the machine does hits all of them; the median of the passes counts.  What an event costs
the processors, on both sides together, says more where other work is going on.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":  # run as a file
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from meshmsg import Multicast, Peer, Security, Stream
from meshmsg._access.key_files import allow, new_folder

TOPIC = "bench.security"
BATCH = 1000
#: Bytes of payload in one pass.
PASS_BYTES = {64: 192_000_000, 1024: 512_000_000}
WAIT_S = 60.0
GROUP = "239.255.77.7:30771"

Keys = Callable[[str], Security | None]


class Way(NamedTuple):
    """One way to send, and what it is compared with."""

    name: str
    keys: Keys
    beside: str = ""
    least: float = 0.0
    multicast: str = ""


def ways(folder: Path) -> list[Way]:
    """All that are measured."""
    mesh_key = secrets.token_urlsafe(32)
    key_dirs = _key_dirs(folder)
    return [
        Way("ZeroMQ", lambda name: None),
        Way("ZeroMQ, mesh key", lambda name: Security(mesh_key=mesh_key), "ZeroMQ", 0.6),
        Way(
            "ZeroMQ, allow-list",
            lambda name: Security(key_dir=str(key_dirs[name])),
            "ZeroMQ",
            0.6,
        ),
        Way("multicast", lambda name: None, multicast=GROUP),
        Way(
            "multicast, mesh key",
            lambda name: Security(mesh_key=mesh_key),
            "multicast",
            0.5,
            GROUP,
        ),
        Way(
            "multicast, allow-list",
            lambda name: Security(key_dir=str(key_dirs[name])),
            "multicast",
            0.5,
            GROUP,
        ),
    ]


def _key_dirs(folder: Path) -> dict[str, Path]:
    found = {name: folder / name for name in ("publisher", "subscriber")}
    grants = [new_folder(found["publisher"], "publisher", None)]
    mesh_key = (found["publisher"] / "mesh.key").read_text().strip()
    grants.append(new_folder(found["subscriber"], "subscriber", mesh_key))
    for path in found.values():
        for grant in grants:
            allow(path, grant)
    return found


def _receive(way: Way, count: int, boss: Connection) -> None:
    """The subscriber's process: how fast everything comes."""
    address = boss.recv()
    security = way.keys("subscriber")
    with (
        Peer("subscriber", connect=address, security=security, discovery="none") as peer,
        peer.subscribe(TOPIC) as events,
    ):
        seen = first = began_ns = 0
        cpu_s = time.process_time()
        for batch in events.batches():
            seen += len(batch)
            if not began_ns:
                first, began_ns = seen, time.monotonic_ns()
            if seen >= count:
                break
        took_s = (time.monotonic_ns() - began_ns) / 1e9
        cpu_s = time.process_time() - cpu_s
        boss.send(((seen - first) / took_s, cpu_s, len(events.losses)))
        boss.recv()


def measure(way: Way, size: int, count: int) -> tuple[float, float]:
    """Events a second at the subscriber, and what one costs both processes, in one pass."""
    transport = Multicast(way.multicast) if way.multicast else None
    stream = Stream(TOPIC, overflow="block", transport=transport)
    context = mp.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=_receive, args=(way, count, theirs))
    child.start()  # before there is a thread or a socket here
    security = way.keys("publisher")
    try:
        with Peer("publisher", streams=stream, security=security, discovery="none") as peer:
            ours.send(peer.address)
            peer.wait_for_subscribers(TOPIC, timeout=WAIT_S)
            pool = [secrets.token_bytes(size) for _ in range(BATCH)]
            cpu_s = time.process_time()
            for _ in range(count // BATCH):
                peer.publish_many(TOPIC, pool)
            rate, more_s, losses = ours.recv()
            cpu_s = time.process_time() - cpu_s + more_s
            ours.send("done")
    finally:
        child.join(WAIT_S)
        if child.is_alive():
            child.kill()
    if losses:
        raise SystemExit(f"{way.name}: {losses} losses, though the stream blocks")
    return float(rate), cpu_s / count


def run(sizes: list[int], passes: int) -> list[dict[str, Any]]:
    """All ways in turn; one row for each way and size."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        every = ways(Path(folder))
        for size in sizes:
            count = max(BATCH, PASS_BYTES.get(size, 64_000_000) // size // BATCH * BATCH)
            found: dict[str, list[tuple[float, float]]] = {way.name: [] for way in every}
            for _ in range(passes):
                for way in every:
                    found[way.name].append(measure(way, size, count))
            medians = {n: statistics.median(rate for rate, _ in f) for n, f in found.items()}
            costs = {n: statistics.median(cost for _, cost in f) for n, f in found.items()}
            for way in every:
                ratio = medians[way.name] / medians[way.beside] if way.beside else None
                rows.append(
                    {
                        "way": way.name,
                        "size_bytes": size,
                        "events_per_s": round(medians[way.name]),
                        "cpu_ns_per_event": round(costs[way.name] * 1e9),
                        "ratio": None if ratio is None else round(ratio, 2),
                        "least": way.least or None,
                    }
                )
    return rows


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 1024])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here, too")
    options = parser.parse_args()
    rows = run(options.sizes, options.passes)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(f"{'way':<22}{'bytes':>7}{'CPU ns':>9}{'events/s':>14}{'ratio':>8}{'target':>8}")
    for row in rows:
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
        least = "" if row["least"] is None else f"{row['least']:.1f}"
        text = f"{row['way']:<22}{row['size_bytes']:>7}{row['cpu_ns_per_event']:>9,}"
        text += f"{row['events_per_s']:>14,}"
        print(f"{text}{ratio:>8}{least:>8}")


if __name__ == "__main__":
    main()
