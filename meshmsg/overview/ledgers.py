"""One ledger of what many peers answered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from meshmsg.recovery.stream.ledger import Ledger, LedgerRow


def merge_ledgers(answers: Iterable[Mapping[str, Any]]) -> Ledger:
    """One ledger of all answers: what both ends report is taken from the publisher.

    Raises `KeyError`, `TypeError` or `ValueError` for an answer that is not a ledger.
    """
    found: dict[tuple[str, int, str], tuple[bool, LedgerRow]] = {}
    for answer in answers:
        rows = Ledger.from_dicts(answer["rows"]).rows
        from_publisher = f"{answer['peer']}/"
        for row in rows:
            key = (row.stream, row.epoch, row.subscription)
            is_own = row.stream.startswith(from_publisher)
            if key not in found or is_own > found[key][0]:
                found[key] = (is_own, row)
    return Ledger(tuple(row for _, (_, row) in sorted(found.items())))
