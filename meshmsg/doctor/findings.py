"""What a check yields: one finding for each thing it looked at, with what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from meshmsg._model.errors import MeshError

OK = "ok"
WARN = "warn"
FAIL = "fail"
SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Finding:
    """One step: what was looked at, how it is, and, where it is not well, what would mend it."""

    check: str
    status: str
    found: str
    fix: str = ""

    def as_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "check": self.check,
            "status": self.status,
            "found": self.found,
            "fix": self.fix,
        }


Check = Callable[[], Iterator[Finding]]


def examine(name: str, check: Check) -> Iterator[Finding]:
    """The findings of a check; one that breaks down is a finding too, and ends nothing."""
    try:
        yield from check()
    except (MeshError, OSError) as error:
        yield Finding(name, FAIL, str(error) or type(error).__name__, "see what it says")
    except Exception as error:  # a defect of the check must not hide what the others find
        yield Finding(name, FAIL, f"the check itself failed: {type(error).__name__}: {error}")
