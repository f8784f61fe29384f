"""How far a table is behind: a publisher at a steady rate, the sink daemon, and its lag over time.

    python benchmarks/sink.py --rate 200000 --seconds 180

The payloads have 64 bytes.  The lag counts when a row is in a file that a reader sees.  It is a
straight line at best: what matters is that it does not rise.  Before that, a trickle of events
shows what a batch costs that has next to nothing in it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from meshmsg.spark_sink.sink.process import SinkProcess

PUBLISHER = """
import sys, time
from meshmsg import Peer, Stream
rate, seconds, warm_s = (float(word) for word in sys.argv[1:4])
payloads = [bytes([n % 256]) * 64 for n in range(int(rate / 100))]
def publish(peer, rate, seconds, size):
    began, sent = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        peer.publish_many("quotes.eu", payloads[:size])
        sent += size
        time.sleep(max(0.0, began + sent / rate - time.monotonic()))
    return sent, time.monotonic() - began
with Peer("bench", streams=[Stream("quotes.**", overflow="block", buffer_bytes="256MiB")]) as peer:
    print(peer.address, flush=True)
    peer.wait_for_subscribers("quotes.eu", count=1, timeout=600)
    for line in sys.stdin:
        word = line.strip()
        if word == "trickle":
            print(*publish(peer, 20, warm_s, 1), flush=True)
        elif word == "full":
            print(*publish(peer, rate, seconds, len(payloads)), flush=True)
            peer.flush(timeout=60)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=200_000, help="events a second")
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--trickle", type=float, default=15, help="seconds of single events before")
    parser.add_argument("--trigger", default="1s")
    parser.add_argument("--format", default="parquet")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here, too")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(chosen, folder)
    print(show(found))
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def measure(chosen: argparse.Namespace, folder: str) -> dict[str, Any]:
    """Run it once; figures as plain data."""
    words = [str(chosen.rate), str(chosen.seconds), str(chosen.trickle)]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", PUBLISHER, *words], stdin=pipe, stdout=pipe, text=True
    ) as publisher:
        assert publisher.stdin is not None
        assert publisher.stdout is not None
        address = publisher.stdout.readline().strip()
        with SinkProcess(
            f"{folder}/lake/quotes",
            *("--connect", address, "--trigger", chosen.trigger, "--every", "500ms"),
            *("--format", chosen.format, "--retention", "200MB"),
        ) as sink:
            sink.wait_ready(600)
            for _ in range(2):  # the first batches of a new Java are slow, and not what is measured
                say(publisher, "trickle")
                fixed = watch(sink, chosen.trickle)
                publisher.stdout.readline()
                sink.wait_for(lambda: sink.output()["lag_events"] == 0, 600)
            say(publisher, "full")
            samples = watch(sink, chosen.seconds)
            sent, took = (float(word) for word in publisher.stdout.readline().split())
            drained = time.monotonic()
            sink.wait_for(lambda: sink.output().get("lag_events") == 0, 600)
            drain_s = time.monotonic() - drained
            total = sink.output()
            publisher.stdin.close()
    half = len(samples) // 2
    return {
        "rate": round(sent / took),
        "seconds": took,
        "rows": total["rows"],
        "lost": total["lost"],
        "lag_s_first_half": mean(samples[half // 2 : half], "lag_s"),
        "lag_s_second_half": mean(samples[half:], "lag_s"),
        "lag_s_max": max(sample["lag_s"] for sample in samples[half // 2 :]),
        "batch_ms": mean(samples[half:], "batch_ms"),
        "drain_s": drain_s,
        "fixed_ms": statistics.median(s["batch_ms"] for s in fixed[len(fixed) // 2 :]),
        "samples": [(round(s["at"], 1), s["lag_events"], s["lag_s"]) for s in samples],
    }


def say(publisher: subprocess.Popen[str], word: str) -> None:
    assert publisher.stdin is not None
    publisher.stdin.write(word + "\n")
    publisher.stdin.flush()


def watch(sink: SinkProcess, seconds: float) -> list[dict[str, Any]]:
    """The figures of some seconds."""
    began, found = time.monotonic(), []
    while time.monotonic() - began < seconds:
        time.sleep(0.5)
        found.append({**sink.output(), "at": time.monotonic() - began})
    return found


def mean(samples: list[dict[str, Any]], name: str) -> float:
    return statistics.fmean(sample[name] for sample in samples) if samples else 0.0


def show(found: dict[str, Any]) -> str:
    lines = [
        f"{at:6.1f} s  lag {lag:>10,} events  {lag_s:5.1f} s" for at, lag, lag_s in picked(found)
    ]
    return "\n".join(
        [
            *lines,
            f"{found['rate']:,} events/s for {found['seconds']:.0f} s, {found['rows']:,} rows, "
            f"{found['lost']} lost",
            f"lag {found['lag_s_first_half']:.2f} s in the first half, "
            f"{found['lag_s_second_half']:.2f} s in the second, {found['lag_s_max']:.2f} s at most "
            f"and all written {found['drain_s']:.1f} s after the last event",
            f"a batch takes {found['batch_ms']:.0f} ms, one with next to nothing in it "
            f"{found['fixed_ms']:.0f} ms",
        ]
    )


def picked(found: dict[str, Any]) -> list[tuple[float, int, float]]:
    """About twenty of the samples."""
    samples: list[tuple[float, int, float]] = found["samples"]
    return samples[:: max(1, len(samples) // 20)]


if __name__ == "__main__":
    main()
