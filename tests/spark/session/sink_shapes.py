"""Functions that `transform` names in tests."""

from __future__ import annotations

from typing import Any


def shout(rows: Any) -> Any:
    """Rows with their topic in capitals."""
    return rows.selectExpr("stream", "epoch", "seq", "upper(topic) AS loud")


def not_rows(rows: Any) -> Any:
    """What no shape may return."""
    return 7


def broken(rows: Any) -> Any:
    """A function with a mistake of its own."""
    raise KeyError("no-such-field")
