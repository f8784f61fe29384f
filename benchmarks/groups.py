"""Work queues: one publisher, two workers, acknowledgements on.

    python benchmarks/groups.py [--rounds 3] [--scale 0.2] [--install] [--check] [--json FILE]

meshmsg groups, event by event and by the batch, beside raw pyzmq PUSH/PULL (which acknowledges
nothing) and the work queues of RabbitMQ and NATS JetStream.  Their servers are started here, on
free loopback ports with folders of their own, and stopped at the end; `--install` gets them with
apt where they are missing and that is allowed.  What cannot be had is said and left out.

A rate is that of the workers together, from the first job that one of them took to the last.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks.group_rivals import RIVALS
from benchmarks.group_ways import WAYS, Way
from benchmarks.space import Missing

WORKERS = 2
SIZE_BYTES = 64
LIMIT_S = 120.0
PACKAGES = ("rabbitmq-server", "nats-server")
#: Of raw PUSH/PULL, and of the better rival: what each way has to reach.
TARGETS = {"meshmsg": 0.5, "meshmsg-batches": 3.0}


def main(arguments: list[str] | None = None) -> int:
    """Measure, show; returns the exit status."""
    options = _options(arguments)
    if options.install:
        install()
    found: dict[str, list[float]] = {}
    missing: dict[str, str] = {}
    for number in range(options.rounds):
        for way in WAYS:
            if way.name in missing or (options.only and way.name not in options.only):
                continue
            try:
                rate = measure(way, options.scale)
            except Missing as problem:
                missing[way.name] = str(problem)
                print(f"{way.label:<44} left out: {problem}", flush=True)
                continue
            found.setdefault(way.name, []).append(rate)
            print(f"round {number + 1}  {way.label:<44} {rate:>12,.0f} jobs/s", flush=True)
    rates = {name: statistics.median(some) for name, some in found.items()}
    show(rates, found)
    if options.json:
        data = {"rates": found, "missing": missing, "workers": WORKERS, "bytes": SIZE_BYTES}
        options.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return 1 if options.check and not all(met for _, met in verdicts(rates)) else 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks/groups.py", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="of the jobs of a full run")
    parser.add_argument("--only", action="append", choices=[way.name for way in WAYS])
    parser.add_argument("--install", action="store_true", help="get missing servers with apt")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target was missed")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args(arguments)


def install() -> None:
    """Get the servers of the rivals, where apt may; what fails is said when they are needed."""
    wanted = [name for name in PACKAGES if not shutil.which(name, path=_path())]
    if not wanted or not shutil.which("apt-get") or os.geteuid() != 0:
        return
    command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"apt-get could not install {' '.join(wanted)}: {done.stderr.strip()[-200:]}")


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/lib/rabbitmq/bin"


def measure(way: Way, scale: float) -> float:
    """Jobs a second; raises `Missing`."""
    count = max(10_000, round(way.count * scale / 10_000) * 10_000)
    server = RIVALS.get(way.name.partition("-")[0])
    if server is None:
        return run(way, count, "")
    with server() as running:
        return run(way, count, running.address)


def run(way: Way, count: int, address: str) -> float:
    """One publisher and the workers, each a process; checks that every job was done."""
    spawn = multiprocessing.get_context("spawn")
    boss, theirs = spawn.Pipe()
    publisher = spawn.Process(
        target=_guard, args=(way.publish, theirs, address, count), daemon=True
    )
    publisher.start()
    crew = []
    try:
        where = _receive(boss)
        for _ in range(WORKERS):
            ours, end = spawn.Pipe()
            worker = spawn.Process(target=_guard, args=(way.work, end, where, count), daemon=True)
            worker.start()
            crew.append((worker, ours))
        for _, ours in crew:
            assert _receive(ours) == "ready"
        boss.send("go")
        told = _receive(boss)
        for _, ours in crew:
            ours.send("stop")
        reports = [_receive(ours) for _, ours in crew]
    finally:
        for process in [publisher, *(worker for worker, _ in crew)]:
            process.kill()
            process.join()
    done = sum(report["jobs"] for report in reports)
    if done != count or told != count:
        raise AssertionError(f"{way.name}: {done} of {count} jobs done, {told} acknowledged")
    began = min(report["began_ns"] for report in reports if report["jobs"])
    ended = max(report["ended_ns"] for report in reports)
    return (count - 1) * 1e9 / max(1, ended - began)


def _guard(function: Any, end: Connection, where: str, count: int) -> None:
    try:
        function(end, where, count)
    except (Exception, KeyboardInterrupt) as error:
        end.send(error if isinstance(error, Missing) else RuntimeError(repr(error)))


def _receive(end: Connection) -> Any:
    if not end.poll(LIMIT_S):
        raise AssertionError(f"no answer in {LIMIT_S:g} s")
    found = end.recv()
    if isinstance(found, Exception):
        raise found
    return found


def verdicts(rates: dict[str, float]) -> list[tuple[str, bool]]:
    """What was to be reached, in words, and whether it was."""
    told = []
    raw = rates.get("raw")
    for name, factor in TARGETS.items():
        if raw and name in rates:
            ratio = rates[name] / raw
            told.append((f"{name} {ratio:.2f} of raw PUSH/PULL, wanted {factor}", ratio >= factor))
    for rival in (way.name for way in WAYS if way.name.partition("-")[0] in RIVALS):
        ours = "meshmsg-batches" if rival.endswith("batches") else "meshmsg"
        if rival in rates and ours in rates:
            ratio = rates[ours] / rates[rival]
            told.append((f"{ours} {ratio:.1f} of {rival}, wanted more than 1", ratio > 1))
    return told


def show(rates: dict[str, float], found: dict[str, list[float]]) -> None:
    """The table, and the verdicts."""
    print(
        f"\n{SIZE_BYTES} B, 1 publisher, {WORKERS} workers; medians of the rounds, and their range"
    )
    for way in WAYS:
        if way.name in rates:
            some = found[way.name]
            span = f"{min(some):,.0f} to {max(some):,.0f}"
            print(f"{way.label:<44} {rates[way.name]:>12,.0f} jobs/s  ({span})")
    for text, met in verdicts(rates):
        print(f"{'met   ' if met else 'MISSED'}  {text}")


if __name__ == "__main__":
    began = time.monotonic()
    status = main()
    print(f"{time.monotonic() - began:.0f} s")
    sys.exit(status)
