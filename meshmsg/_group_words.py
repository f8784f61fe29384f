"""What members say, as a group understands it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from meshmsg._control import Join
from meshmsg.recovery.group_policy import GroupPolicy
from meshmsg.recovery.work_line import Line

if TYPE_CHECKING:
    from meshmsg._publisher import Outlet

AckRange = tuple[int, int, int]


def policy_of(join: Join) -> GroupPolicy:
    """What a member asks of its group."""
    return GroupPolicy(join.order, join.max_attempts, tuple(join.patterns))


def on_line(line: Line, epoch: int, ranges: Iterable[AckRange]) -> Iterable[AckRange]:
    """Ranges of an epoch, as a group counts them."""
    if epoch == line.epoch:
        return ranges
    return [(*line.clip(epoch, first, max(first, stop)), n) for first, stop, n in ranges]


def takes_all_of(policy: GroupPolicy, outlet: Outlet) -> bool:
    """Whether a group takes every topic of a stream, and nobody needs to look at them."""
    return "**" in policy.patterns or outlet.config.topics in policy.patterns
