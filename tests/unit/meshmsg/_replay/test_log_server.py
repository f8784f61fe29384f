"""The replay service: which logs there are, ranges of them, and how much anybody may ask for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from meshmsg._replay import log_server
from meshmsg._replay.log_server import Asker, LogEntry, ReplayService
from meshmsg._replay.recorded_log import RecordedLog
from meshmsg._wire.control import (
    Credit,
    Logs,
    LogsPlease,
    Part,
    Read,
    decode_message,
)
from meshmsg._wire.frame import Frame
from meshmsg.recovery.stream.quotas import Owner, Quota
from tests.support.recording import MESH, STREAM, record, recorded
from tests.support.waiting import wait_until

MIB = 1 << 20
ASKER = Asker(b"reader", b"user", Owner("host", b"reader"), 11)


class World:
    """A peer that serves the log of one stream."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.counters: Counter[str] = Counter()
        self.logs: list[RecordedLog] = []
        self.sent: list[tuple[bytes, list[bytes]]] = []
        self.takes = True
        self.more: list[LogEntry] = []
        self.service = ReplayService("pub", MESH, self.counters, self.entries, self._send)
        log = self.log(STREAM, "a.**")
        record(log, 5, (0, 3))
        record(log, 6, (0, 4))
        record(log, 6, (4, 6), lost=True)
        record(log, 6, (6, 8))

    def log(self, stream: str, topics: str) -> RecordedLog:
        self.logs.append(recorded(self.data_dir, stream, topics))
        return self.logs[-1]

    def entries(self) -> list[LogEntry]:
        return [
            LogEntry(log.stream, log.topics, log.codec, log.folder, *log.place) for log in self.logs
        ] + self.more

    def _send(self, to: bytes, parts: list[bytes]) -> bool:
        if self.takes:
            self.sent.append((to, parts))
        return self.takes

    def answers(self, kind: type[Any], to: bytes = b"reader") -> list[Any]:
        sent = [decode_message(parts[0], ("part",)) for who, parts in list(self.sent) if who == to]
        return [message for message in sent if isinstance(message, kind)]

    def ask(self, *patterns: str, number: int = 1, asker: Asker = ASKER, mesh: str = MESH) -> None:
        self.service.on_message(asker, LogsPlease(number, mesh, list(patterns) or ["**"]))

    def read(
        self,
        epoch: int,
        first: int,
        stop: int,
        *,
        number: int = 1,
        credit: int = MIB,
        stream: str = STREAM,
        asker: Asker = ASKER,
        mesh: str = MESH,
    ) -> None:
        asked = Read(number, mesh, stream, epoch, first, stop, credit)
        self.service.on_message(asker, asked)

    def parts(self, number: int = 1, to: bytes = b"reader") -> list[Part]:
        """All parts of a read, when it is over."""
        wait_until(lambda: any(p.number == number and p.done for p in self.answers(Part, to)))
        return [part for part in self.answers(Part, to) if part.number == number]

    def close(self) -> None:
        self.service.stop()
        for log in self.logs:
            log.writer.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


# Which logs there are --------------------------------------------------------------------------


def test_it_tells_what_can_be_read_of_each_epoch(world: World) -> None:
    world.ask()
    wait_until(lambda: world.answers(Logs))
    [logs] = world.answers(Logs)
    [info] = logs.logs
    assert (logs.number, logs.peer, logs.more) == (1, "pub", False)
    assert (info.stream, info.topics, info.epochs) == (STREAM, "a.**", [(5, 0, 3), (6, 0, 8)])
    assert info.open


@pytest.mark.parametrize(("pattern", "found"), [("a.b", 1), ("**", 1), ("b.*", 0)])
def test_logs_that_can_carry_a_topic_are_told(world: World, pattern: str, found: int) -> None:
    world.ask(pattern)
    wait_until(lambda: world.answers(Logs))
    assert len(world.answers(Logs)[0].logs) == found


def test_many_logs_are_told_in_several_turns(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_server, "LOGS_A_TURN", 2)
    for n in range(4):
        record(world.log(f"pub/{n}", "b"), 1, (0, 1))
    world.ask()
    wait_until(lambda: world.answers(Logs) and not world.answers(Logs)[-1].more)
    pages = world.answers(Logs)
    assert [page.page for page in pages] == list(range(len(pages)))
    assert len([info for page in pages for info in page.logs]) == 5


