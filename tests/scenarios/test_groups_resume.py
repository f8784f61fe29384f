"""Work groups on durable streams go on where they were: restarts, kills, and nobody there."""

from __future__ import annotations

import subprocess
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from meshmsg import Event, Peer, Stream, Subscription
from meshmsg._groups.backlog_reader import FETCH_FRAMES_MAX
from meshmsg._model.errors import LogFull
from meshmsg.recovery.groups.store import GroupRecord, GroupStore
from meshmsg.recovery.log.commit import Committer
from meshmsg.recovery.log.cursors import Cursors
from meshmsg.recovery.log.folder import LogFolder, find_logs
from meshmsg.recovery.log.writer import LogWriter
from tests.support import processes
from tests.support.ports import free_port
from tests.support.waiting import wait_until as wait_for

wait_until = partial(wait_for, timeout=60)  # on a machine that is busy


def durable(**more: Any) -> Stream:
    return Stream("jobs.**", durability="log", **more)


def group_of(shop: Peer) -> dict[str, Any]:
    (group,) = shop.stats()["streams"]["jobs.**"]["groups"]
    found: dict[str, Any] = group
    return found


def take(events: Subscription, count: int) -> list[Event]:
    """That many events, acknowledged."""
    taken = []
    for _ in range(count):
        event = events.get(timeout=60)
        assert event is not None, f"{len(taken)} of {count} came"
        taken.append(event)
        events.ack(event)
    return taken


def numbers(events: list[Event]) -> list[int]:
    return [event.data for event in events]


def shop(path: Path, bind: str | tuple[str, ...] = (), **more: Any) -> Peer:
    return Peer("shop", bind=bind, streams=[durable(**more)], data_dir=path)


def publish(peer: Peer, first: int, stop: int) -> None:
    for n in range(first, stop):
        peer.publish("jobs.a", n, key=f"k{n % 5}")


def test_groups_far_behind_are_read_for_in_turns(tmp_path: Path) -> None:
    names, each = ["g", "h", "i"], FETCH_FRAMES_MAX // 2 + 1
    for epoch in range(4):
        with shop(tmp_path, groups=names, fsync="always") as peer:
            for n in range(each):  # a frame for each
                peer.publish("jobs.a", epoch * each + n)
    with shop(tmp_path, groups=names) as peer, Peer("anna", connect=peer.address) as anna:
        for name in names:
            with anna.subscribe("jobs.**", group=name, order="none") as events:
                assert numbers(take(events, 10)) == list(range(10))
        fetched = peer.stats()["counters"]["group_fetched_frames"]
        assert fetched <= len(names) * FETCH_FRAMES_MAX
        with anna.subscribe("jobs.**", group="h", order="none") as events:
            assert numbers(take(events, 4 * each - 10)) == list(range(10, 4 * each))


@pytest.mark.parametrize("order", ["key", "none"])
def test_group_resumes_through_restarts_and_while_nobody_is_there(
    tmp_path: Path, order: str
) -> None:
    with shop(tmp_path) as peer, Peer("anna", connect=peer.address) as anna:
        with anna.subscribe("jobs.**", group="g", order=order, prefetch=4) as events:
            peer.wait_for_subscribers("jobs.a", timeout=60)
            publish(peer, 0, 100)
            done = numbers(take(events, 30))
        wait_until(lambda: group_of(peer)["acked"] == 30)
        publish(peer, 100, 120)  # the group is known, and nobody is there
    with shop(tmp_path) as peer:
        publish(peer, 120, 150)
        assert group_of(peer)["lag"] == 120
        assert peer.ledger().reconciles
    with shop(tmp_path) as peer, Peer("bert", connect=peer.address) as bert:
        publish(peer, 150, 160)
        with bert.subscribe("jobs.**", group="g", order=order, prefetch=4) as events:
            rest = take(events, 130)
            peer.flush(timeout=60)
            assert events.get(timeout=0.2) is None
        assert {event.attempt for event in rest} == {1}
        assert sorted(done + numbers(rest)) == list(range(160))
        by_key = defaultdict(list)
        for event in rest:
            by_key[event.key].append(event.data)
        if order == "key":
            assert all(found == sorted(found) for found in by_key.values())
        assert len({event.position.epoch for event in rest}) == 3
        assert group_of(peer)["lag"] == 0
        assert peer.ledger().reconciles


