"""What a person saw in `meshmsg demo`, in sentences with the real figures; and what was wrong."""

from __future__ import annotations

from typing import Any

from meshmsg.cli._demo_run import HEALTHY, QUOTES_BUFFER, STALLED, Outcome, Subscriber

STREAMS = 2


def story(outcome: Outcome) -> list[str]:
    """A few sentences, one a paragraph."""
    quotes, orders = outcome.published["quotes"], outcome.published["orders"]
    share = outcome.dropped_frames / max(1, outcome.frames)
    sleeper = outcome.subscribers[-1]
    lost, losses = sleeper.figure("quotes", "lost"), sleeper.figure("quotes", "losses")
    return [
        f"One publisher sent {quotes:,} quotes and {orders:,} orders in {outcome.frames:,} frames "
        f"to three subscribers, each in a process of its own.",
        f"{outcome.dropped_frames:,} frames ({share:.1%}) with {outcome.dropped_events:,} events "
        f"were dropped on purpose before they reached anybody. The subscribers found the gaps by "
        f"the events' numbers and asked again.",
        *(_healthy_text(subscriber) for subscriber in outcome.subscribers[:-1]),
        f"{STALLED} was frozen for {outcome.stalled_s:.1f} s. The quotes' stream says "
        f"overflow = drop_oldest with {QUOTES_BUFFER // 1024} KiB of memory, so nobody waited for "
        f"{STALLED}, and {lost:,} quotes were gone when it came back. It was told so in "
        f"{losses:,} reports that name each of them: declared lost, reason overflow, not silently "
        f"missing.",
        f"The orders' stream says overflow = buffer: {STALLED} has all "
        f"{sleeper.figure('orders', 'received'):,} of them, {sleeper.figure('orders', 'lost')} "
        f"lost. In all {sleeper.report.get('repaired', 0):,} events were repaired for {STALLED}.",
    ]


def _healthy_text(subscriber: Subscriber) -> str:
    return (
        f"{subscriber.name} got {subscriber.total('received'):,} events, "
        f"{subscriber.report.get('repaired', 0):,} of them repaired; "
        f"{subscriber.total('lost')} lost, {subscriber.total('wrong')} twice or out of order."
    )


def problems(outcome: Outcome) -> list[str]:
    """All that is not as it must be; empty when all is well."""
    found = []
    rows = outcome.ledger.rows
    if len(rows) != STREAMS * len(outcome.subscribers):
        found.append(f"the ledger has {len(rows)} rows")
    if not outcome.ledger.reconciles:
        found.append("the ledger does not reconcile")
    if outcome.ledger.in_flight:
        found.append(f"{outcome.ledger.in_flight} events are still in flight")
    for subscriber in outcome.subscribers:
        for kind, published in outcome.published.items():
            may_lose = subscriber.name == STALLED and kind == "quotes"
            found += _stream_problems(subscriber, kind, published, may_lose=may_lose)
    if not outcome.subscribers[-1].figure("quotes", "lost"):
        found.append(f"{STALLED} lost nothing: the stall was too short to show anything")
    for row in rows:
        if set(row.lost) - {"overflow"}:
            found.append(f"{row.subscription} has losses for other reasons: {dict(row.lost)}")
    return found


def _stream_problems(
    subscriber: Subscriber, kind: str, published: int, *, may_lose: bool
) -> list[str]:
    name = f"{subscriber.name}'s {kind}"
    received = subscriber.figure(kind, "received")
    lost = subscriber.figure(kind, "lost")
    found = []
    if lost and not may_lose:
        found.append(f"{name}: {lost:,} were lost")
    if received + lost != published:
        found.append(f"{name}: {received:,} received + {lost:,} lost is not {published:,}")
    if subscriber.figure(kind, "skipped") != lost:
        found.append(f"{name}: the gaps in the data are not those that were reported lost")
    if subscriber.figure(kind, "wrong"):
        found.append(f"{name}: {subscriber.figure(kind, 'wrong')} came twice or out of order")
    return found


def summary(outcome: Outcome, wrong: list[str]) -> dict[str, Any]:
    """The outcome for `--json`."""
    return {
        "demo": {
            "published": outcome.published,
            "frames": outcome.frames,
            "dropped_frames": outcome.dropped_frames,
            "dropped_events": outcome.dropped_events,
            "stalled": STALLED,
            "stalled_s": round(outcome.stalled_s, 3),
            "seconds": round(outcome.took_s, 3),
            "subscribers": {
                subscriber.name: subscriber.report for subscriber in outcome.subscribers
            },
            "healthy": list(HEALTHY),
            "problems": wrong,
        }
    }
