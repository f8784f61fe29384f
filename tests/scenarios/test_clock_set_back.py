"""The clock is set back between two starts of a publisher: epochs grow, or the loss is reported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from meshmsg import Event, Peer
from tests.support.ports import free_port
from tests.support.remote import RemotePeer
from tests.support.waiting import wait_until

STREAM = "pub/ticks.**"
#: Seconds by which the clock of each life differs from the real one.
CLOCKS = [0, -3600, -1800]


@pytest.fixture
def free_address() -> str:
    return f"tcp://127.0.0.1:{free_port()}"


@contextmanager
def life(clock_s: int, address: str, data_dir: str | None) -> Iterator[RemotePeer]:
    """A process of its own whose clock is wrong, and a publisher that is opened in it."""
    with RemotePeer("host") as host:
        host.use("trouble")
        host.run(f"shift_clock({clock_s})")
        host.run(
            "pub = meshmsg.Peer('pub', streams=[meshmsg.Stream('ticks.**')], bind=address,"
            " data_dir=data_dir).open()",
            address=address,
            data_dir=data_dir,
        )
        yield host
        host.run("pub.close()")


def publish(host: RemotePeer, subscribers: int = 1) -> int:
    """A hundred events; returns their epoch."""
    host.run(f"pub.wait_for_subscribers('ticks.a', {subscribers}, timeout=30)")
    host.run("last = pub.publish_many('ticks.a', list(range(100))); pub.flush(30)")
    return int(host.eval("last.epoch"))


def recorded(recorder: Peer) -> dict[str, Any]:
    streams = recorder.stats()["recorder"]["streams"]
    return streams[0] if streams else {"events": 0, "lost": 0}


def test_a_recorder_keeps_all_of_a_volatile_publisher_that_has_a_data_dir(
    tmp_path: Path, free_address: str
) -> None:
    epochs = []
    with Peer(
        "rec", connect=free_address, record="ticks.**", data_dir=tmp_path / "rec"
    ) as recorder:
        for number, clock_s in enumerate(CLOCKS):
            with life(clock_s, free_address, str(tmp_path / "pub")) as host:
                epochs.append(publish(host))
                all_of_it = 100 * (number + 1)
                wait_until(lambda: recorded(recorder)["events"] == all_of_it)  # noqa: B023
        assert recorded(recorder)["lost"] == 0
        assert "unrecorded" not in recorder.stats()["counters"]
    assert epochs == sorted(set(epochs))


def test_epochs_of_one_process_grow_without_a_data_dir(free_address: str) -> None:
    with life(0, free_address, None) as host:
        host.run("epochs = [pub.publish('ticks.a', 1).epoch]")
        for _ in range(3):
            host.run("pub.close(); shift_clock(-3600)")
            host.run("pub = meshmsg.Peer('pub', streams=[meshmsg.Stream('ticks.**')]).open()")
            host.run("epochs.append(pub.publish('ticks.a', 1).epoch)")
        epochs = host.eval("epochs")
    assert epochs == sorted(set(epochs))


def test_what_nobody_can_know_is_reported_as_lost_by_the_recorder(
    tmp_path: Path, free_address: str
) -> None:
    with (
        Peer("rec", connect=free_address, record="ticks.**", data_dir=tmp_path) as recorder,
        Peer("sub", connect=free_address) as sub,
        sub.subscribe("ticks.**") as events,
    ):
        for clock_s in CLOCKS[:2]:
            with life(clock_s, free_address, None) as host:
                publish(host, 2)
                got: list[Event] = []
                while len(got) < 100:
                    got += events.get_many(100, timeout=30)
                assert [event.data for event in got] == list(range(100))
        wait_until(lambda: recorded(recorder)["lost"] == 100)
        assert recorded(recorder)["events"] == 100
        assert recorder.stats()["counters"]["unrecorded"] == 100
        assert not events.losses  # who is there follows the publisher


def test_a_damaged_file_is_said_and_the_clock_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "pub.epoch.json").write_text("no epoch")
    with Peer("pub", data_dir=tmp_path) as pub:
        assert pub.publish("a", 1).epoch > 1_700_000_000_000_000
    assert "pub.epoch.json is damaged" in caplog.text
