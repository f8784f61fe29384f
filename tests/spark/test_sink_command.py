"""`meshmsg sink` from start to exit status, with a driver that only says what Spark's would.

The driver speaks to the daemon in lines, so a small program can take its place.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from meshmsg import Peer, Stream
from meshmsg.cli import app
from meshmsg.spark_sink.sink import daemon as sink_daemon
from tests.spark.logs import EPOCH, STREAM, write_log
from tests.support import processes

#: What a driver does next: the name of a method in tests/support/programs/sink_driver.py, and more.
Step = tuple[Any, ...]


def say(kind: str, **fields: Any) -> Step:
    return "say", kind, fields


def commit(to: int, **fields: Any) -> Step:
    return "commit", to, fields


READY = say("ready")


class Command:
    """The command, and the programs that stand for Spark's driver."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._patch = monkeypatch
        monkeypatch.setattr(sink_daemon, "ensure_java", lambda: "")
        monkeypatch.setattr(sink_daemon, "RESTART_S_MIN", 0.01)

    def __call__(self, lives: list[list[Step]], *words: str) -> Result:
        """Run the command; a driver does the steps of its life, the last one's if more come."""
        made, script = self.folder / "driver", self.folder / "script"
        files = {name: str(self.folder / name) for name in ("runs", "config")}
        script.write_text(json.dumps({"key": f"{STREAM}/{EPOCH}", "lives": lives, **files}))
        made.write_text(f"#!/bin/sh\nexec {shlex.join(processes.program('sink_driver', script))}\n")
        made.chmod(0o755)
        out = ("--out", str(self.folder / "lake"), "--every", "10ms")
        with self._patch.context() as patch:
            patch.setattr(sink_daemon.sys, "executable", str(made))
            return CliRunner().invoke(app, ["sink", *out, *words])

    @property
    def config(self) -> dict[str, Any]:
        """What the last driver was told."""
        found: dict[str, Any] = json.loads((self.folder / "config").read_text())
        return found

    @property
    def runs(self) -> int:
        """How often a driver was started."""
        return (self.folder / "runs").stat().st_size


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(tmp_path, monkeypatch)


@pytest.fixture
def log(tmp_path: Path) -> str:
    write_log(tmp_path / "log", 100)
    return str(tmp_path / "log")


def last(result: Result) -> dict[str, Any]:
    """The last figures."""
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found


def test_once_writes_what_is_there_and_ends(command: Command, log: str) -> None:
    done = command([[READY, commit(100)]], "--from", log, "--once")
    assert done.exit_code == 0, done.output
    assert command.config["once"]
    assert command.runs == 1
    assert "100 rows  lag 0 events" in done.stdout.splitlines()[-1]
    assert done.stdout.splitlines()[-1].startswith("ended")


def test_once_records_until_nothing_comes_any_more(command: Command) -> None:
    with Peer("shop", streams=[Stream("orders.**")]) as peer:
        # What was published before anyone listened is not ours; this is sent when we are there.
        lives = [[READY, commit(3)]]
        done = command(lives, "--once", "--idle", "50ms", "-c", peer.address, "--json")
    assert done.exit_code == 0, done.output
    figures = last(done)
    assert (figures["ended"], figures["outputs"][0]["rows"]) == (True, 3)
    assert (command.folder / "lake.sink" / "log").is_dir()


def test_lost_events_are_status_1(command: Command, log: str) -> None:
    done = command([[commit(93, lost=7)]], "--from", log, "--once")
    assert done.exit_code == 1, done.output
    assert "lost 7" in done.stdout


@pytest.mark.parametrize(("usage", "status"), [(True, 2), (False, 1)])
def test_what_cannot_be_mended_ends_the_daemon(
    command: Command, log: str, usage: bool, status: int
) -> None:
    error = say("error", text="no such column: colour", usage=usage)
    done = command([[error, ("exit", 3)]], "--from", log)
    assert done.exit_code == status, done.output
    assert "no such column: colour" in done.output
    assert command.runs == 1


@pytest.mark.parametrize("end", [("exit", 75), ("die",), ("exit", 1)])
def test_driver_that_dies_is_started_again(command: Command, log: str, end: Step) -> None:
    done = command([[end], [end], [READY, commit(100)]], "--from", log, "--once", "--json")
    assert done.exit_code == 0, done.output
    assert command.runs == 3
    assert last(done)["restarts"] == 2


@pytest.mark.parametrize("said", [[say("failed", output="", text="no Java")], []])
def test_once_ends_when_no_driver_writes_anything(
    command: Command, log: str, said: list[Step]
) -> None:
    done = command([[*said, ("exit", 75)]], "--from", log, "--once")
    assert done.exit_code == 1, done.output
    assert command.runs == sink_daemon.ONCE_DRIVERS_MAX
    assert ("no Java" if said else "ended with status 75") in done.stderr.splitlines()[-1]


def test_once_goes_on_while_drivers_write_something(command: Command, log: str) -> None:
    lives = [[READY, commit(10), ("exit", status)] for status in (*[75] * 6, 0)]
    done = command(lives, "--from", log, "--once")
    assert done.exit_code == 0, done.output
    assert command.runs == 7


def test_sigterm_finishes_the_batch(command: Command, log: str) -> None:
    begin = [READY, commit(60), ("end_daemon",), ("wait_for_stop",)]
    being_written = commit(40)
    done = command([[*begin, being_written]], "--from", log, "--json")
    assert done.exit_code == 0, done.output
    figures = last(done)
    assert figures["ended"]
    assert figures["outputs"][0]["rows"] == 100
    assert figures["outputs"][0]["commits"] == 2


def test_driver_that_does_not_end_is_ended(
    command: Command, log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_daemon, "STOP_S", 0.5)
    monkeypatch.setattr(sink_daemon, "STOP_EARLY_S", 0.5)  # the signal may overtake the words
    pid = command.folder / "pid"
    steps = [("note_pid", str(pid)), READY, ("end_daemon",), ("hang",)]
    done = command([steps], "--from", log)
    assert done.exit_code == 0, done.output
    assert "Spark did not end within 0 s and was killed" in done.stderr
    assert not Path(f"/proc/{pid.read_text()}").exists()


def test_what_spark_says_is_told(command: Command, log: str) -> None:
    steps = [
        READY,
        say("note", text="the checkpoint is set aside"),
        say("failed", text="Python worker failed to connect back"),
        say("again", batch=3),
        say("took", ms=250),
        ("print", "noise"),
        commit(100),
    ]
    done = command([steps], "--from", log, "--once", "--json")
    assert "the checkpoint is set aside" in done.stderr
    assert "failed and is tried again: Python worker failed to connect back" in done.stderr
    found = last(done)["outputs"][0]
    assert (found["batch_ms"], found["failures"], found["repeated"]) == (250, 1, 1)
