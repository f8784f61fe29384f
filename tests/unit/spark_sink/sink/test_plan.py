"""Settings of a sink that are found to be wrong before any Java is started."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from meshmsg import ConfigError
from meshmsg.cli import app
from meshmsg.spark_sink.sink import daemon as sink_daemon
from meshmsg.spark_sink.sink import plan as sink_plan
from meshmsg.spark_sink.sink import tables as sink_tables
from meshmsg.spark_sink.sink.config import Output, make_sink
from meshmsg.spark_sink.sink.formats import open_table
from meshmsg.spark_sink.sink.plan import check_columns, check_plan, check_sql, check_transform
from meshmsg.spark_sink.source.columns import EVENT_COLUMNS
from tests.spark.logs import write_log

SHAPES = """
import sys
def clean(rows): return rows
number = 7
"""


@pytest.fixture
def shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module where Python looks for it."""
    (tmp_path / "my_shapes.py").write_text(SHAPES)
    (tmp_path / "my_broken.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)
    return "my_shapes"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"partition_by": ("colour",)}, "partition_by: there is no column 'colour', but stream"),
        ({"partition_by": ("headers",)}, "partition_by: 'headers' is map<string,string>"),
        ({"payload": "t ARRAY<INT>", "partition_by": ("t",)}, "'t' is array<int>, and cannot name"),
        ({"payload": "variant", "partition_by": ("payload",)}, "'payload' is variant, and cannot"),
        ({"payload": "a INT", "partition_by": ("payload",)}, "no column 'payload', but .*time, a,"),
        ({"payload": "topic STRING"}, "payload: declares 'topic', which every row has already"),
        ({"payload": "id INT, ID STRING"}, "payload: declares 'ID' twice"),
        ({"payload": "id INT NOT NULL"}, "payload: 'id' cannot be NOT NULL"),
        ({"payload": "m MAP<STRUCT<a: INT>, INT>"}, "payload: 'm': the key of a map"),
        (
            {"partition_by": (*EVENT_COLUMNS, "payload")},
            "partition_by: names all columns",
        ),
    ],
)
def test_columns_that_cannot_be_are_named(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_columns(Output("lake", **fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"partition_by": ("topic", "date", "hour")},
        {"payload": "region STRING, d DATE", "partition_by": ("region", "d")},
        {"payload": "STRUCT<topic: STRING, tags: ARRAY<STRING>>", "partition_by": ("date",)},
        # Only Spark knows the columns of a query.
        {"sql": "SELECT upper(topic) AS loud FROM events", "partition_by": ("loud",)},
    ],
)
def test_columns_that_can_be_are_taken(fields: dict[str, Any]) -> None:
    check_columns(Output("lake", **fields))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        (" -- nothing\n /* at all */ ", "is empty"),
        ("SELEC * FROM events", "'SELEC', which begins no query; did you mean SELECT"),
        ("DROP TABLE events", "begins with 'DROP', which begins no query"),
        ("SELECT * FROM evnts", "does not read the table events: did you mean events by evnts"),
        ("SELECT 'events'", "does not read the table events"),
        ("SELECT 1 -- FROM events", "does not read the table events"),
        ("SELECT 1 FROM events; SELECT 2 FROM events", "several statements"),
        ("SELECT (1 FROM events", "'\\(' and '\\)', and not as many of each"),
        ("SELECT 'x FROM events", "does not read|not closed"),
        ("SELECT x FROM events WHERE x = 'a", "a ' that is not closed"),
        ("SELECT * FROM events WHERE id = ?", "a placeholder"),
        ("SELECT {column} FROM events", "a placeholder"),
    ],
)
def test_sql_that_is_no_query_of_the_events_is_told(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"sql: .*({said})"):
        check_sql(text)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT topic, price * 2 AS twice FROM events WHERE n % 2 = 0;",
        "/* all */ select * from `events` -- (all",
        "WITH x AS (SELECT * FROM EVENTS) SELECT * FROM x JOIN other USING (id)",
        "(SELECT * FROM events) UNION ALL (TABLE events)",
        "FROM events |> WHERE topic LIKE '%(?{;' |> SELECT \"it's\", `a'b`, ${spark.x}",
        "SELECT 'it\\'s (', array(1)[0], CAST(NULL AS STRUCT<a: INT>) FROM events",
    ],
)
def test_sql_that_spark_may_take_is_left_to_it(text: str) -> None:
    check_sql(text)


