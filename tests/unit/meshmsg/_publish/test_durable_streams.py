"""The logs of a peer: who starts in the past, what is answered from disk, who holds a log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshmsg import LogError, Stream
from meshmsg._publish.durable_streams import RETRY_S
from meshmsg._publish.published_stream import Outlet
from meshmsg._wire.control import Commit, Gone, Nack, Place, Repair, Start
from meshmsg._wire.frame import Frame
from tests.support.publishing import Publishing
from tests.support.waiting import wait_until

DURABLE = Stream("a.**", durability="log", buffer_bytes=64 * 1024)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Publishing]:
    with Publishing(DURABLE, Stream("volatile"), data_dir=tmp_path) as made:
        yield made


def publish(world: Publishing, count: int, size: int = 10) -> Outlet:
    for n in range(count):
        world.side.publish("a.b", b"%d" % n + bytes(size))
    world.side.durable.flush(60)
    return world.outlet("a.b")


def test_a_start_of_this_epoch_needs_no_chapters(world: Publishing) -> None:
    outlet = publish(world, 5)
    find = world.side.durable.find
    for kind in ("live", "origin"):
        start = Start(outlet.stream, kind)  # type: ignore[arg-type]
        assert find(outlet, start, "") == (start, [])
    begin, chapters = find(outlet, Start(outlet.stream, "last", 2), "")
    assert (begin.kind, begin.value, begin.epoch, chapters) == ("resume", 3, outlet.epoch, [])


def test_a_start_before_this_one_has_the_epochs_that_are_over(
    world: Publishing, tmp_path: Path
) -> None:
    first = publish(world, 5).epoch
    world.close()
    with Publishing(DURABLE, data_dir=tmp_path) as again:
        outlet = publish(again, 2)
        assert outlet.epoch > first
        begin, [chapter] = again.side.durable.find(outlet, Start(outlet.stream, "last", 4), "")
        assert chapter == (first, 0, 3, 5)
        assert (begin.value, begin.epoch) == (0, outlet.epoch)
        begin, [chapter] = again.side.durable.find(
            outlet, Start(outlet.stream, "resume", 1, first), ""
        )
        assert (chapter.start, chapter.stop) == (1, 5)


def holds(outlet: Outlet) -> dict[str, tuple[int, int]]:
    assert outlet.log is not None
    return {
        cursor.name: (cursor.epoch, cursor.seq)
        for cursor in outlet.log.cursors().all()
        if cursor.hold
    }


def test_a_log_is_kept_for_its_holder_from_where_it_starts(world: Publishing) -> None:
    outlet = publish(world, 5)
    world.side.durable.find(outlet, Start(outlet.stream, "last", 2), "desk/audit")
    assert outlet.log is not None
    wait_until(lambda: holds(outlet) == {"desk/audit": (outlet.epoch, 3)})


def test_a_commit_moves_the_hold_and_none_reaches_into_the_future(world: Publishing) -> None:
    outlet = publish(world, 5)
    durable, stream = world.side.durable, outlet.stream
    durable.find(outlet, Start(stream, "earliest"), "desk/audit")
    strange = [
        ("desk/audit", Place(stream, outlet.epoch, 6)),
        ("desk/audit", Place(stream, outlet.epoch + 1, 0)),
        ("desk/audit", Place("pub/volatile", 1, 0)),
        ("desk/audit", Place("other/a", 1, 0)),
        ("", Place(stream, outlet.epoch, 1)),
    ]
    for n, (holder, place) in enumerate(strange, 1):
        durable.on_commit(holder, Commit(1, [place]))
        assert world.side.counters["strange_commits"] == n
    durable.on_commit("desk/audit", Commit(1, [Place(stream, outlet.epoch, 4)]))
    assert world.side.counters["strange_commits"] == len(strange)
    world.close()
    assert holds(outlet) == {"desk/audit": (outlet.epoch, 4)}


def test_what_only_the_log_has_is_sent_again_from_it(world: Publishing) -> None:
    outlet = publish(world, 200, 2000)
    ask = Nack(7, outlet.stream, outlet.epoch, [(0, 3), (500, 502)], 9)
    world.side.durable.answer(b"desk", outlet, ask)
    wait_until(lambda: world.side.counters["replayed_frames"])
    frames = [Frame(data) for data in world.wire.frames()]
    assert frames[0].first == 0
    assert frames[-1].stop >= 3
    # Of what is yet to come nothing is said; the last frame says that the answer is complete.
    assert world.wire.said(Gone) == []
    assert [repair.answers for repair in world.wire.said(Repair)][-1] == 9


def test_a_start_that_cannot_be_looked_up_is_tried_again_later_each_time(
    world: Publishing, caplog: pytest.LogCaptureFixture
) -> None:
    tried: list[int] = []
    put_off: list[str] = []

    def job() -> None:
        tried.append(1)
        if len(tried) < 3:
            raise LogError("/data/a", "cannot be read: Input/output error")

    def note(problem: str) -> bool:
        put_off.append(problem)
        return True

    durable = world.side.durable
    before, woken = time.monotonic(), world.woken
    durable.look_up((7, "pub/a"), "desk/-#000007", job, note)
    wait_until(lambda: world.woken > woken)
    for count, retry_s in ((2, RETRY_S), (3, 2 * RETRY_S)):
        due = durable.on_tick(before)
        assert before + retry_s <= due < float("inf")
        assert len(tried) == count - 1  # not due
        woken = world.woken
        durable.on_tick(due)
        wait_until(lambda woken=woken: world.woken > woken)
        assert len(tried) == count
    assert durable.on_tick(0.0) == float("inf")
    assert put_off == ["cannot be read: Input/output error"] * 2
    assert world.side.counters["admission_retries"] == 2
    assert "has to wait for its start" in caplog.text


def test_a_start_that_nobody_waits_for_any_more_is_not_tried_again(world: Publishing) -> None:
    asked: list[str] = []

    def job() -> None:
        raise LogError("/data/a", "cannot be read")

    def gone(problem: str) -> bool:
        asked.append(problem)
        return False

    world.side.durable.look_up((7, "pub/a"), "desk", job, gone)
    wait_until(lambda: asked)
    assert world.side.durable.on_tick(time.monotonic() + 100) == float("inf")
    assert not world.side.counters["admission_retries"]


def test_flush_returns_when_all_is_on_the_disk(tmp_path: Path) -> None:
    with Publishing(Stream("a.**", durability="log", fsync="batch"), data_dir=tmp_path) as world:
        world.side.publish("a.b", 1)
        outlet = world.outlet("a.b")
        world.side.durable.flush(60)
        assert outlet.log is not None
        assert outlet.log.durable == outlet.next == 1
        world.side.durable.flush(0)  # there is nothing to wait for


def test_a_log_that_cannot_be_closed_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with Publishing(DURABLE, data_dir=tmp_path) as world:
        [writer] = world.side.durable.logs

        def fail() -> None:
            raise LogError("/data/a", "cannot be closed: No space left on device")

        with monkeypatch.context() as patch:
            close = writer.close
            patch.setattr(writer, "close", fail)
            world.close()
        close()
    assert world.side.durable.error is not None
    assert "No space left" in caplog.text