@contextmanager
def anna_stays(path: Path) -> Iterator[tuple[Subscription, str, list[int]]]:
    """A member with 20 of 50 events done, the publisher's address, and which: it is closed now."""
    address = f"tcp://127.0.0.1:{free_port()}"
    with (
        Peer("anna", connect=address) as anna,
        anna.subscribe("jobs.**", group="g", prefetch=4) as events,
    ):
        with shop(path, address) as peer:
            peer.wait_for_subscribers("jobs.a", timeout=60)
            publish(peer, 0, 50)
            done = numbers(take(events, 20))
            wait_until(lambda: group_of(peer)["acked"] == 20)
        yield events, address, done


def test_member_that_stays_gets_the_work_of_both_starts(tmp_path: Path) -> None:
    with anna_stays(tmp_path) as (events, address, done), shop(tmp_path, address) as peer:
        publish(peer, 50, 60)
        rest = numbers(take(events, 40))  # what it had ahead was not opened, and is sent again
        peer.flush(timeout=60)
        assert events.get(timeout=0.2) is None
        assert sorted(done + rest) == list(range(60))
        assert group_of(peer)["lag"] == 0


def test_flush_waits_for_members_that_are_on_their_way_back(tmp_path: Path) -> None:
    """A new start's group is empty until its members have found it: its work is not done yet."""
    with anna_stays(tmp_path) as (events, address, _):
        worker = threading.Thread(target=take, args=(events, 30))
        with shop(tmp_path, address) as peer:
            worker.start()
            peer.flush(timeout=60)
            assert group_of(peer)["lag"] == 0
        worker.join(60)


@pytest.mark.parametrize(("start", "count"), [("live", 0), ("earliest", 40), ("last:30", 30)])
def test_new_group_starts_where_it_asks_to(tmp_path: Path, start: str, count: int) -> None:
    for life in range(2):
        with shop(tmp_path) as peer:
            publish(peer, life * 20, life * 20 + 20)
    with shop(tmp_path) as peer, Peer("anna", connect=peer.address) as anna:
        with anna.subscribe("jobs.**", group="g", start=start) as events:
            peer.wait_for_subscribers("jobs.a", timeout=60)
            publish(peer, 40, 50)
            assert sorted(numbers(take(events, count + 10))) == list(range(40 - count, 50))
            peer.flush(timeout=60)
        assert peer.ledger().reconciles


def test_attempts_and_dead_letters_survive(tmp_path: Path) -> None:
    options: dict[str, Any] = {"group": "g", "max_attempts": 3}
    with (
        shop(tmp_path) as peer,
        Peer("anna", connect=peer.address) as anna,
        anna.subscribe("jobs.**", **options) as events,
    ):
        peer.wait_for_subscribers("jobs.a", timeout=60)
        peer.publish("jobs.a", "poison", key="k")
        peer.publish("jobs.a", "good", key="k")
        for attempt in (1, 2):
            event = events.get(timeout=60)
            assert event is not None
            assert (event.data, event.attempt) == ("poison", attempt)
            events.nack(event, error=f"error {attempt}")
        event = events.get(timeout=60)
        assert event is not None
        wait_until(lambda: group_of(peer)["nacked"] == 2)
    with (
        shop(tmp_path) as peer,
        Peer("anna", connect=peer.address) as anna,
        anna.subscribe("jobs.**", **options) as events,
    ):
        event = events.get(timeout=60)
        while event is not None and event.data == "poison":
            assert event.attempt >= 3
            events.nack(event, error="still")
            event = events.get(timeout=60)
        assert event is not None
        assert event.data == "good"
        events.ack(event)
        peer.flush(timeout=60)
    with shop(tmp_path) as peer, Peer("anna", connect=peer.address) as anna:
        with anna.subscribe("dead.g", start="earliest") as dead:
            letter = dead.get(timeout=60)  # the dead letters of a durable stream are durable
            assert letter is not None
            assert letter.data == "poison"
            assert letter.headers["dead.attempts"] == 3
            assert letter.headers["dead.seq"] == 0
        assert group_of(peer)["lag"] == 0


