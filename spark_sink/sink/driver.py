"""The process that drives Spark for the sink daemon; it reads its settings from standard input.

Belongs here: sessions and queries, and what becomes of them when they fail.  Does not belong here:
recording, figures, the terminal (`daemon`).

It says what it does in JSON lines on standard output.  When standard input ends, the daemon is gone
and this process ends too, with its Java: nothing is left behind that could write.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import re
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.errors import AnalysisException, IllegalArgumentException

from meshmsg import ConfigError, LogError, MeshError
from meshmsg.spark_sink.errors import REASON_CHARACTERS_MAX, reason_of
from meshmsg.spark_sink.session import session
from meshmsg.spark_sink.sink.batch import BatchWriter, Report, is_behind
from meshmsg.spark_sink.sink.checkpoint import reconcile
from meshmsg.spark_sink.sink.config import Output, SinkConfig
from meshmsg.spark_sink.sink.formats import open_table
from meshmsg.spark_sink.sink.shape import plan_shape
from meshmsg.spark_sink.sink.tables import Table
from meshmsg.spark_sink.sockets import remove_sockets
from meshmsg.spark_sink.source import planning
from meshmsg.spark_sink.source.log_source import LogSource
from meshmsg.spark_sink.source.positions import Positions, by_stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("meshmsg.spark_sink")

POLL_S = 0.1
#: A query that fails is started again so often without a batch between; then Java is, too.
#: On a busy machine Spark gives a new Python worker ten seconds, whatever its settings say.
RESTARTS_MAX = 8
RESTART_S = 0.5
JAVA_END_S = 15.0
#: The next query waits at most so long for the source of the one before.
SOURCE_S = 60.0

#: Exit statuses that tell the daemon what to do next.
GOOD, FAILED, USAGE, AGAIN = 0, 1, 2, 75

SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.log.level": "ERROR",
    # Small batches with few partitions write without a sort by partition before.
    "spark.sql.maxConcurrentOutputFileWriters": "64",
    "spark.sql.streaming.minBatchesToRetain": "20",
    # With checks beside each file there are twice as many, and Spark runs `chmod` for each one.
    # Parquet and the table's journal have checks of their own.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    # A task's files come all at once or not at all, so that one that is tried again adds nothing.
    "spark.sql.sources.commitProtocolClass": (
        "org.apache.spark.sql.execution.datasources.SQLHadoopMapReduceCommitProtocol"
    ),
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "1",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.cleaner.periodicGC.interval": "60min",
}

NEEDED = ("spark.sql.session.timeZone", "spark.sql.parquet.outputTimestampType")
"""What tables rest on, also in a session that was made otherwise: days in UTC, microseconds."""

_OURS = re.compile(r"\b(ConfigError|OtherCheckpoint|TopicError|LossInRange|JavaMissing): ([^\n]*)")


_JAVA_ERROR = re.compile(
    r"(?:[0-9/]+ [0-9:]+ ERROR \S+: "
    r"|(?=Error|Exception in thread|Invalid|Unrecognized|Could not ))(.+)"
)


class Reports:
    """Lines to the daemon; what others print goes to the log instead."""

    def __init__(self) -> None:
        self._handle = os.dup(1)
        os.dup2(2, 1)  # Java writes to 1 as well
        self._lock = threading.Lock()

    def __call__(self, fields: dict[str, Any]) -> None:
        """Say it; if nobody listens any more, that is seen elsewhere."""
        data = msgspec.json.encode(fields) + b"\n"
        with self._lock, contextlib.suppress(OSError):
            while data:
                data = data[os.write(self._handle, data) :]


class Job:
    """One output: its table, its query, and how often that failed."""

    def __init__(self, driver: Driver, output: Output) -> None:
        self.output = output
        self.checkpoint = driver.config.checkpoint(output)
        self.table: Table = open_table(output)
        self.query: StreamingQuery | None = None
        self.writer: BatchWriter | None = None
        self.failures = 0
        self.done = False
        self._driver = driver
        self._told = -1
        self._target: Positions = {}  #: where the log ended when the query was started

    def open(self) -> None:
        """Plan it and take the table; raises `ConfigError`, `LogError`."""
        schema = self._rows().schema
        planned = plan_shape(self._driver.spark, self.output, schema)
        self.table.open(planned.json())
        self._driver.report(
            {"kind": "at", "output": self.output.name, "positions": self.table.positions}
        )

    def _rows(self, start: Positions | None = None) -> Any:
        config, output = self._driver.config, self.output
        reader = self._driver.spark.readStream.format("meshmsg")
        options = {
            "path": config.log,
            "topics": ",".join(output.topics),
            "payload": output.payload,
            "rows": "events" if config.fail_on_loss else "all",
            "failOnLoss": "true" if config.fail_on_loss else "false",
            "maxEventsPerTrigger": str(output.max_events),
        }
        if start:
            options["startingPosition"] = json.dumps(start)
        return reader.options(**options).load()

    def start(self) -> None:
        """Start the query where the table ends."""
        begin = self._reconcile()
        survey = LogSource(self._driver.config.log).survey()
        for where, why in survey.problems.items():
            note = {"kind": "note", "output": self.output.name, "text": f"{where}: {why}"}
            self._driver.report(note)
        self._target = planning.available(self.table.positions, survey)
        self.writer = BatchWriter(
            self.output, self.table, self.checkpoint, begin, self._driver.report
        )
        writer = self._rows(begin).writeStream.foreachBatch(self.writer)
        config = self._driver.config
        period_ms = round(float(config.trigger) * 1000)
        trigger: dict[str, Any] = {"processingTime": f"{period_ms} milliseconds"}
        if config.once:
            trigger = {"availableNow": True}
        self.query = (
            writer.option("checkpointLocation", self.checkpoint)
            .queryName(self.output.name)
            .trigger(**trigger)
            .start()
        )
        self._await_source(self.query)

    def _await_source(self, query: StreamingQuery) -> None:
        """One at a time: each starts a Python, and Spark gives all of them the same ten seconds."""
        deadline = time.monotonic() + SOURCE_S
        while time.monotonic() < deadline and not self._driver.stopping:
            if not query.isActive or not query.status["message"].startswith("Initializing"):
                return
            time.sleep(POLL_S)

    def _reconcile(self) -> Positions:
        """See that the checkpoint is this table's, and not ahead of it; returns where to begin."""
        table = self.table
        owner = {"version": 1, "out": self.output.out, "id": table.journal.about["id"]}
        is_ahead = functools.partial(is_behind, table.positions)
        text = reconcile(self.checkpoint, owner, is_ahead)
        if text:
            self._driver.report({"kind": "note", "output": self.output.name, "text": text})
        return self._there(table.positions)

    def _there(self, positions: Positions) -> Positions:
        """Without streams that are not in the log now: the source would refuse them."""
        there = LogSource(self._driver.config.log).survey().streams
        gone = sorted(by_stream(positions).keys() - there.keys())
        for stream in gone:
            text = f"{stream} is in the table and not in the log {self._driver.config.log}"
            self._driver.report({"kind": "note", "output": self.output.name, "text": text})
        return {k: v for k, v in positions.items() if k.rpartition("/")[0] not in gone}

    def look(self) -> None:
        """Start it again if it failed; raises what cannot be mended so."""
        query = self.query
        if self.done or query is None:
            return
        self._progress(query)
        if query.isActive:
            return
        error = query.exception()
        if error is None:
            self._check_end()
            self.done = True
            return
        writer = self.writer
        assert writer is not None
        if isinstance(writer.failure, ConfigError | LogError):
            raise writer.failure
        if isinstance(writer.failure, AnalysisException):  # it would not be another one next time
            raise ConfigError("sink", _analysis(writer.failure))
        text = str(error)
        ours = _OURS.search(text)
        if ours is not None:
            raise ConfigError("sink", ours[2]) if ours[1] != "LossInRange" else Lost(ours[2])
        self.failures += 1
        log.error("%s failed: %s", self.output.name, text)
        short = reason_of(writer.failure or text)
        self._driver.report({"kind": "failed", "output": self.output.name, "text": short})
        if self.failures > RESTARTS_MAX:
            raise Again(short)
        time.sleep(RESTART_S * self.failures)
        self.start()

    def _check_end(self) -> None:
        """Spark ends a query without a word when it is shut down from elsewhere: by its master."""
        if self._driver.stopping:
            return
        if not self._driver.config.once:
            raise Again("the query ended, and nobody said so: is Spark being shut down?")
        if is_behind(self.table.positions, self._target):
            raise Again("the query ended before all was written: is Spark being shut down?")

    def _progress(self, query: StreamingQuery) -> None:
        """Tell how long the last batch took as a whole, planning and Spark's own books included."""
        writer = self.writer
        if writer is None or writer.written <= self._told:
            return
        self.failures = 0
        found = query.lastProgress
        if found is not None and found["batchId"] >= writer.written:
            self._told = writer.written
            took_ms = found["durationMs"].get("triggerExecution", 0)
            self._driver.report({"kind": "took", "output": self.output.name, "ms": took_ms})


