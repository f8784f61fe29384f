"""The recorder: what it receives is in its logs before it counts; what it cannot keep is a loss."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from meshmsg import LogError, LogLocked, Loss, PeerConfig
from meshmsg._model.config import Record
from meshmsg._receive.incoming_stream import Books, StartAt
from meshmsg._replay import recorder as module
from meshmsg._replay.recorded_log import RecordedLog, recorded_topics
from meshmsg._replay.recorder import Recorder, RecorderIntake
from meshmsg._replay.recorder_service import Lender
from meshmsg._wire.control import StreamInfo, stream_wire_id
from meshmsg.recovery.log.folder import LogFolder
from meshmsg.recovery.stream.receiver import Delivery
from tests.support.recording import MESH, STREAM, record, recorded, run_of
from tests.support.waiting import wait_until
from tests.support.wire import Wire


class Taken:
    """The subscription of a recorder: what comes next, and what is in its books."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.closed = False
        self.driven_at = 0.0
        self.items: deque[Any] = deque()
        self.entered: list[Delivery] = []
        self._woken = threading.Condition(self.lock)

    def come(self, stream: str, epoch: int, delivery: Delivery, start: int = 0) -> None:
        info = StreamInfo(stream, "a.**", epoch, "block", "msgpack", 1)
        books = SimpleNamespace(stream=stream, epoch=epoch, start=start)
        with self._woken:
            self.items.append((SimpleNamespace(info=info), cast("Books", books), delivery))
            self._woken.notify()

    def pump(self, now: float, *, read_ahead: bool) -> None:
        pass

    def wait(self, timeout: float, now: float) -> None:
        self._woken.wait(timeout)

    def wake(self) -> None:
        with self._woken:
            self._woken.notify()

    def peek(self) -> Any:
        return self.items[0] if self.items else None

    def pop(self) -> None:
        self.items.popleft()

    def enter(self, item: Any) -> None:
        self.entered.append(item[2])


class World:
    """A recorder, and what it is given."""

    def __init__(self, data_dir: Path, **chosen: Any) -> None:
        config = PeerConfig("recorder", mesh=MESH, data_dir=str(data_dir))
        self.wire = Wire()
        self.counters = self.wire.counters
        self.woken = self.announced = 0
        self.lender = Lender(
            config, 1, self.wire.sender, self._wake, self._announce, lambda sub: False
        )
        self.taken = Taken()
        self.start: StartAt | None = None
        self.left: list[Any] = []
        self.recorder = Recorder(
            config,
            Record(("a.**",), **chosen),
            self.lender,
            self.counters,
            self._subscribe,
            self.left.append,
        )

    def _wake(self) -> None:
        self.woken += 1

    def _announce(self) -> None:
        self.announced += 1

    def _subscribe(self, topics: Any, start: StartAt) -> RecorderIntake:
        self.start = start
        return cast("RecorderIntake", self.taken)

    def begin(self) -> World:
        self.recorder.open()
        self.recorder.start()
        return self

    def wait_for(self, count: int) -> list[Delivery]:
        """So many deliveries in the books."""
        wait_until(lambda: len(self.taken.entered) >= count)
        return self.taken.entered


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def world(folder: str = "data", **chosen: Any) -> World:
        made.append(World(tmp_path / folder, **chosen))
        return made[-1]

    yield world
    for one in made:
        one.recorder.stop()


def place(world: World, stream: str = STREAM) -> tuple[int, int]:
    log: RecordedLog = world.lender.logs[stream]
    return log.place