def test_group_holds_retention(tmp_path: Path) -> None:
    options: dict[str, Any] = {"segment_bytes": "64KiB", "retention": "128KiB"}
    with shop(tmp_path, **options) as peer, Peer("anna", connect=peer.address) as anna:
        with anna.subscribe("jobs.**", group="g") as events:
            peer.wait_for_subscribers("jobs.a", timeout=60)
            peer.publish("jobs.a", 0)
            take(events, 1)
        for _ in range(20):
            peer.publish_many("jobs.a", [bytes(1000)] * 50)
    with shop(tmp_path, **options) as peer, Peer("anna", connect=peer.address) as anna:
        peer.publish_many("jobs.a", [bytes(1000)] * 100)
        assert group_of(peer)["lag"] == 1100
        folder = Path(peer.stats()["streams"]["jobs.**"]["log"]["path"])
        assert len(list(folder.glob("*.seg"))) > 12
        with anna.subscribe("jobs.**", group="g", prefetch=500) as events:
            take(events, 1100)
            peer.flush(timeout=60)
            assert not events.losses
    # Now that it is done, what retention does not want goes.
    with shop(tmp_path, **options) as peer:
        for _ in range(3):
            peer.publish_many("jobs.a", [bytes(1000)] * 50)
        folder = Path(peer.stats()["streams"]["jobs.**"]["log"]["path"])
        wait_until(lambda: len(list(folder.glob("*.seg"))) < 8)


def test_group_that_is_given_up_holds_nothing(tmp_path: Path) -> None:
    with shop(tmp_path, group_keep="50ms") as peer, Peer("anna", connect=peer.address) as anna:
        with anna.subscribe("jobs.**", group="g"):
            peer.wait_for_subscribers("jobs.a", timeout=60)
            publish(peer, 0, 10)
        wait_until(lambda: not peer.stats()["streams"]["jobs.**"]["groups"])
        log = peer.stats()["streams"]["jobs.**"]["log"]["path"]
        assert Cursors(f"{log}/cursors").held() is None
        assert not list(Path(log).glob("groups/*.group"))


def test_damaged_group_file_does_work_twice_rather_than_never(tmp_path: Path) -> None:
    with (
        shop(tmp_path) as peer,
        Peer("anna", connect=peer.address) as anna,
        anna.subscribe("jobs.**", group="g") as events,
    ):
        peer.wait_for_subscribers("jobs.a", timeout=60)
        publish(peer, 0, 20)
        take(events, 10)
    (file,) = tmp_path.glob("*/groups/g.group")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with shop(tmp_path) as peer, Peer("anna", connect=peer.address) as anna:
        assert peer.stats()["counters"]["groups_damaged"] == 1
        with anna.subscribe("jobs.**", group="g") as events:
            rest = set(numbers(take(events, group_of(peer)["lag"])))
            assert rest >= set(range(10, 20))


@pytest.mark.parametrize("order", ["key", "none"])
def test_publisher_is_killed_in_the_middle_of_a_groups_work(tmp_path: Path, order: str) -> None:
    """Every event that `publish` returned for is handled, and none of them twice."""
    rng = Random(order)
    address = f"tcp://127.0.0.1:{free_port()}"
    handled: list[int] = []
    places: Counter[tuple[int, int]] = Counter()
    stopping = threading.Event()

    def work(name: str) -> None:
        with (
            Peer(name, connect=address) as peer,
            peer.subscribe("jobs.**", group="g", order=order, prefetch=16) as events,
        ):
            while not stopping.is_set():
                event = events.get(timeout=0.1)
                if event is not None:
                    handled.append(event.data)
                    places[event.position.epoch, event.position.seq] += 1
                    events.ack(event)

    workers = [threading.Thread(target=work, args=(name,)) for name in ("anna", "bert")]
    for worker in workers:
        worker.start()
    published = 0
    try:
        for _ in range(4):
            before = len(handled)
            # Not more than a machine that is busy can do in time, however late the kill comes.
            jobs = (published, published + 1000)
            child = processes.start(
                processes.program("counting_publisher", tmp_path, address, *jobs),
                stdout=subprocess.PIPE,
            )
            assert child.stdout is not None
            lines = [child.stdout.readline()]
            assert lines[0], f"the publisher has ended with {child.wait()}: nobody will be served"
            wait_until(lambda before=before: len(handled) > before)  # type: ignore[misc]
            lines += [child.stdout.readline() for _ in range(rng.randrange(300))]
            child.kill()
            lines += child.stdout.readlines()
            child.stdout.close()
            child.wait()
            published = 1 + max(int(line) for line in lines if line.endswith(b"\n"))
        with shop(tmp_path, address) as peer:
            publish(peer, published, published + 10)
            peer.flush(timeout=60)  # its members are on their way back
            assert group_of(peer)["lag"] == 0
            assert not group_of(peer)["lost"]
    finally:
        stopping.set()
        for worker in workers:
            worker.join(30)
    seen = set(handled)
    # The first start's events before the group came are not for it: it starts live.
    first = min(seen)
    assert set(range(first, published + 10)) <= seen
    assert set(places.values()) == {1}


