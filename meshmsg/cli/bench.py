"""`meshmsg bench`: how fast meshmsg is on this machine, in a few seconds."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

from meshmsg import Multicast, Peer, Stream
from meshmsg.cli._bench_worker import END, PING, TOPIC
from meshmsg.cli._guard import BAD, GOOD, complain, guarded, note
from meshmsg.cli._help import help_text
from meshmsg.cli._options import Json, MulticastGroup, Quiet, multicast_of
from meshmsg.cli._tables import console, table
from meshmsg.cli._values import to_json

HELP = help_text(
    "Measure meshmsg here: separate processes, loopback, all guarantees on.",
    "Events a second one by one and in batches, counted where they are received, and the time of "
    "a round trip between two processes. For the comparison with raw ZeroMQ see `make bench`.",
    examples=(
        "meshmsg bench",
        "meshmsg bench --size 1024 --subscribers 4 --seconds 3",
        "meshmsg bench --multicast 239.255.7.7:30001 --subscribers 3",
        "meshmsg bench --json | jq '{measure, events_per_s}'",
    ),
)

WORKER = "meshmsg.cli._bench_worker"
MANY = 1000
CHECK_EVERY = 500
START_S = 30.0
WARM_UP_TRIPS = 100
TRIPS_MAX = 1_000_000


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("bench", help=HELP, short_help="Measure meshmsg on this machine.")(guarded(bench))


def bench(
    size: Annotated[int, typer.Option(min=1, max=1 << 20, help="Bytes of a payload.")] = 64,
    seconds: Annotated[
        float, typer.Option(min=0.05, max=3600, help="How long to publish, for each measurement.")
    ] = 2.0,
    subscribers: Annotated[
        int, typer.Option(min=1, max=64, help="Processes that receive everything.")
    ] = 1,
    multicast: MulticastGroup = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """See `HELP`."""
    transport = None if multicast is None else multicast_of(multicast)
    results = []
    for measure in ("events", "batches", "round trip"):
        note(f"measuring {measure} for {seconds:g} s", quiet=quiet)
        if measure == "round trip":
            result = round_trip(size, seconds, transport)
        else:
            result = throughput(measure, size, seconds, subscribers, transport)
        results.append(result)
        if json:
            print(to_json(result), flush=True)
    if not json:
        _show(results, size, subscribers, "tcp" if multicast is None else "UDP multicast")
    lost = sum(result.get("lost", 0) for result in results)
    if lost:
        complain(f"{lost:,} events were lost")
    return BAD if lost else GOOD


def throughput(
    measure: str, size: int, seconds: float, subscribers: int, transport: Multicast | None = None
) -> dict[str, Any]:
    """Publish as fast as it goes, and have each subscriber say how fast it received."""
    from meshmsg.cli._workers import workers

    stream = Stream("bench.**", overflow="block", transport=transport)
    with Peer("bench", streams=stream, bind="tcp://127.0.0.1:*", discovery="none") as peer:
        names = [f"subscriber-{n}" for n in range(1, subscribers + 1)]
        settings = {"connect": peer.address, "measure": measure}
        with workers(WORKER, settings, names) as started:
            peer.wait_for_subscribers(TOPIC, subscribers, timeout=START_S)
            published = _publish(peer, measure, b"x" * size, seconds)
            reports = [worker.next(seconds + START_S) for worker in started]
    rates = [report["events"] / report["seconds"] for report in reports]
    return {
        "measure": measure,
        "size": size,
        "subscribers": subscribers,
        "published": published,
        "events_per_s": round(min(rates)),
        "events_per_s_sum": round(sum(rates)),
        "mb_per_s": round(sum(rates) * size / 1e6, 1),
        "lost": sum(report["lost"] for report in reports),
    }


def _publish(peer: Peer, measure: str, payload: bytes, seconds: float) -> int:
    peer.publish(TOPIC, payload)  # the subscribers' clocks start here
    count = 1
    many = [payload] * MANY
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        if measure == "batches":
            peer.publish_many(TOPIC, many)
            count += MANY
        else:
            for _ in range(CHECK_EVERY):
                peer.publish(TOPIC, payload)
            count += CHECK_EVERY
    peer.publish(TOPIC, END)
    return count


def round_trip(size: int, seconds: float, transport: Multicast | None = None) -> dict[str, Any]:
    """There and back between two processes, one event at a time."""
    from meshmsg.cli._workers import workers

    ping = Stream("ping.**", transport=transport)
    settings = {"measure": "round trip", "group": None if transport is None else transport.group}
    with (
        Peer("bench", streams=ping, bind="tcp://127.0.0.1:*", discovery="none") as peer,
        peer.subscribe("pong.**") as pongs,
        workers(WORKER, {**settings, "connect": peer.address}, ["echo"]) as started,
    ):
        peer.wait_for_subscribers(PING, timeout=START_S)
        started[0].next(START_S)
        trips_us: list[float] = []
        payload = b"x" * size
        clock = time.perf_counter
        deadline = clock() + seconds
        while (clock() < deadline and len(trips_us) < TRIPS_MAX) or not trips_us:
            began = clock()
            peer.publish(PING, payload)
            if pongs.get(timeout=START_S) is None:
                break
            trips_us.append((clock() - began) * 1e6)
        peer.publish(PING, END)
        lost = pongs.lost
    measured = sorted(trips_us[WARM_UP_TRIPS:] or trips_us)
    return {
        "measure": "round trip",
        "size": size,
        "trips": len(measured),
        "p50_us": round(_part(measured, 0.5), 1),
        "p99_us": round(_part(measured, 0.99), 1),
        "lost": lost,
    }


def _part(ordered: Sequence[float], part: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] if ordered else float("nan")


def _show(results: Sequence[dict[str, Any]], size: int, subscribers: int, way: str) -> None:
    plural = "" if subscribers == 1 else "s"
    title = f"{size} B payloads, {subscribers} subscriber{plural}, {way} loopback"
    rows = table(title, "measurement", "result", "", "lost", numbers=("result", "lost"))
    for row in _rows(results):
        rows.add_row(*row)
    console().print(rows)


def _rows(results: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str, str, str]]:
    names = {"events": "publish / for event in", "batches": "publish_many / batches()"}
    for result in results:
        lost = f"{result['lost']:,}"
        if result["measure"] in names:
            each = "" if result["subscribers"] == 1 else " to each"
            rate = f"{result['events_per_s']:,}"
            what = f"events/s{each}, {result['mb_per_s']:,} MB/s in all"
            yield names[result["measure"]], rate, what, lost
        else:
            yield "round trip, p50", f"{result['p50_us']:,}", "us", lost
            yield "round trip, p99", f"{result['p99_us']:,}", "us", lost