class Lost(MeshError):
    """Events are lost, and `fail_on_loss` says to stop."""


class Again(Exception):
    """Only a new Java can help."""


class Driver:
    """All outputs in one Spark."""

    def __init__(self, config: SinkConfig, report: Report) -> None:
        self.config = config
        self.report = report
        self.spark: SparkSession
        self.jobs: list[Job] = []
        self._stop = threading.Event()

    def run(self) -> int:
        """Until it is told to stop, or with `once` until all is written; returns the status."""
        config = self.config
        settings = {**SETTINGS, "spark.sql.warehouse.dir": f"{config.state}/warehouse"}
        master = _retrying(config.master)
        logged = os.fstat(2).st_size
        try:
            spark = session("meshmsg sink", master=master, config={**settings, **config.spark})
        except IllegalArgumentException as error:  # a setting that Spark does not take
            raise ConfigError("spark", reason_of(error)) from error
        except ConfigError:
            raise
        except Exception as error:
            why = last_error("/proc/self/fd/2", logged) or reason_of(error)
            raise Again(f"Spark did not start: {why}") from error
        try:
            self.run_in(spark)
        finally:
            end_java(spark)
        return GOOD

    def run_in(self, spark: SparkSession) -> None:
        """The same in a session that goes on; raises what cannot be mended."""
        self.spark = spark
        for key in NEEDED:
            spark.conf.set(key, SETTINGS[key])
        try:
            os.makedirs(self.config.log, exist_ok=True)
            for output in self.config.outputs:
                job = Job(self, output)
                self.jobs.append(job)
                job.open()
            for job in self.jobs:
                job.start()
            self.report({"kind": "ready", "pid": os.getpid(), "java": java_pid(spark)})
            while not self._stop.wait(POLL_S) and not all(job.done for job in self.jobs):
                for job in self.jobs:
                    job.look()
        finally:
            self._end()

    @property
    def stopping(self) -> bool:
        """Whether it was told to."""
        return self._stop.is_set()

    def stop(self) -> None:
        """End when the batches that are being written are."""
        self._stop.set()

    def _end(self) -> None:
        for job in self.jobs:
            if job.writer is not None:
                job.writer.stop()
        for job in self.jobs:
            if job.query is not None:
                with contextlib.suppress(Exception):
                    job.query.stop()
            job.table.close()