def folder_of(path: Path, stream: str = "shop/jobs.**") -> LogFolder:
    (folder,) = [f for f in find_logs(str(path)) if getattr(f.about(), "stream", "") == stream]
    return folder


def test_group_is_dropped_by_an_operator_while_its_publisher_runs(tmp_path: Path) -> None:
    with shop(tmp_path) as peer, Peer("anna", connect=peer.address) as anna:
        with anna.subscribe("jobs.**", group="g") as events:
            peer.wait_for_subscribers("jobs.a", timeout=60)
            publish(peer, 0, 10)
            take(events, 5)
            (file,) = tmp_path.glob("*/groups/g.group")
            file.unlink()  # it has members: put back
            wait_until(file.exists)
        wait_until(lambda: not group_of(peer)["members"])
        GroupStore(folder_of(tmp_path), "shop/jobs.**").remove("g")
        wait_until(lambda: not peer.stats()["streams"]["jobs.**"]["groups"])
        assert peer.ledger().reconciles
        publish(peer, 10, 20)
    assert not file.exists()


def test_dead_letter_is_on_disk_before_its_event_is_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power failure between the two lost the event: settled, and in no log."""
    monkeypatch.setattr(Committer, "want", lambda self: None)  # nobody else syncs
    early: list[GroupRecord] = []
    logs: list[LogWriter] = []
    save = GroupStore.save

    def checked(store: GroupStore, record: GroupRecord) -> None:
        done = record.floor[1] + sum(stop - first for _, first, stop in record.settled)
        if logs and done > logs[0].durable:
            early.append(record)
        save(store, record)

    monkeypatch.setattr(GroupStore, "save", checked)
    with shop(tmp_path) as peer, Peer("anna", connect=peer.address) as anna:
        with anna.subscribe("jobs.**", group="g", max_attempts=1) as events:
            peer.wait_for_subscribers("jobs.a", timeout=60)
            dead = peer._open_node().publisher._outlets["shop/dead.g"].log
            assert dead is not None
            logs.append(dead)
            publish(peer, 0, 20)
            for _ in range(20):
                event = events.get(timeout=60)
                assert event is not None
                events.nack(event)
            wait_until(lambda: group_of(peer)["dead"] == 20)
            wait_until(lambda: group_of(peer)["lag"] == 0)
            wait_until(lambda: dead.durable == 20)
        logs.clear()
    assert early == []
    (record,) = GroupStore(folder_of(tmp_path), "shop/jobs.**").load()
    assert record.floor[1] == 20


def test_dead_letter_that_cannot_be_kept_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = threading.Event()
    write = LogWriter.write

    def checked(writer: LogWriter, *args: Any) -> int:
        if full.is_set() and writer.stream == "shop/dead.g":
            raise LogFull(writer.folder.path, "no space")
        return write(writer, *args)

    monkeypatch.setattr(LogWriter, "write", checked)

    def nack_all(events: Subscription, count: int) -> None:
        for _ in range(count):
            event = events.get(timeout=60)
            assert event is not None
            events.nack(event)

    def settled() -> int:
        (record,) = GroupStore(folder_of(tmp_path), "shop/jobs.**").load()
        return record.floor[1] + sum(stop - first for _, first, stop in record.settled)

    with (
        shop(tmp_path) as peer,
        Peer("anna", connect=peer.address) as anna,
        anna.subscribe("jobs.**", group="g", max_attempts=1) as events,
    ):
        peer.wait_for_subscribers("jobs.a", timeout=60)
        publish(peer, 0, 20)
        full.set()
        nack_all(events, 10)
        wait_until(lambda: group_of(peer)["dead"] == 10)
        take(events, 10)
        wait_until(lambda: settled() == 10)
        assert peer.stats()["counters"]["dead_unpublished"] >= 1
        full.clear()
        wait_until(lambda: settled() == 20)
        publish(peer, 20, 30)
        full.set()
        nack_all(events, 10)
        wait_until(lambda: group_of(peer)["dead"] == 20)
    with shop(tmp_path) as peer, Peer("anna", connect=peer.address) as anna:
        full.clear()
        assert group_of(peer)["lag"] == 10
        with anna.subscribe("jobs.**", group="g", max_attempts=1) as events:
            assert numbers(take(events, 10)) == list(range(20, 30))
        with anna.subscribe("dead.g", start="earliest") as dead:
            letters = dead.get_many(10, timeout=60)
            while len(letters) < 10:
                letters += dead.get_many(10, timeout=60)
            assert [letter.headers["dead.seq"] for letter in letters] == list(range(10))
            assert dead.get(timeout=0.2) is None