def test_who_may_not_read_a_log_does_not_hear_of_it(world: World) -> None:
    world.service.may = lambda user, entry: user == b"user"
    other = Asker(b"other", b"mallory", Owner("mallory"), 12)
    world.ask()
    world.ask(asker=other)
    wait_until(lambda: world.answers(Logs, b"other"))
    assert [len(world.answers(Logs, who)[0].logs) for who in (b"reader", b"other")] == [1, 0]
    world.read(6, 0, 4, asker=other)
    assert "no log of stream" in world.parts(to=b"other")[-1].error


@pytest.mark.parametrize(("patterns", "problem"), [(["a..b"], "a..b"), ([], "")])
def test_patterns_that_are_none_are_refused(
    world: World, patterns: list[str], problem: str
) -> None:
    world.service.on_message(ASKER, LogsPlease(1, MESH, patterns))
    wait_until(lambda: world.answers(Logs))
    [logs] = world.answers(Logs)
    if problem:
        assert problem in logs.error
    assert logs.logs == []


def test_one_peer_asks_only_so_much_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_server, "QUESTIONS_EACH_MAX", 0)
    world.ask()
    assert "too many questions" in world.answers(Logs)[0].error
    assert world.counters["reads_refused"] == 1


# Reading ---------------------------------------------------------------------------------------


def test_a_range_comes_as_frames_and_what_is_gone_between_them(world: World) -> None:
    world.read(6, 1, 8)
    [part] = world.parts()
    assert (part.first, part.stop, part.gone) == (1, 8, [(4, 6, "overflow")])
    assert [stop for _, stop in part.frames] == [4, 8]
    [sent] = [parts for _, parts in world.sent]
    at, frames = 0, []
    blob = b"".join(sent[1:])
    for length, _ in part.frames:
        frames.append(Frame(blob[at : at + length]))
        at += length
    assert [(frame.first, frame.stop) for frame in frames] == [(0, 4), (6, 8)]
    assert world.counters["read_frames"] == 2
    assert not world.service.quota.owners


def test_a_log_that_ends_before_what_was_asked_for_is_an_error(world: World) -> None:
    world.read(6, 6, 20)
    assert "ends at 8: 20 asked" in world.parts()[-1].error
    assert world.counters["reads_failed"] == 1


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ({"stream": "pub/other"}, "no log of stream 'pub/other' here"),
        ({"first": 4, "stop": 4}, "first must be less than stop"),
        ({"credit": 0}, "credit more than 0"),
        ({"mesh": "other"}, "this is mesh 'test', not 'other'"),
    ],
)
def test_a_read_that_cannot_be_is_refused(
    world: World, asked: dict[str, Any], problem: str
) -> None:
    world.read(**{"epoch": 6, "first": 0, "stop": 4, **asked})
    [part] = world.parts()
    assert problem in part.error
    assert world.counters["reads"] == 0


def test_no_more_is_on_its_way_than_the_reader_has_room_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_server, "PART_BYTES", 1)
    world.read(6, 0, 8, credit=1)
    wait_until(lambda: world.answers(Part))
    other = Asker(b"other", b"", Owner("other"), 12)
    world.read(6, 0, 8, asker=other)
    assert world.parts(to=b"other")[-1].stop == 8
    [first] = world.answers(Part)
    assert (first.stop, first.done) == (4, False)
    world.service.on_message(ASKER, Credit(1, MIB))
    assert world.parts()[-1].stop == 8


def test_credit_of_any_size_has_no_more_on_its_way_than_one_connection_may_have(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_server, "PART_BYTES", 1)
    monkeypatch.setattr(log_server, "AHEAD_BYTES_MAX", 1)
    world.read(6, 0, 8, credit=1 << 62)
    wait_until(lambda: [read.waits for read in world.service._reads.values()] == [True])
    [first] = world.answers(Part)
    assert (first.stop, first.done) == (4, False)
    world.service.on_message(ASKER, Credit(1, MIB))  # it was taken
    assert world.parts()[-1].stop == 8


