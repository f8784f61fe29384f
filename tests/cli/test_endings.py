"""Ctrl-C, SIGTERM and closed pipes: every verb ends soon, quietly and by the book."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

import meshmsg
from meshmsg import Peer
from meshmsg._model.config import Stream
from tests.support import processes
from tests.support.waiting import wait_until

FREE = "tcp://127.0.0.1:*"
#: Time-outs that nobody may sit through who is told to end: a test would not wait for them.
LONG = "600"


def ends_soon(running: Any, status: int, send: int = signal.SIGINT) -> None:
    children = psutil.Process(running.process.pid).children(recursive=True)
    running.process.send_signal(send)
    assert running.end() == status
    assert "Traceback" not in running.errors()
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive


@pytest.mark.parametrize("module", ["zmq", "typer", "meshmsg._peer.peer", "meshmsg.cli.sub"])
def test_ctrl_c_while_the_command_is_loaded_ends_it_without_a_word(module: str) -> None:
    command = processes.program("interrupted_load", module, "sub", "a.**")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_ctrl_c_while_statsd_loads_what_swallows_exceptions_ends_it_without_a_word() -> None:
    command = processes.program("interrupted_load", "numpy.lib", "statsd")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_ctrl_c_ends_sub(start: Any) -> None:
    sub = start("sub", "a.**", "--bind", FREE)
    sub.address()
    ends_soon(sub, 130)
    assert sub.errors().count("\n") == 1


def test_ctrl_c_ends_sub_that_waits_for_its_publisher(start: Any, tmp_path: Path) -> None:
    sub = start("sub", "a.**", "--connect", f"ipc://{tmp_path}/nobody")
    sub.wait_for_line("no publisher of these topics yet", err=True)
    ends_soon(sub, 130)


def test_sigterm_ends_sub_as_well(start: Any) -> None:
    sub = start("sub", "a.**", "--bind", FREE)
    sub.address()
    ends_soon(sub, 143, signal.SIGTERM)


def test_verb_that_waits_to_be_ended_hears_a_signal_wherever_it_is() -> None:
    command = processes.program("stopped_anywhere")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10


def test_verb_whose_figures_nobody_reads_ends_when_it_is_told_to(tmp_path: Path) -> None:
    arguments = ["a.**", "--data-dir", str(tmp_path), "--bind", FREE, "--json", "--every", "1ms"]
    unread, full = os.pipe()
    try:
        os.write(full, bytes(fcntl.fcntl(full, fcntl.F_SETPIPE_SZ, 4096)))
        command = [sys.executable, "-m", "meshmsg", "record", *arguments]
        record = processes.start(command, stdout=full, stderr=subprocess.PIPE, text=True)
        assert record.stderr is not None
        assert "listening at" in record.stderr.readline()
        record.send_signal(signal.SIGTERM)
        assert record.wait(60) == 0
    finally:
        os.close(unread)
        os.close(full)


def test_ctrl_c_ends_pub_and_tells_what_was_published(start: Any) -> None:
    sub = start("sub", "a.**", "--bind", FREE)
    pub = start("pub", "a.b", "x", "--count", "0", "--rate", "100", "--connect", sub.address())
    sub.wait_for_line("x")
    ends_soon(pub, 130)
    assert "published" in pub.errors()


def test_ctrl_c_ends_pub_that_waits_for_subscribers(start: Any) -> None:
    pub = start("pub", "a.b", "x", "--bind", FREE, "--wait-timeout", f"{LONG}s")
    pub.address()
    ends_soon(pub, 130)


def test_ctrl_c_ends_pub_that_waits_for_input(start: Any) -> None:
    pub = start("pub", "a.b", "--bind", FREE, stdin=subprocess.PIPE)
    pub.address()
    ends_soon(pub, 130)


def test_ctrl_c_ends_pub_that_a_frozen_subscriber_blocks(start: Any, tmp_path: Path) -> None:
    config = tmp_path / "mesh.toml"
    config.write_text(
        f'[peer]\nname = "p"\n[peer.tuning]\nclose_timeout_s = {LONG}\n'
        '[[stream]]\ntopics = "**"\noverflow = "block"\nwindow_bytes = "64KiB"\n'
    )
    sub = start("sub", "a.**", "--bind", FREE)
    address = sub.address()
    pub = start(
        "pub", "a.b", "x" * 1000, "--count", "0", "--connect", address, "--config", str(config),
        "--bind", FREE,
    )  # fmt: skip
    sub.wait_for_line("xxx")
    sub.freeze()
    with Peer("watch", connect=pub.address()) as watch:
        watch.wait_for_peers(timeout=60)

        def blocked() -> bool:
            (stats,) = watch.ask("stats").values()
            return bool(stats["streams"]["**"]["blocked_by"])

        wait_until(blocked)
    ends_soon(pub, 130)
    sub.thaw()


@pytest.mark.parametrize("verb", ["ledger", "peers"])
def test_ctrl_c_ends_verbs_that_wait_for_answers(
    start: Any, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    asked: list[object] = []
    with Peer("silent", bind=FREE) as peer:
        monkeypatch.setattr(
            peer._node.questions, "on_ask", lambda *question: asked.append(question)
        )
        waiting = start(verb, "--connect", peer.address, "--timeout", f"{LONG}s")
        wait_until(lambda: asked)
        ends_soon(waiting, 130)


def test_ctrl_c_ends_bench_and_its_workers(start: Any) -> None:
    bench = start("bench", "--seconds", LONG)
    process = psutil.Process(bench.process.pid)
    worker = wait_until(process.children)[0]
    # Starting takes less than half of this: it is receiving.
    wait_until(lambda: sum(worker.cpu_times()[:2]) > 1)
    ends_soon(bench, 130)


def test_a_closed_pipe_ends_sub_quietly_though_no_more_events_come() -> None:
    command = [sys.executable, "-W", "error", "-m", "meshmsg", "sub", "a.**", "--connect"]
    with Peer("p", bind=FREE, streams=Stream("**")) as peer:
        pipe = subprocess.PIPE
        sub = processes.start([*command, peer.address], stdout=pipe, stderr=pipe)
        assert sub.stdout is not None
        assert sub.stderr is not None
        peer.wait_for_subscribers("a.b", timeout=60)
        peer.publish("a.b", "only")
        assert sub.stdout.readline().endswith(b"only\n")
        sub.stdout.close()
        assert sub.wait(60) == 0
        assert sub.stderr.read() == b""


def test_a_closed_pipe_ends_sub_quietly_in_the_middle_of_many() -> None:
    command = f"{sys.executable} -W error -m meshmsg sub 'a.**' --connect $0 | head -n 2"
    with Peer("p", bind=FREE, streams=Stream("**")) as peer:
        shell = processes.start(
            ["bash", "-o", "pipefail", "-c", command, peer.address],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ,
        )
        peer.wait_for_subscribers("a.b", timeout=60)
        peer.publish_many("a.b", ["x" * 100] * 20_000)
        out, err = shell.communicate(timeout=60)
    assert shell.returncode == 0
    assert out.count("\n") == 2
    assert err == ""


def test_little_is_loaded_before_ctrl_c_is_seen_to() -> None:
    # Without `site`, which loads what it likes before any code of ours.
    command = processes.program("loaded_modules", "meshmsg.__main__", options=("-S",))
    env = {**os.environ, "PYTHONPATH": str(Path(meshmsg.__file__).parents[1])}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=env, check=True)
    loaded = done.stdout.split()
    assert "meshmsg.__main__" in loaded
    assert {"typing", "re", "enum", "signal", "threading", "zmq"}.isdisjoint(loaded)
