"""Whether everything that was published arrived: a fast way that loses events is not fast."""

from __future__ import annotations

from typing import Any

from benchmarks.task import Task
from meshmsg import AsyncSubscription, Ledger, Subscription


def check_subscription(events: Subscription | AsyncSubscription) -> list[str]:
    """What a subscription missed, in words."""
    return [str(loss) for loss in events.losses]


def check_publisher(ledger: Ledger, task: Task) -> list[str]:
    """What does not add up in the publisher's ledger, in words."""
    problems = []
    rows = task.subscribers * task.streams
    if len(ledger.rows) != rows:
        problems.append(f"{len(ledger.rows)} subscriptions in the ledger of {rows}")
    for row in ledger.rows:
        if not row.reconciles:
            problems.append(f"the ledger does not reconcile: {row}")
    delivered, wanted = sum(row.delivered for row in ledger.rows), task.count * task.subscribers
    if delivered != wanted:
        problems.append(f"{delivered:,} delivered of {wanted:,}: {ledger.rows[:4]}")
    return problems


def frames_of(stats: dict[str, Any]) -> int:
    """In how many frames the events went out."""
    return sum(int(stream["frames"]) for stream in stats["streams"].values())
