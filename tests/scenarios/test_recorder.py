"""A recorder keeps other peers' streams, and gives them to whoever misses them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from meshmsg import (
    AsyncPeer,
    ConfigError,
    Event,
    LogFull,
    LogLocked,
    Loss,
    Peer,
    PublishTimeout,
    Record,
    Stream,
    TopicError,
)
from meshmsg._receive import repair_sources
from meshmsg._replay.log_client import ReplayClient
from meshmsg.recovery.log.cursors import Cursor
from meshmsg.recovery.log.folder import LogFolder
from meshmsg.recovery.log.reader import LogReader
from meshmsg.testing import lose_frames
from tests.support.ports import free_port
from tests.support.remote import RemotePeer
from tests.support.waiting import wait_until

PAD = b"x" * 200
#: Keeps next to nothing, so that history has to come from elsewhere.
SMALL = {"topics": "a.**", "buffer_bytes": "64KiB", "overflow": "drop_oldest"}
TUNING = {"frame_bytes": 4096}


def small_publisher(**more: Any) -> RemotePeer:
    return RemotePeer("pub", streams=[SMALL | more.pop("stream", {})], tuning=TUNING, **more)


def publish(pub: RemotePeer, first: int, stop: int) -> None:
    """Numbered events, slowly enough for those who read to keep up."""
    pub.use("loads")
    pub.run("publish_padded(first, stop, pad)", first=first, stop=stop, pad=PAD.decode())


def take(events: Any, count: int, timeout: float = 30) -> list[Event]:
    found: list[Event] = []
    while len(found) < count:
        batch = events.get_many(count - len(found), timeout=timeout)
        assert batch, f"{len(found)} of {count} came: {events.losses} {events.stats()}"
        found += batch
    return found


def numbers(events: Any, count: int, timeout: float = 30) -> list[int]:
    return [int(event.payload.split()[0]) for event in take(events, count, timeout)]


@contextmanager
def recording(data_dir: Path, address: str, **more: Any) -> Iterator[Peer]:
    with Peer("rec", record="a.**", data_dir=data_dir, connect=address, **more) as rec:
        yield rec


def newest(rec: Peer) -> tuple[int, int]:
    """The newest epoch of the one stream, and the events in it."""
    streams = rec.stats()["recorder"]["streams"]
    return (streams[0]["epoch"], streams[0]["next"]) if streams else (0, 0)


def kept(rec: Peer) -> int:
    """Events in the newest epoch of the one stream."""
    return newest(rec)[1]


def wait_kept(rec: Peer, count: int) -> None:
    wait_until(lambda: kept(rec) >= count, 30, f"{count} events recorded")


# --- with the publisher gone for good ---


@pytest.mark.parametrize("stream", [{}, {"durability": "log", "buffer_bytes": "64MiB"}])
def test_late_consumer_gets_all_of_a_stream_whose_publisher_is_gone(
    tmp_path: Path, stream: dict[str, Any]
) -> None:
    pub = small_publisher(stream=stream, data_dir=str(tmp_path / "pub"))
    with recording(tmp_path / "rec", pub.address) as rec:
        pub.run("peer.wait_for_subscribers('a.b', timeout=30)")
        publish(pub, 0, 5000)
        wait_kept(rec, 5000)
        epoch = pub.eval("peer.publish('a.b', b'5000 x').epoch")
        wait_kept(rec, 5001)
        pub.kill()
        with Peer("late", connect=rec.address) as late:
            with late.subscribe("a.**", start="earliest") as events:
                first = events.get(timeout=30)
                assert first is not None
                assert (first.position.stream, first.position.epoch, first.seq) == (
                    "pub/a.**",
                    epoch,
                    0,
                )
                assert numbers(events, 5000) == list(range(1, 5001))
                assert events.losses == []
            with late.subscribe("a.**", start="last:7") as events:
                assert numbers(events, 7) == list(range(4994, 5001))
            with late.subscribe("a.**", start=f"pub/a.**@{epoch}:4321") as events:
                assert numbers(events, 5001 - 4321) == list(range(4321, 5001))
            with late.subscribe("a.**", start=time.time() + 100) as events:
                assert events.get(timeout=0.5) is None
            with late.subscribe("a.**", start=first.time + 1e-6) as events:
                assert numbers(events, 1)[0] > 0
            with late.subscribe("a.**") as events:  # live: nothing of what was
                assert events.get(timeout=0.5) is None


def test_committed_cursor_goes_on_at_the_recorder(tmp_path: Path) -> None:
    pub = small_publisher()
    with recording(tmp_path / "rec", pub.address) as rec:
        pub.run("peer.wait_for_subscribers('a.b', timeout=30)")
        publish(pub, 0, 100)
        wait_kept(rec, 100)
        pub.kill()
        got = []
        for _ in range(4):
            with (
                Peer("late", connect=rec.address, data_dir=tmp_path / "late") as late,
                late.subscribe("a.**", start="committed", name="x") as events,
            ):
                got += numbers(events, 25)
                events.commit()
        assert got == list(range(100))


def test_consumer_goes_on_when_the_publisher_comes_back(tmp_path: Path) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    pub = small_publisher(bind=address)
    with recording(tmp_path, address) as rec:
        pub.run("peer.wait_for_subscribers('a.b', timeout=30)")
        publish(pub, 0, 1000)
        wait_kept(rec, 1000)
        pub.kill()
        with (
            Peer("late", connect=[rec.address, address]) as late,
            late.subscribe("a.**", start="earliest") as events,
        ):
            assert numbers(events, 1000) == list(range(1000))
            with small_publisher(bind=address) as again:
                again.run("peer.wait_for_subscribers('a.b', count=2, timeout=30)")
                publish(again, 0, 1000)
                assert numbers(events, 1000) == list(range(1000))
                assert events.losses == []
        # And a reader of the recorder alone has both.
        wait_kept(rec, 1000)
        with (
            Peer("alone", connect=rec.address) as alone,
            alone.subscribe("a.**", start="earliest") as events,
        ):
            assert numbers(events, 2000) == [*range(1000), *range(1000)]
            assert events.losses == []


def test_reader_of_a_recorder_alone_follows_into_new_epochs(tmp_path: Path) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    with (
        recording(tmp_path, address) as rec,
        Peer("alone", connect=rec.address) as alone,
        alone.subscribe("a.**", start="earliest") as events,
    ):
        for _ in range(3):
            with small_publisher(bind=address) as pub:
                pub.run("peer.wait_for_subscribers('a.b', timeout=30)")
                publish(pub, 0, 500)
                assert numbers(events, 500) == list(range(500))
        assert events.losses == []


# --- the ladder ---


def test_what_left_the_publishers_buffer_comes_from_the_recorder(tmp_path: Path) -> None:
    with small_publisher() as pub, recording(tmp_path, pub.address) as rec:
        pub.run("peer.wait_for_subscribers('a.b', timeout=30)")
        with Peer("slow", connect=[pub.address, rec.address]) as slow:
            with slow.subscribe("a.**") as events:
                events.wait_for_publishers(timeout=30)
                slow.wait_for_peers(2, timeout=30)
                with (
                    Peer("other", connect=pub.address) as other,
                    other.subscribe("a.**", start="earliest") as lossy,
                ):
                    publish(pub, 0, 5000)
                    wait_kept(rec, 5000)
                    assert numbers(events, 5000) == list(range(5000))
                    assert events.losses == []
                    # Without a recorder, the same is lost: so the test can fail.
                    late = other.subscribe("a.**", start=f"pub/a.**@{epoch_of(lossy)}:0")
                    assert late.get(timeout=30) is not None
                    assert [loss.reason for loss in late.losses] == ["expired"]
                    late.close()
            with slow.subscribe("a.**", start="earliest") as events:
                assert numbers(events, 5000) == list(range(5000))
                assert events.losses == []
                counters = events.stats()["counters"]
                assert counters["lender_nacks"] >= 1
                publish(pub, 5000, 5100)
                assert numbers(events, 100) == list(range(5000, 5100))


def epoch_of(events: Any) -> int:
    event = events.get(timeout=30)
    assert event is not None
    return int(event.position.epoch)


def test_tail_of_a_crashed_publisher_comes_from_the_recorder(tmp_path: Path) -> None:
    """The consumer got nothing of the end, the recorder did."""
    pub = small_publisher()
    with (
        recording(tmp_path, pub.address) as rec,
        RemotePeer("con", connect=[pub.address, rec.address]) as con,
    ):
        con.run("events = peer.subscribe('a.**'); events.wait_for_publishers(1, 30)")
        con.run("peer.wait_for_peers(2, timeout=30)")
        pub.run("peer.wait_for_subscribers('a.b', count=2, timeout=30)")
        publish(pub, 0, 50)
        assert con.eval("len([events.get(30) for _ in range(50)])") == 50
        con.stop()
        publish(pub, 50, 1000)
        wait_kept(rec, 1000)
        pub.kill()
        con.go_on()
        got = con.eval("[int(bytes(events.get(30).payload).split()[0]) for _ in range(950)]")
        assert got == list(range(50, 1000))
        assert con.eval("events.lost") == 0


def test_end_of_an_epoch_comes_from_the_recorder_when_the_publisher_is_back(
    tmp_path: Path,
) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    pub = small_publisher(bind=address)
    with (
        recording(tmp_path, address) as rec,
        RemotePeer("con", connect=[address, rec.address]) as con,
    ):
        con.run("events = peer.subscribe('a.**'); events.wait_for_publishers(1, 30)")
        con.run("peer.wait_for_peers(2, timeout=30)")
        pub.run("peer.wait_for_subscribers('a.b', count=2, timeout=30)")
        publish(pub, 0, 50)
        assert con.eval("len([events.get(30) for _ in range(50)])") == 50
        con.stop()
        publish(pub, 50, 3000)
        wait_kept(rec, 3000)
        pub.kill()
        with small_publisher(bind=address) as again:
            again.run("peer.wait_for_subscribers('a.b', timeout=30)")
            publish(again, 0, 50)
            con.go_on()
            code = "[int(bytes(events.get(30).payload).split()[0]) for _ in range(3000)]"
            assert con.eval(code) == [*range(50, 3000), *range(50)]
            assert con.eval("events.lost") == 0


def test_the_ledger_reconciles_with_recorders(tmp_path: Path, ledger: Any) -> None:
    with (
        Peer("pub", streams=[Stream("a.**")]) as pub,
        recording(tmp_path, pub.address) as rec,
        Peer("both", connect=[pub.address, rec.address]) as both,
        Peer("alone", connect=rec.address) as alone,
        both.subscribe("a.**", start="earliest") as one,
        alone.subscribe("a.**", start="earliest") as two,
    ):
        pub.wait_for_subscribers("a.b", count=2, timeout=30)
        for n in range(200):
            pub.publish_many("a.b", [b"%d " % n] * 10)
        pub.flush(timeout=30)
        for events in (one, two):
            numbers(events, 2000)
        rows = ledger(pub.address, rec.address)
        assert sorted(row["delivered"] for row in rows) == [2000] * len(rows)
        for peer in (both, alone):
            assert peer.ledger().reconciles
        for peer in (pub, rec, both, alone):
            counters = peer.stats()["counters"]
            assert not [name for name in counters if name.startswith(("strange", "bad", "io_"))]


# --- what the recorder itself misses ---


def test_noted_losses_come_out_as_the_same_losses(tmp_path: Path) -> None:
    with (
        small_publisher() as pub,
        RemotePeer("rec", record="a.**", data_dir=str(tmp_path), connect=pub.address) as rec,
    ):
        pub.run("peer.wait_for_subscribers('a.b', timeout=30)")
        publish(pub, 0, 100)
        wait_until(
            lambda: rec.eval("[s['next'] for s in peer.stats()['recorder']['streams']]") == [100]
        )
        rec.stop()
        # More than the queues and the buffer hold, for somebody who does not read.
        pub.run("for n in range(400): peer.publish_many('a.b', [bytes(1000)] * 100)")
        rec.go_on()
        wait_until(lambda: rec.eval("peer.stats()['recorder']['streams'][0]['next']") == 40_100, 30)
        losses = rec.eval(
            "[[x.first, x.stop, x.reason] for x in peer._node.recorder.intake.losses]"
        )
        lost = sum(stop - first for first, stop, _ in losses)
        assert lost > 0
        assert rec.eval("peer.stats()['recorder']['streams'][0]['lost']") == lost
        address = rec.address
        pub.kill()
        with (
            Peer("late", connect=address) as late,
            late.subscribe("a.**", start="earliest") as events,
        ):
            got = 0
            while got < 40_100 - lost:
                found = events.get_many(10_000, timeout=30)
                assert found
                got += len(found)
            assert [[x.first, x.stop, x.reason] for x in events.losses] == losses
        with ReplayClient(address) as client:
            (log,) = client.logs("a.**")
            assert log.recorded
            (epoch,) = log.epochs
            read = list(client.read(log.stream, *epoch))
            holes = [[x.first, x.stop, x.reason] for x in read if isinstance(x, Loss)]
            assert holes == losses


def test_who_is_live_at_a_recorder_gets_all_of_a_publisher_that_comes_back(tmp_path: Path) -> None:
    stream = Stream("a.**", durability="log")
    address = f"tcp://127.0.0.1:{free_port()}"
    with (
        Peer("pub", streams=[stream], data_dir=tmp_path / "pub", bind=address) as pub,
        recording(tmp_path / "rec", pub.address) as rec,
    ):
        pub.publish_many("a.b", [b"x"] * 10)
        wait_kept(rec, 10)
    with (
        Peer("rec", record="a.**", data_dir=tmp_path / "rec") as rec,
        Peer("late", connect=[rec.address, address]) as late,
        late.subscribe("a.**") as events,
    ):
        wait_until(lambda: late.stats()["subscriptions"][0]["sources"], 30, "it is in the stream")
        with Peer("pub", streams=[stream], data_dir=tmp_path / "pub", bind=address) as pub:
            pub.publish_many("a.b", [b"%d" % n for n in range(50)])
            assert numbers(events, 50) == list(range(50))


def recorded_epochs(tmp_path: Path, stream: Stream) -> list[Path]:
    """The recorder's files of three epochs, with ten events in each."""
    for _ in range(2):
        with Peer("pub", streams=[stream], data_dir=tmp_path / "pub") as pub:
            pub.publish_many("a.b", [b"x"] * 10)
    with Peer("pub", streams=[stream], data_dir=tmp_path / "pub") as pub:
        last = pub.publish_many("a.b", [b"x"] * 10)
        with recording(tmp_path / "rec", pub.address) as rec:
            wait_until(lambda: newest(rec) == (last.epoch, 10), 30, "all is recorded")
    (folder,) = (tmp_path / "rec").glob("pub*")
    return sorted(folder.glob("*.seg"))


