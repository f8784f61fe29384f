"""What a person saw in `meshmsg demo feed`, with the real figures; and what was wrong."""

from __future__ import annotations

from typing import Any

from meshmsg.cli._demo_feed_run import PUBLISHER, Outcome, Receiver


def story(outcome: Outcome) -> list[str]:
    """A few sentences, one a paragraph."""
    sent = outcome.sent
    packets, repairs = sent.get("packets", 0), sent.get("repairs", 0)
    lost = sum(receiver.figure("dropped_data") for receiver in outcome.receivers)
    asked, suppressed = outcome.total("nacks"), outcome.total("suppressed")
    return [
        f"{PUBLISHER} sent {outcome.published:,} quotes in {packets:,} packets to the multicast "
        f"group {outcome.group}: each packet once, however many receivers there are.",
        f"Three receivers, each in a process of its own, threw away {outcome.drop:.0%} of "
        f"all packets before looking at them, each different ones: {lost:,} with quotes in them, "
        f"first copies and repairs. They found the gaps by the packets' numbers; {PUBLISHER}'s "
        f"heartbeats showed them those at the end.",
        f"They sent {asked:,} requests to the group, and {PUBLISHER} sent {repairs:,} packets "
        f"again. One repair serves everybody who lost that packet: {suppressed:,} came to a "
        f"receiver that had not asked yet, and then did not have to. {sent.get('suppressed', 0):,} "
        f"that {PUBLISHER} was asked for had just been sent again, and were not sent twice.",
        *(_receiver_text(receiver) for receiver in outcome.receivers),
    ]


def _receiver_text(receiver: Receiver) -> str:
    return (
        f"{receiver.name} threw away {receiver.figure('dropped_data'):,} packets, had "
        f"{receiver.packets('repaired'):,} missing ones repaired and got "
        f"{receiver.figure('received'):,} quotes: {receiver.figure('skipped')} missing, "
        f"{receiver.figure('wrong')} twice or out of order."
    )


def problems(outcome: Outcome) -> list[str]:
    """All that is not as it must be; empty when all is well."""
    found = []
    rows = outcome.ledger.rows
    if len(rows) != len(outcome.receivers):
        found.append(f"the ledger has {len(rows)} rows")
    if not outcome.ledger.reconciles:
        found.append("the ledger does not reconcile")
    if outcome.ledger.in_flight:
        found.append(f"{outcome.ledger.in_flight} quotes are still in flight")
    for row in rows:
        if row.lost:
            found.append(f"{row.subscription} has losses: {dict(row.lost)}")
    for receiver in outcome.receivers:
        found += _receiver_problems(receiver, outcome.published)
    return found


def _receiver_problems(receiver: Receiver, published: int) -> list[str]:
    found = []
    if receiver.figure("received") != published:
        found.append(f"{receiver.name}: {receiver.figure('received'):,} of {published:,} quotes")
    if receiver.figure("lost"):
        found.append(f"{receiver.name}: {receiver.figure('lost'):,} quotes were declared lost")
    if receiver.figure("skipped"):
        found.append(f"{receiver.name}: {receiver.figure('skipped'):,} quotes are missing")
    if receiver.figure("wrong"):
        found.append(f"{receiver.name}: {receiver.figure('wrong')} came twice or out of order")
    if not receiver.figure("dropped_data"):
        found.append(f"{receiver.name} lost no packets: the run was too short to show anything")
    return found


def summary(outcome: Outcome, wrong: list[str]) -> dict[str, Any]:
    """The outcome for `--json`."""
    return {
        "demo": {
            "act": "feed",
            "group": outcome.group,
            "drop": outcome.drop,
            "published": outcome.published,
            "sender": outcome.sent,
            "seconds": round(outcome.took_s, 3),
            "receivers": {receiver.name: receiver.report for receiver in outcome.receivers},
            "problems": wrong,
        }
    }
