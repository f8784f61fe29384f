"""What members say, as a group understands it."""

from __future__ import annotations

from collections.abc import Iterable

from meshmsg._wire.control import Claimed, Join, Refusal
from meshmsg.recovery.groups.group import WorkGroup
from meshmsg.recovery.groups.numbering import Line
from meshmsg.recovery.groups.policy import GroupPolicy
from meshmsg.recovery.groups.recall import Failure

AckRange = tuple[int, int, int]


def policy_of(join: Join) -> GroupPolicy:
    """What a member asks of its group."""
    return GroupPolicy(join.order, join.max_attempts, tuple(join.patterns))


def on_line(line: Line, epoch: int, ranges: Iterable[AckRange]) -> Iterable[AckRange]:
    """Ranges of an epoch, as a group counts them."""
    if epoch == line.epoch:
        return ranges
    return [(*line.clip(epoch, first, max(first, stop)), n) for first, stop, n in ranges]


def failures_on_line(line: Line, epoch: int, nacks: Iterable[Refusal]) -> list[Failure]:
    """Refusals of an epoch, as a group counts them."""
    places = [(line.clip(epoch, nack.seq, nack.seq + 1), nack) for nack in nacks]
    return [
        Failure(first, nack.attempt, nack.delay_s, nack.error)
        for (first, stop), nack in places
        if first < stop
    ]


def had_by(group: WorkGroup, sub: int, claim: Claimed) -> Claimed:
    """Those of the events that a member names which it has, or had when it was lost."""
    line, epoch = group.shelf.line, claim.epoch

    def had(ranges: list[AckRange]) -> list[AckRange]:
        lined = on_line(line, epoch, ranges)
        pairs = zip(ranges, lined, strict=True)
        return [one for one, (first, stop, _) in pairs if group.has_had(sub, first, stop)]

    if line.offset(epoch) is None:
        return Claimed(claim.stream, epoch)
    refused = [(nack.seq, nack.seq + 1, nack.attempt) for nack in claim.nacks]
    numbers = {first for first, _, _ in had(refused)}
    nacks = [nack for nack in claim.nacks if nack.seq in numbers]
    acks, held = had(claim.acks), had(claim.held)
    return Claimed(claim.stream, epoch, acks, nacks, held, claim.generation)


def takes_all_of(policy: GroupPolicy, topics: str) -> bool:
    """Whether a group takes every topic of a stream, and nobody needs to look at them."""
    return "**" in policy.patterns or topics in policy.patterns