def test_publisher_that_comes_after_its_recorder_has_what_that_has_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repair_sources, "PATIENCE_S", 60.0)  # it takes as long as it takes
    stream = Stream("a.**", durability="log")
    recorded_epochs(tmp_path, stream)[0].unlink()
    address = f"tcp://127.0.0.1:{free_port()}"
    with (
        Peer("rec", record="a.**", data_dir=tmp_path / "rec") as rec,
        Peer("late", connect=[rec.address, address]) as late,
        late.subscribe("a.**", start="earliest") as events,
    ):
        sources = events._intake.incoming.by_name.values()
        wait_until(lambda: any(one.admissions or one.receiver for one in sources), 30, "it answers")
        with Peer("pub", streams=[stream], data_dir=tmp_path / "pub", bind=address):
            assert len(take(events, 30)) == 30
            assert events.losses == []


@pytest.mark.parametrize("gone", [[0], [1], [0, 1]])
def test_epochs_of_which_the_recorder_has_nothing_left_are_lost_to_its_readers(
    tmp_path: Path, gone: list[int]
) -> None:
    """No event comes after them in their epoch that would show the gap."""
    files = recorded_epochs(tmp_path, Stream("a.**", durability="log"))
    epochs = [int(file.name.split("-")[0]) for file in files]
    assert len(set(epochs)) == len(files) == 3
    for n in gone:
        files[n].unlink()
    with (
        Peer("rec", record="a.**", data_dir=tmp_path / "rec") as rec,
        Peer("late", connect=rec.address) as late,
        late.subscribe("a.**", start="earliest") as events,
    ):
        rest = 30 - 10 * len(gone)
        got = [event.position.epoch for event in take(events, rest)]
        assert got == [e for e in epochs if epochs.index(e) not in gone for _ in range(10)]
        losses = [(x.epoch, x.first, x.stop, x.reason) for x in events.losses]
        assert losses == [(epochs[n], 0, 10, "corrupt") for n in gone]


