"""Waiting for conditions: no test waits for a time."""

from __future__ import annotations

import time
from typing import Any


def wait_until(condition: Any, timeout: float = 60.0, what: str = "") -> None:
    """Wait for a condition; fails with its last value."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout:g} s: {what or condition} (last: {value!r})")
        time.sleep(0.005)
