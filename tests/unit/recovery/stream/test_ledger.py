"""The ledger: sums that must come out, and what a row says when they do not."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from meshmsg.recovery.stream.ledger import Ledger, LedgerRow, row_from_positions

ROW = LedgerRow("p/a.**", 1700, "q/audit#1", 100, 60, 30, {"overflow": 4, "gone": 1}, 5)


def test_row_that_adds_up_reconciles() -> None:
    assert (ROW.accounted, ROW.difference, ROW.reconciles) == (100, 0, True)


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"delivered": 59}, 1),
        ({"delivered": 61}, -1),
        ({"filtered": 0}, 30),
        ({"lost": {}}, 5),
        ({"in_flight": 0}, 5),
        ({"published": 101}, 1),
    ],
)
def test_row_that_does_not_add_up_says_by_how_much(change: dict[str, Any], difference: int) -> None:
    row = replace(ROW, **change)
    assert (row.difference, row.reconciles) == (difference, False)


def test_negative_number_in_flight_does_not_reconcile_even_if_the_sum_is_right() -> None:
    row = replace(ROW, delivered=70, in_flight=-5)
    assert (row.difference, row.reconciles) == (0, False)


def test_row_from_positions_checks_counters_against_places() -> None:
    figures: dict[str, Any] = {
        "start": 10,
        "stop": 110,
        "consumed": 90,
        "delivered": 50,
        "filtered": 20,
        "lost": {"deadline": 10},
        "state": "live",
    }
    row = row_from_positions("s", 1, "q", **figures)
    assert (row.published, row.in_flight, row.reconciles) == (100, 20, True)
    row = row_from_positions("s", 1, "q", **(figures | {"consumed": 91}))
    assert (row.in_flight, row.difference, row.reconciles) == (19, 1, False)


def test_row_keeps_its_own_copy_of_the_losses() -> None:
    lost = {"overflow": 1}
    row = row_from_positions(
        "s", 1, "q", start=0, stop=1, consumed=1, delivered=0, filtered=0, lost=lost, state="live"
    )
    lost["overflow"] = 99
    assert row.reconciles


def test_empty_ledger_reconciles() -> None:
    ledger = Ledger(())
    assert (ledger.reconciles, ledger.lost, ledger.in_flight) == (True, 0, 0)


def test_ledger_adds_its_rows_up_and_one_bad_row_spoils_it() -> None:
    ledger = Ledger((ROW, ROW))
    assert (ledger.reconciles, ledger.lost, ledger.in_flight) == (True, 10, 10)
    assert not Ledger((ROW, replace(ROW, delivered=0))).reconciles


def test_ledger_comes_back_from_json() -> None:
    ledger = Ledger((ROW, replace(ROW, state="evicted", lost={})))
    text = json.dumps([row.as_dict() for row in ledger.rows])
    assert Ledger.from_dicts(json.loads(text)) == ledger
    assert json.loads(text)[0]["reconciles"] is True


@pytest.mark.parametrize(
    "change",
    [
        {"published": "100"},
        {"published": None},
        {"delivered": 1.5},
        {"lost": []},
        {"lost": "gone"},
        {"lost": {"gone": "1"}},
        {"stream": 5},
        {"state": None},
    ],
)
def test_row_of_other_types_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        Ledger.from_dicts([ROW.as_dict() | change])


@pytest.mark.parametrize(
    "name", [name for name in ROW.as_dict() if name not in ("reconciles", "dead")]
)
def test_row_without_a_field_is_refused(name: str) -> None:
    row = ROW.as_dict()
    del row[name]
    with pytest.raises((KeyError, TypeError)):
        Ledger.from_dicts([row])


@pytest.mark.parametrize("rows", [5, [5], ["row"], [None], {"rows": 1}])
def test_what_are_no_rows_is_refused(rows: Any) -> None:
    with pytest.raises((KeyError, TypeError)):
        Ledger.from_dicts(rows)
