"""Which settings a session is made with, and what is not touched for a Spark that is elsewhere."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import pyspark.sql
import pytest

from meshmsg.spark_sink.errors import JavaMissing
from meshmsg.spark_sink.session import LOCAL_SETTINGS, SETTINGS, register, session
from meshmsg.spark_sink.source.source import MeshDataSource

module = importlib.import_module("meshmsg.spark_sink.session")


class Builder:
    """Spark's builder, which says what it was told; what it makes knows formats and no more."""

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}
        self.called: dict[str, str] = {}
        self.formats: list[type] = []

    def appName(self, name: str) -> Builder:  # noqa: N802
        self.called["name"] = name
        return self

    def master(self, master: str) -> Builder:
        self.called["master"] = master
        return self

    def remote(self, remote: str) -> Builder:
        self.called["remote"] = remote
        return self

    def config(self, key: str, value: Any) -> Builder:
        self.settings[key] = value
        return self

    def getOrCreate(self) -> Builder:  # noqa: N802
        return self

    @property
    def dataSource(self) -> Builder:  # noqa: N802
        return self

    def register(self, made: type) -> None:
        self.formats.append(made)


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Builder:
    made = Builder()
    monkeypatch.setattr(pyspark.sql.SparkSession, "builder", made)
    monkeypatch.setattr(module, "ensure_java", lambda: "java")
    monkeypatch.setattr(module, "socket_folder", lambda: str(tmp_path))
    for key in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(key, "")  # put back behind the test
        monkeypatch.delenv(key)
    return made


def test_a_local_spark_listens_to_nobody_else_and_has_its_sockets(
    builder: Builder, tmp_path: Path
) -> None:
    assert session("mine") is builder  # type: ignore[comparison-overlap]
    assert builder.called == {"name": "mine", "master": "local[*]"}
    assert builder.settings.items() >= {**SETTINGS, **LOCAL_SETTINGS}.items()
    assert builder.settings["spark.python.unix.domain.socket.dir"] == str(tmp_path)
    assert builder.formats == [MeshDataSource]
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_a_cluster_gets_no_settings_of_this_machine(builder: Builder) -> None:
    session(master="spark://host:7077")
    assert builder.settings == SETTINGS


def test_the_master_may_be_a_setting_and_settings_win(builder: Builder) -> None:
    session(config={"spark.master": "spark://h:1", "spark.sql.shuffle.partitions": "3"})
    assert builder.called["master"] == "spark://h:1"
    assert builder.settings["spark.sql.shuffle.partitions"] == "3"
    assert "spark.driver.host" not in builder.settings
    session(master="local[2]", config={"spark.master": "spark://h:1"})
    assert builder.called["master"] == "local[2]"
    assert builder.settings["spark.driver.host"] == "127.0.0.1"


def test_a_machine_without_room_for_sockets_does_without(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "socket_folder", lambda: None)
    session()
    assert not [key for key in builder.settings if "unix.domain" in key]


def test_spark_connect_needs_no_java_and_no_python_here(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> str:
        raise JavaMissing("java", "there is none")

    monkeypatch.setattr(module, "ensure_java", missing)
    session(remote="sc://h:1", config={"spark.x": 1})
    assert builder.called == {"name": "meshmsg", "remote": "sc://h:1"}
    assert builder.settings == {"spark.x": 1}
    assert builder.formats == [MeshDataSource]
    assert "PYSPARK_PYTHON" not in os.environ
    with pytest.raises(JavaMissing):
        session()


def test_a_python_that_was_chosen_is_kept(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    session()
    assert os.environ["PYSPARK_PYTHON"] == "/opt/python"


def test_a_session_of_ones_own_learns_the_format(builder: Builder) -> None:
    made: Any = builder
    assert register(made) is made
    assert builder.formats == [MeshDataSource]
    assert MeshDataSource.name() == "meshmsg"