def test_what_comes_is_in_the_log_before_it_is_in_the_books(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make().begin()
    written: list[tuple[int, int]] = []
    enter = world.taken.enter

    def look(item: Any) -> None:
        written.append(place(world))
        enter(item)

    monkeypatch.setattr(world.taken, "enter", look)
    world.taken.come(STREAM, 7, run_of(7, 0, 3))
    world.taken.come(STREAM, 7, Loss(STREAM, 7, 3, 5, "overflow"))
    world.wait_for(2)
    assert written[0] >= (7, 3)
    assert written[1] == (7, 5)
    assert world.announced == 1  # another stream can be had here
    assert world.woken >= 1
    [stats] = world.recorder.stats()["streams"]
    assert (stats["epoch"], stats["next"], stats["events"], stats["lost"]) == (7, 5, 3, 2)
    assert (stats["disk_bytes"] > 0, stats["retention"]) == (True, None)


def test_where_it_was_promised_it_is_on_the_disk(make: Callable[..., World]) -> None:
    world = make(fsync="always").begin()
    world.taken.come(STREAM, 7, run_of(7, 0, 3))
    world.wait_for(1)
    assert world.lender.logs[STREAM].writer.durable == 3


def test_it_goes_on_where_its_logs_end(make: Callable[..., World], tmp_path: Path) -> None:
    folder = tmp_path / "data"
    for stream, mesh_log in ((STREAM, 7), ("pub/b", 8)):
        log = recorded(folder, stream)
        record(log, mesh_log, (0, 4))
        log.writer.close()
    world = make().begin()
    assert world.start is not None
    assert world.start.kind == "earliest"
    assert world.start.committed is not None
    assert {name: (at.epoch, at.seq) for name, at in world.start.committed.items()} == {
        STREAM: (7, 4),
        "pub/b": (8, 4),
    }
    assert sorted(world.lender.names()) == sorted([STREAM, "pub/b"])


def test_two_recorders_do_not_share_a_folder(make: Callable[..., World]) -> None:
    world = make().begin()
    world.taken.come(STREAM, 7, run_of(7, 0, 1))
    world.wait_for(1)
    other = make()
    with pytest.raises(LogLocked):
        other.recorder.open()
    assert [log for log in other.lender.logs.values() if log.writer.epoch] == []


def test_a_folder_that_cannot_be_used_says_so(make: Callable[..., World], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LogError, match="cannot be used"):
        make("file/data").recorder.open()


def test_a_stream_that_another_keeps_here_is_refused_and_nobody_waits_for_it(
    make: Callable[..., World],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = recorded(tmp_path / "other")
    world = make().begin()
    folder = LogFolder.of(str(tmp_path / "data"), STREAM).path
    Path(folder).symlink_to(other.folder.path)
    for n in range(3):
        world.taken.come(STREAM, 7, run_of(7, n, n + 1))
    world.taken.come("pub/good", 7, run_of(7, 0, 1, wire_id=stream_wire_id(MESH, "pub/good")))
    lost = world.wait_for(4)[:3]
    assert [(one.first, one.stop, one.reason) for one in lost if isinstance(one, Loss)] == [
        (n, n + 1, "gone") for n in range(3)
    ]
    assert world.counters["unrecorded"] == 3
    [refused] = world.recorder.stats()["refused"]
    assert refused["stream"] == STREAM
    assert "give the recorder a data_dir of its own" in refused["reason"]
    assert caplog.text.count("is not recorded") == 1
    other.writer.close()
    monkeypatch.setattr(module, "REFUSED_S", 0.0)
    world.taken.come(STREAM, 7, run_of(7, 3, 4))
    wait_until(lambda: STREAM in world.lender.logs)
    assert world.recorder.stats()["refused"] == []


def test_an_epoch_before_those_that_are_kept_is_lost_here(
    make: Callable[..., World], caplog: pytest.LogCaptureFixture
) -> None:
    world = make().begin()
    world.taken.come(STREAM, 7, run_of(7, 0, 2))
    for n in range(2):
        world.taken.come(STREAM, 6, run_of(6, n, n + 1))
    lost = world.wait_for(3)[1:]
    assert lost == [Loss(STREAM, 6, n, n + 1, "gone") for n in range(2)]
    assert world.recorder.lost == 2
    assert place(world) == (7, 2)
    assert caplog.text.count("clock set back") == 1


def test_a_disk_that_is_full_is_told_and_nothing_is_passed_over(
    make: Callable[..., World],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    world = make().begin()
    problem = LogError("/data/a", "cannot be written: No space left on device")

    def full(*_: Any) -> bool:
        raise problem

    with monkeypatch.context() as patch:
        patch.setattr(RecordedLog, "put", full)
        world.taken.come(STREAM, 7, run_of(7, 0, 2))
        wait_until(lambda: world.counters["record_failures"] >= 3)
        assert world.recorder.stats()["problem"] == str(problem)
        assert world.taken.entered == []
    world.wait_for(1)
    assert place(world) == (7, 2)
    assert caplog.text.count("recording waits") == 1
    wait_until(lambda: world.recorder.problem is None)


def test_what_has_come_is_written_before_it_stops(
    make: Callable[..., World], tmp_path: Path
) -> None:
    world = make()
    world.recorder.open()
    for n in range(5):
        world.taken.come(STREAM, 7, run_of(7, n, n + 1))
    world.recorder.start()
    assert world.recorder.stop() is None
    assert len(world.taken.entered) == 5
    assert recorded_topics(LogFolder.of(str(tmp_path / "data"), STREAM)) == "a.**"
    assert world.recorder.stop() is None


def test_one_that_ends_by_errors_leaves_its_publishers(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make()
    world.recorder.open()
    turns: Counter[str] = Counter()

    def fail(now: float, *, read_ahead: bool) -> None:
        turns["failed"] += 1
        raise ZeroDivisionError

    monkeypatch.setattr(world.taken, "pump", fail)
    monkeypatch.setattr("meshmsg._runtime.guard.PAUSE_S", 0.0)
    world.recorder.start()
    wait_until(lambda: world.left)
    assert world.left == [world.taken]
    assert world.recorder.stats()["problem"]
    assert turns["failed"] > 1


def test_cursors_that_hold_are_there_before_retention_looks(make: Callable[..., World]) -> None:
    world = make(hold=("nightly",)).begin()
    world.taken.come(STREAM, 7, run_of(7, 0, 1))
    world.wait_for(1)
    cursor = world.lender.logs[STREAM].writer.cursors().get("nightly", STREAM)
    assert cursor is not None
    assert (cursor.hold, cursor.epoch, cursor.seq) == (True, 0, 0)