def test_frames_are_kept_verbatim(tmp_path: Path) -> None:
    stream = Stream("a.**", durability="log")
    with Peer("pub", streams=[stream], data_dir=tmp_path / "pub") as pub:
        pub.publish_many("a.b", [b"before"] * 10)
        with recording(tmp_path / "rec", pub.address) as rec, lose_frames(pub, ratio=0.3, seed=1):
            for n in range(200):
                pub.publish_many("a.b", [b"%d" % n] * 7, keys=["k"] * 7, headers={"h": 1})
                pub.publish("a.c", {"n": n})
            wait_kept(rec, 10 + 200 * 8)
    logs = [LogReader(LogFolder.of(str(tmp_path / name), "pub/a.**")) for name in ("pub", "rec")]
    entries = []
    for log in logs:
        with log:
            log.seek_earliest()
            entries.append(list(log.entries()))
    assert entries[0] == entries[1]
    assert sum(entry.stop - entry.first for entry in entries[1]) == 10 + 200 * 8  # type: ignore[union-attr]


def test_multicast_streams_are_recorded_and_lent(tmp_path: Path) -> None:
    port = free_port()
    transport = {"group": f"239.255.7.9:{port}"}
    with (
        small_publisher(stream={"transport": transport}) as pub,
        recording(tmp_path, pub.address) as rec,
    ):
        pub.run("peer.wait_for_subscribers('a.b', timeout=30)")
        publish(pub, 0, 3000)
        wait_kept(rec, 3000)
        assert rec.stats()["recorder"]["streams"][0]["lost"] == 0
        with (
            Peer("late", connect=[pub.address, rec.address]) as late,
            late.subscribe("a.**", start="earliest") as events,
        ):
            assert numbers(events, 3000) == list(range(3000))
            publish(pub, 3000, 3500)
            assert numbers(events, 500) == list(range(3000, 3500))
            assert events.losses == []


