"""`spark.read.format("meshmsg")`, on a real Spark."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

from tests.spark.logs import EPOCH, STREAM, TIME, E, Log, numbered, write_log


def read(spark: Any, path: Path, **options: Any) -> Any:
    return spark.read.format("meshmsg").options(**options).load(str(path))


def test_rows_say_where_an_event_stood_and_what_it_was(spark: Any, tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        log.begin()
        log.write([E({"n": 1}, key="ACME", headers={"trace": "x", "hop": 2}), E(b"raw", raw=True)])
    rows = read(spark, tmp_path).orderBy("seq").collect()
    when = datetime.datetime.fromtimestamp(TIME / 1e9, datetime.UTC).replace(tzinfo=None)
    assert [row.asDict() for row in rows] == [
        {
            "stream": STREAM,
            "epoch": EPOCH,
            "seq": 0,
            "topic": "orders.eu",
            "key": "ACME",
            "headers": {"trace": "x", "hop": "2"},
            "time": when,
            "payload": bytearray(b"\x81\xa1n\x01"),
        },
        {
            "stream": STREAM,
            "epoch": EPOCH,
            "seq": 1,
            "topic": "orders.eu",
            "key": None,
            "headers": None,
            "time": when,
            "payload": bytearray(b"raw"),
        },
    ]


def test_large_log_is_read_by_several_tasks_and_each_event_once(spark: Any, tmp_path: Path) -> None:
    write_log(tmp_path, 60_000)
    table = read(spark, tmp_path, partitions=2)
    assert table.rdd.getNumPartitions() == 2
    found = table.selectExpr("count(*)", "count(distinct seq)", "min(seq)", "max(seq)").first()
    assert tuple(found) == (60_000, 60_000, 0, 59_999)


def test_typed_columns_and_sql(spark: Any, tmp_path: Path) -> None:
    write_log(tmp_path, 1000)
    read(spark, tmp_path, payload="n BIGINT, price DOUBLE, name STRING").createOrReplaceTempView(
        "o"
    )
    row = spark.sql("select sum(n), max(price), max(_error), min(name) from o").first()
    assert tuple(row) == (499_500, 249.75, None, "name 0")


def test_nested_types_reach_spark(spark: Any, tmp_path: Path) -> None:
    data = {
        "id": 7,
        "at": datetime.datetime(2026, 11, 16, 12, tzinfo=datetime.UTC),
        "legs": [{"sym": "A", "qty": 1}, {"sym": "B", "qty": None}],
        "tags": {"a": 1.5},
        "where": {"city": "Ulm", "zip": ["89073"]},
        "rest": {"x": [1, "two", None]},
    }
    with Log(tmp_path) as log:
        log.begin()
        log.write([E(data), E({})])
    ddl = (
        "id INT, at TIMESTAMP, legs ARRAY<STRUCT<sym: STRING, qty: INT>>, "
        "tags MAP<STRING, DOUBLE>, where STRUCT<city: STRING, zip: ARRAY<STRING>>, rest VARIANT"
    )
    full, empty = read(spark, tmp_path, payload=ddl).orderBy("seq").collect()
    assert (full.id, full.at) == (7, datetime.datetime(2026, 11, 16, 12))
    assert [(leg.sym, leg.qty) for leg in full.legs] == [("A", 1), ("B", None)]
    assert full.tags == {"a": 1.5}
    assert (full.where.city, full.where.zip) == ("Ulm", ["89073"])
    assert full.rest.toPython() == {"x": [1, "two", None]}
    assert (empty.id, empty.legs, empty.where, empty.rest, empty._error) == (None,) * 5


def test_malformed_payloads_are_set_aside_with_the_reason(spark: Any, tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        log.begin()
        log.write([E({"n": 1}), E({"n": "one"}), E(b"\xc1", raw=True), E({"n": 4})])
    rows = read(spark, tmp_path, payload="n BIGINT").orderBy("seq").collect()
    assert [row.n for row in rows] == [1, None, None, 4]
    assert rows[0]._error is None
    assert rows[0]._raw is None
    assert "Expected `int | null`, got `str`" in rows[1]._error
    assert bytes(rows[1]._raw) == b"\x81\xa1n\xa3one"
    assert rows[2]._error
    assert bytes(rows[2]._raw) == b"\xc1"


def test_json_and_variant(spark: Any, tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        log.begin()
        log.write([E({"a": [1, 2.5, "x", None, True]}), E(None), E(b'{"b": 1}', raw=True)])
    texts = [row.payload for row in read(spark, tmp_path, payload="json").orderBy("seq").collect()]
    assert [json.loads(text) for text in texts] == [
        {"a": [1, 2.5, "x", None, True]},
        None,
        {"b": 1},
    ]
    table = read(spark, tmp_path, payload="variant").orderBy("seq")
    picked = table.selectExpr(
        "variant_get(payload, '$.a[1]', 'double') x", "to_json(payload) j"
    ).collect()
    assert [row.x for row in picked] == [2.5, None, None]
    assert [json.loads(row.j) for row in picked] == [
        {"a": [1, 2.5, "x", None, True]},
        None,
        {"b": 1},
    ]


def test_topics_choose_events(spark: Any, tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        log.begin()
        log.write([E(n, topic="orders.eu" if n % 3 else "orders.us") for n in range(300)])
    table = read(spark, tmp_path, topics="orders.us, quotes.**")
    assert [row.seq for row in table.orderBy("seq").collect()] == list(range(0, 300, 3))
    assert read(spark, tmp_path, topics="quotes.**").count() == 0


def test_starts_and_ends_where_it_is_told(spark: Any, tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        first = log.begin()
        log.write([E(n, time_ns=TIME + n * 10**9) for n in range(10)], frame_events=3)
    with Log(tmp_path) as log:
        second = log.begin()
        log.write([E(n, time_ns=TIME + (10 + n) * 10**9) for n in range(10)], frame_events=3)

    def found(**options: Any) -> list[tuple[int, int]]:
        rows = read(spark, tmp_path, **options).select("epoch", "seq").collect()
        return sorted((row.epoch, row.seq) for row in rows)

    everything = [(first, n) for n in range(10)] + [(second, n) for n in range(10)]
    assert found() == everything
    at_five = {f"{STREAM}/{first}": 5}
    assert found(startingPosition=json.dumps(at_five)) == everything[5:]
    assert found(endingPosition=json.dumps(at_five)) == everything[:5]
    into_second = json.dumps({f"{STREAM}/{second}": 2})
    assert found(endingPosition=into_second) == everything[:12]
    assert found(startingPosition=into_second) == everything[12:]
    when = str(TIME // 10**9 + 7)
    assert found(startingPosition=when) == everything[7:]
    assert found(endingPosition=when) == everything[:7]
    late = datetime.datetime.fromtimestamp(TIME / 1e9 + 13, datetime.UTC).isoformat()
    assert found(startingPosition=late) == everything[13:]
    assert found(startingPosition="latest") == []
    assert found(startingPosition=json.dumps({STREAM: "earliest"})) == everything


def test_losses_stop_a_query_unless_told_otherwise_and_are_rows(spark: Any, tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        log.begin()
        log.write(numbered(0, 10))
        log.lose(5, "overflow")
        log.write(numbered(15, 20))
    with pytest.raises(Exception, match=r"5 events lost in shop.* set option failOnLoss=false"):
        read(spark, tmp_path).count()
    assert read(spark, tmp_path, failOnLoss=False).count() == 15
    losses = read(spark, tmp_path, rows="losses").collect()
    assert [tuple(row) for row in losses] == [(STREAM, EPOCH, 10, 15, 5, "overflow")]
    both = read(spark, tmp_path, rows="all").orderBy("seq").collect()
    assert [(row.seq, row.loss and tuple(row.loss)) for row in both[9:12]] == [
        (9, None),
        (10, (10, 15, "overflow")),
        (15, None),
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topic": "a"}, "option topic: is not known to format meshmsg; did you mean topics"),
        ({"payload": "seq BIGINT"}, "declares 'seq', which every row has already"),
        ({"startingPosition": '{"no/such/5": 1}'}, "no stream 'no/such' is there"),
    ],
)
def test_wrong_options_say_what_would_be_right(
    spark: Any, tmp_path: Path, options: dict[str, str], said: str
) -> None:
    write_log(tmp_path, 1)
    with pytest.raises(Exception, match=said):
        read(spark, tmp_path, **options).count()


def test_a_missing_path_says_so(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"option path: there is no folder .*/nowhere"):
        read(spark, tmp_path / "nowhere")


def test_a_schema_of_ones_own_is_refused_with_the_way_to_do_it(spark: Any, tmp_path: Path) -> None:
    write_log(tmp_path, 1)
    with pytest.raises(Exception, match="declare the columns of the payload with option payload"):
        spark.read.format("meshmsg").schema("n BIGINT").load(str(tmp_path)).count()
