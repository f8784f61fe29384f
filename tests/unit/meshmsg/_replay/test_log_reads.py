"""The thread that reads a peer's logs: one question at a time, and live delivery first."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from meshmsg import ClosedError, LogError
from meshmsg._replay import log_reads
from meshmsg._replay.log_reads import Chapter, Replay
from meshmsg._wire.control import Start
from meshmsg._wire.frame import Frame
from tests.support.recording import STREAM, record, recorded
from tests.support.waiting import wait_until


class World:
    """A thread that can be held up by a job."""

    def __init__(self) -> None:
        self.counters: Counter[str] = Counter()
        self.live = False
        self.replay = Replay("meshmsg-pub", self.counters, lambda: self.live)
        self.done: list[str] = []
        self.go_on = threading.Event()

    def job(self, name: str) -> Callable[[], None]:
        return lambda: self.done.append(name)

    def hold_up(self) -> None:
        began = threading.Event()

        def wait() -> None:
            began.set()
            self.go_on.wait(60)

        self.replay.submit("hold", wait)
        assert began.wait(60)

    def wait_for(self, *names: str) -> None:
        wait_until(lambda: self.done == list(names))


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.go_on.set()
    made.replay.stop()


def names() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


def test_it_costs_no_thread_until_there_is_a_question(world: World) -> None:
    assert "meshmsg-pub replay" not in names()
    world.replay.submit("a", world.job("a"))
    world.wait_for("a")
    assert "meshmsg-pub replay" in names()
    world.replay.stop()
    assert "meshmsg-pub replay" not in names()


def test_of_one_subscription_only_the_newest_question_is_answered(world: World) -> None:
    world.hold_up()
    for name in ("old", "new"):
        world.replay.submit("a", world.job(name))
    world.replay.submit("b", world.job("b"))
    world.go_on.set()
    world.wait_for("new", "b")


def test_what_waits_is_bounded_for_those_who_ask_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reads, "JOBS_MAX", 2)
    world.hold_up()
    for name in ("a", "b", "c", "a"):
        world.replay.submit(name, world.job(name), gives_way=True)
    world.replay.submit("start", world.job("start"))
    assert world.counters["replay_full"] == 1
    world.go_on.set()
    world.wait_for("a", "b", "start")


@pytest.mark.parametrize(
    ("error", "counter"),
    [
        (LogError("/data", "cannot be read"), "replay_errors"),
        (ClosedError("the peer is closed"), "replay_unsent"),
        (ZeroDivisionError(), "replay_errors"),
    ],
)
def test_a_question_that_fails_does_not_end_it(
    world: World, error: Exception, counter: str
) -> None:
    def fail() -> None:
        raise error

    world.replay.submit("a", fail)
    world.replay.submit("b", world.job("b"))
    world.wait_for("b")
    assert world.counters[counter] == 1


def test_stopped_it_forgets_what_waits_and_takes_no_more(world: World) -> None:
    """Also by what it does itself: a callback of the user may close the peer."""
    began, asked = threading.Event(), threading.Event()

    def stop() -> None:
        began.set()
        asked.wait(60)
        world.replay.stop()

    world.replay.submit("stop", stop)
    assert began.wait(60)
    world.replay.submit("a", world.job("a"))
    asked.set()
    wait_until(lambda: "meshmsg-pub replay" not in names())
    world.replay.submit("b", world.job("b"))
    assert world.done == []
    assert "meshmsg-pub replay" not in names()


def test_beside_live_delivery_only_answers_rest(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reads, "REST_MAX_S", 1e9)
    monkeypatch.setattr(log_reads, "REST_TIMES", 1e9)
    world.live = True
    world.replay.submit("first", world.job("first"), gives_way=True)
    world.wait_for("first")
    world.replay.submit("answer", world.job("answer"), gives_way=True)
    world.replay.submit("start", world.job("start"))
    world.wait_for("first", "start")


# For jobs --------------------------------------------------------------------------------------


def test_frames_are_given_once_and_what_is_gone_by_reason(world: World, tmp_path: Path) -> None:
    log = recorded(tmp_path)
    for first, stop, lost in ((0, 4, False), (4, 5, True), (5, 8, False), (8, 10, True)):
        record(log, 7, (first, stop), lost=lost)
    record(log, 7, (10, 12))
    frames, gone = world.replay.frames(log.folder, 7, [(1, 2), (3, 9), (11, 20)], 1 << 20)
    assert [Frame(data).first for data in frames] == [0, 5, 10]
    assert gone == {"overflow": [(4, 5), (8, 9)]}  # of what is yet to come nothing is said
    frames, _ = world.replay.frames(log.folder, 7, [(0, 12)], 1)
    assert len(frames) == 1
    frames, _ = world.replay.frames(log.folder, 7, [(0, 12)], 1 << 20, 2)
    assert len(frames) == 2
    assert world.replay.frames(log.folder, 8, [(0, 1)], 1 << 20) == ([], {})
    log.writer.close()


@pytest.mark.parametrize(
    ("start", "chapters", "place"),
    [
        (Start(STREAM, "earliest"), [(5, 0, 0, 3), (6, 0, 0, 2)], None),
        (Start(STREAM, "last", 3), [(6, 0, 0, 2)], None),
        (Start(STREAM, "last", 1), [], 0),
        (Start(STREAM, "resume", 1, 5), [(5, 0, 1, 3), (6, 0, 0, 2)], None),
        (Start(STREAM, "resume", 2, 6), [(6, 0, 2, 2)], None),  # to be ended all the same
        (Start(STREAM, "resume", 1, 7), [], 1),
    ],
)
def test_a_start_is_the_epochs_before_and_a_place_in_this_one(
    world: World,
    tmp_path: Path,
    start: Start,
    chapters: list[tuple[int, int, int, int]],
    place: int | None,
) -> None:
    log = recorded(tmp_path)
    for epoch, stop in ((5, 3), (6, 2), (7, 1)):
        record(log, epoch, (0, stop))
    found, at = world.replay.chapters(log.folder, start, 7)
    assert (found, at) == ([Chapter(*chapter) for chapter in chapters], place)
    log.writer.close()
