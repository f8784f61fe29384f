"""What is done to rows before they are written: found, or refused with the reason."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import types as t

from meshmsg import ConfigError
from meshmsg.spark_sink.sink.config import DERIVED, Output
from meshmsg.spark_sink.sink.shape import (
    VIEW,
    check_folders,
    check_partitions,
    find_function,
    main,
    make_shape,
)

COLUMNS = ["topic", "time", "n"]
MODULE = "units_of_shape"


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's module, and one that fails when it is imported."""
    (tmp_path / f"{MODULE}.py").write_text("def clean(rows): return [*rows, 1]\nnumber = 7\n")
    (tmp_path / f"{MODULE}_broken.py").write_text("raise RuntimeError('one\\n  two')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)


class Rows:
    """Rows that know of views and of queries."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def createOrReplaceTempView(self, name: str) -> None:  # noqa: N802
        self.said.append(name)

    @property
    def sparkSession(self) -> Rows:  # noqa: N802
        return self

    def sql(self, text: str) -> str:
        self.said.append(text)
        return "shaped"


def test_rows_are_left_alone_unless_told() -> None:
    rows = cast("Any", object())
    assert make_shape(Output("lake"))(rows) is rows


def test_sql_reads_the_rows_under_their_name() -> None:
    rows = Rows()
    assert cast("Any", make_shape(Output("lake", sql="SELECT 1 FROM events")))(rows) == "shaped"
    assert rows.said == [VIEW, "SELECT 1 FROM events"]


def test_a_function_is_found_and_called() -> None:
    shape = cast("Any", make_shape(Output("lake", transform=f"{MODULE}:clean")))
    assert shape([0]) == [0, 1]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (f"{MODULE}:none", "has no attribute 'none'.*set PYTHONPATH"),
        (f"{MODULE}:number", "is not a function"),
        (f"{MODULE}_absent:clean", "No module named"),
        (f"{MODULE}_broken:clean", "one"),
        (f"{MODULE}:", "attribute"),
    ],
)
def test_a_function_that_is_none_is_refused(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        find_function(name)
    assert caught.value.field == "transform"


def test_the_last_line_on_standard_error_says_what_is_wrong(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(f"{MODULE}:clean") == 0
    assert capsys.readouterr().err == ""
    assert main(f"{MODULE}_broken:clean") == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert f"'{MODULE}_broken:clean': one two." in last


@pytest.mark.parametrize(
    ("by", "columns", "derived"),
    [
        ((), COLUMNS, []),
        (("topic",), COLUMNS, []),
        (("topic", "date", "hour"), COLUMNS, ["date", "hour"]),
        (("date",), [*COLUMNS, "date"], []),  # a column of the user's own
    ],
)
def test_columns_that_are_not_there_are_derived(
    by: tuple[str, ...], columns: list[str], derived: list[str]
) -> None:
    assert set(derived) <= set(DERIVED)
    assert check_partitions(Output("lake", partition_by=by), columns) == derived


@pytest.mark.parametrize(
    ("by", "columns", "said"),
    [
        (("colour",), COLUMNS, "no column 'colour', but topic, time, n, "),
        (("date",), ["topic", "n"], "no column 'date', but topic, n"),  # of what time?
        (("topic", "time", "n"), COLUMNS, "names all columns"),
    ],
)
def test_folders_of_nothing_are_refused(by: tuple[str, ...], columns: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_partitions(Output("lake", partition_by=by), columns)


@pytest.mark.parametrize(
    "kind",
    [
        t.ArrayType(t.LongType()),
        t.MapType(t.StringType(), t.LongType()),
        t.StructType().add("a", "long"),
        t.VariantType(),
    ],
)
def test_a_value_of_many_parts_names_no_folder(kind: t.DataType) -> None:
    schema = t.StructType().add("n", "long").add("many", kind)
    check_folders(Output("lake", partition_by=("n",)), schema)
    with pytest.raises(ConfigError, match=r"'many' is .* cannot name a folder"):
        check_folders(Output("lake", partition_by=("many",)), schema)
