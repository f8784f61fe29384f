"""The reconciliation at the end of the demo: what there was, and if it adds up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from market.bars import bars_from, different_bars
from market.demo.run import GATEWAY, KILLED, LATE, MOLD, ROLES, SLOW, Handling, Outcome
from market.exchange import FEED, ORDERS, TRADES
from market.handler import wrong_hashes


class Check(NamedTuple):
    """A line of the reconciliation; `good` is `None` where there is nothing to be right about."""

    what: str
    figure: str
    words: str
    good: bool | None = None


def story(outcome: Outcome) -> list[str]:
    """A few sentences, one a paragraph."""
    killed, mold = _named(outcome, KILLED), _named(outcome, MOLD)
    return [
        f"An exchange sent {outcome.published[FEED]:,} messages about its order books to a "
        f"multicast group, on lines A and B, and {outcome.published[TRADES]:,} trades beside them. "
        f"Every receiver lost {outcome.drop:.0%} of the packets on each line.",
        f"{SLOW} was too slow while the market was open. Nobody waited, and nothing was dropped.",
        f"{KILLED} was killed when {killed.killed_at:,} messages were out. It came back with the "
        f"books of its last snapshot, at message {killed.figure('resumed'):,}, and went on.",
        f"{LATE} came in the middle of the day and read all of it from the beginning. For those "
        f"who were slow, late or away the exchange read {outcome.replayed:,} frames from its log.",
        f"{MOLD} knows nothing of meshmsg: it got the feed from a gateway as MoldUDP64 packets, "
        f"had {mold.total('repaired'):,} packets sent again, and rebuilt the same books.",
    ]


def _named(outcome: Outcome, name: str) -> Handling:
    return next(handling for handling in outcome.handlers if handling.name == name)


def checks(outcome: Outcome) -> Iterator[Check]:
    """The reconciliation, line by line."""
    published = outcome.published
    feed, orders = published[FEED], published[ORDERS]
    handlers = outcome.handlers
    yield Check(
        "published",
        f"{sum(published.values()):,}",
        f"{feed:,} book messages, {published[TRADES]:,} trades, {orders:,} orders",
    )
    applied = [handling.figure("applied") for handling in handlers]
    yield Check(
        "delivered",
        f"{sum(applied):,}",
        f"all {feed:,} book messages to each of {len(handlers)} feed handlers",
        all(count == feed for count in applied),
    )
    yield Check(
        "lost on the wire",
        f"{_total(handlers, 'dropped'):,}",
        "packets thrown away on purpose, on lines A and B",
        _total(handlers, "dropped") > 0,
    )
    repaired = _total(handlers, "repaired")
    yield Check(
        "repaired",
        f"{repaired:,}",
        "packets lost on both lines: asked for, and sent again",
    )
    yield Check(
        "deduplicated",
        f"{_total(handlers, 'duplicates'):,}",
        "packets that came by the other line as well",
    )
    lost = _total(handlers, "lost")
    lost += sum(int(said.get("lost", 0)) for said in (outcome.gateway, outcome.tape))
    yield Check("declared lost", f"{lost:,}", "nobody is missing anything", lost == 0)
    yield from _books(outcome)
    made = bars_from(outcome.tape.get("bars", ()))
    yield Check(
        "bars equal",
        f"{len(made):,}",
        f"one-second bars from {int(outcome.tape.get('trades', 0)):,} trades received, beside "
        f"{len(outcome.bars):,} from the simulator's own record",
        not different_bars(outcome.bars, made),
    )
    yield from _desk(outcome, orders)
    yield Check(
        "ledger",
        f"{len(outcome.ledger.rows)} rows",
        "published = delivered + filtered + lost + in flight, in each",
        outcome.ledger.reconciles and not outcome.ledger.in_flight,
    )
    yield from _spark(outcome)


def _total(handlers: list[Handling], *names: str) -> int:
    return sum(handling.total(*names) for handling in handlers)


def _books(outcome: Outcome) -> Iterator[Check]:
    finals = [handling.final for handling in outcome.handlers]
    yield Check(
        "books equal",
        outcome.final,
        f"the exchange's own at the close, and those of {len(finals)} handlers, by hash",
        all(final == outcome.final for final in finals),
    )
    made = [len(handling.hashes.keys() & outcome.hashes.keys()) for handling in outcome.handlers]
    wrong = [wrong_hashes(outcome.hashes, handling.hashes) for handling in outcome.handlers]
    yield Check(
        "checkpoints",
        f"{sum(made)}",
        f"{len(outcome.hashes)} in the day, equal at each of the handlers",
        not any(wrong) and all(count == len(outcome.hashes) for count in made),
    )


def _desk(outcome: Outcome, orders: int) -> Iterator[Check]:
    shares = [int(said.get("handled", 0)) for said in outcome.desk.values()]
    exposure: Counter[str] = Counter()
    for said in outcome.desk.values():
        exposure.update(said.get("exposure", {}))
    yield Check(
        "risk",
        f"{sum(shares):,}",
        "orders, each handled by one of the group: " + " + ".join(f"{n:,}" for n in shares),
        sum(shares) == orders,
    )
    yield Check(
        "exposure",
        f"{len(exposure)}",
        "accounts, each with the sum that the exchange has for it",
        dict(exposure) == outcome.exposure,
    )


def _spark(outcome: Outcome) -> Iterator[Check]:
    spark = outcome.spark
    if spark.reason is not None:
        yield Check("Spark", "-", f"left out: {spark.reason}")
        return
    wrong = ": " + "; ".join(spark.wrong_rows) if spark.wrong_rows else ""
    yield Check(
        "rows in Spark",
        f"{spark.rows:,}",
        f"in the sink's table, of {spark.rows_wanted:,} events published, none twice{wrong}",
        spark.rows == spark.rows_wanted and not spark.wrong_rows,
    )
    yield Check(
        "bars in Spark",
        f"{spark.bars:,}",
        "one-second bars with VWAP by Structured Streaming, beside "
        f"{spark.bars_wanted:,} from the simulator's own record",
        spark.bars == spark.bars_wanted and not spark.wrong_bars,
    )


def problems(outcome: Outcome) -> list[str]:
    """All that is not as it must be; empty when all is well."""
    found = list(outcome.overdue)
    found += [
        f"{check.what}: {check.figure} ({check.words}) does not hold"
        for check in checks(outcome)
        if check.good is False
    ]
    for handling in outcome.handlers:
        if handling.figure("applied") != outcome.published[FEED]:
            found.append(f"{handling.name} has {handling.figure('applied'):,} messages")
        for place in wrong_hashes(outcome.hashes, handling.hashes):
            found.append(f"{handling.name}: other books after message {place:,}")
    if not _named(outcome, KILLED).report.get("resumed"):
        found.append(f"{KILLED} did not go on from its snapshot")
    for row in outcome.ledger.rows:
        if row.lost:
            found.append(f"{row.subscription} has losses: {dict(row.lost)}")
    return found


def summary(outcome: Outcome, wrong: list[str]) -> dict[str, Any]:
    """The outcome for `--json`."""
    return {
        "demo": {
            "act": "market",
            "drop": outcome.drop,
            "seconds": round(outcome.took_s, 3),
            "published": outcome.published,
            "books": outcome.final,
            "checkpoints": len(outcome.hashes),
            "bars": len(outcome.bars),
            "sender": outcome.sent,
            GATEWAY: outcome.gateway,
            "handlers": {
                handling.name: {"role": ROLES[handling.name], **handling.report}
                for handling in outcome.handlers
            },
            "desk": {
                name: {key: value for key, value in said.items() if key != "exposure"}
                for name, said in outcome.desk.items()
            },
            "spark": {"left_out": outcome.spark.reason, "rows": outcome.spark.rows},
            "reconciliation": [check._asdict() for check in checks(outcome)],
            "problems": wrong,
        }
    }
