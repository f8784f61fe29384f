"""Format `meshmsg` for Spark: what Spark asks the driver and its tasks, answered.

Belongs here: Spark's verbs.  Does not belong here: what offsets mean (`positions`), where events
come from (`log_source`, `peer_source`), what rows look like (`table`).
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from meshmsg import ConfigError, Loss
from meshmsg.spark_sink.errors import LossInRange, OtherCheckpoint
from meshmsg.spark_sink.source import planning
from meshmsg.spark_sink.source import positions as at
from meshmsg.spark_sink.source.checkpoint_topics import check_topics, with_topics
from meshmsg.spark_sink.source.log_source import EventSource, LogSource
from meshmsg.spark_sink.source.options import Options, Place, parse_options
from meshmsg.spark_sink.source.peer_source import PeerSource
from meshmsg.spark_sink.source.positions import Positions, Range, Survey
from meshmsg.spark_sink.source.table import payloads_for, read_ranges, schema_ddl

log = logging.getLogger("meshmsg.spark_sink")

#: A task with fewer events costs more to start than to run.
TASK_EVENTS_MIN = 50_000
#: A task with more takes too long to be tried again.
TASK_EVENTS_MAX = 8_000_000
#: In a reported offset, what could not be looked at; never in one that Spark stores.
UNREACHABLE = "!unreachable"


class MeshDataSource(DataSource):
    """Streams of a mesh as a table: `spark.readStream.format("meshmsg")`."""

    @classmethod
    def name(cls) -> str:
        """What `format(...)` is given."""
        return "meshmsg"

    def schema(self) -> str:
        """The columns; raises `ConfigError` for options that cannot be used."""
        options = parse_options(self.options)
        open_source(options).close()
        return schema_ddl(options)

    def reader(self, schema: StructType) -> BatchReader:
        """For `spark.read`."""
        return BatchReader(self._options(schema), schema)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802
        """For `spark.readStream`."""
        return StreamReader(self._options(schema), schema)

    def _options(self, schema: StructType) -> Options:
        options = parse_options(self.options)
        if options.rows != "losses":
            payloads_for(options, schema)
        return options


def open_source(options: Options, away: Mapping[str, float] | None = None) -> EventSource:
    """The place that the options name; raises `ConfigError` if there is no such folder.

    With both, a machine that sees the folder reads it, and one that does not asks the peers.
    `away` are peers that are known to be, and for how many seconds.
    """
    if options.path is not None and (not options.peers or os.path.isdir(options.path)):
        source = LogSource(options.path)
        source.check()
        return source
    return PeerSource(options.peers, mesh=options.mesh, timeout_s=options.peer_timeout_s, away=away)


class Task(InputPartition):
    """What one task reads."""

    def __init__(self, ranges: list[Range], away: Mapping[str, float]) -> None:
        super().__init__(([tuple(r) for r in ranges], dict(away)))

    @property
    def ranges(self) -> list[Range]:
        """The ranges, in order."""
        return [Range(*fields) for fields in self.value[0]]

    @property
    def away(self) -> dict[str, float]:
        """Peers that could not be reached when it was planned, and for how many seconds."""
        found: dict[str, float] = self.value[1]
        return found


def plan(options: Options, ranges: list[Range], away: Mapping[str, float]) -> list[InputPartition]:
    """Tasks for ranges: at least one, as Spark would ask again and again for what has none."""
    total = sum(wanted.events for wanted in ranges)
    shares = min(options.cores, -(-total // TASK_EVENTS_MIN))
    shares = max(shares, -(-total // TASK_EVENTS_MAX), 1)
    return [Task(part, away) for part in at.split(ranges, shares)] or [Task([], away)]


class _Reader:
    """What both readers share.  It travels to the tasks: what is open stays behind."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self._source: EventSource | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "schema": self.schema, "_source": None}

    @property
    def source(self) -> EventSource:
        """Opened when it is first needed."""
        if self._source is None:
            self._source = open_source(self.options)
        return self._source

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        assert isinstance(partition, Task)
        source = open_source(self.options, partition.away)
        try:
            yield from read_ranges(self.options, self.schema, source, partition.ranges)
        finally:
            source.close()

    def place(self, place: Place, survey: Survey, field: str) -> Positions:
        """Positions for a word, a time or what a user wrote; raises `ConfigError`."""
        if place.word == "earliest":
            return planning.earliest(survey)
        if place.word == "latest":
            return planning.latest(survey)
        found: Positions = {}
        if place.time_ns is not None:
            newest = at.by_stream(at.newest(survey))
            for stream, last in newest.items():
                where = self.source.place_at(stream, place.time_ns) or max(last.items())
                state = survey.streams[stream]
                found |= planning.from_place(state, *where, survey.spread)
            return at.in_order(found)
        return at.in_order(self._given(dict(place.positions), survey, field))

    def _given(self, given: Mapping[str, int | str], survey: Survey, field: str) -> Positions:
        words = {"earliest": planning.earliest(survey), "latest": planning.latest(survey)}
        found: Positions = {}
        for key, value in given.items():
            stream = key if isinstance(value, str) else at.stream_of(key)
            if stream is None or stream not in survey.streams:
                there = ", ".join(sorted(survey.streams)) or "none"
                problem = f"no stream {stream!r} is there ({there} are)"
                if away := ", ".join(sorted(self.source.away())):
                    problem += f"; {away} cannot be reached: start the query when it can be"
                raise ConfigError(f"option {field}", problem)
            if isinstance(value, str):
                found |= {k: v for k, v in words[value].items() if at.stream_of(k) == stream}
            else:
                found[key] = value
        return found

    def refuse_expired(self, start: Positions, ranges: list[Range], survey: Survey) -> None:
        """Raises `LossInRange` for what has expired, before a task is started for it."""
        if not self.options.fail_on_loss or self.options.rows != "events":
            return
        if survey.partial:  # who is away may have it: the task waits and sees
            return
        for wanted in ranges:
            state = survey.streams.get(wanted.stream)
            epoch = (
                next((e for e in state.epochs if e.epoch == wanted.epoch), None) if state else None
            )
            if epoch is not None and wanted.first < epoch.first:
                stop = min(epoch.first, wanted.stop)
                raise LossInRange(Loss(wanted.stream, wanted.epoch, wanted.first, stop, "expired"))