def _retrying(master: str) -> str:
    """A local Spark gives up a batch when one task fails, unless told how often to try."""
    found = re.fullmatch(r"local\[([0-9]+|\*)\]", master)
    if found:
        return f"local[{found[1]},4]"
    return "local[1,4]" if master == "local" else master


def java_pid(spark: SparkSession) -> int:
    """The process of Spark's Java."""
    process = getattr(spark.sparkContext._gateway, "proc", None)
    return 0 if process is None else int(process.pid)


def end_java(spark: SparkSession) -> None:
    """Stop Spark and wait for its Java to end; it is ended if it does not."""
    gateway = spark.sparkContext._gateway
    process = getattr(gateway, "proc", None)
    stopper = threading.Thread(target=_quietly, args=(spark.stop,), daemon=True)
    stopper.start()
    stopper.join(JAVA_END_S)
    if process is None:
        return
    with contextlib.suppress(OSError):
        process.stdin.close()
    try:
        process.wait(JAVA_END_S)
    except Exception:
        process.kill()
        process.wait()


def _quietly(work: Any) -> None:
    with contextlib.suppress(Exception):
        work()


def _listen(driver: Driver) -> None:
    """The daemon says `stop`, or is gone."""
    for line in sys.stdin:
        if line.strip() == "stop":
            driver.stop()
    spark = getattr(driver, "spark", None)
    if spark is not None:
        with contextlib.suppress(Exception):
            os.kill(java_pid(spark), signal.SIGKILL)
    remove_sockets()
    os._exit(FAILED)


def main() -> int:
    """What `python -m meshmsg.spark_sink.sink.driver` runs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the daemon, which says stop
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    report = Reports()
    try:
        config = msgspec.json.decode(sys.stdin.readline(), type=SinkConfig)
    except msgspec.ValidationError as error:
        report({"kind": "error", "text": str(error), "usage": True})
        return USAGE
    driver = Driver(config, report)
    threading.Thread(target=_listen, args=(driver,), daemon=True).start()
    try:
        return driver.run()
    except (ConfigError, Lost, LogError) as error:
        report({"kind": "error", "text": str(error), "usage": isinstance(error, ConfigError)})
        return USAGE if isinstance(error, ConfigError) else FAILED
    except AnalysisException as error:  # it would not be another one next time
        log.exception("the driver failed")
        report({"kind": "error", "text": _analysis(error), "usage": True})
        return USAGE
    except BaseException as error:
        log.exception("the driver failed")
        kind = "" if isinstance(error, Again) else f"{type(error).__name__}: "
        text = f"{kind}{reason_of(error)}"
        report({"kind": "failed", "output": "", "text": text})
        return AGAIN


def last_error(path: str, begin: int) -> str:
    """Return the last error that Java or Spark has written into a log; pyspark says less."""
    try:
        with open(path, "rb") as file:
            file.seek(begin)
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    found = [match[1] for match in map(_JAVA_ERROR.match, lines) if match]
    return found[-1][:REASON_CHARACTERS_MAX] if found else ""


def _analysis(error: AnalysisException) -> str:
    """What Spark did not understand, or what our own source said of it."""
    ours = _OURS.search(str(error))
    return ours[2] if ours is not None else " ".join(str(error).split())[:500]


if __name__ == "__main__":
    status = main()
    remove_sockets()
    sys.stderr.flush()
    os._exit(status)  # threads of Py4J may still wait for a Java that is gone
