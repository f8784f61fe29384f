"""Consumers that hold their publishers' logs: what is not committed does not expire."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from meshmsg import AsyncPeer, ConfigError, Peer, Stream
from meshmsg.recovery.log.folder import find_logs
from meshmsg.recovery.log.verify import summarize
from tests.scenarios.test_replay import taken
from tests.support.ports import free_port
from tests.support.remote import RemotePeer
from tests.support.waiting import wait_until

HELD: dict[str, Any] = {"start": "committed", "name": "audit", "hold": True}


def short(**more: Any) -> Stream:
    """A stream that keeps a few segments only."""
    return Stream(
        "a.**", durability="log", segment_bytes="64KiB", retention="200kB", fsync="never", **more
    )


def publish(pub: Peer, first: int, stop: int) -> None:
    """About a kilobyte each, numbered."""
    for n in range(first, stop):
        pub.publish("a.b", b"%d:" % n + bytes(1000))


def numbers(events: list[Any]) -> list[int]:
    return [int(event.data.partition(b":")[0]) for event in events]


def cursor_of(data_dir: Path) -> tuple[int, int] | None:
    (folder,) = find_logs(str(data_dir))
    found = [c for c in summarize(folder).cursors if c.name == "sub/audit" and c.hold]
    return (found[0].epoch, found[0].seq) if found else None


def wait_for_cursor(data_dir: Path, seq: int) -> None:
    """Well before the log would be looked at for other reasons."""
    wait_until(lambda: (cursor_of(data_dir) or (0, 0))[1] == seq, 30)


def retain(pub: Peer) -> None:
    for log in pub._open_node().publisher.durable.logs:
        log.retain()


@pytest.mark.parametrize("leaves", [False, True])
def test_the_cursor_at_the_publisher_is_the_last_commit(tmp_path: Path, leaves: bool) -> None:
    pub_dir, sub_dir = tmp_path / "pub", tmp_path / "sub"
    with Peer("pub", streams=[short()], data_dir=pub_dir) as pub:
        for run in range(2):
            publish(pub, run * 30, run * 30 + 30)
            with (
                Peer("sub", connect=pub.address, data_dir=sub_dir) as sub,
                sub.subscribe("a.**", **HELD) as events,
            ):
                for _ in range(3):  # one soon after the other
                    events.get(30)
                    events.commit()
                taken(events, 27)
                events.commit()
                (position,) = events._intake.positions()
                if not leaves:
                    wait_for_cursor(pub_dir, position.seq)
            wait_for_cursor(pub_dir, position.seq)


def test_consumer_that_is_away_holds_the_log_through_restarts(tmp_path: Path) -> None:
    pub_dir, sub_dir = tmp_path / "pub", tmp_path / "sub"
    address = f"tcp://127.0.0.1:{free_port()}"
    with Peer("pub", bind=address, streams=[short()], data_dir=pub_dir) as pub:
        publish(pub, 0, 100)
        with (
            Peer("sub", connect=address, data_dir=sub_dir) as sub,
            sub.subscribe("a.**", **HELD) as events,
        ):
            assert numbers(taken(events, 100)[:50]) == list(range(50))
            events.commit()
            position = events._intake.positions()[0]
            wait_until(lambda: pub._open_node().publisher.durable.logs[0].holds.blockers())
        publish(pub, 100, 1000)
        retain(pub)
    with Peer("pub", bind=address, streams=[short()], data_dir=pub_dir) as pub:  # it remembers
        publish(pub, 1000, 1500)
        retain(pub)
        assert cursor_of(pub_dir) is not None
        with (
            Peer("sub", connect=address, data_dir=sub_dir) as sub,
            sub.subscribe("a.**", **HELD) as events,
        ):
            assert numbers(taken(events, 1500 - position.seq)) == list(range(position.seq, 1500))
            assert events.losses == []
            before = len(list(pub_dir.glob("*/*.seg")))
            assert before > 20
            events.commit()

            def is_short() -> bool:
                retain(pub)
                return len(list(pub_dir.glob("*/*.seg"))) < 8

            wait_until(is_short, what="the log goes on expiring once all is committed")


def test_new_consumer_holds_from_its_first_event_on(tmp_path: Path) -> None:
    with Peer("pub", streams=[short()], data_dir=tmp_path / "pub") as pub:
        publish(pub, 0, 10)
        with (
            Peer("sub", connect=pub.address, data_dir=tmp_path / "sub") as sub,
            sub.subscribe("a.**", **HELD) as events,
        ):
            assert len(taken(events, 10)) == 10  # and does not commit
            assert cursor_of(tmp_path / "pub") == (events._intake.positions()[0].epoch, 0)
        publish(pub, 10, 1000)
        retain(pub)
        stats = pub.stats()["streams"]["a.**"]["log"]
        assert stats["holds"] == 1
        assert stats["held_bytes"] > 500_000
        with (
            Peer("sub", connect=pub.address, data_dir=tmp_path / "sub") as sub,
            sub.subscribe("a.**", **HELD) as events,
        ):
            assert numbers(taken(events, 1000)) == list(range(1000))
            assert events.losses == []


def test_what_is_held_is_told_and_a_dropped_cursor_holds_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "meshmsg.recovery")
    with Peer("pub", streams=[short()], data_dir=tmp_path / "pub") as pub:
        with (
            Peer("sub", connect=pub.address, data_dir=tmp_path / "sub") as sub,
            sub.subscribe("a.**", **HELD) as events,
        ):
            publish(pub, 0, 1)
            taken(events, 1)
        publish(pub, 1, 3000)
        retain(pub)
        told = [r.getMessage() for r in caplog.records if "holds back" in r.getMessage()]
        assert 1 <= len(told) <= 4  # at first, and each time that it has doubled
        assert "'sub/audit'" in told[0]
        assert "meshmsg cursor drop" in told[0]
        (file,) = (tmp_path / "pub").glob("*/cursors/*.cursor")
        file.unlink()
        retain(pub)
        assert len(list((tmp_path / "pub").glob("*/*.seg"))) < 8
        log = pub._open_node().publisher.durable.logs[0]
        assert log.counters["dropped_cursors"] == 1
        assert log.stats()["held_bytes"] == 0


def test_full_disk_names_who_holds_it(tmp_path: Path) -> None:
    from meshmsg import LogFull

    with Peer("pub", streams=[short()], data_dir=tmp_path) as pub:
        log = pub._open_node().publisher.durable.logs[0]
        log.hold("sub/audit", log.epoch, 0)
        publish(pub, 0, 1500)
        retain(pub)
        explained = log.holds.explain(LogFull("path", "could not be written: no space"))
        assert "no space" in str(explained)
        assert "'sub/audit'" in str(explained)
        assert "meshmsg cursor drop" in str(explained)


def test_killed_consumer_and_killed_publisher_keep_the_hold(tmp_path: Path) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    stream = {"topics": "a.**", "durability": "log", "segment_bytes": "64KiB"}
    stream |= {"retention": "200kB"}
    arguments: dict[str, Any] = {"bind": address, "data_dir": str(tmp_path / "pub")}
    arguments |= {"streams": [stream]}
    subscribe = "events = peer.subscribe('a.**', start='committed', name='audit', hold=True)"
    burst = "for n in range(first, first + 500): peer.publish('a.b', b'%d:' % n + bytes(1000))"
    sub_arguments = {"connect": address, "data_dir": str(tmp_path / "sub")}
    seen = 0
    for life in range(3):
        with RemotePeer("pub", **arguments) as pub:
            if life:
                pub.run(burst, first=life * 500)  # while nobody reads
            with RemotePeer("sub", **sub_arguments) as sub:
                sub.run(subscribe)
                if not life:
                    pub.run("peer.wait_for_subscribers('a.b', 1, 30)")
                    pub.run(burst, first=0)
                for _ in range(3):
                    data = "[int(e.data.split(b':')[0]) for e in events.get_many(100, timeout=30)]"
                    got = sub.eval(data)
                    sub.run("events.commit()")
                    assert got == list(range(seen, seen + len(got)))
                    seen += len(got)
                assert sub.eval("len(events.losses)") == 0
                sub.kill()
            pub.kill()
    assert seen > 3


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"name": "audit", "hold": True}, "start='committed'"),
        ({"start": "earliest", "name": "audit", "hold": True}, "start='committed'"),
        ({"group": "billing", "hold": True}, "not for groups"),
        ({"start": "committed", "hold": True}, "a name"),
    ],
)
def test_hold_that_makes_no_sense_is_refused(
    tmp_path: Path, more: dict[str, Any], problem: str
) -> None:
    with Peer("sub", data_dir=tmp_path) as sub, pytest.raises(ConfigError, match=problem):
        sub.subscribe("a.**", **more)


def test_async_consumer_holds(tmp_path: Path) -> None:
    async def run(address: str) -> None:
        async with (
            AsyncPeer("sub", connect=address, data_dir=tmp_path / "sub") as sub,
            sub.subscribe("a.**", **HELD) as events,
        ):
            for _ in range(10):
                assert await events.get(timeout=30) is not None
            await events.commit()

    with Peer("pub", streams=[short()], data_dir=tmp_path / "pub") as pub:
        publish(pub, 0, 20)
        asyncio.run(run(pub.address))
        log = pub._open_node().publisher.durable.logs[0]
        wait_until(lambda: [c.seq for c in log.holds.blockers()] == [10])
        publish(pub, 20, 1000)
        retain(pub)
        assert cursor_of(tmp_path / "pub") == (log.epoch, 10)
        assert find_logs(str(tmp_path / "pub"))[0].segments()[0].first == 0


def test_holding_a_stream_without_a_log_is_no_matter(tmp_path: Path) -> None:
    with (
        Peer("pub", streams=[Stream("a.**")]) as pub,
        Peer("sub", connect=pub.address, data_dir=tmp_path) as sub,
        sub.subscribe("a.**", **HELD) as events,
    ):
        pub.wait_for_subscribers("a.b", count=1, timeout=30)
        pub.publish("a.b", 1)
        assert [event.data for event in taken(events, 1)] == [1]
        events.commit()


def test_strange_commits_are_counted(tmp_path: Path) -> None:
    from meshmsg._wire.control import Commit, Place

    with (
        Peer("pub", streams=[short()], data_dir=tmp_path / "pub") as pub,
        Peer("sub", connect=pub.address, data_dir=tmp_path / "sub") as sub,
        sub.subscribe("a.**", **HELD) as events,
    ):
        publish(pub, 0, 3)
        taken(events, 3)
        node = sub._open_node()
        (link,) = node.links.table.up()
        epoch = events._intake.positions()[0].epoch
        strange = [
            Commit(12345, [Place("pub/a.**", epoch, 1)]),
            Commit(events._intake.sub, [Place("pub/b.**", epoch, 1)]),
            Commit(events._intake.sub, [Place("pub/a.**", epoch, 4)]),
            Commit(events._intake.sub, [Place("pub/a.**", epoch + 1, 0)]),
        ]
        for message in strange:
            node.post(link, message)
        counters = pub._open_node().publisher.counters
        wait_until(lambda: counters["strange_commits"] == 4, what=str(counters))
        (cursor,) = pub._open_node().publisher.durable.logs[0].holds.blockers()
        assert cursor.seq == 0
