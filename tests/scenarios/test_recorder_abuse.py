"""What users and attackers do to a recorder and to logs that it is not meant for."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from meshmsg import LogError, LogLocked, Peer, Stream
from meshmsg._groups import progress_store as keeper
from meshmsg._replay import log_reads as replay
from meshmsg._wire import control as c
from meshmsg.recovery.groups.store import GroupStore
from meshmsg.recovery.log.reader import LogReader
from meshmsg.transports.zmq.replay_socket import ReplaySocket
from tests.support.waiting import wait_until

ORDERS = Stream("orders.**", durability="log")


def refused(rec: Peer) -> dict[str, str]:
    return {row["stream"]: row["reason"] for row in rec.stats()["recorder"]["refused"]}


def events_of(rec: Peer) -> dict[str, int]:
    return {row["stream"]: row["events"] for row in rec.stats()["recorder"]["streams"]}


def test_stream_whose_own_log_is_there_is_not_recorded_and_stops_nobody(tmp_path: Path) -> None:
    """A recorder with the publisher's data_dir: everything waited for the publisher's lock."""
    streams = [ORDERS, Stream("quotes.**", overflow="block", window_bytes="64KiB")]
    with (
        Peer("shop", streams=streams, data_dir=tmp_path) as shop,
        Peer("rec", record="**", data_dir=tmp_path, connect=shop.address) as rec,
    ):
        shop.wait_for_subscribers("orders.eu", timeout=30)
        shop.wait_for_subscribers("quotes.eu", timeout=30)
        for n in range(100):
            shop.publish("orders.eu", n)
            shop.publish("quotes.eu", b"x" * 4096, timeout=30)
        shop.flush(timeout=30)
        wait_until(lambda: events_of(rec) == {"shop/quotes.**": 100}, 30)
        assert "a data_dir of its own" in refused(rec)["shop/orders.**"]
        wait_until(lambda: rec.stats()["counters"]["unrecorded"] == 100, 30)
        assert rec.stats()["recorder"]["problem"] is None
        assert rec.ledger().reconciles
    # Nor is it taken for one of the recorder's own later, with nobody there.
    with Peer("rec", record="**", data_dir=tmp_path) as rec:
        assert set(events_of(rec)) == {"shop/quotes.**"}
    with Peer("shop", streams=streams, data_dir=tmp_path) as shop:
        assert shop.publish("orders.eu", "on") is not None


def test_stream_that_another_recorder_keeps_here_stops_nobody(tmp_path: Path) -> None:
    with Peer("shop", streams=[Stream("a"), Stream("b")]) as shop:
        with (
            Peer("one", record="a", data_dir=tmp_path, connect=shop.address) as one,
            Peer("two", record=["a", "b"], data_dir=tmp_path) as two,
        ):
            shop.wait_for_subscribers("a", timeout=30)
            shop.publish("a", 0)
            wait_until(lambda: events_of(one) == {"shop/a": 1}, 30)
            two._open_node().call(lambda: two._open_node().links.dial(shop.address))
            shop.wait_for_subscribers("b", timeout=30)
            shop.publish("b", 0)
            wait_until(lambda: events_of(two) == {"shop/b": 1}, 30)
            wait_until(lambda: "writes this log" in refused(two).get("shop/a", ""), 30)
        with (
            Peer("three", record="b", data_dir=tmp_path),
            pytest.raises(LogLocked),
            Peer("four", record="b", data_dir=tmp_path),
        ):
            pass


def test_publisher_goes_on_with_what_a_recorder_kept_of_its_stream(tmp_path: Path) -> None:
    """The disk of a publisher is lost, or it was volatile: a recorder's copy becomes its log."""
    with (
        Peer("shop", streams=[Stream("orders.**")]) as shop,
        Peer("rec", record="**", data_dir=tmp_path, connect=shop.address) as rec,
    ):
        shop.wait_for_subscribers("orders.eu", timeout=30)
        shop.publish("orders.eu", "old")
        wait_until(lambda: events_of(rec) == {"shop/orders.**": 1}, 30)
    with Peer("shop", streams=[ORDERS], data_dir=tmp_path) as shop:
        shop.publish("orders.eu", "new")
        with (
            Peer("late", connect=shop.address) as late,
            late.subscribe("orders.**", start="earliest") as events,
        ):
            assert [event.data for event in (events.get(timeout=30), events.get(timeout=30))] == [  # type: ignore[union-attr]
                "old",
                "new",
            ]
    with Peer("rec", record="**", data_dir=tmp_path) as rec:  # it is not the recorder's any more
        assert events_of(rec) == {}


def test_reader_that_ends_its_subscription_is_forgotten(tmp_path: Path) -> None:
    with (
        Peer("pub", streams=[Stream("a")]) as pub,
        Peer("rec", record="a", data_dir=tmp_path, connect=pub.address) as rec,
        Peer("late", connect=rec.address) as late,
    ):
        pub.wait_for_subscribers("a", timeout=30)
        pub.publish("a", 0)
        wait_until(lambda: events_of(rec) == {"pub/a": 1}, 30)
        node = rec._open_node()
        assert node.recorder is not None
        readers = node.recorder.lender._readers
        for _ in range(5):
            with late.subscribe("a", start="earliest") as events:
                assert events.get(timeout=30) is not None
                assert readers
        wait_until(lambda: not readers, 30, "readers are forgotten")
        assert rec.stats()["counters"].get("strange_status", 0) == 0


