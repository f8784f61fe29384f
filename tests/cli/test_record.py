"""`meshmsg record` keeps streams, tells what it does, and ends by the book."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from meshmsg import Peer, Stream
from tests.support.remote import RemotePeer

FREE = "tcp://127.0.0.1:*"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_record_keeps_what_came_and_ends_with_0(start: Any, tmp_path: Path, number: int) -> None:
    with Peer("pub", streams=[Stream("a.**")]) as pub:
        rec = start(
            "record", "a.**", "-d", str(tmp_path), "-c", pub.address, "--json", "--every", "100ms"
        )
        pub.wait_for_subscribers("a.b", timeout=30)
        pub.publish_many("a.b", [b"x"] * 1000)
        rec.wait_until(lambda: rec.out and rec.objects()[-1]["events"] == 1000)
        rec.process.send_signal(number)
        assert rec.end() == 0
    last = rec.objects()[-1]
    assert last["lost"] == 0
    assert [row["next"] for row in last["streams"]] == [1000]
    log = start("log", "verify", str(tmp_path))
    assert log.end() == 0
    assert "Traceback" not in rec.errors()


def test_consumer_reads_from_the_recorder(start: Any, tmp_path: Path) -> None:
    with Peer("pub", streams=[Stream("a.**")]) as pub:
        rec = start("record", "a.**", "-d", str(tmp_path), "-c", pub.address, "-b", FREE)
        address = rec.address()
        pub.wait_for_subscribers("a.b", timeout=30)
        for n in range(5):
            pub.publish("a.b", n)
        pub.flush(timeout=30)
    sub = start("sub", "a.**", "-c", address, "--start", "earliest", "--json", "-n", "5")
    assert sub.end() == 0
    assert [row["data"] for row in sub.objects()] == list(range(5))
    rec.interrupt()
    assert rec.end() == 0
    rec.wait_for_line(r"1 stream  5 events")


def test_record_that_lost_something_ends_with_1(start: Any, tmp_path: Path) -> None:
    stream = {"topics": "a.**", "buffer_bytes": "64KiB", "overflow": "drop_oldest"}
    with RemotePeer("pub", streams=[stream]) as pub:
        rec = start("record", "a.**", "-d", str(tmp_path), "-c", pub.address, "--every", "100ms")
        pub.run("peer.wait_for_subscribers('a.b', timeout=30)")
        pub.run("peer.publish('a.b', b'')")
        rec.wait_for_line(r"1 stream")
        rec.freeze()
        # More than all queues and the buffer hold.
        pub.run("for n in range(600): peer.publish_many('a.b', [bytes(1000)] * 100)")
        rec.thaw()
        rec.wait_for_line(r"LOSS .* overflow")
        rec.interrupt()
        assert rec.end() == 1


def test_record_stops_by_itself_when_nothing_comes(start: Any, tmp_path: Path) -> None:
    with Peer("pub", streams=[Stream("a.**")]) as pub:
        pub.publish("a.b", 1)
        rec = start(
            "record", "a.**", "-d", str(tmp_path), "-c", pub.address, "--timeout", "1s", "--json"
        )
        assert rec.end() == 0
    assert rec.objects()[-1]["events"] == 1


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["a.**", "-c", "tcp://127.0.0.1:1"], "--data-dir"),
        (["a.**", "-d", "."], "--connect"),
        (["a..b", "-d", ".", "-c", "tcp://127.0.0.1:1"], "PATTERN"),
        (["a.**", "-d", ".", "-c", "tcp://127.0.0.1:1", "--retention", "x"], "--retention"),
        (["a.**", "-d", ".", "-c", "tcp://127.0.0.1:1", "--fsync", "x"], "--fsync"),
        (["a.**", "-d", ".", "-c", "tcp://127.0.0.1:1", "--segment-bytes", "1"], "--segment-bytes"),
    ],
)
def test_wrong_usage_says_what_to_do(start: Any, arguments: list[str], problem: str) -> None:
    rec = start("record", *arguments)
    assert rec.end() == 2
    assert problem in rec.errors()
