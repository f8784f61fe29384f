"""The demo's sink without Spark: its outputs, its bars, and a query that is started again."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pyarrow.parquet as pq
import pytest

from market.bars import BAR, Bar
from market.demo.parts import sink
from market.demo.parts.sink import ATTEMPTS, Kept, Market, sink_of
from market.exchange import STREAMS
from meshmsg.spark_sink.sink.formats import open_table
from meshmsg.spark_sink.source.positions import Range
from tests.spark.logs import EPOCH, STREAM, write_log
from tests.spark.tables import SCHEMA, rows


class StreamingQueryException(Exception):
    """What Spark raises for a query that has ended by a failure."""


class Query:
    """A query that fails so often before everything is read."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._failure: Exception | None = None
        self.lastProgress: dict[str, Any] | None = None

    def exception(self) -> Exception | None:
        return self._failure

    def processAllAvailable(self) -> None:  # noqa: N802
        self._world.tried += 1
        if self._world.tried <= self._world.failures:
            self._failure = StreamingQueryException("Python worker failed to connect back")
            raise self._failure

    def stop(self) -> None:
        self._world.stopped.append(self)


class World:
    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.tried = 0
        self.started: list[Query] = []
        self.stopped: list[Query] = []

    def start(self) -> Any:
        self.started.append(Query(self))
        return self.started[-1]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "LOOK_S", 0.0)


def test_the_sink_writes_all_streams_into_one_table(tmp_path: Path) -> None:
    config = sink_of(str(tmp_path))
    (output,) = config.outputs
    assert output.topics == tuple(STREAMS)
    assert output.out == f"{tmp_path}/lake/events"
    assert config.retention is None, "the bars read it all again"
    assert config.log.startswith(str(tmp_path))


def test_columns_of_bars_are_in_the_order_of_a_bar() -> None:
    names = [text.rpartition(" AS ")[2] for text in BAR]
    assert names == [*Bar._fields, "vwap"]


def test_a_query_that_fails_is_started_again_and_then_read_to_its_end() -> None:
    world = World(failures=3)
    kept = Kept(world.start)
    kept.read_all()
    assert (world.tried, len(world.started)) == (4, 4)
    kept.stop()
    assert world.stopped == [world.started[-1]]


def test_a_query_that_only_fails_is_given_up() -> None:
    world = World(failures=10**9)
    with pytest.raises(StreamingQueryException):
        Kept(world.start).read_all()
    assert world.tried == ATTEMPTS


def test_what_is_no_failure_of_the_query_is_raised_at_once() -> None:
    world = World()
    kept = Kept(world.start)
    world.started[0].processAllAvailable = Mock(side_effect=KeyError("a bug"))  # type: ignore[method-assign]
    with pytest.raises(KeyError):
        kept.read_all()
    assert len(world.started) == 1


def test_groups_are_counted_over_all_states() -> None:
    world = World()
    kept = Kept(world.start)
    assert kept.groups == 0
    world.started[0].lastProgress = {"stateOperators": [{"numRowsTotal": 3}, {"numRowsTotal": "4"}]}
    assert kept.groups == 7


def test_the_table_is_checked_as_any_reader_sees_it(tmp_path: Path) -> None:
    config = sink_of(str(tmp_path))
    write_log(config.log, 100)
    table = open_table(config.outputs[0])
    table.open(SCHEMA)
    for batch, (first, stop, topic) in enumerate([(0, 60, "trades.A"), (60, 90, "quotes.A")]):
        folder = table.stage()
        Path(folder, "out").mkdir(parents=True)
        pq.write_table(rows(first, stop, topic), f"{folder}/out/a.parquet")
        table.commit(batch, [Range(STREAM, EPOCH, first, stop)], folder, rows=stop - first)
    made = Market(cast("Any", None), config)
    whole = {"topics": {"trades.A": 60, "quotes.A": 30}, "missing": 0, "twice": 0, "problems": []}
    assert made.checked() == whole
    pq.write_table(rows(85, 90, "quotes.A"), f"{config.outputs[0].out}/stray.parquet")
    found = made.checked()
    assert (found["twice"], found["topics"]["quotes.A"]) == (5, 35)
    assert found["problems"] != []
    table.close()


def test_nothing_is_written_before_it_runs(tmp_path: Path) -> None:
    made = Market(cast("Any", None), sink_of(str(tmp_path)))
    assert made.figures() == {"rows": 0, "lost": 0, "bars_now": 0}
    assert made.has(0)
    assert not made.has(1)