def test_flood_of_requests_for_repair_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "JOBS_MAX", 5)
    busy = threading.Event()
    with (
        Peer("pub", streams=[Stream("a")]) as pub,
        Peer("rec", record="a", data_dir=tmp_path, connect=pub.address) as rec,
    ):
        pub.wait_for_subscribers("a", timeout=30)
        epoch = pub.publish("a", 0).epoch  # type: ignore[union-attr]
        wait_until(lambda: events_of(rec) == {"pub/a": 1}, 30)
        lender = rec._open_node().recorder.lender  # type: ignore[union-attr]
        lender._replay.submit("busy", lambda: bool(busy.wait(60)))
        try:
            for sub in range(1000):
                lender._on_nack(b"nobody", c.Nack(sub, "pub/a", epoch, [(0, 1)], 1))
            assert len(lender._replay._jobs) <= 6
            assert rec._open_node().counters["replay_full"] >= 994
        finally:
            busy.set()


def test_read_with_the_number_of_one_that_was_ended_is_another(tmp_path: Path) -> None:
    with Peer("shop", streams=[ORDERS], data_dir=tmp_path) as shop:
        last = shop.publish_many("orders.eu", [b"x" * 1000] * 3000)
        assert last is not None
        service = shop._open_node().service
        socket = ReplaySocket(shop.address)
        try:
            ask = c.Read(1, "default", last.stream, last.epoch, 0, 3000, 16 << 20)
            for _ in range(20):
                socket.send(c.encode_message(ask))
                socket.send(c.encode_message(c.Credit(1, 0)))
            socket.send(c.encode_message(ask))
            at, done = 0, False
            while not done:
                parts = socket.recv(30.0)
                assert parts is not None
                part: Any = c.decode_message(bytes(parts[0]))
                assert not part.error, part.error
                at = part.stop if part.first in (0, at) else pytest.fail(f"{part.first} after {at}")
                done = part.done
            assert at == 3000
            wait_until(lambda: not service._reads, 30)
        finally:
            socket.close()


# --- groups ---


def test_group_whose_first_save_fails_is_saved_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With nothing else to save there was nobody to try it again."""
    broken = threading.Event()
    broken.set()
    write = GroupStore.save

    def save(store: GroupStore, record: Any) -> None:
        if broken.is_set():
            raise LogError("the disk", "is full")
        write(store, record)

    monkeypatch.setattr(GroupStore, "save", save)
    with (
        Peer("shop", streams=[ORDERS], data_dir=tmp_path) as shop,
        Peer("clerk", connect=shop.address) as clerk,
        clerk.subscribe("orders.**", group="billing"),
    ):
        shop.wait_for_subscribers("orders.eu", timeout=30)
        wait_until(lambda: shop.stats()["counters"]["group_save_failures"] >= 1, 30)
        broken.clear()
        wait_until(lambda: any(tmp_path.glob("*/groups/billing.group")), 30, "it is saved")


def test_what_a_group_holds_is_never_ahead_of_what_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in between, and with retention, it would miss events of which it does not know."""
    monkeypatch.setattr(keeper, "HOLD_S", 0.0)
    saved, ahead = [(0, 0)], []
    write, keep = GroupStore.save, GroupStore.hold

    def save(store: GroupStore, record: Any) -> None:
        write(store, record)
        saved.append(record.floor)

    def hold(store: GroupStore, name: str, floor: tuple[int, int], time_ns: int) -> None:
        if len(saved) > 1 and floor > saved[-1]:
            ahead.append((floor, saved[-1]))
        keep(store, name, floor, time_ns)

    monkeypatch.setattr(GroupStore, "save", save)
    monkeypatch.setattr(GroupStore, "hold", hold)
    with (
        Peer("shop", streams=[ORDERS], data_dir=tmp_path) as shop,
        Peer("clerk", connect=shop.address) as clerk,
        clerk.subscribe("orders.**", group="billing") as events,
    ):
        shop.wait_for_subscribers("orders.eu", timeout=30)
        while len(set(saved)) < 5:
            shop.publish("orders.eu", 0)
            event = events.get(timeout=30)
            assert event is not None
            events.ack(event)
    assert not ahead


def test_group_whose_start_cannot_be_read_now_starts_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its member was never answered."""
    broken = threading.Event()
    look = LogReader.refresh

    def refresh(reader: LogReader) -> bool:
        if broken.is_set():
            raise LogError(reader.folder.path, "may not be read")
        return look(reader)

    with Peer("shop", streams=[ORDERS], data_dir=tmp_path) as shop:
        shop.publish("orders.eu", "old")
    monkeypatch.setattr(LogReader, "refresh", refresh)
    with (
        Peer("shop", streams=[ORDERS], data_dir=tmp_path) as shop,
        Peer("clerk", connect=shop.address) as clerk,
    ):
        broken.set()
        with clerk.subscribe("orders.**", group="billing", start="earliest") as events:
            counters = shop._open_node().publisher.counters
            wait_until(lambda: counters["admission_retries"] >= 2, 30)
            broken.clear()
            event = events.get(timeout=60)
            assert event is not None
            assert event.data == "old"
            events.ack(event)
