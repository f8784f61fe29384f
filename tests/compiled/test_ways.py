"""Which of the two is in use, and that nothing else depends on it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from meshmsg import Event, Peer, Stream, Subscription, _native
from meshmsg._native import COMPILED
from meshmsg._receive import subscription_io as _intake
from meshmsg.testing import lose_frames

ROOT = Path(__file__).resolve().parents[2]
#: Short ones, of every room that has two ways.
PURE_TESTS = (
    "tests/unit/meshmsg/_model/test_batch.py",
    "tests/unit/meshmsg/_wire/test_frame.py",
    "tests/unit/meshmsg/_wire/test_numbering.py",
    "tests/unit/recovery/multicast/test_seal.py",
    "tests/scenarios/test_no_silent_loss.py::"
    "test_dropped_frames_are_repaired_in_order_without_duplicates",
    "tests/scenarios/test_threads_and_loops.py::"
    "test_eight_threads_publish_and_each_keeps_its_order",
    "tests/scenarios/test_threads_and_loops.py::test_async_peers_exchange_events_and_reconcile",
    "tests/scenarios/test_threads_and_loops.py::"
    "test_async_publish_waits_for_a_blocked_stream_without_blocking_the_loop",
)


def pure(*command: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "MESHMSG_PURE": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def test_environment_turns_the_compiled_core_off_and_command_and_stats_say_so() -> None:
    assert pure("-m", "meshmsg", "--version").stdout.endswith(" (pure Python)\n")
    with Peer("p") as peer:
        assert peer.stats()["compiled"] is COMPILED


def test_older_build_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "INTERFACE", -1)
    assert not _native._is_usable()


def test_python_without_a_gil_does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    assert not _native._is_usable()


@pytest.mark.skipif(not COMPILED, reason="all tests run in pure Python just now")
@pytest.mark.timeout(600)
def test_pure_python_passes_the_tests_of_what_is_compiled() -> None:
    options = ("-q", "-x", "-p", "no:cacheprovider")
    done = pure("-m", "pytest", *options, *PURE_TESTS, timeout=590)
    assert done.returncode == 0, done.stdout + done.stderr


def take_two(events: Subscription, in_batches: bool) -> list[Event]:
    """The next two events, as such or out of batches."""
    taken: list[Event] = []
    while len(taken) < 2:
        if in_batches:
            taken += next(events.batches(timeout=30))
        else:
            event = events.get(timeout=30)
            assert event is not None
            taken.append(event)
    return taken


def exchange(
    take_next: Any, monkeypatch: pytest.MonkeyPatch, ratio: float, in_batches: bool
) -> Any:
    """The same events by one way in; what came out, and the books."""
    monkeypatch.setattr(_intake, "take_next", take_next)
    with (
        Peer("pub", streams=[Stream("a.**"), Stream("b.**")]) as pub,
        Peer("sub", connect=pub.address) as sub,
        sub.subscribe("a.one", "a.two", "b.*") as events,
    ):
        pub.wait_for_subscribers("a.one", count=1, timeout=30)
        events.wait_for_publishers(2, timeout=30)
        got: dict[str, list[Any]] = {}
        with lose_frames(pub, ratio=ratio, seed=7):
            for n in range(60):
                pub.publish("a.one", b"raw %d" % n)
                pub.publish("a.other", n)
                pub.publish("b.x", {"n": n}, key="k")
                for event in take_two(events, in_batches):
                    line = (event.seq, event.topic, event.key, event.data, event.payload)
                    got.setdefault(event.position.stream, []).append(line)
        pub.flush(timeout=30)
        assert events.get(timeout=0.05) is None
        assert events.losses == []
        ledger = pub.ledger()
        assert ledger.reconciles
        rows = [
            (row.stream, row.published, row.delivered, row.filtered, row.lost, row.in_flight)
            for row in ledger.rows
        ]
        figures = [
            (source.receiver.next, source.receiver.high, source.receiver.missing)
            for source in events._intake.sources()
            if source.receiver is not None
        ]
        return got, sorted(map(str, rows)), sorted(figures)


@pytest.mark.parametrize("in_batches", [False, True], ids=["events", "batches"])
@pytest.mark.parametrize("ratio", [0.0, 0.3])
def test_short_way_in_leaves_everything_as_the_long_way_does(
    monkeypatch: pytest.MonkeyPatch, ratio: float, in_batches: bool
) -> None:
    taken: list[bool] = []
    way = _intake.take_next

    def noted(*arguments: Any) -> bool:
        taken.append(way(*arguments))
        return bool(taken[-1])

    ways = [lambda *_: False, _intake.take_next_in_python, noted]
    results = [exchange(way, monkeypatch, ratio, in_batches) for way in ways]
    assert results[0] == results[1] == results[2]
    assert any(taken), "the short way was taken"
    assert not all(taken), "and not by everything"
