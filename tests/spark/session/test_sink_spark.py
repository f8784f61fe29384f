"""The sink on a real Spark: rows, losses, bad payloads, and batches that are run again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from meshmsg import ConfigError
from meshmsg.spark_sink.sink import driver as sink_driver
from meshmsg.spark_sink.sink.batch import BatchWriter
from meshmsg.spark_sink.sink.check import check_output
from meshmsg.spark_sink.sink.config import SinkConfig, make_sink
from meshmsg.spark_sink.sink.driver import Driver, Lost
from meshmsg.spark_sink.source.ddl import parse_columns
from tests.spark.logs import EPOCH, STREAM, E, Log, numbered, write_log
from tests.unit.spark_sink.source.test_ddl import BAD, GOOD


def config_of(tmp_path: Path, *outputs: dict[str, Any], **sink: Any) -> SinkConfig:
    made = [{"out": str(tmp_path / "lake" / "orders"), **output} for output in outputs or ({},)]
    return make_sink({"source": str(tmp_path / "log"), "once": True, **sink}, made)


def drain(spark: Any, config: SinkConfig) -> list[dict[str, Any]]:
    """What is in the log, into the tables; returns what the driver said."""
    said: list[dict[str, Any]] = []
    Driver(config, said.append).run_in(spark)
    return said


def duck(path: str) -> tuple[int, int]:
    """Rows and different positions, as DuckDB sees the folder."""
    found = duckdb.sql(
        f"SELECT count(*), count(DISTINCT (stream, epoch, seq)) "
        f"FROM read_parquet('{path}/**/*.parquet', hive_partitioning = true)"
    ).fetchall()[0]
    return found


def commits(said: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [fields for fields in said if fields["kind"] == "commit"]


def test_rows_losses_and_bad_payloads_each_go_to_their_table(spark: Any, tmp_path: Path) -> None:
    with Log(tmp_path / "log") as log:
        log.begin()
        log.write(numbered(0, 40))
        log.lose(7, "expired")
        log.write([E({"n": "nonsense"}), E(b"\xc1", raw=False, topic="orders.us")])
        log.write(numbered(49, 60, topic="orders.us"))
    payload = "n BIGINT, price DOUBLE, name STRING"
    config = config_of(
        tmp_path,
        {"payload": payload, "partition_by": ("topic", "date")},
        {"out": str(tmp_path / "lake/delta"), "format": "delta", "partition_by": ("topic",)},
        {
            "out": str(tmp_path / "lake/shaped"),
            "payload": payload,
            "sql": "SELECT topic, n, price * 2 AS twice FROM events WHERE n % 2 = 0",
        },
        {"out": str(tmp_path / "lake/ice"), "format": "iceberg", "payload": payload},
    )
    said = drain(spark, config)
    plain, _, shaped, _ = config.outputs
    for output in config.outputs:
        found = check_output(output, config.log)
        assert found["good"], found
    figures = {fields["output"]: fields for fields in commits(said)}
    assert figures["orders"]["rows"] == 51
    assert (figures["orders"]["lost"], figures["orders"]["quarantined"]) == (7, 2)
    rows = ds.dataset(plain.out, partitioning="hive").to_table()
    assert sorted(rows["n"].to_pylist()) == [*range(40), *range(49, 60)]
    assert set(rows["topic"].to_pylist()) == {"orders.eu", "orders.us"}
    assert {"_error", "loss", "payload"}.isdisjoint(rows.column_names)
    bad = ds.dataset(plain.quarantine).to_table().to_pylist()
    assert [row["seq"] for row in sorted(bad, key=lambda row: row["seq"])] == [47, 48]
    assert all(row["reason"] for row in bad)
    losses = ds.dataset(plain.losses).to_table().to_pylist()
    assert losses == [
        {
            "stream": STREAM,
            "epoch": EPOCH,
            "first": 40,
            "stop": 47,
            "events": 7,
            "reason": "expired",
        }
    ]
    assert figures["delta"]["rows"] == 53
    assert figures["ice"]["rows"] == 51
    evens = ds.dataset(shaped.out).to_table()
    assert sorted(evens["n"].to_pylist()) == [*range(0, 40, 2), *range(50, 60, 2)]
    assert evens.column_names == ["topic", "n", "twice"]


def test_batch_that_is_run_again_adds_nothing(spark: Any, tmp_path: Path) -> None:
    """Spark's commit is lost, the limit is another, the checkpoint is gone, the table is gone."""
    write_log(tmp_path / "log", 1000)
    config = config_of(tmp_path, {"max_events": 300})
    first = drain(spark, config)
    assert [fields["rows"] for fields in commits(first)] == [300, 300, 300, 100]
    checkpoint = Path(config.checkpoint(config.outputs[0]))
    # The last batch was written, and Spark does not know.
    (checkpoint / "commits" / "3").unlink()
    again = drain(spark, config_of(tmp_path, {"max_events": 70}))
    assert [fields["kind"] for fields in again].count("again") == 1
    assert not commits(again)
    # As if Spark had planned it otherwise: its last offset is gone as well.
    for folder in ("offsets", "commits"):
        (checkpoint / folder / "3").unlink()
    more = drain(spark, config_of(tmp_path, {"max_events": 70}))
    assert not commits(more)
    shutil.rmtree(checkpoint)
    assert not commits(drain(spark, config_of(tmp_path, {"max_events": 130})))
    output = config.outputs[0]
    assert duck(output.out) == (1000, 1000)
    assert check_output(output, config.log)["good"]
    # The table is gone, and the checkpoint says that all is written.
    shutil.rmtree(output.out)
    rebuilt = drain(spark, config)
    assert any("set aside" in fields.get("text", "") for fields in rebuilt)
    assert duck(output.out) == (1000, 1000)


