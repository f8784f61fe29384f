"""Figures of a subscription or of a member of a group, as plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from meshmsg._groups.consumer import Member
from meshmsg._model.event import Position
from meshmsg._receive.subscription_io import Intake
from meshmsg.recovery.stream.receiver import StreamReceiver

#: Of those that a subscription keeps.
LOSSES_SHOWN = 8


def inlet_stats(name: str, inlet: Intake | Member) -> dict[str, Any]:
    """What `stats()` says of one."""
    return _member_stats(name, inlet) if isinstance(inlet, Member) else _intake_stats(name, inlet)


def _member_stats(name: str, member: Member) -> dict[str, Any]:
    return {
        "name": name,
        "group": member.options.group,
        "topics": [pattern.text for pattern in member.filter.patterns],
        "counters": dict(sorted(member.counters.items())),
        "evictions": [],
        "sources": [
            {
                "stream": source.info.name,
                "epoch": source.epoch,
                "delivered": source.delivered,
                "redelivered": source.redelivered,
                "acked": source.acked,
            }
            for source in member.sources()
        ],
    }


def fates(
    intakes: Mapping[int, Intake], label: Callable[[int], str], place: Position
) -> list[dict[str, Any]]:
    """What became of an event at each subscription that knows of its stream and epoch."""
    found = []
    for sub, intake in list(intakes.items()):
        if (fate := intake.fate(place)) is not None:
            state, reason, filtered = fate
            patterns = [pattern.text for pattern in intake.filter.patterns]
            row = {
                "name": label(sub),
                "patterns": patterns,
                "recorder": not intake.follows_recorders,
            }
            found.append({**row, "state": state, "reason": reason, "filtered": filtered})
    return found


def _unheard(intake: Intake) -> Counter[str]:
    """Why nothing is received of streams that send packets: there is no source to count them at."""
    counters: Counter[str] = Counter()
    for source in list(intake.incoming.by_name.values()):
        if source.receiver is None and source.packets is not None:
            counters += source.packets.refused()
    return counters


def _latest_losses(intake: Intake) -> list[dict[str, Any]]:
    """The ranges that were lost last."""
    losses = intake.losses  # grows meanwhile: places from its end stay
    found = [losses[at] for at in range(-min(LOSSES_SHOWN, len(losses)), 0)]
    return [msgspec.structs.asdict(loss) for loss in found]


def repair_times(receiver: StreamReceiver | None) -> dict[str, Any]:
    """How long repairs took, once there was one."""
    times = None if receiver is None else receiver.repairs
    return {} if times is None else {"repair_s": times.as_dict()}


def _intake_stats(name: str, intake: Intake) -> dict[str, Any]:
    return {
        "name": name,
        "topics": [pattern.text for pattern in intake.filter.patterns],
        "counters": dict(sorted((intake.counters + intake.foreign() + _unheard(intake)).items())),
        "evictions": list(intake.evictions),
        "refusals": dict(intake.refusals),
        "losses": _latest_losses(intake),
        "sources": [
            {
                **(source.receiver.counters if source.receiver else {}),
                "stream": source.info.name,
                "epoch": source.books.epoch,
                "received": source.receiver.next if source.receiver else 0,
                "missing": source.receiver.missing if source.receiver else 0,
                "nacks": source.receiver.nacks if source.receiver else 0,
                "delivered": source.books.delivered,
                "filtered": source.books.filtered,
                "lost": dict(source.books.lost),
                **repair_times(source.receiver),
                **(source.samples.as_dict() if source.samples else {}),
                **({"multicast": source.packets.stats()} if source.packets else {}),
            }
            for source in intake.sources()
        ],
    }
