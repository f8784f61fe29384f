"""What traces cost, on and off: publishing, and `with event:`, in turns and in one process.

    python benchmarks/traces.py [--rounds 15] [--against CHECKOUT]

`off` is a peer without `otel`.  `api` is `otel=True` in a program that has set no provider, `none`
one whose sampler takes no trace, `all` one that takes each and throws it away.  With `--against`,
the same is measured with another checkout of meshmsg, in processes that take turns: what `off`
costs here and did there.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EVENTS = 20_000


def main() -> None:
    parser = argparse.ArgumentParser(description="What traces cost.")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--against", type=Path, help="another checkout, built")
    parser.add_argument("--way", help="measure one way and print it")
    given = parser.parse_args()
    if given.way:
        print(json.dumps(measure(given.way)))
        return
    runs = [(way, ROOT) for way in ("off", "api", "none", "all")]
    if given.against is not None:
        runs.append(("off", given.against.resolve()))
    found: dict[tuple[str, Path], list[dict[str, float]]] = {run: [] for run in runs}
    for _ in range(given.rounds):
        for way, root in runs:
            found[way, root].append(run_apart(way, root))
    for (way, root), rows in found.items():
        name = way if root == ROOT else f"{way}, {root.name}"
        figures = []
        for what in rows[0]:
            values = sorted(row[what] for row in rows)
            middle = statistics.median(values)
            figures.append(f"{what} {middle:7.0f} ns (best {values[0]:.0f})")
        print(f"{name:24} {'   '.join(figures)}")


def run_apart(way: str, root: Path) -> dict[str, float]:
    """Measure in a process of its own."""
    command = [sys.executable, __file__, "--way", way]
    environ = {**os.environ, "PYTHONPATH": str(root), "MESHMSG_DISCOVERY": "none"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def measure(way: str) -> dict[str, float]:
    """Nanoseconds an event: published, and handled in a block."""
    from meshmsg import Peer, Stream

    options = {}
    if way != "off":
        options["otel"] = True
        set_provider(way)
    with (
        Peer("pub", streams=Stream("x.**", overflow="drop_oldest"), **options) as peer,
        Peer("sub", connect=peer.address) as other,
        other.subscribe("x.**", group="g", prefetch=EVENTS) as events,
    ):
        peer.wait_for_subscribers("x.y", timeout=10)
        peer.publish_many("x.y", [b"x" * 64] * EVENTS)
        found = events.get_many(EVENTS, timeout=10)
        handled = spent(lambda: handle(found)) / len(found)
    with Peer("alone", streams=Stream("x.**", overflow="drop_oldest"), **options) as peer:
        publish = peer.publish
        publish("x.y", b"x")

        def many() -> None:
            for _ in range(EVENTS):
                publish("x.y", b"x" * 64)

        published = min(spent(many) for _ in range(5)) / EVENTS
    return {"publish": published, "with event": handled}


def handle(events: list) -> None:  # type: ignore[type-arg]
    for event in events:
        with event:
            pass


def spent(what: Callable[[], None]) -> float:
    """Nanoseconds of the processor."""
    began = time.thread_time_ns()
    what()
    return time.thread_time_ns() - began


def set_provider(way: str) -> None:
    if way == "api":
        return
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON

    trace.set_tracer_provider(TracerProvider(sampler=ALWAYS_OFF if way == "none" else ALWAYS_ON))


if __name__ == "__main__":
    main()
