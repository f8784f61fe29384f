"""Logs that earlier versions wrote: every event is read back exactly, and a writer goes on."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from meshmsg import Loss, Peer, Stream
from meshmsg.recovery.log.folder import LogFolder
from meshmsg.recovery.log.reader import LogReader
from meshmsg.recovery.log.verify import verify
from tests.support.waiting import wait_until

DATA = Path(__file__).resolve().parents[3] / "data"
STREAM = "shop/orders.**"
ORDERS = Stream("orders.**", durability="log", segment_bytes="64KiB")
GOLDEN = pytest.mark.parametrize("version", ["golden-log-1"])
Row = list[Any]


def expected(version: str, data_dir: str) -> list[Row]:
    """What the version that wrote a log read from it, from the publisher or the recorder."""
    lines = (DATA / version / "events.jsonl").read_text(encoding="utf-8").splitlines()
    return [row for name, *row in map(json.loads, lines) if name == data_dir]


def rows(folder: LogFolder) -> Iterator[Row]:
    with LogReader(folder) as reader:
        reader.seek_earliest()
        for item in reader.runs():
            if isinstance(item, Loss):
                yield ["loss", item.epoch, item.first, item.stop, item.reason]
                continue
            frame = item.frame
            for n in range(item.lo, item.hi):
                place = ["event", frame.epoch, frame.first + n, frame.topic_at(n)]
                payload = base64.b64encode(frame.payload_at(n)).decode()
                notes = [frame.key_at(n), dict(frame.headers_at(n)), frame.time_at(n)]
                yield [*place, payload, *notes, frame.is_raw(n)]


def copied(tmp_path: Path, version: str, data_dir: str) -> Path:
    return Path(shutil.copytree(DATA / version / data_dir, tmp_path / data_dir))


@GOLDEN
@pytest.mark.parametrize("data_dir", ["shop", "recorder"])
def test_every_event_is_read_back_exactly(version: str, data_dir: str) -> None:
    folder = LogFolder.of(str(DATA / version / data_dir), STREAM)
    assert list(rows(folder)) == expected(version, data_dir)


@GOLDEN
@pytest.mark.parametrize("data_dir", ["shop", "recorder"])
def test_verify_finds_nothing_wrong(version: str, data_dir: str) -> None:
    report = verify(LogFolder.of(str(DATA / version / data_dir), STREAM))
    known = expected(version, data_dir)
    assert report.is_good, report
    assert not report.problems
    assert report.events == sum(row[0] == "event" for row in known)
    assert len(report.losses) == sum(row[0] == "loss" for row in known)


@pytest.mark.parametrize("data_dir", ["shop", "recorder"])
def test_frames_of_one_event_come_many_at_once(data_dir: str) -> None:
    """What a frame costs on its way would be paid for every event."""
    folder = LogFolder.of(str(DATA / "golden-log-1" / data_dir), STREAM)
    with LogReader(folder) as reader:
        reader.seek_earliest()
        items = list(reader.entries())
    # An epoch or segment each, and what stands between losses.
    assert len(items) <= 12
    assert verify(folder).frames > 700


@GOLDEN
def test_a_publisher_goes_on_and_replays_all_of_it(tmp_path: Path, version: str) -> None:
    data_dir = copied(tmp_path, version, "shop")
    known = expected(version, "shop")
    with (
        Peer("shop", streams=[ORDERS], data_dir=data_dir) as shop,
        Peer("late", connect=shop.address) as late,
        late.subscribe("orders.**", start="earliest") as events,
    ):
        new = shop.publish("orders.eu", b"after the upgrade", key="k")
        got: list[Any] = [events.get(timeout=30) for _ in range(len(known) + 1)]
        assert not events.lost
    assert got.pop().position == new
    for event, (_, epoch, seq, topic, payload, key, headers, time_ns, _) in zip(
        got, known, strict=True
    ):
        assert (event.position.epoch, event.seq, event.topic) == (epoch, seq, topic)
        assert event.payload == base64.b64decode(payload)
        assert (event.key, event.headers, event.time_ns) == (key, headers, time_ns)
    folder = LogFolder.of(str(data_dir), STREAM)
    assert verify(folder).is_good
    assert list(rows(folder))[:-1] == known


@GOLDEN
def test_a_recorder_goes_on(tmp_path: Path, version: str) -> None:
    data_dir = copied(tmp_path, version, "recorder")
    known = expected(version, "recorder")
    folder = LogFolder.of(str(data_dir), STREAM)
    with (
        Peer("shop", streams=[Stream("orders.**")]) as shop,
        Peer("rec", record="orders.**", data_dir=data_dir, connect=shop.address) as rec,
    ):
        shop.publish("orders.eu", b"after the upgrade")
        wait_until(lambda: any(s["events"] for s in rec.stats()["recorder"]["streams"]))
    after = list(rows(folder))
    assert after[: len(known)] == known
    assert base64.b64decode(after[-1][4]) == b"after the upgrade"
    assert verify(folder).is_good
