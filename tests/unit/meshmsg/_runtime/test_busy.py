"""The thread that tells peers when much comes in."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq

from meshmsg._runtime import busy as _busy
from meshmsg._runtime.busy import BUSY_CPU_S, REST_S, BusyWatch, ReadingTimers
from tests.support.waiting import wait_until

WAIT_S = 60.0


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "meshmsg-busy"]


@contextmanager
def traffic() -> Iterator[Callable[[], None]]:
    """Two sockets over tcp; each call sends a piece of a flood, and takes it in."""
    with (
        zmq.Context() as context,
        context.socket(zmq.PUSH) as out,
        context.socket(zmq.PULL) as into,
    ):
        for socket in (out, into):
            socket.linger = 0
        out.connect(f"tcp://127.0.0.1:{into.bind_to_random_port('tcp://127.0.0.1')}")

        def flow() -> None:
            for _ in range(100):
                out.send(bytes(10_000))
                into.recv()

        flow()
        yield flow


def test_whoever_wants_to_know_is_called_while_much_comes_in() -> None:
    watch, called = BusyWatch(), [threading.Event(), threading.Event()]
    with traffic() as flow:
        for one in called:
            watch.add(one.set)
        while not all(one.is_set() for one in called):
            flow()
        for one in called:
            watch.remove(one.set)


def test_peers_that_come_later_are_watched_and_those_that_left_are_not_missed() -> None:
    watch, called = BusyWatch(), threading.Event()
    with traffic() as flow:
        watch.add(called.set)
        while not called.is_set():
            flow()
    with traffic() as flow:
        watch.add(do_nothing)
        called.clear()
        while not called.is_set():
            flow()
    watch.remove(do_nothing)
    watch.remove(called.set)


@pytest.fixture
def timers() -> Iterator[ReadingTimers]:
    """As a thread of its own has them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    timers = ReadingTimers()
    timers.begin()
    yield timers
    timers.stop()
    while signal.sigtimedwait({timers.signal}, 0) is not None:
        pass
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


@pytest.mark.skipif(sys.platform != "linux", reason="threads have clocks of their own on Linux")
def test_what_the_program_itself_computes_is_not_taken_for_traffic(timers: ReadingTimers) -> None:
    with traffic() as flow:
        timers.find()
        began_s = time.process_time()
        while time.process_time() - began_s < 20 * BUSY_CPU_S:
            sum(range(10_000))
        assert signal.sigtimedwait({timers.signal}, 0) is None
        while signal.sigtimedwait({timers.signal}, 0) is None:
            flow()


@pytest.mark.skipif(sys.platform != "linux", reason="threads have clocks of their own on Linux")
def test_nobody_runs_while_nothing_comes_in() -> None:
    watch = BusyWatch()
    watch.add(do_nothing)
    try:
        thread = next(t.native_id for t in threading.enumerate() if t.name == "meshmsg-busy")
        status = Path(f"/proc/self/task/{thread}/status")
        wait_until(lambda: "S (sleeping)" in status.read_text())
        before = [line for line in status.read_text().splitlines() if "ctxt_switches" in line]
        time.sleep(5 * REST_S)
        assert [
            line for line in status.read_text().splitlines() if "ctxt_switches" in line
        ] == before
    finally:
        watch.remove(do_nothing)


def test_elsewhere_the_clock_of_the_process_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_busy, "new_clock", _busy.ProcessClock)
    watch, called = BusyWatch(), threading.Event()
    watch.add(called.set)
    while not called.is_set():
        sum(range(10_000))
    watch.remove(called.set)


def do_nothing() -> None:
    """Somebody else who wants to know."""


def test_its_thread_lives_as_long_as_somebody_wants_to_know() -> None:
    watch, before = BusyWatch(), len(threads())
    watch.add(print)
    watch.add(repr)  # type: ignore[arg-type]
    assert len(threads()) == before + 1
    watch.remove(print)
    assert len(threads()) == before + 1
    watch.remove(repr)  # type: ignore[arg-type]
    watch.remove(repr)  # type: ignore[arg-type]
    assert len(threads()) == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks are what it is about")
def test_a_forked_child_begins_without_the_calls_of_its_parent() -> None:
    _busy.watch.add(print)
    try:
        child = os.fork()
        if not child:
            os._exit(bool(_busy.watch._calls) or _busy.watch._thread is not None)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        _busy.watch.remove(print)