# --- the recorder's own life ---


def test_recorder_goes_on_in_the_same_epoch_after_a_restart(tmp_path: Path) -> None:
    with RemotePeer(
        "pub", streams=[{"topics": "a.**", "buffer_bytes": "16MiB"}], tuning=TUNING
    ) as pub:
        for life in range(3):
            with recording(tmp_path, pub.address) as rec:
                pub.run("peer.wait_for_subscribers('a.b', timeout=30)")
                publish(pub, life * 1000, life * 1000 + 500)
                wait_kept(rec, life * 1000 + 500)
            publish(pub, life * 1000 + 500, life * 1000 + 1000)  # nobody records
        with recording(tmp_path, pub.address) as rec:
            wait_kept(rec, 3000)
            with (
                Peer("late", connect=rec.address) as late,
                late.subscribe("a.**", start="earliest") as events,
            ):
                assert numbers(events, 3000) == list(range(3000))
                assert events.losses == []


def test_two_recorders_fill_each_others_holes(tmp_path: Path) -> None:
    pub = small_publisher()
    with recording(tmp_path / "one", pub.address) as one:
        pub.run("peer.wait_for_subscribers('a.b', timeout=30)")
        publish(pub, 0, 3000)
        wait_kept(one, 3000)
        with Peer(
            "two", record="a.**", data_dir=tmp_path / "two", connect=[pub.address, one.address]
        ) as two:
            wait_kept(two, 3000)
            pub.kill()
            assert two.stats()["recorder"]["streams"][0]["lost"] == 0
    with (
        Peer("two", record="a.**", data_dir=tmp_path / "two") as two,
        Peer("late", connect=two.address) as late,
        late.subscribe("a.**", start="earliest") as events,
    ):
        assert numbers(events, 3000) == list(range(3000))


