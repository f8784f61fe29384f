"""The nouns of a work group: what its members agree on, and the history of what did not go well."""

from __future__ import annotations

from dataclasses import dataclass, field

from meshmsg._wire.frame import Frame


@dataclass(frozen=True, slots=True)
class GroupPolicy:
    """What all members of a group must agree on."""

    order: str = "none"
    max_attempts: int = 5
    patterns: tuple[str, ...] = ("**",)

    def difference(self, other: GroupPolicy) -> str:
        """What another one has different, in words; empty if nothing."""
        if self.order != other.order:
            return f"order={other.order!r}, and the group has order={self.order!r}"
        if self.max_attempts != other.max_attempts:
            had = self.max_attempts
            return f"max_attempts={other.max_attempts}, and the group has max_attempts={had}"
        if sorted(self.patterns) != sorted(other.patterns):
            ours, theirs = " ".join(self.patterns), " ".join(other.patterns)
            return f"the topics {theirs}, and the group has {ours}"
        return ""


@dataclass(slots=True)
class Trouble:
    """The history of an event that did not go well the first time."""

    attempt: int = 1  #: the current one, or the next if it waits
    spared: int = 0  #: attempts that do not count: nobody knows whether it was opened
    lot: int = 0  #: of so many events at most, one ended its member: it is tried apart; 0: no
    members: list[str] = field(default_factory=list)
    error: str = ""
    reason: str = ""
    last: int = -1  #: the member that had it last

    @property
    def counted(self) -> int:
        """Attempts that count."""
        return self.attempt - self.spared

    def spare(self) -> None:
        """It comes again, and may have been opened or not."""
        self.attempt += 1
        self.spared += 1


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An event that failed too often."""

    frame: Frame
    index: int
    """Its place in the frame."""
    trouble: Trouble

    @property
    def seq(self) -> int:
        """Its number in the frame's epoch."""
        return self.frame.first + self.index
