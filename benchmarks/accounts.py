"""Whether everything that was published arrived: a fast way that loses events is not fast."""

from __future__ import annotations

from typing import Any

from benchmarks.task import TOPIC, Task
from meshmsg import AsyncSubscription, Ledger, Subscription


def check_subscription(events: Subscription | AsyncSubscription) -> list[str]:
    """What a subscription missed, in words."""
    return [str(loss) for loss in events.losses]


def check_publisher(ledger: Ledger, task: Task) -> list[str]:
    """What does not add up in the publisher's ledger, in words."""
    problems = []
    if len(ledger.rows) != task.subscribers:
        problems.append(f"{len(ledger.rows)} subscriptions in the ledger of {task.subscribers}")
    for row in ledger.rows:
        if not row.reconciles:
            problems.append(f"the ledger does not reconcile: {row}")
        elif row.delivered != task.count:
            problems.append(f"{row.delivered:,} delivered of {task.count:,}: {row}")
    return problems


def frames_of(stats: dict[str, Any]) -> int:
    """In how many frames the events went out."""
    return int(stats["streams"][TOPIC]["frames"])
