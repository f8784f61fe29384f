"""What a scrape each second costs: publishing and receiving with and without it, in one run.

    python benchmarks/monitor.py [--rounds 6] [--window 4] [--page]

With `--page` the live page is open, too: its events of both peers are read as they come.

A publisher and a subscriber, each in a process of its own with a monitor.  Windows with and
without scrapes take turns, so that what else the machine does meets both alike.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import threading
import time
import urllib.request
from multiprocessing.connection import Connection
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from meshmsg import Peer, Stream
from meshmsg.monitor import live

PAYLOAD = b"x" * 64
SETTLE_S = 0.2


def main() -> None:
    parser = argparse.ArgumentParser(description="What a scrape each second costs.")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--window", type=float, default=4.0, help="seconds with, and without")
    parser.add_argument("--page", action="store_true", help="with the live page open, too")
    given = parser.parse_args()
    for way in ("publish", "publish_many"):
        measure(way, given.rounds, given.window, given.page)


def measure(way: str, rounds: int, window_s: float, page: bool) -> None:
    """Print the events a second with and without scrapes, and the ratio of each round."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    sub_ours, sub_theirs = multiprocessing.get_context("spawn").Pipe()
    context = multiprocessing.get_context("spawn")
    publisher = context.Process(target=publish, args=(theirs, way))
    publisher.start()
    address, *publisher_at = ours.recv()
    subscriber = context.Process(target=subscribe, args=(sub_theirs, address))
    subscriber.start()
    places = [tuple(publisher_at), tuple(sub_ours.recv())]
    ours.send("go")
    time.sleep(2 * SETTLE_S)
    ratios, rates = [], {True: [], False: []}  # type: ignore[var-annotated]
    for number in range(rounds):
        for scraped in (True, False) if number % 2 else (False, True):
            rates[scraped].append(window(places, scraped, window_s, page))
        ratios.append(rates[True][-1] / rates[False][-1])
    for pipe, process in ((ours, publisher), (sub_ours, subscriber)):
        pipe.send("stop")
        process.join()
    without, with_ = (statistics.median(rates[key]) for key in (False, True))
    shown = " ".join(f"{ratio:.3f}" for ratio in ratios)
    print(f"{way:13} {without:12,.0f}/s without {with_:12,.0f}/s with", end=" ")
    print(f"ratio {statistics.median(ratios):.3f} ({shown})")


def window(places: list[tuple[str, int]], scraped: bool, window_s: float, page: bool) -> float:
    """Events a second that reached the subscriber."""
    stopping = threading.Event()
    threads = [threading.Thread(target=scrape, args=(places, stopping))]
    if page:
        threads += [threading.Thread(target=watch, args=(place, stopping)) for place in places]
    time.sleep(SETTLE_S)
    for thread in threads if scraped else ():
        thread.start()
    began, first = time.monotonic(), received(places[1])
    time.sleep(window_s)
    rate = (received(places[1]) - first) / (time.monotonic() - began)
    stopping.set()
    for thread in threads if scraped else ():
        thread.join()
    return rate


def received(place: tuple[str, int]) -> int:
    """What the subscriber has had so far: asked twice a window, with scrapes or without."""
    with urllib.request.urlopen("http://{}:{}/stats".format(*place), timeout=10) as answer:
        return int(json.load(answer)["subscriptions"][0]["sources"][0]["delivered"])


def scrape(places: list[tuple[str, int]], stopping: threading.Event) -> None:
    """As Prometheus does, but each second."""
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    while not stopping.is_set():
        for host, port in places:
            request = urllib.request.Request(f"http://{host}:{port}/metrics", headers=accept)
            with urllib.request.urlopen(request, timeout=10) as answer:
                answer.read()
        stopping.wait(1.0)


def watch(place: tuple[str, int], stopping: threading.Event) -> None:
    """As a page does that is open."""
    with urllib.request.urlopen("http://{}:{}/events".format(*place), timeout=10) as answer:
        while not stopping.is_set() and answer.readline():
            pass


def publish(pipe: Connection, way: str) -> None:
    """As fast as the subscriber takes it."""
    live.KEEP_S = 0.0  # a window without a page has nothing of one
    stream = Stream("bench.**", overflow="block")
    with Peer("publisher", streams=stream, monitor="127.0.0.1:0", discovery="none") as peer:
        pipe.send((peer.address, *peer.monitor.address))
        peer.wait_for_subscribers("bench.x", timeout=30)
        pipe.recv()
        many = [PAYLOAD] * 1_000
        while not pipe.poll():
            if way == "publish":
                for item in many:
                    peer.publish("bench.x", item)
            else:
                peer.publish_many("bench.x", many)


def subscribe(pipe: Connection, address: str) -> None:
    """Take all of it."""
    live.KEEP_S = 0.0
    peer = Peer("subscriber", connect=address, monitor="127.0.0.1:0", discovery="none")
    with peer, peer.subscribe("bench.**") as events:
        pipe.send(peer.monitor.address)
        while not pipe.poll():
            events.get_many(100_000, timeout=0.5)


if __name__ == "__main__":
    main()