class NaiveWriter(BatchWriter):
    """What everyone writes first: each batch is appended."""

    def _write(self, rows: Any, batch: int) -> None:
        good = rows.where("loss IS NULL").drop("loss")
        good.write.format("parquet").mode("append").save(self.output.out)


def test_naive_append_fails_the_same_check(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: a writer that does not look at positions has duplicates, and they are found."""
    write_log(tmp_path / "log", 400)
    config = config_of(tmp_path, {"max_events": 200})
    monkeypatch.setattr(sink_driver, "BatchWriter", NaiveWriter)
    # It keeps no journal, which would say that nothing was written.
    monkeypatch.setattr(sink_driver.Job, "_check_end", lambda _: None)
    drain(spark, config)
    (Path(config.checkpoint(config.outputs[0])) / "commits" / "1").unlink()
    drain(spark, config)
    output = config.outputs[0]
    count, different = duck(output.out)
    assert different == 400
    assert count > 400
    assert not check_output(output, config.log)["good"]


def test_several_epochs_and_streams_go_on_where_the_table_is(spark: Any, tmp_path: Path) -> None:
    config = config_of(tmp_path)
    for round_ in range(3):
        with Log(tmp_path / "log") as log:
            log.begin(EPOCH + round_)
            log.write(numbered(0, 50))
        with Log(tmp_path / "log", f"other{round_}/orders.**") as log:
            log.begin()
            log.write(numbered(0, 10))
        drain(spark, config)
        found = check_output(config.outputs[0], config.log)
        assert found["good"], found
        assert found["rows"] == 60 * (round_ + 1)


def test_loss_ends_a_sink_that_must_not_lose(spark: Any, tmp_path: Path) -> None:
    with Log(tmp_path / "log") as log:
        log.begin()
        log.write(numbered(0, 10))
        log.lose(5, "gone")
        log.write(numbered(15, 20))
    config = config_of(tmp_path, fail_on_loss=True)
    with pytest.raises(Lost, match=r"5 events.*gone"):
        drain(spark, config)
    assert not list(Path(config.outputs[0].out).glob("*.parquet"))


def test_function_shapes_the_rows(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    write_log(tmp_path / "log", 20)
    config = config_of(tmp_path, {"transform": "sink_shapes:shout"})
    drain(spark, config)
    rows = pq.read_table(config.outputs[0].out)
    assert set(rows["loud"].to_pylist()) == {"ORDERS.EU"}
    assert check_output(config.outputs[0], config.log)["good"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"sql": "SELECT nothing FROM events"}, "sql: .*nothing"),
        ({"sql": "SELEC 1"}, "sql: .*SELEC"),
        ({"sql": "SELECT seq AS a, epoch AS A FROM events"}, "sql: gives column 'a' twice"),
        ({"transform": "no_such_module:f"}, "transform: .*no_such_module"),
        ({"transform": "sink_shapes:broken"}, "transform: .*no-such-field"),
        ({"transform": "sink_shapes:not_there"}, "transform: .*not_there"),
        ({"transform": "sink_shapes:not_rows"}, "transform: gave int, not a DataFrame"),
        ({"partition_by": ("colour",)}, "partition_by: there is no column 'colour'"),
        (
            {"sql": "SELECT seq, headers FROM events", "partition_by": ("headers",)},
            "partition_by: 'headers' is map<string,string>",
        ),
        ({"payload": "id BIGNT"}, "(?i)payload|bignt"),
    ],
)
def test_wrong_shape_is_said_before_anything_is_written(
    spark: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fields: dict[str, Any],
    said: str,
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    write_log(tmp_path / "log", 1)
    with pytest.raises((ConfigError, Exception), match=said):
        drain(spark, config_of(tmp_path, fields))
    assert not (tmp_path / "lake" / "orders").exists()


def test_columns_are_read_as_spark_reads_them(spark: Any) -> None:
    parse = spark._jvm.org.apache.spark.sql.types.StructType.fromDDL

    def of_spark(text: str) -> StructType:
        return StructType.fromJson(json.loads(parse(text).json()))

    for text in GOOD:
        # Neither comments nor collations are of use for what is written.
        plain = [(f.name, f.dataType.simpleString(), f.nullable) for f in of_spark(text).fields]
        ours = parse_columns("payload", text)
        assert [(f.name, f.dataType.simpleString(), f.nullable) for f in ours.fields] == [
            (name, kind.partition(" collate ")[0], nullable) for name, kind, nullable in plain
        ], text
    for text in BAD:
        with pytest.raises(PySparkException):
            of_spark(text)


def test_setting_that_spark_does_not_take_is_told_as_such(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        spark.conf.set("spark.sql.shuffle.partitions", "many")

    monkeypatch.setattr(sink_driver, "session", refuse)
    with pytest.raises(ConfigError, match=r"spark: .*'many'.*shuffle.partitions"):
        Driver(config_of(tmp_path), print).run()


def test_checkpoint_of_another_sink_is_refused(spark: Any, tmp_path: Path) -> None:
    write_log(tmp_path / "log", 10)
    state = str(tmp_path / "state")
    drain(spark, config_of(tmp_path, {"name": "x"}, state=state))
    other = {"name": "x", "out": str(tmp_path / "lake" / "other")}
    with pytest.raises(ConfigError, match="is the checkpoint of the sink into"):
        drain(spark, config_of(tmp_path, other, state=state))
