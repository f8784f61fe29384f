"""What strangers say to the groups of a publisher is counted and dropped; the work goes on."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq

from meshmsg import Peer, Stream
from meshmsg._groups import dispatcher as _group_publisher
from meshmsg._wire import control as c
from meshmsg.transports.zmq.work_queue import WorkMonitor
from tests.support.waiting import wait_until


class Stranger:
    """A control connection of its own, which has said hello."""

    def __init__(self, address: str) -> None:
        self._context: Any = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.RCVTIMEO, 10_000)
        self._socket.connect(address)
        self.say(c.Hello("stranger", 99, "default"))
        assert isinstance(self.hear(), c.Welcome)

    def say(self, message: c.Message) -> None:
        self._socket.send(c.encode_message(message))

    def hear(self) -> c.Message:
        return c.decode_message(self._socket.recv_multipart()[0])

    def close(self) -> None:
        self._context.destroy(linger=0)


@contextmanager
def scene() -> Iterator[tuple[Peer, Any, Stranger]]:
    """A publisher, an honest member, and a stranger."""
    with (
        Peer("boss", streams=[Stream("jobs.**")]) as boss,
        Peer("worker", connect=boss.address) as worker,
        worker.subscribe("jobs.**", group="workers") as events,
    ):
        boss.wait_for_subscribers("jobs.x", timeout=30)
        stranger = Stranger(boss.address)
        try:
            yield boss, events, stranger
            boss.publish("jobs.x", "as ever")
            event = events.get(30)
            assert event is not None
            assert event.data == "as ever"
            events.ack(event)
            boss.flush(30)
            assert boss.stats()["counters"].get("io_errors", 0) == 0
        finally:
            stranger.close()


def join(**changes: Any) -> c.Join:
    starts = [c.Start("boss/jobs.**", "live")]
    fields = {"sub": 7, "group": "workers", "patterns": ["jobs.**"], "starts": starts}
    fields |= {"prefetch": 64, "ack_timeout_s": 30.0, "max_attempts": 5, "order": "key"}
    return c.Join(**(fields | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"group": "a b"},
        {"group": "a.*"},
        {"group": ""},
        {"group": "x" * 1000},
        {"group": "x" * 97},
        {"order": "none"},
        {"max_attempts": 6},
        {"patterns": ["**"]},
    ],
)
def test_join_that_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    with scene() as (boss, _, stranger):
        stranger.say(join(**changes))
        answer = stranger.hear()
        assert isinstance(answer, c.Unjoined)
        assert answer.refused
        assert answer.reason
        assert boss.stats()["counters"]["members_refused"] == 1


@pytest.mark.parametrize("patterns", [[], ["a..b"], ["*a"]])
def test_patterns_that_are_none_are_refused(patterns: list[str]) -> None:
    with scene() as (_, _, stranger):
        stranger.say(join(group="others", patterns=patterns))
        answer = stranger.hear()
        assert isinstance(answer, c.Unjoined)
        assert answer.refused


def test_join_to_streams_that_do_not_exist_is_harmless() -> None:
    with scene() as (_, _, stranger):
        stranger.say(join(starts=[c.Start("nobody/x", "live"), c.Start("", "origin")]))
        answer = stranger.hear()
        assert isinstance(answer, c.Joined)
        assert answer.streams == []


def test_member_that_never_fetches_its_work_gets_none() -> None:
    with scene() as (boss, events, stranger):
        stranger.say(join())
        assert isinstance(stranger.hear(), c.Joined)
        boss.publish_many("jobs.x", [1, 2])
        for wanted in (1, 2):
            event = events.get(30)
            assert event is not None
            assert event.data == wanted
            events.ack(event)
        assert len(boss.stats()["streams"]["jobs.**"]["groups"][0]["members"]) == 1


def test_members_that_never_come_do_not_use_up_all_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_group_publisher, "WAITING_PER_PEER_MAX", 4)
    with scene() as (boss, _, stranger):
        for sub in range(10):
            stranger.say(join(sub=100 + sub))
        answers: list[Any] = []  # some at once, some when they were put off
        while len(answers) < 10:
            answer = stranger.hear()
            answers += [] if isinstance(answer, c.Here) else [answer]
        assert [type(answer) for answer in answers] == [c.Joined] * 4 + [c.Unjoined] * 6
        assert not any(answer.refused for answer in answers[4:])
        assert boss.stats()["counters"]["members_put_off"] == 6


def test_more_members_than_may_wait_at_once_all_get_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_group_publisher, "WAITING_PER_PEER_MAX", 2)
    with (
        Peer("boss", streams=[Stream("jobs.**")]) as boss,
        Peer("crew", connect=boss.address) as crew,
        ExitStack() as members,
    ):
        for _ in range(7):
            members.enter_context(crew.subscribe("jobs.**", group="workers"))
        boss.wait_for_subscribers("jobs.x", count=7, timeout=30)


def test_member_for_which_there_is_no_socket_now_gets_one_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    good, tries = WorkMonitor.__init__, 0

    def fail_once(self: WorkMonitor, socket: Any) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise zmq.ZMQError(errno.EMFILE)
        good(self, socket)

    monkeypatch.setattr(WorkMonitor, "__init__", fail_once)
    with (
        Peer("boss", streams=[Stream("jobs.**")]) as boss,
        Peer("worker", connect=boss.address) as worker,
        worker.subscribe("jobs.**", group="workers"),
    ):
        boss.wait_for_subscribers("jobs.x", timeout=30)
        assert boss.stats()["counters"]["members_put_off"] == 1
        assert boss.stats()["counters"].get("io_errors", 0) == 0


def test_group_that_nobody_came_for_holds_nobody_up() -> None:
    with scene() as (boss, _, stranger):
        stranger.say(join(group="others"))
        assert isinstance(stranger.hear(), c.Joined)
        stranger.say(c.Settle(7, [], closed=True))
        wait_until(lambda: len(boss.stats()["streams"]["jobs.**"]["groups"]) == 1)


def test_acks_of_strangers_and_nonsense_are_refused_and_counted() -> None:
    with scene() as (boss, events, stranger):
        epoch = boss.publish("jobs.x", 1).epoch
        stranger.say(
            c.Settle(7, [c.Settlement("boss/jobs.**", epoch, acks=[(0, 1, 1)])])
        )  # it is no member
        answer = stranger.hear()
        assert isinstance(answer, c.Unjoined)
        assert not answer.refused
        stranger.say(join(group="others"))
        assert isinstance(stranger.hear(), c.Joined)
        nonsense = [
            c.Settlement("boss/jobs.**", epoch, acks=[(5, 5, 1), (0, 1 << 62, 1), (0, 9, 77)]),
            c.Settlement("boss/jobs.**", epoch, nacks=[c.Refusal(0, 0), c.Refusal(1 << 62, 5)]),
            c.Settlement("boss/jobs.**", epoch, returned=[(9, 9, 1), (0, 1 << 62, 2)]),
            c.Settlement("boss/jobs.**", epoch + 1, acks=[(0, 1, 1)]),
            c.Settlement("nobody/x", 1, acks=[(0, 1, 1)]),
        ]
        stranger.say(c.Settle(7, nonsense))
        wait_until(lambda: boss.stats()["counters"].get("strange_settlements") == 2)
        assert boss.stats()["counters"]["stale_acks"] > 0
        event = events.get(30)
        assert event is not None
        events.ack(event)
        stranger.say(c.Settle(7, [], closed=True))


def test_another_peer_cannot_speak_for_a_member() -> None:
    with scene() as (boss, events, stranger):
        position = boss.publish("jobs.x", 1)
        event = events.get(30)
        assert event is not None
        sub = events._intake.sub
        acks = [(position.seq, position.seq + 1, 1)]
        stranger.say(c.Settle(sub, [c.Settlement("boss/jobs.**", position.epoch, acks=acks)]))
        assert isinstance(stranger.hear(), c.Unjoined)
        assert boss.stats()["streams"]["jobs.**"]["groups"][0]["acked"] == 0
        events.ack(event)


def work_address(events: Any) -> str:
    (address,) = events._intake._addresses.values()
    return str(address)


def test_strange_bytes_at_the_work_socket_cost_the_member_nothing() -> None:
    with scene() as (boss, events, _):
        boss.publish("jobs.x", 1)
        event = events.get(30)
        host, _, port = work_address(events).removeprefix("tcp://").rpartition(":")
        for data in (b"", b"GET / HTTP/1.0\r\n\r\n" * 10, b"\xff" * 9 + b"\x7f"):
            with socket.create_connection((host, int(port))) as stream:
                stream.sendall(data)
                time.sleep(0.1)
        time.sleep(0.2)
        events.ack(event)
        boss.flush(30)
        group = boss.stats()["streams"]["jobs.**"]["groups"][0]
        assert (group["acked"], group["redelivered"], group["stale_acks"]) == (1, 0, 0)
        assert boss.stats()["counters"].get("members_lost", 0) == 0


def test_work_is_not_shared_with_a_second_connection() -> None:
    with scene() as (boss, events, _):
        context: Any = zmq.Context()
        thief = context.socket(zmq.PULL)
        try:
            thief.connect(work_address(events))
            wait_until(lambda: boss.stats()["counters"].get("members_lost") == 1)
            boss.wait_for_subscribers("jobs.x", timeout=30)
            for n in range(10):
                boss.publish("jobs.x", n)
            for _ in range(10):
                events.ack(events.get(30))
            boss.flush(30)
            assert not thief.poll(0)
        finally:
            context.destroy(linger=0)


@pytest.mark.parametrize("durability", ["none", "log"])
def test_claims_that_make_no_sense_are_harmless(tmp_path: Path, durability: str) -> None:
    far = (1 << 63) - 1
    with (
        Peer("boss", streams=[Stream("jobs.**", durability=durability)], data_dir=tmp_path) as boss,
        Peer("worker", connect=boss.address) as worker,
        worker.subscribe("jobs.**", group="workers") as events,
    ):
        boss.wait_for_subscribers("jobs.x", timeout=30)
        epoch = boss.publish("jobs.x", "held").epoch
        event = events.get(30)
        assert event is not None
        stranger = Stranger(boss.address)
        try:
            claims = [
                c.Claimed("boss/jobs.**", epoch, [(0, far, 1), (9, 9, 2)], [], [(0, far, 7)]),
                c.Claimed("boss/jobs.**", epoch, nacks=[c.Refusal(far, 1), c.Refusal(0, 0)]),
                c.Claimed("boss/jobs.**", epoch + 1, [(0, far, 1)]),
                c.Claimed("nobody/x", 0, [(0, far, 1)], held=[(0, far, 1)]),
            ]
            for sub in (7, (1 << 64) - 1):
                stranger.say(join(sub=sub, claims=claims, number=far, ticket=(1 << 64) - 1))
                assert isinstance(stranger.hear(), c.Joined)
                stranger.say(c.Settle(sub, [], True))
            stranger.say(join(sub=8, claims=claims * 64, more=True))
            stranger.say(c.Ping(1))
            while not isinstance(stranger.hear(), c.Pong):
                pass
            roll = boss._open_node().publisher.groups._roll
            assert not roll._claims, "it can have had nothing"
            events.ack(event)  # somebody else's, whatever the stranger says
            boss.flush(30)
            boss.publish("jobs.x", "as ever")
            event = events.get(30)
            assert event is not None
            events.ack(event)
            boss.flush(30)
            assert boss.stats()["counters"].get("io_errors", 0) == 0
            (group,) = boss.stats()["streams"]["jobs.**"]["groups"]
            assert (group["acked"], group["lag"]) == (2, 0)
            assert (group["stale_acks"] > 0) == (durability == "log"), "a volatile one asks nobody"
        finally:
            stranger.close()


@pytest.mark.parametrize("size", [96, 97, 124, 128])
def test_group_of_any_name_from_a_place_in_a_log_is_taken_or_refused(
    size: int, tmp_path: Path
) -> None:
    streams = [
        Stream("jobs.**", durability="log"),
        Stream("more.**", codec="json"),
        Stream("last.**", durability="log", fsync="never", codec="json"),
    ]
    with Peer("boss", streams=streams, data_dir=tmp_path) as boss:
        boss.publish_many("jobs.x", [1, 2])
        stranger = Stranger(boss.address)
        for sub in range(2):  # a group that is begun twice was once half there
            starts = [c.Start(f"boss/{one.label}", "earliest") for one in streams]
            stranger.say(join(sub=sub, group="x" * size, patterns=["**"], starts=starts))
            answer = stranger.hear()
            while isinstance(answer, c.Welcome | c.Here):  # streams for dead letters have come
                answer = stranger.hear()
            taken = isinstance(answer, c.Joined)
            assert taken or (isinstance(answer, c.Unjoined) and answer.refused)
            assert taken == (size <= 96)
        assert boss.stats()["counters"].get("io_errors", 0) == 0
        assert bool(boss.stats()["streams"]["jobs.**"]["groups"]) == taken
        stranger.close()


def test_group_whose_dead_letters_have_no_place_is_not_begun(tmp_path: Path) -> None:
    with Peer("boss", streams=[Stream("jobs.**", durability="log")], data_dir=tmp_path) as boss:
        boss.publish("jobs.x", 1)
        folder = next(path.parent for path in tmp_path.rglob("*jobs*") if path.is_dir())
        name = next(path.name for path in folder.iterdir() if "jobs" in path.name)
        in_the_way = folder / name.replace("jobs", "dead").replace("%2A%2A", "others")
        in_the_way.write_bytes(b"")
        stranger = Stranger(boss.address)
        stranger.say(join(group="others"))
        answer = stranger.hear()
        assert isinstance(answer, c.Unjoined), answer
        assert not answer.refused  # it asks again when there is room, perhaps
        assert not boss.stats()["streams"]["jobs.**"]["groups"]
        in_the_way.unlink()
        stranger.say(join(group="others"))
        while isinstance(answer := stranger.hear(), c.Welcome | c.Here):
            pass
        assert isinstance(answer, c.Joined)
        stranger.close()


def test_publisher_that_ignores_its_credit_does_not_fill_the_memory_of_a_member() -> None:
    count, prefetch = 200, 4
    with (
        Peer("boss", streams=[Stream("jobs.**", groups="workers")]) as boss,
        Peer("worker", connect=boss.address) as worker,
        worker.subscribe("jobs.**", group="workers", prefetch=prefetch, auto_ack=True) as events,
    ):
        boss.wait_for_subscribers("jobs.x", timeout=30)
        publisher = boss._open_node().publisher
        with publisher._lock:
            for seat in publisher.groups.seats:
                for member in seat.group.members.values():
                    member.prefetch = count
        (member,) = worker._open_node().members.values()
        for n in range(count):
            boss.publish("jobs.x", [n, bytes(100_000)])

        def read_ahead() -> int:
            with member.lock:
                member.pump(time.monotonic(), read_ahead=True)
                return sum(len(batch) for batch in member._ready)

        wait_until(lambda: read_ahead() >= prefetch)
        assert max(read_ahead() for _ in range(100)) <= 2 * prefetch
        got = [event.data[0] for _ in range(count) if (event := events.get(30)) is not None]
        assert got == list(range(count))
