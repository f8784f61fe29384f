"""Many worlds on all cores; a failing one is shrunk to a trace that a person can read.

python -m tests.simulation.multicast.run --seeds 10000
python -m tests.simulation.multicast.run --start 4711 --seeds 1
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed

from tests.simulation.multicast.shrink import shrink
from tests.simulation.multicast.world import MulticastWorld
from tests.simulation.seeds import try_worlds

CHUNK = 50


def try_seeds(seeds: range) -> tuple[Counter[str], list[int]]:
    """Run worlds; what happened in all of them, and the seeds that failed."""
    return try_worlds(MulticastWorld, seeds)


def run_all(start: int, count: int) -> Iterable[tuple[Counter[str], list[int]]]:
    """Run worlds on all cores; results in any order."""
    spans = [range(at, min(at + CHUNK, start + count)) for at in range(start, start + count, CHUNK)]
    if len(spans) == 1:
        yield try_seeds(spans[0])
        return
    # Started anew, not forked: nothing of a test run's threads goes along.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(os.cpu_count() or 1, 8), mp_context=context) as pool:
        for done in as_completed([pool.submit(try_seeds, span) for span in spans]):
            yield done.result()


def explain(seed: int) -> str:
    """A failing seed, shrunk, and the command that brings it back."""
    return f"{shrink(seed).text()}\n\nagain: make simulate START={seed} SEEDS=1\n"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--start", type=int, default=0)
    args = parser.parse_args()
    out = sys.stdout
    counters: Counter[str] = Counter()
    failed: list[int] = []
    for some, bad in run_all(args.start, args.seeds):
        counters.update(some)
        failed += bad
        if out.isatty():
            out.write(f"\r{counters['worlds']} worlds, {len(failed)} failed")
    out.write(f"\r{counters['worlds']} worlds: " + ", ".join(_figures(counters)) + "\n")
    for seed in sorted(failed)[:3]:
        out.write("\n" + explain(seed))
    if failed:
        out.write(f"\nfailing seeds: {sorted(failed)[:50]}\n")
    return 1 if failed else 0


def _figures(counters: Counter[str]) -> list[str]:
    return [f"{counters[name]} {name}" for name in sorted(counters) if name != "worlds"]


if __name__ == "__main__":
    sys.exit(main())
