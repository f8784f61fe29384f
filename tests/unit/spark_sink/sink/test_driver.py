"""What becomes of a Spark that does not start and of queries that end, without a Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.errors import AnalysisException, IllegalArgumentException

from meshmsg import ConfigError, LogError
from meshmsg.spark_sink.sink import driver as sink_driver
from meshmsg.spark_sink.sink.config import SinkConfig
from meshmsg.spark_sink.sink.driver import (
    USAGE,
    Again,
    Driver,
    Job,
    Lost,
    end_java,
    java_pid,
    last_error,
)
from tests.spark.tables import output
from tests.support import processes


def config_of(tmp_path: Path, **fields: Any) -> SinkConfig:
    return SinkConfig((output(tmp_path),), state=str(tmp_path / "state"), **fields)


# --- a Spark that does not start ---


@pytest.mark.parametrize(
    ("master", "asked"),
    [
        ("local", "local[1,4]"),
        ("local[*]", "local[*,4]"),
        ("local[2]", "local[2,4]"),
        ("local[2,9]", "local[2,9]"),
        ("spark://host:7077", "spark://host:7077"),
    ],
)
def test_tasks_of_a_local_spark_are_tried_again(
    master: str, asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def session(name: str, **options: Any) -> Any:
        seen.append((options["master"], options["config"]))
        raise RuntimeError("no more of it")

    monkeypatch.setattr(sink_driver, "session", session)
    config = config_of(tmp_path, master=master, spark={"spark.log.level": "WARN"})
    with pytest.raises(Again):
        Driver(config, print).run()
    ((found, settings),) = seen
    assert found == asked
    assert settings["spark.log.level"] == "WARN", "the user's word goes first"
    assert settings["spark.sql.session.timeZone"] == "UTC"


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (IllegalArgumentException("bad value\nfor x"), ConfigError, "spark: for x"),
        (ConfigError("java", "there is none"), ConfigError, "java: there is none"),
        (OSError("no route"), Again, "Spark did not start: no route"),
    ],
)
def test_why_spark_did_not_start_says_whether_to_try_again(
    error: Exception,
    kind: type[Exception],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def session(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(sink_driver, "session", session)
    monkeypatch.setattr(sink_driver, "last_error", lambda *_: "")
    with pytest.raises(kind, match=said):
        Driver(config_of(tmp_path), print).run()


def test_a_driver_that_is_told_nonsense_says_so_and_ends(tmp_path: Path) -> None:
    process = processes.start(
        [sys.executable, "-m", "meshmsg.spark_sink.sink.driver"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    said, _ = process.communicate(b'{"outputs": 3}\n', timeout=60)
    assert process.returncode == USAGE
    found = json.loads(said)
    assert (found["kind"], found["usage"]) == ("error", True)
    assert "outputs" in found["text"]


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (
            "Error occurred during initialization of VM\nCould not reserve enough space\n",
            "Could not",
        ),
        ("26/11/18 06:16:21 ERROR Backend: All masters are unresponsive!\n  at x\n", "All masters"),
        ("26/11/18 06:16:21 WARN Utils: hostname\n", ""),
    ],
)
def test_last_error_in_the_log_is_found(tmp_path: Path, written: str, said: str) -> None:
    path = tmp_path / "driver.log"
    path.write_text(f"Error of an earlier start\n{written}")
    found = last_error(str(path), len("Error of an earlier start\n"))
    assert found.startswith(said)
    assert bool(found) == bool(said)


def test_a_log_that_is_not_there_has_no_error(tmp_path: Path) -> None:
    assert last_error(str(tmp_path / "none"), 0) == ""


# --- queries that end ---


class Query:
    """A query that Spark has ended."""

    isActive = False  # noqa: N815
    lastProgress = None  # noqa: N815

    def __init__(self, error: str | None) -> None:
        self._error = error

    def exception(self) -> str | None:
        return self._error


class Writer:
    """As much of a writer as is asked when a query has ended."""

    written = -1

    def __init__(self, failure: BaseException | None = None) -> None:
        self.failure = failure


class Looked:
    """A job whose query has ended, and what it said."""

    def __init__(self, tmp_path: Path, text: str, failure: BaseException | None = None) -> None:
        config = config_of(tmp_path)
        self.said: list[dict[str, Any]] = []
        self.driver = Driver(config, self.said.append)
        self.job = Job(self.driver, config.outputs[0])
        self.job.query = cast("Any", Query(text))
        self.job.writer = cast("Any", Writer(failure))


@pytest.mark.parametrize(
    ("text", "failure", "kind", "said"),
    [
        ("x", LogError("/lake", "is damaged"), LogError, "is damaged"),
        ("x", ConfigError("sql", "no"), ConfigError, "sql: no"),
        ("x", AnalysisException("[NO_COLUMN]\n  no such column"), ConfigError, "sink: .*such"),
        ("a\nConfigError: option path: none\nb", None, ConfigError, "sink: option path: none"),
        ("OtherCheckpoint: give it its own", None, ConfigError, "give it its own"),
        ("LossInRange: 3 events lost", None, Lost, "3 events lost"),
    ],
)
def test_what_no_start_can_mend_ends_the_driver(
    tmp_path: Path, text: str, failure: BaseException | None, kind: type[Exception], said: str
) -> None:
    looked = Looked(tmp_path, text, failure)
    with pytest.raises(kind, match=said):
        looked.job.look()
    assert looked.said == []


def test_another_failure_starts_the_query_again_until_only_java_can_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_driver, "RESTART_S", 0.0)
    looked = Looked(tmp_path, "Caused by: the worker is gone")
    starts: list[int] = []
    monkeypatch.setattr(looked.job, "start", lambda: starts.append(1))
    for _ in range(sink_driver.RESTARTS_MAX):
        looked.job.look()
    assert len(starts) == sink_driver.RESTARTS_MAX
    with pytest.raises(Again, match="the worker is gone"):
        looked.job.look()
    assert [one["kind"] for one in looked.said] == ["failed"] * (sink_driver.RESTARTS_MAX + 1)
    assert looked.said[0]["text"] == "the worker is gone"


# --- Java ---


class Gateway:
    def __init__(self, proc: Any) -> None:
        self.proc = proc


class Context:
    def __init__(self, proc: Any) -> None:
        self._gateway = Gateway(proc)


class Spark:
    """A session whose Java is another program."""

    def __init__(self, proc: Any) -> None:
        self.sparkContext = Context(proc)
        self.stopped = False

    def stop(self) -> None:
        self.stopped = True
        raise RuntimeError("Java is gone already")


def test_java_ends_with_its_input_and_is_ended_if_it_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    java = processes.start(["cat"], stdin=subprocess.PIPE)
    spark = Spark(java)
    assert java_pid(cast("Any", spark)) == java.pid
    end_java(cast("Any", spark))
    assert (java.returncode, spark.stopped) == (0, True)
    monkeypatch.setattr(sink_driver, "JAVA_END_S", 0.05)
    deaf = processes.start(["sleep", "600"], stdin=subprocess.PIPE)
    end_java(cast("Any", Spark(deaf)))
    assert deaf.returncode == -9


def test_a_java_that_somebody_else_started_is_left_alone() -> None:
    spark = Spark(None)
    end_java(cast("Any", spark))
    assert spark.stopped
    assert java_pid(cast("Any", spark)) == 0
