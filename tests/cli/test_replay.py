"""`meshmsg replay`: a log's events, published again."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from meshmsg import Peer, Stream
from meshmsg.cli.replay import Clock
from meshmsg.recovery.log.folder import find_logs
from meshmsg.recovery.log.reader import LogReader


def record(data_dir: Path) -> None:
    stream = Stream("orders.**", durability="log")
    with Peer("shop", streams=[stream], data_dir=data_dir) as shop:
        shop.publish("orders.eu", {"id": 0}, key="k", headers={"h": 1})
        shop.publish("orders.us", b"raw")
        for n in range(2, 100):
            shop.publish("orders.eu", n)


def test_events_are_published_again(start: Callable[..., Any], tmp_path: Path) -> None:
    record(tmp_path)
    with Peer("sub") as sub, sub.subscribe("orders.**") as events:
        began = time.time()
        again = start("replay", str(tmp_path), "--speed", "0", "-c", sub.address)
        got = [events.get(timeout=30) for _ in range(100)]
        first, raw, *rest = [event for event in got if event is not None]
        assert (first.topic, first.data) == ("orders.eu", {"id": 0})
        assert (first.key, dict(first.headers)) == ("k", {"h": 1})
        assert (raw.topic, raw.data) == ("orders.us", b"raw")
        assert [event.data for event in rest] == list(range(2, 100))
        assert first.time >= began
        assert first.position.stream != "shop/orders.**"
        assert again.end() == 0


def test_part_of_a_log(start: Callable[..., Any], tmp_path: Path) -> None:
    record(tmp_path)
    with Peer("sub") as sub, sub.subscribe("orders.**") as events:
        arguments = ("--start", "last:10", "--count", "3", "--speed", "100", "-c", sub.address)
        again = start("replay", str(tmp_path), *arguments)
        got = [events.get(timeout=30) for _ in range(3)]
        assert [event.data for event in got if event] == [90, 91, 92]
        assert again.end() == 0
        assert events.get(timeout=0.1) is None


@pytest.mark.parametrize("end", ["last:95", "position"])
def test_replay_ends_before_the_event_that_end_names(
    start: Callable[..., Any], tmp_path: Path, end: str
) -> None:
    record(tmp_path)
    if end == "position":
        (folder,) = find_logs(str(tmp_path))
        with LogReader(folder) as reader:
            reader.seek_last(95)
            end = str(reader.position)
    with Peer("sub") as sub, sub.subscribe("orders.**") as events:
        arguments = ("--start", "last:98", "--end", end, "--speed", "0", "-c", sub.address)
        again = start("replay", str(tmp_path), *arguments)
        got = [events.get(timeout=30) for _ in range(3)]
        assert [event.data for event in got if event] == [2, 3, 4]
        assert again.end() == 0
        assert events.get(timeout=0.1) is None


def test_wrong_usage_is_named(run: Any, tmp_path: Path) -> None:
    done = run("replay", str(tmp_path), "-c", "tcp://127.0.0.1:1")
    assert done.exit_code == 2
    assert "there is no log" in done.stderr
    record(tmp_path)
    done = run("replay", str(tmp_path))
    assert done.exit_code == 2
    assert "--connect" in done.stderr
    done = run("replay", str(tmp_path), "--end", "tomorrow", "-c", "tcp://127.0.0.1:1")
    assert done.exit_code == 2
    assert "--end" in done.stderr


@pytest.mark.parametrize(("speed", "slept"), [(1, [2.0, 1.0]), (2, [1.0, 0.5]), (0, [])])
def test_events_keep_their_distance(speed: float, slept: list[float]) -> None:
    now, sleeps = 100.0, []

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        sleeps.append(seconds)

    clock = Clock(speed, clock=lambda: now, sleep=sleep)
    for second in (7, 9, 9, 10):
        clock.wait(second * 10**9)
    assert sleeps == slept
