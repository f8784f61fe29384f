"""Which class writes which format, and that none is imported for another."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from meshmsg import ConfigError
from meshmsg.spark_sink.sink.config import FORMATS
from meshmsg.spark_sink.sink.delta import DeltaTable
from meshmsg.spark_sink.sink.formats import open_table
from meshmsg.spark_sink.sink.iceberg import IcebergTable
from meshmsg.spark_sink.sink.tables import Table
from tests.spark.tables import output

CLASSES = {"parquet": Table, "delta": DeltaTable, "iceberg": IcebergTable}


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_has_its_class_and_opens_nothing_yet(name: str, tmp_path: Path) -> None:
    made = output(tmp_path, format=name)
    assert type(open_table(made)) is CLASSES[name]
    assert list(tmp_path.iterdir()) == []


def test_parquet_needs_no_library_of_another_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("deltalake", "pyiceberg", "pyiceberg.catalog"):
        monkeypatch.setitem(sys.modules, name, None)
    assert type(open_table(output(tmp_path))) is Table
    for name in ("delta", "iceberg"):
        with pytest.raises(ConfigError, match="needs the package"):
            open_table(output(tmp_path, format=name))


def test_a_format_that_is_none_is_no_output(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="format"):
        output(tmp_path, format="csv")
