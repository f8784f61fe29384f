"""What Spark asks and is answered: tasks, where a query begins, what it is refused for."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from meshmsg import ConfigError
from meshmsg._model.log_policy import Retention
from meshmsg.spark_sink.errors import LossInRange, OtherCheckpoint
from meshmsg.spark_sink.source.log_source import LogSource
from meshmsg.spark_sink.source.options import Options, parse_options
from meshmsg.spark_sink.source.peer_source import PeerSource
from meshmsg.spark_sink.source.positions import Range
from meshmsg.spark_sink.source.source import (
    TASK_EVENTS_MAX,
    TASK_EVENTS_MIN,
    MeshDataSource,
    StreamReader,
    Task,
    open_source,
    plan,
)
from tests.spark.logs import EPOCH, STREAM, TIME, E, Log, numbered, write_log
from tests.spark.reading import Reading, read_all, schema_of

KEY = f"{STREAM}/{EPOCH}"


def test_a_folder_is_read_where_it_is_seen_and_peers_are_asked_elsewhere(tmp_path: Path) -> None:
    here, gone = str(tmp_path), str(tmp_path / "elsewhere")
    peers = ("tcp://127.0.0.1:9",)
    assert isinstance(open_source(Options(path=here, peers=peers)), LogSource)
    assert isinstance(open_source(Options(path=gone, peers=peers)), PeerSource)
    assert open_source(Options(peers=peers), {peers[0]: 3.0}).away()[peers[0]] >= 3.0
    with pytest.raises(ConfigError, match="there is no folder"):
        open_source(Options(path=gone))
    with pytest.raises(ConfigError, match="there is no folder"):
        MeshDataSource({"path": gone}).schema()


@pytest.mark.parametrize(
    ("events", "tasks"),
    [
        (0, 1),
        (1, 1),
        (TASK_EVENTS_MIN, 1),
        (TASK_EVENTS_MIN + 1, 2),
        (TASK_EVENTS_MIN * 40, 4),  # as many as there are cores
        (TASK_EVENTS_MAX * 5, 5),  # but none that is too long to be tried again
    ],
)
def test_there_is_a_task_for_what_is_worth_one(events: int, tasks: int) -> None:
    ranges = [Range(STREAM, EPOCH, 0, events)] if events else []
    planned = plan(Options(partitions=4), ranges, {"x": 2.0})
    made = [task for task in planned if isinstance(task, Task)]
    assert len(made) == tasks
    assert sum(wanted.events for task in made for wanted in task.ranges) == events
    assert made[0].away == {"x": 2.0}


def test_a_query_begins_where_it_is_told(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        log.begin()
        log.write([E(n, time_ns=TIME + n * 10**9) for n in range(10)])
    path = str(tmp_path)
    for place, first in (
        ("earliest", 0),
        ("latest", 10),
        (f'{{"{KEY}": 7}}', 7),
        (f'{{"{STREAM}": "latest"}}', 10),
        ("2023-11-14T22:13:24Z", 4),
        ("2033-01-01T00:00:00Z", 10),  # nothing is as late: what comes
    ):
        assert Reading(path=path, startingPosition=place).start_of(0)[KEY] == first, place
    with pytest.raises(ConfigError, match=r"no stream 'no/x' is there \(shop/orders"):
        Reading(path=path, startingPosition='{"no/x/5": 7}').start_of(0)


def test_what_has_expired_is_refused_before_a_task_is_started(tmp_path: Path) -> None:
    with Log(tmp_path, segment_bytes=16_384, retention=Retention(bytes_max=100_000)) as log:
        log.begin()
        log.write(numbered(0, 5_000), frame_events=50)
        log.writer.retain()
        kept = log.writer.folder.segments()[0].first
    assert kept > 0
    start = f'{{"{KEY}": 0}}'
    rows, losses = read_all(path=tmp_path, startingPosition=start)
    assert rows == [(EPOCH, n) for n in range(kept, 5_000)]
    assert losses == [(EPOCH, 0, kept, "expired")]
    with pytest.raises(LossInRange, match="failOnLoss=false"):
        read_all(path=tmp_path, startingPosition=start, rows="events")


def test_a_checkpoint_of_other_streams_is_refused(tmp_path: Path) -> None:
    write_log(tmp_path, 10)
    query = Reading(path=tmp_path)
    limit = query.reader.getDefaultReadLimit()
    with pytest.raises(OtherCheckpoint, match=r"it is at positions in else/x\.\*\*"):
        query.reader.latestOffset({"else/x.**/5": 3}, limit)
    with pytest.raises(OtherCheckpoint):
        query.reader.latestOffset({"topic": {"0": 4}}, limit)
    query.drain()
    assert query.rows == [(EPOCH, n) for n in range(10)]


def test_limits_are_those_of_the_options(tmp_path: Path) -> None:
    write_log(tmp_path, 10)
    assert isinstance(Reading(path=tmp_path).reader.getDefaultReadLimit(), ReadAllAvailable)
    query = Reading(path=tmp_path, maxEventsPerTrigger=4)
    limit = query.reader.getDefaultReadLimit()
    assert isinstance(limit, ReadMaxRows)
    assert limit.max_rows == 4
    query.drain()
    assert len(query.offsets) == 3
    assert query.rows == [(EPOCH, n) for n in range(10)]


def test_available_now_ends_where_the_log_ended_then(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        log.begin()
        log.write(numbered(0, 5))
        query = Reading(path=tmp_path)
        start = query.start_of(0)
        query.reader.prepareForTriggerAvailableNow()
        log.write(numbered(5, 9))
        end = query.reader.latestOffset(start, ReadAllAvailable())
        assert end[KEY] == 5
        assert query.reader.reportLatestOffset()[KEY] == 9


def test_a_reader_travels_without_what_is_open(tmp_path: Path) -> None:
    write_log(tmp_path, 10)
    options = parse_options({"path": str(tmp_path)})
    reader = StreamReader(options, schema_of("events"))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    (task,) = reader.partitions(start, end)
    there = pickle.loads(pickle.dumps(reader))
    (batch,) = there.read(pickle.loads(pickle.dumps(task)))
    assert batch["seq"].to_pylist() == list(range(10))
