"""Where a local Spark has its sockets: short, its own, and gone when it is gone."""

from __future__ import annotations

import functools
import importlib
import os
import socket
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshmsg._runtime.private_folder import PrivateFolder
from meshmsg.spark_sink import sockets
from tests.support import processes

session_module = importlib.import_module("meshmsg.spark_sink.session")


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a short name."""
    with tempfile.TemporaryDirectory(prefix="m", dir="/tmp") as made:
        yield Path(made)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test has a folder of its own; that of a Spark in this process stays."""
    kept = sockets.socket_folder
    monkeypatch.setattr(sockets, "socket_folder", functools.cache(kept.__wrapped__))
    monkeypatch.setattr(session_module, "socket_folder", lambda: sockets.socket_folder())
    yield
    sockets.remove_sockets()


def process(parent: Path, end: str) -> subprocess.Popen[str]:
    """Another process with a folder."""
    return processes.start(
        processes.program("socket_folder", parent, end),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def use(monkeypatch: pytest.MonkeyPatch, folder: Path, otherwise: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(sockets, "SHORT", str(otherwise))


def test_folder_is_private_and_short_enough(monkeypatch: pytest.MonkeyPatch, short: Path) -> None:
    long = short / ("x" * 90)
    long.mkdir()
    use(monkeypatch, long, short)
    made = sockets.socket_folder()
    assert made is not None
    assert Path(made).parent == short
    assert list(long.iterdir()) == []
    assert stat.S_IMODE(os.stat(made).st_mode) == 0o700
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(made + "/" + "s" * (sockets.NAME_BYTES - 1))
    assert session_module._local_settings()["spark.python.unix.domain.socket.dir"] == made


def test_without_a_place_for_sockets_there_are_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use(monkeypatch, tmp_path / "absent", tmp_path / "absent as well")
    assert sockets.socket_folder() is None
    assert session_module._local_settings() == session_module.LOCAL_SETTINGS
    sockets.remove_sockets()


def test_what_killed_processes_left_is_removed_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, short: Path
) -> None:
    killed, alive = process(short, "killed"), process(short, "alive")
    assert killed.stdout is not None
    assert alive.stdout is not None
    left, kept = Path(killed.stdout.readline().strip()), Path(alive.stdout.readline().strip())
    (left / ".a.sock").touch()
    killed.communicate("")
    others = [short / "meshmsg-spark-old", short / f"meshmsg-spark-{killed.pid}"]
    elsewhere = short / f"meshmsg-spark-{killed.pid}-locked"  # of a process in another container
    target = short / "target"
    link = short / f"meshmsg-spark-{killed.pid}-link"
    for path in (*others, elsewhere, target):
        path.mkdir()
    link.symlink_to(target)
    (target / "file").touch()
    lock = PrivateFolder(str(elsewhere), others=0)
    assert lock.lock()
    use(monkeypatch, short, short)
    assert left.is_dir()
    made = sockets.socket_folder()
    assert made is not None
    assert not left.exists()
    assert all(path.is_dir() for path in (*others, elsewhere, kept, Path(made)))
    assert (target / "file").exists()
    lock.close()
    alive.communicate("")
    assert not kept.exists()  # it ended in peace


def test_child_leaves_the_folder_of_its_parent(
    monkeypatch: pytest.MonkeyPatch, short: Path
) -> None:
    use(monkeypatch, short, short)
    made = sockets.socket_folder()
    assert made is not None
    sockets._remove(made, os.getpid() + 1)
    assert os.path.isdir(made)


def test_cluster_has_no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, object] = {}

    class Builder:
        def config(self, key: str, value: object) -> Builder:
            settings[key] = value
            return self

        def master(self, name: str) -> Builder:
            return self.config("spark.master", name)

        def appName(self, name: str) -> Builder:  # noqa: N802
            return self

        def getOrCreate(self) -> None:  # noqa: N802
            pass

    from pyspark.sql import SparkSession

    monkeypatch.setattr(SparkSession, "builder", Builder())
    monkeypatch.setattr(session_module, "register", lambda spark: spark)
    monkeypatch.setattr(session_module, "ensure_java", lambda: None)
    session_module.session(config={"spark.master": "spark://far:7077"})
    assert settings["spark.master"] == "spark://far:7077"
    assert not [key for key in settings if "unix" in key or key in session_module.LOCAL_SETTINGS]
    session_module.session(master="spark://far:7077")
    assert not [key for key in settings if "unix" in key or key in session_module.LOCAL_SETTINGS]
    session_module.session()
    assert settings["spark.python.unix.domain.socket.enabled"] == "true"