def test_publisher_is_told_what_is_in_the_log(tmp_path: Path) -> None:
    """`flush` returns when the recorder has written it, under every fsync word."""
    for fsync in ("always", "never"):
        record = Record("a.**", fsync=fsync)
        with (
            Peer("pub", streams=[Stream("a.**")]) as pub,
            Peer("rec", record=record, data_dir=tmp_path / fsync, connect=pub.address),
        ):
            pub.wait_for_subscribers("a.b", timeout=30)
            for n in range(50):
                last = pub.publish("a.b", n)
                pub.flush(timeout=30)
                with LogReader(LogFolder.of(str(tmp_path / fsync), last.stream)) as log:
                    log.seek_latest()
                    assert (log.epoch, log.next) == (last.epoch, n + 1)


def test_retention_honours_a_cursor_that_holds(tmp_path: Path) -> None:
    record = Record("a.**", retention="200KB", segment_bytes="64KiB")
    with (
        Peer("pub", streams=[Stream("a.**")]) as pub,
        Peer("rec", record=record, data_dir=tmp_path, connect=pub.address) as rec,
    ):
        pub.wait_for_subscribers("a.b", timeout=30)
        last = pub.publish_many("a.b", [bytes(1000)] * 100)
        assert last is not None
        wait_kept(rec, 100)
        node = rec._node
        assert node is not None
        assert node.recorder is not None
        cursors = node.recorder.logs[last.stream].writer.cursors()
        cursors.set(Cursor("sink", last.stream, last.epoch, 50, hold=True))
        for _ in range(10):
            pub.publish_many("a.b", [bytes(1000)] * 100)
        wait_kept(rec, 1100)
        with ReplayClient(rec.address) as client:
            assert client.logs()[0].epochs[0].first <= 50
            assert list(client.read(last.stream, last.epoch, 50, 1100))
            cursors.set(Cursor("sink", last.stream, last.epoch, 1000, hold=True))
            pub.publish_many("a.b", [bytes(1000)] * 100)
            wait_until(lambda: client.logs()[0].epochs[0].first > 50, what="retention")


