"""What the sink daemon is told, and what it says to one who told it something else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from meshmsg import ConfigError
from meshmsg.cli import app
from meshmsg.cli.sink import _configured
from meshmsg.spark_sink.sink.config import Output, SinkConfig, load_sink, make_sink, metrics_address

TOML = """
[peer]
name = "lake"
connect = ["tcp://127.0.0.1:7000"]

[sink]
trigger = "500ms"
retention = "7d,10GB"
spark = { "spark.driver.memory" = "2g" }

[[output]]
out = "lake/quotes"
topics = ["quotes.**"]
partition_by = ["topic", "date"]
payload = "bid DOUBLE, ask DOUBLE"

[[output]]
out = "lake/orders"
format = "delta"
topics = ["orders.**"]
"""


def test_toml_has_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sink.toml").write_text(TOML)
    sink, outputs, peer = load_sink("sink.toml")
    made = make_sink(sink, outputs)
    assert peer is not None
    assert peer.connect == ("tcp://127.0.0.1:7000",)
    assert made.trigger == 0.5
    assert made.patterns == ("quotes.**", "orders.**")
    assert made.state == str(tmp_path / "lake/quotes.sink")
    assert made.record().hold == ("sink-quotes", "sink-orders")
    assert [one.format for one in made.outputs] == ["parquet", "delta"]
    assert made.outputs[0].losses == str(tmp_path / "lake/quotes.losses")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"format": "parqet"}, "format: 'parqet' is not one of.*did you mean 'parquet'"),
        ({"out": "s3://bucket/x"}, "not to s3"),
        ({"out": Path("s3://bucket/x")}, "not to s3"),
        ({"out": "hdfs:///x"}, "not to hdfs"),
        ({"losses": Path("gs://bucket/x")}, "losses: .*not to gs"),
        ({"payload": "avro"}, "payload: 'avro' is not one of binary, json, variant"),
        ({"payload": "id BIGNT"}, "payload: 'id BIGNT': BIGNT is not a type; did you mean BIGINT"),
        ({"payload": "a MAP<STRING, INT>, b FOO"}, "payload: 'b FOO': FOO is not a type"),
        ({"topics": ("a..b",)}, "topic|pattern"),
        ({"sql": "SELECT 1", "transform": "a:b"}, "transform: there is sql already"),
        ({"transform": "a.b"}, "transform: 'a.b' is not a function"),
        ({"max_events": 0}, "max_events: 0 is not"),
        ({"payload": "variant", "format": "delta"}, "payload: variant is not written into delta"),
        ({"partition_by": ("a", "a")}, "partition_by: a column stands twice"),
        ({"name": "a/b"}, "name: 'a/b' cannot name"),
        ({"name": 7}, "name: 7 is not text"),
        ({"sql": 7}, "sql: 7 is not text"),
        ({"transform": ["a:b"]}, "transform: .* is not text"),
        ({"payload": {"a": "BIGINT"}}, "payload: .* is not text"),
        ({"catalog": {"port": 1}}, "catalog: .* is not a table of texts"),
    ],
)
def test_wrong_output_is_named(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Output(**{"out": "lake/quotes", **fields})


@pytest.mark.parametrize(
    "payload",
    [
        "JSON",
        "id BIGINT, price DOUBLE",
        "STRUCT<id: BIGINT, price: DOUBLE>",
        "a MAP<STRING, INT>, b ARRAY<STRUCT<x: INT, y: STRING>>",
        "d DECIMAL(10, 2) NOT NULL, c STRING COMMENT 'a, b c'",
        "`a, b c` INT, `time` TIMESTAMP_NTZ",
    ],
)
def test_payloads_that_spark_knows_are_taken(payload: str) -> None:
    assert Output(out="lake/quotes", payload=payload).payload.lower() == payload.lower()


@pytest.mark.parametrize(
    "out",
    [
        "file:///lake/quotes",
        "file:/lake/quotes",
        "file://localhost/lake/quotes",
        Path("file:///lake/quotes"),
        "/lake/quotes",
    ],
)
def test_files_may_be_named_as_uris(out: str | Path) -> None:
    assert Output(out=out).out == "/lake/quotes"  # type: ignore[arg-type]


def test_the_command_refuses_what_it_cannot_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for uri in ("s3://bucket/t", "hdfs://bucket/t", "gs://bucket/t", "file://bucket/t"):
        for option in ("--out", "--losses", "--quarantine", "--state", "--from"):
            options = {"--out": "table", "--from": "data"} | {option: uri}
            words = [word for pair in options.items() for word in pair]
            done = CliRunner().invoke(app, ["sink", *words])
            assert (done.exit_code, repr(uri) in done.output) == (2, True), done.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"trigger": "soon"}, "trigger: 'soon' is not a time"),
        ({"retention": "much"}, "retention"),
        ({"fsync": "often"}, "fsync"),
        ({"spark": {"driver.memory": "2g"}}, "spark: 'driver.memory' is not a setting"),
        ({"metrics": "http"}, "metrics: 'http' is not a port"),
        ({"master": ""}, "master"),
        ({"spark": "local"}, "spark: 'local' is not a table of texts"),
        ({"spark": {"spark.cores.max": 2}}, "spark: .* is not a table of texts"),
        ({"fail_on_loss": "yes"}, "fail_on_loss: 'yes' is not true or false"),
        ({"retention": 7}, "retention: 7 is not text"),
    ],
)
def test_wrong_setting_is_named(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_sink(fields, [{"out": "lake/quotes"}])


def test_outputs_have_their_own_names_and_folders() -> None:
    with pytest.raises(ConfigError, match="name: 'quotes' stands twice"):
        make_sink({}, [{"out": "a/quotes"}, {"out": "b/quotes"}])
    with pytest.raises(ConfigError, match=r"out: .* stands twice"):
        make_sink({}, [{"out": "a/quotes"}, {"out": "a/quotes", "name": "other"}])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[output]]\nout = 'a'\nformt = 'delta'", r"output\[0\].formt.*did you mean 'format'"),
        ("[sink]\ntrigger = '1s'", r"write \[\[output\]\]"),
        ("[sink]\nonce = true\n[[output]]\nout = 'a'", "sink.once: is not a key here"),
        ("[[output]\n", "is not TOML"),
        ("[[output]]\nout='a'\n[peer]\nnme='x'", r"\[peer\].*has no name"),
    ],
)
def test_wrong_toml_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "sink.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        load_sink(path)


def test_settings_reach_the_driver_as_they_are() -> None:
    """Numbers that a TOML file may have, too: a driver that refuses is only started again."""
    sink = {"metrics": 9400, "trigger": 2, "segment_bytes": 1 << 20, "fail_on_loss": True}
    made = make_sink(sink, [{"out": Path("lake/quotes"), "topics": ["a.**"], "sql": "SELECT 1"}])
    assert made.metrics == "9400"
    assert msgspec.json.decode(msgspec.json.encode(made), type=SinkConfig) == made


def test_two_sinks_on_one_log_hold_it_each_for_itself() -> None:
    one, other = (make_sink({"source": "log"}, [{"out": f"{x}/quotes"}]) for x in "ab")
    assert one.cursor(one.outputs[0]) != other.cursor(other.outputs[0])
    assert one.cursor(one.outputs[0]).startswith("sink-quotes-")


def test_metrics_listen_on_loopback_unless_told() -> None:
    assert metrics_address("9400") == "127.0.0.1:9400"
    assert metrics_address("0.0.0.0:9400") == "0.0.0.0:9400"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--topics", "a.**"], "--out: say where the table is to be"),
        (["--out", "x", "--discovery", "none"], "--connect: say where the other peers are"),
        (["--out", "x", "--format", "csv"], "--format: 'csv' is not one of"),
        (["--out", "x", "--spark", "a"], "--spark: 'a' is not KEY=VALUE"),
        (["--out", "x", "--check"], "--out|not a table that meshmsg sink wrote"),
        (["--config", "none.toml"], "none.toml: cannot be read"),
    ],
)
def test_wrong_usage_ends_with_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(app, ["sink", *words])
    assert found.exit_code == 2, found.output
    import re

    assert re.search(said, found.output), found.output


def test_settings_of_spark_on_the_command_line_join_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "sink.toml"
    path.write_text(TOML.split("[[output]]", 2)[0] + f"[[output]]\nout = '{tmp_path}/lake'\n")
    given = {"spark": {"spark.cores.max": "2"}}
    made, peer = _configured(path, given, {"topics": ("a.**",)})
    assert made.spark == {"spark.driver.memory": "2g", "spark.cores.max": "2"}
    assert made.outputs[0].topics == ("a.**",)
    assert peer is not None
    assert peer.name == "lake"
