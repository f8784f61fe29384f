"""The thread that tells peers when this process is busy."""

from __future__ import annotations

import os
import threading

import pytest

from meshmsg._runtime import busy as _busy
from meshmsg._runtime.busy import BusyWatch

WAIT_S = 60.0


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "meshmsg-busy"]


def test_whoever_wants_to_know_is_called_while_the_process_is_busy() -> None:
    watch, called = BusyWatch(), [threading.Event(), threading.Event()]
    for one in called:
        watch.add(one.set)
    while not all(one.is_set() for one in called):
        sum(range(10_000))
    for one in called:
        watch.remove(one.set)


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