def test_a_full_disk_holds_the_publisher_up_and_loses_nothing(tmp_path: Path) -> None:
    stream = Stream("a.**", overflow="block", window_bytes="64KiB")
    with Peer("pub", streams=[stream]) as pub, recording(tmp_path, pub.address) as rec:
        pub.wait_for_subscribers("a.b", timeout=30)
        pub.publish("a.b", b"0 ")
        wait_kept(rec, 1)
        node = rec._node
        assert node is not None
        assert node.recorder is not None
        writer = node.recorder.logs["pub/a.**"].writer
        write, full = writer.write, [True]

        def failing(*arguments: Any) -> int:
            if full[0]:
                raise LogFull(writer.folder.path, "no space")
            return write(*arguments)

        writer.write = failing  # type: ignore[method-assign]
        n = 0
        with contextlib.suppress(PublishTimeout):
            while n < 10_000:
                n += 1
                pub.publish("a.b", b"%d " % n + bytes(1000), timeout=1)
        assert n < 10_000
        assert "no space" in rec.stats()["recorder"]["problem"]
        full[0] = False
        pub.publish("a.b", b"%d " % n, timeout=30)
        wait_kept(rec, n + 1)
        stats = rec.stats()["recorder"]
        assert stats["problem"] is None
        assert stats["streams"][0]["lost"] == 0
        with (
            Peer("late", connect=rec.address) as late,
            late.subscribe("a.**", start="earliest") as events,
        ):
            assert numbers(events, n + 1) == list(range(n + 1))


