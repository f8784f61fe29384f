"""What `meshmsg log` says of logs with problems, and of names that they do not know."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from meshmsg import ConfigError
from meshmsg.cli._guard import BAD, GOOD, complain, usage
from meshmsg.cli._values import safe
from meshmsg.logs import Summary


def complain_of(summary: Summary) -> None:
    """Say what is wrong with a log."""
    for problem in summary.problems:
        complain(f"{safe(summary.stream)}: {problem}")


def status_of(found: Sequence[Summary]) -> int:
    """The exit status: bad if one of the logs is."""
    return BAD if any(summary.problems for summary in found) else GOOD


def not_here(kind: str, name: str, known: Iterable[str]) -> ConfigError:
    """An error, to be raised, for a name that was to be dropped."""
    names = ", ".join(sorted(set(map(safe, known)))) or "there is none"
    return usage("--drop", f"{name!r} is not a {kind} here ({names})")