def test_reads_of_one_connection_share_what_may_be_on_its_way(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_server, "PART_BYTES", 1)
    world.read(6, 0, 8, number=9, credit=1)
    wait_until(lambda: [read.waits for read in world.service._reads.values()] == [True])
    [waiting] = world.service._reads.values()
    # Of one read alone two parts would be on their way.
    monkeypatch.setattr(log_server, "CREDIT_BYTES_MAX", waiting.ahead * 3 // 2)
    world.read(6, 0, 8, credit=1 << 62)
    wait_until(lambda: [read.waits for read in world.service._reads.values()] == [True, True])
    [first] = [part for part in world.answers(Part) if part.number == 1]
    assert (first.stop, first.done) == (4, False)


def test_credit_of_a_read_that_is_over_is_told_and_its_end_is_not(world: World) -> None:
    world.service.on_message(ASKER, Credit(9, 0))
    assert world.sent == []
    world.service.on_message(ASKER, Credit(9, 5))
    assert "no such read" in world.answers(Part)[0].error


def waiting(world: World, number: int, asker: Asker = ASKER) -> None:
    """A read that waits for credit."""
    world.read(6, 0, 8, number=number, credit=1, asker=asker)
    wait_until(lambda: any(part.number == number for part in world.answers(Part, asker.identity)))


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_server, "PART_BYTES", 1)


@pytest.mark.usefixtures("small_parts")
def test_a_read_ends_with_its_connection_its_right_or_when_it_is_given_up(world: World) -> None:
    def given_up() -> None:
        world.service.on_message(ASKER, Credit(1, 0))

    for end in (
        given_up,
        lambda: world.service.forget_connection(ASKER.fd),
        lambda: world.service.forget_users({b"user"}),
    ):
        waiting(world, 1)
        world.read(6, 0, 8)
        assert "is under way" in world.answers(Part)[-1].error
        world.service.forget_connection(ASKER.fd + 1)
        world.service.forget_users({b"other"})
        assert world.service.quota.used == 1
        end()
        assert world.service.quota.used == 0
        world.sent.clear()


@pytest.mark.usefixtures("small_parts")
def test_one_peer_has_few_reads_and_of_too_many_who_took_least_gives_its_place(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.service.quota = Quota(2, 2)
    for number in (1, 2):
        waiting(world, number)
    world.read(6, 0, 8, number=3)
    assert "you have" in world.parts(3)[0].error
    other = Asker(b"other", b"", Owner("other"), 12)
    waiting(world, 1, other)
    ended = [part for part in world.answers(Part) if part.done and part.number in (1, 2)]
    assert len(ended) == 1
    assert "others need the room" in ended[0].error
    assert world.counters["reads_evicted"] == 1


@pytest.mark.usefixtures("small_parts")
def test_a_read_that_says_nothing_gives_its_place_first(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.service.quota = Quota(2, 1)
    waiting(world, 1)
    monkeypatch.setattr(log_server, "SILENT_S", -1.0)
    world.read(6, 0, 4, asker=Asker(b"other", b"", Owner("other"), 12))
    assert not world.parts(to=b"other")[-1].error
    assert world.counters["reads_silent"] == 1
    assert world.counters["reads_evicted"] == 0


def test_a_reader_whose_queue_is_full_is_over(world: World) -> None:
    world.takes = False
    world.read(6, 0, 8)
    wait_until(lambda: world.counters["reads_failed"])
    assert world.service.quota.used == 0


def test_a_log_that_is_gone_from_the_disk_is_told_and_others_are_read(world: World) -> None:
    lost = world.log("pub/lost", "c")
    record(lost, 1, (0, 1))
    entries = world.entries()
    lost.writer.close()
    world.logs.remove(lost)
    for path in sorted(Path(lost.folder.path).rglob("*"), reverse=True):
        path.unlink()
    world.more = entries[-1:]
    world.read(1, 0, 1, stream="pub/lost")
    assert world.parts()[-1].error
    world.read(6, 0, 4, number=2)
    assert world.parts(2)[-1].stop == 4


def test_stopped_it_answers_nothing(world: World) -> None:
    world.read(6, 0, 4)
    world.parts()
    world.service.stop()
    world.sent.clear()
    world.ask()
    world.read(6, 0, 4, number=2)
    assert world.sent == []
