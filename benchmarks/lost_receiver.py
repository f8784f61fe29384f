"""Measure what one lost receiver of a multicast stream costs the others.

    python benchmarks/lost_receiver.py [--rate 200000] [--rounds 3] [--only FAULT] [--json FILE]

A publisher and three receivers, each a process in a network namespace of its own.  In mid-stream
one receiver closes, is killed, is stopped, or has its link taken down.  Shown are the longest gap
between two events at the other two, and the longest call to `publish`: of the second before the
fault, and of the seconds after it.  Needs root, for the namespaces.

Wanted: a connection that closes is not waited for (100 ms), one that falls silent for at most three
report intervals (300 ms), while the buffer has room.  Both are over what the same run showed before
the fault, which is what the machine does by itself.  `--rate 0` publishes as fast as it may: a
buffer of 64 MiB is full within a second then, and the stream's overflow word decides.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks.machine import this_machine
from meshmsg import Multicast, Peer, Stream
from tests.support.netns import Host, Network, why_not

TOPIC = "bench.lost"
GROUP = "239.255.77.77:30077"
SIZE_BYTES = 64
STEP_S = 0.002
#: Flat out, so many at once.
STEP_EVENTS = 500
BEFORE_S, AFTER_S = 1.5, 4.5
LIMIT_S = 60.0
RECEIVERS = ("one", "two", "lost")


class Crew:
    """A process of this program in a namespace: a line of JSON in, a line out."""

    def __init__(self, host: Host, *words: str) -> None:
        command = [*host.command, sys.executable, str(Path(__file__).resolve()), *words]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def tell(self, what: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()

    def hear(self) -> Any:
        """Return what it says next; raise if it says nothing in time."""
        assert self.process.stdout is not None
        timer = threading.Timer(LIMIT_S, self.process.kill)
        timer.start()
        try:
            return json.loads(self.process.stdout.readline())
        finally:
            timer.cancel()

    def end(self) -> None:
        with self.process:  # which closes its pipes
            self.process.kill()


def _close(host: Host, crew: Crew) -> None:
    crew.tell("close")


def _kill(host: Host, crew: Crew) -> None:
    crew.process.kill()


def _stop(host: Host, crew: Crew) -> None:
    crew.process.send_signal(signal.SIGSTOP)


def _unlink(host: Host, crew: Crew) -> None:
    host.run("ip", "link", "set", host.cards[0], "down")


#: What happens to one receiver, and what others may wait for it.
FAULTS: dict[str, tuple[Callable[[Host, Crew], None], int]] = {
    "closed": (_close, 100),
    "killed": (_kill, 100),
    "stopped": (_stop, 300),
    "link down": (_unlink, 300),
}


# --- the crew ---


def _say(what: Any) -> None:
    print(json.dumps(what), flush=True)


def _orders() -> Iterator[Any]:
    for line in sys.stdin:
        yield json.loads(line)


class Gaps:
    """The longest times between two moments, before and after a fault."""

    def __init__(self) -> None:
        self.spans: list[tuple[float, float]] = []

    def add(self, began: float, ended: float) -> None:
        if ended - began > 0.001:
            self.spans.append((began, ended))

    def longest_ms(self, first: float, stop: float) -> float:
        inside = [b - a for a, b in self.spans if b > first and a < stop]
        return 1e3 * max(inside, default=0.0)


def publish(interface: str, rate: int) -> None:
    """Publish until told to stop; say how long the longest calls took."""
    orders = _orders()
    stream = Stream(TOPIC, transport=Multicast(GROUP))
    with Peer("publisher", streams=stream, interface=interface) as peer:
        _say(peer.address)
        next(orders)
        peer.wait_for_subscribers(TOPIC, len(RECEIVERS), timeout=30)
        _say("ready")
        over = threading.Event()
        times: list[float] = []

        def listen() -> None:
            times.extend(next(orders))
            over.set()

        threading.Thread(target=listen, daemon=True).start()
        calls, count, began = Gaps(), 0, time.monotonic()
        payloads = [bytes(SIZE_BYTES)] * (round(rate * STEP_S) or STEP_EVENTS)
        while not over.is_set():
            now = time.monotonic()
            peer.publish_many(TOPIC, payloads)
            calls.add(now, time.monotonic())
            count += len(payloads)
            if rate and (ahead := count / rate - (time.monotonic() - began)) > 0:
                time.sleep(ahead)
        fault, end = times
        figures = peer.stats()["streams"][TOPIC]["multicast"]
        _say(
            {
                "before": calls.longest_ms(fault - 1, fault),
                "after": calls.longest_ms(fault, end),
                "count": count,
                "lagging": figures.get("lagging_receivers", 0),
                "silent": figures.get("silent_receivers", 0),
            }
        )
        next(orders, None)


def receive(name: str, address: str, interface: str) -> None:
    """Receive until told to stop; say how long the longest gaps were."""
    orders = _orders()
    with Peer(name, connect=address, interface=interface) as peer:
        events = peer.subscribe(TOPIC)
        events.wait_for_publishers(timeout=30)
        _say("ready")
        over = threading.Event()
        times: list[Any] = []

        def listen() -> None:
            order = next(orders)
            if order == "close":
                peer.close()
            else:
                times.extend(order)
            over.set()

        listener = threading.Thread(target=listen)
        listener.start()
        gaps, count, last = Gaps(), 0, time.monotonic()
        while not over.is_set() or (times and count < times[2]):
            for batch in events.batches(timeout=0.2):
                now = time.monotonic()
                gaps.add(last, now)
                count, last = count + len(batch), now
            if events.closed:
                listener.join()
                return
        fault, end, _ = times
        _say(
            {
                "before": gaps.longest_ms(fault - 1, fault),
                "after": gaps.longest_ms(fault, end),
                "lost": events.lost,
            }
        )


# --- measuring ---


def measure(fault: str, rate: int, after_s: float = AFTER_S) -> dict[str, Any]:
    """One round: figures before and after the fault, in milliseconds."""
    with Network(["sender", *RECEIVERS]) as net, contextlib.ExitStack() as stack:

        def start(host: str, *words: str) -> Crew:
            crew = Crew(net[host], *words)
            stack.callback(crew.end)
            return crew

        boss = start("sender", "publish", net["sender"].address, str(rate))
        address = boss.hear()
        crew = {
            name: start(name, "receive", name, address, net[name].address) for name in RECEIVERS
        }
        for one in crew.values():
            one.hear()
        boss.tell("begin")
        boss.hear()
        time.sleep(BEFORE_S)
        at = time.monotonic()  # one clock for all processes
        FAULTS[fault][0](net["lost"], crew["lost"])
        time.sleep(after_s)
        boss.tell([at, time.monotonic()])
        told = boss.hear()
        others = [crew["one"], crew["two"]]
        for one in others:
            one.tell([at, at + after_s, told["count"]])
        heard = [one.hear() for one in others]
    return {
        "fault": fault,
        "rate": rate,
        "published": told["count"],
        "lost": sum(one["lost"] for one in heard),
        "publish_ms": [told["before"], told["after"]],
        "gap_ms": [max(one[when] for one in heard) for when in ("before", "after")],
        "lagging": told["lagging"],
        "silent": told["silent"],
    }


def words(row: dict[str, Any]) -> str:
    """Return a round in one line."""
    gap, call = row["gap_ms"], row["publish_ms"]
    pace = f"{row['rate']:,}/s" if row["rate"] else "flat out"
    return (
        f"{row['fault']:<10} {pace:>10}  longest gap at the others {gap[0]:6.1f} ms before, "
        f"{gap[1]:7.1f} after; longest publish {call[0]:6.1f} before, {call[1]:7.1f} after; "
        f"{row['published']:,} published, {row['lost']:,} lost"
    )


def is_kept(row: dict[str, Any]) -> bool:
    """Return True when the others waited no longer than they may."""
    may_ms = FAULTS[row["fault"]][1]
    pairs = (row["gap_ms"], row["publish_ms"])
    return row["lost"] == 0 and all(after <= before + may_ms for before, after in pairs)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and show; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="benchmarks/lost_receiver.py", description=__doc__.split("\n")[0]
    )
    add = parser.add_argument
    add("--rate", type=int, default=200_000, help="events a second; 0: as many as it takes")
    add("--rounds", type=int, default=3)
    add("--only", action="append", choices=list(FAULTS))
    add("--json", type=Path, metavar="FILE", help="write all measurements as JSON")
    options = parser.parse_args(arguments)
    if reason := why_not():
        print(f"no network namespaces: {reason}", file=sys.stderr)
        return 2
    rows = []
    for _ in range(options.rounds):
        for fault in options.only or FAULTS:
            rows.append(measure(fault, options.rate))
            print(words(rows[-1]), flush=True)
    if options.json is not None:
        data = {"machine": this_machine().as_dict(), "rows": rows}
        options.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return 0 if options.rate == 0 or all(map(is_kept, rows)) else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["publish"]:
        publish(sys.argv[2], int(sys.argv[3]))
    elif sys.argv[1:2] == ["receive"]:
        receive(*sys.argv[2:])
    else:
        sys.exit(main())