def test_consumer_cut_off_from_its_publisher_follows_the_recorder(tmp_path: Path) -> None:
    """Also into an epoch of which only the recorder knows."""
    address = f"tcp://127.0.0.1:{free_port()}"
    pub = small_publisher(bind=address)
    with recording(tmp_path, address) as rec:
        pub.run("peer.wait_for_subscribers('a.b', timeout=30)")
        with RemotePeer("gate", bind="tcp://127.0.0.1:*") as gate:
            assert gate.address  # a peer that has nothing to do with it does no harm
            with (
                Peer("con", connect=[address, rec.address, gate.address]) as con,
                con.subscribe("a.**") as events,
            ):
                events.wait_for_publishers(timeout=30)
                con.wait_for_peers(3, timeout=30)
                publish(pub, 0, 100)
                assert numbers(events, 100) == list(range(100))
                pub.kill()
                # The publisher comes back elsewhere: only the recorder is told where.
                with small_publisher() as again:
                    node = rec._node
                    assert node is not None
                    there = again.address
                    node.call(lambda: node.links.dial(there))
                    again.run("peer.wait_for_subscribers('a.b', timeout=30)")
                    publish(again, 0, 100)
                    assert numbers(events, 100) == list(range(100))
                    assert events.losses == []


def test_async_peer_records_and_reads(tmp_path: Path) -> None:
    async def scenario() -> list[int]:
        async with (
            AsyncPeer("pub", streams=[Stream("a.**")]) as pub,
            AsyncPeer("rec", record="a.**", data_dir=tmp_path, connect=pub.address) as rec,
        ):
            await pub.wait_for_subscribers("a.b", timeout=30)
            await pub.publish_many("a.b", range(100))
            await pub.flush(timeout=30)
            async with (
                AsyncPeer("late", connect=rec.address) as late,
                late.subscribe("a.**", start="earliest") as events,
            ):
                return [event.data async for event in _first(events, 100)]

    async def _first(events: Any, count: int) -> Any:
        for _ in range(count):
            yield await events.get(timeout=30)

    assert asyncio.run(scenario()) == list(range(100))


# --- wrong use ---


def test_record_is_checked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="data_dir"):
        Peer("rec", record="a.**")
    with pytest.raises(TopicError):
        Peer("rec", record="a..b", data_dir=tmp_path)
    with pytest.raises(ConfigError, match="record"):
        Peer("rec", record=7, data_dir=tmp_path)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="at least one"):
        Peer("rec", record=[], data_dir=tmp_path)
    with pytest.raises(ConfigError, match="retention"):
        Record("a.**", retention="much")


def test_one_data_dir_has_one_recorder(tmp_path: Path) -> None:
    with Peer("pub", streams=[Stream("a.**")]) as pub, recording(tmp_path, pub.address) as rec:
        pub.wait_for_subscribers("a.b", timeout=30)
        pub.publish("a.b", 1)
        wait_kept(rec, 1)
        with pytest.raises(LogLocked):
            Peer("again", record="a.**", data_dir=tmp_path).open()


def test_record_in_mesh_toml(tmp_path: Path) -> None:
    path = tmp_path / "mesh.toml"
    path.write_text(
        f"""
[peer]
name = "rec"
data_dir = "{tmp_path}"
record = {{topics = ["a.**", "b"], retention = "1d", fsync = "always"}}
"""
    )
    peer = Peer.from_toml(path)
    assert peer.config.record == Record(("a.**", "b"), retention="1d", fsync="always")
    path.write_text(f'[peer]\nname = "rec"\ndata_dir = "{tmp_path}"\nrecord = "a.**"\n')
    assert Peer.from_toml(path).config.record == Record("a.**")
