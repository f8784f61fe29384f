"""Ledgers of many peers, one row for each subscription."""

from __future__ import annotations

import pytest

from meshmsg.overview.ledgers import merge_ledgers
from tests.support.overviews import ledger_row


def test_the_publishers_row_counts() -> None:
    at_publisher = {"peer": "shop", "rows": [ledger_row("shop/a", "desk/x", 9, 9)]}
    at_subscriber = {"peer": "desk", "rows": [ledger_row("shop/a", "desk/x", 8, 8)]}
    for answers in ([at_publisher, at_subscriber], [at_subscriber, at_publisher]):
        (row,) = merge_ledgers(answers).rows
        assert row.published == 9


def test_what_is_no_ledger_is_refused() -> None:
    for wrong in ({}, {"peer": "a", "rows": 7}, {"peer": "a", "rows": [{"stream": 1}]}):
        with pytest.raises((KeyError, TypeError, ValueError)):
            merge_ledgers([wrong])
