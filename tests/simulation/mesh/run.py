"""Many worlds of a mesh of whole peers on all cores; seeds that fail are printed.

python -m tests.simulation.mesh.run --seeds 10000
python -m tests.simulation.mesh.run --start 4711 --seeds 1
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import sys
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed

from tests.simulation.mesh.world import MeshWorld, simulate
from tests.simulation.seeds import try_worlds

CHUNK = 10


def try_seeds(seeds: range) -> tuple[Counter[str], list[int]]:
    """Run worlds; what happened in all of them, and the seeds that failed."""
    logging.disable(logging.CRITICAL)
    try:
        return try_worlds(MeshWorld, seeds)
    finally:
        logging.disable(logging.NOTSET)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--start", type=int, default=0)
    args = parser.parse_args()
    stop = args.start + args.seeds
    spans = [range(at, min(at + CHUNK, stop)) for at in range(args.start, stop, CHUNK)]
    counters: Counter[str] = Counter()
    failed: list[int] = []
    # Started anew, not forked: nothing of a test run's threads goes along.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(os.cpu_count() or 1, 8), mp_context=context) as pool:
        for done in as_completed([pool.submit(try_seeds, span) for span in spans]):
            some, bad = done.result()
            counters += some
            failed += bad
    figures = ", ".join(f"{count} {name}" for name, count in sorted(counters.items()))
    sys.stdout.write(f"mesh: {figures}\n")
    for seed in sorted(failed)[:50]:
        sys.stdout.write(
            f"failed: seed {seed}; "
            f"again: python -m tests.simulation.mesh.run --start {seed} --seeds 1\n"
        )
    if failed:
        logging.disable(logging.CRITICAL)
        try:
            simulate(min(failed))
        except Exception:
            traceback.print_exc()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