class BatchReader(_Reader, DataSourceReader):
    """`spark.read`: what is there between two positions."""

    def partitions(self) -> list[InputPartition]:
        """The tasks."""
        try:
            return self._planned(self.source.survey())
        finally:
            self.source.close()

    def _planned(self, survey: Survey) -> list[InputPartition]:
        if survey.problems:
            what = "; ".join(f"{where}: {why}" for where, why in survey.problems.items())
            if self.options.fail_on_loss:
                raise ConfigError("spark.read", f"{what}. With failOnLoss=false the rest is read")
            log.warning("spark.read leaves out what cannot be reached: %s", what)
        start = self.place(self.options.start, survey, "startingPosition")
        end = planning.available(start, survey)
        if self.options.end.word != "latest":
            end = planning.ending(self.place(self.options.end, survey, "endingPosition"), end)
        ranges = planning.backlog(start, end, survey)
        self.refuse_expired(start, ranges, survey)
        # Without them is how it was asked for: nobody waits for them.
        return plan(self.options, ranges, dict.fromkeys(survey.problems, math.inf))


class StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream`: offsets are positions, so a batch that is run again has the same rows."""

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        self._target: Survey | None = None  # of Trigger.AvailableNow
        self._survey = Survey()
        self._reported: dict[str, str] = {}
        self._full: list[str] = []
        self._checked = False

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_target": None, "_survey": Survey(), "_reported": {}}

    # --- offsets ---

    def _look(self) -> Survey:
        """What there is now; what cannot be reached keeps its place, and is said once."""
        survey = self.source.survey()
        for where, why in survey.problems.items():
            if self._reported.get(where) != why:
                log.warning("%s cannot be read now, its position is held: %s", where, why)
        for where in self._reported.keys() - survey.problems.keys():
            log.warning("%s can be read again", where)
        self._reported = survey.problems
        self._survey = survey
        return survey

    def initialOffset(self) -> Positions:  # noqa: N802
        """Where a query without a checkpoint begins."""
        begin = self.place(self.options.start, self._look(), "startingPosition")
        return with_topics(begin, self.options.topics)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> Positions:  # noqa: N802
        """How far the next batch goes."""
        begin = at.check_offset(start)
        check_topics(start, self.options.topics)
        survey = self._look()
        self._check_checkpoint(begin, survey)
        self._say_full(begin, survey)
        seen = survey if self._target is None else self._target
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        end = planning.next_offset(begin, seen, survey, most)
        return start if end == begin else with_topics(end, self.options.topics)

    def _say_full(self, begin: Positions, survey: Survey) -> None:
        """A stream cannot go on before those who are away have said what they have of it."""
        full = planning.full_streams(begin) if survey.partial else []
        if full and full != self._full:
            log.warning(
                "%s: the publisher began anew %d times since a peer is away: no new epoch is read "
                "before it is back, or is no longer in option peers",
                ", ".join(full),
                planning.EPOCHS_MAX,
            )
        self._full = full

    def _check_checkpoint(self, begin: Positions, survey: Survey) -> None:
        """A checkpoint none of whose streams is here is somebody else's."""
        if self._checked or not begin or survey.problems or not survey.streams:
            return
        named = {stream for key in begin if (stream := at.stream_of(key)) is not None}
        if not named & survey.streams.keys():
            raise OtherCheckpoint(
                f"it is at positions in {', '.join(sorted(named))}, and none of these is among "
                f"{', '.join(sorted(survey.streams))}"
            )
        self._checked = True

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The limit that the options set."""
        most = self.options.events_max
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """For the progress of a query: the newest there is, and what cannot be reached."""
        found: dict[str, Any] = dict(at.newest(self._survey))
        if self._survey.problems:
            found[UNREACHABLE] = dict(sorted(self._survey.problems.items()))
        return found

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """What comes later is for the next run."""
        self._target = self._look()

    # --- a batch ---

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks between two offsets."""
        begin, stop = at.check_offset(start), at.check_offset(end)
        check_topics(end, self.options.topics)  # planned before the topics were others
        survey = self._survey if self._survey.streams else self._look()
        self._check_checkpoint(begin, survey)
        ranges = planning.backlog(begin, stop, survey)
        self.refuse_expired(begin, ranges, survey)
        return plan(self.options, ranges, self.source.away())

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: it is a batch late, so what a log may drop rests on other things."""

    def stop(self) -> None:
        """The query is over."""
        if self._source is not None:
            self._source.close()