def test_function_is_looked_for_in_a_process_of_its_own(shapes: str) -> None:
    check_transform(f"{shapes}:clean")
    for name, said in (
        (f"{shapes}:number", "is not a function"),
        (f"{shapes}:nothing", "has no attribute 'nothing'"),
        ("no_such_module:f", "No module named 'no_such_module'"),
        ("my_broken:f", "division by zero"),
    ):
        with pytest.raises(ConfigError, match=f"transform: .*{said}"):
            check_transform(name)


def test_module_that_ends_its_process_is_told(shapes: str, tmp_path: Path) -> None:
    (tmp_path / "my_end.py").write_text("import os\nos._exit(3)")
    with pytest.raises(ConfigError, match="transform: its import ended with 3"):
        check_transform("my_end:f")


def test_module_that_takes_its_time_is_left_to_the_driver(
    shapes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_slow.py").write_text("import time\nwhile True: time.sleep(1)")
    monkeypatch.setattr(sink_plan, "IMPORT_S", 1.0)
    check_transform("my_slow:f")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"format": "delta"}, "format: .* was begun with format = 'parquet'"),
        ({"topics": ("a.**",)}, "topics: .* was begun with topics"),
        ({"payload": "json"}, "payload: .* was begun with payload = 'binary'"),
        ({"partition_by": ("topic",)}, "partition_by: .* was begun with"),
        ({"sql": "SELECT * FROM events"}, "shaped: .* was begun with"),
    ],
)
def test_table_of_other_settings_is_told(tmp_path: Path, fields: dict[str, Any], said: str) -> None:
    table = open_table(Output(str(tmp_path / "lake")))
    table.open("{}")
    table.close()
    check_plan(make_sink({}, [{"out": tmp_path / "lake"}]))
    with pytest.raises(ConfigError, match=said):
        check_plan(make_sink({}, [{"out": tmp_path / "lake", **fields}]))


def test_checks_touch_nothing(tmp_path: Path) -> None:
    check_plan(make_sink({}, [{"out": tmp_path / "deep" / "lake"}]))
    assert list(tmp_path.iterdir()) == []


def test_tables_on_several_file_systems_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.stat(tmp_path).st_dev
    monkeypatch.setattr(sink_tables, "_device", lambda path: real + ("other" in path))
    with pytest.raises(ConfigError, match=r"losses: .* is on another file system"):
        check_plan(make_sink({}, [{"out": tmp_path / "lake", "losses": tmp_path / "other"}]))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--partition-by", "colour"], "--partition-by: there is no column 'colour'"),
        (["--sql", "SELECT * FROM evnts"], "--sql: does not read the table events"),
        (["--transform", "no_such_module:f"], "--transform: .*No module named"),
        (["--payload", "a STRUCT<x: FOO>"], "--payload: 'x FOO': FOO is not a type"),
        (["--master", "lokal[2]"], r"--master: 'lokal\[2\]' is no Spark"),
        (["--spark", "spark.driver.memory=lots"], "--spark: spark.driver.memory = 'lots'"),
    ],
)
def test_command_ends_with_status_2_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.setattr(sink_daemon, "ensure_java", lambda: pytest.fail("Java is looked for"))
    write_log(tmp_path / "log", 1)
    before = sorted(tmp_path.rglob("*"))
    out = ["--from", str(tmp_path / "log"), "--out", str(tmp_path / "lake"), "--once"]
    found = CliRunner().invoke(app, ["sink", *out, *words])
    assert found.exit_code == 2, found.output
    import re

    assert re.search(said, found.output), found.output
    assert sorted(tmp_path.rglob("*")) == before
