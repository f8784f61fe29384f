"""Recorders that share the epochs of a stream, and one of them is away when a query comes."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from meshmsg import ConfigError, Peer, Stream
from meshmsg.spark_sink.source import peer_source
from tests.spark.logs import EPOCH, STREAM, Log, numbered
from tests.spark.reading import Reading, read_all
from tests.support.ports import free_port

ORDERS = Stream("orders.**", durability="log", fsync="never")


class Clock:
    """Time that goes on when somebody sleeps, and what happens meanwhile."""

    def __init__(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.now = 0.0
        self._meanwhile = meanwhile

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self._meanwhile()


class Recorder:
    """A recorder that keeps its address and its log while it is away."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = f"tcp://127.0.0.1:{free_port()}"
        self.peer: Peer | None = None

    def start(self, connect: str | None = None) -> None:
        self.peer = Peer(
            self.folder.name,
            record="orders.**",
            data_dir=str(self.folder),
            bind=self.address,
            connect=connect or (),
            discovery="none",
        ).__enter__()

    def stop(self) -> None:
        peer, self.peer = self.peer, None
        if peer is not None:
            peer.close()


class World:
    """A publisher that is started often, and two recorders."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.a, self.b = Recorder(folder / "a"), Recorder(folder / "b")
        self._stack = stack
        stack.callback(self.a.stop)
        stack.callback(self.b.stop)

    def query(self, **options: object) -> Reading:
        """A query of both recorders."""
        made = Reading(peers=self.peers, **options)
        self._stack.callback(lambda: made.reader.stop())
        return made

    def publish(self, count: int, *recorders: Recorder) -> int:
        """One life of the publisher, seen by these; returns its epoch."""
        for recorder in (self.a, self.b):
            recorder.stop()
        with Peer("shop", streams=[Stream("orders.**")], discovery="none") as shop:
            for recorder in recorders:
                recorder.start(shop.address)
            shop.wait_for_subscribers("orders.eu", count=len(recorders), timeout=30)
            epoch = shop.publish_many("orders.eu", list(range(count))).epoch
            shop.flush(timeout=30)
            for recorder in recorders:
                recorder.stop()  # writes what has come
        return epoch

    @property
    def peers(self) -> str:
        return f"{self.a.address},{self.b.address}"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(peer_source, "ASK_TIMEOUT_S", 0.3)
    monkeypatch.setattr(peer_source, "PAUSE_MIN_S", 0.0)
    monkeypatch.setattr(peer_source, "PAUSE_MAX_S", 0.0)
    monkeypatch.setattr(peer_source, "RETRY_S", 0.1)
    with ExitStack() as stack:
        yield World(tmp_path, stack)


def numbers(epoch: int, count: int) -> list[tuple[int, int]]:
    return [(epoch, n) for n in range(count)]


def test_epoch_of_an_absent_recorder_is_read_when_it_comes_back(world: World) -> None:
    first = world.publish(10, world.b)
    second = world.publish(20, world.a)
    third = world.publish(5, world.b)
    world.a.start()
    query = world.query(peerTimeout="1s")
    query.drain()
    assert query.rows == numbers(second, 20)
    query.restart()
    world.b.start()
    query.drain()
    late = numbers(first, 10) + numbers(third, 5)
    assert (query.rows, query.losses) == (numbers(second, 20) + late, [])
    query.restart()
    query.drain()
    assert len(query.rows) == 35
    for batch in range(len(query.offsets)):  # what is run again has the same rows
        again, _ = query.run(batch)
        assert again == (numbers(second, 20) if batch == 0 else late)


def test_epochs_that_recorders_share_are_all_read(world: World) -> None:
    epochs = [
        world.publish(10, world.b),
        world.publish(20, world.a),
        world.publish(30, world.a, world.b),
    ]
    world.a.start()
    world.b.start()
    query = world.query(maxEventsPerTrigger=7)
    query.drain()
    wanted = [row for n, epoch in enumerate(epochs) for row in numbers(epoch, 10 * n + 10)]
    assert (query.rows, query.losses) == (wanted, [])
    assert read_all(peers=world.peers) == (wanted, [])


def test_restart_that_only_an_absent_recorder_saw_is_read_later(world: World) -> None:
    first = world.publish(10, world.a, world.b)
    world.a.start()
    world.b.start()
    query = world.query(peerTimeout="1s")
    query.drain()
    second = world.publish(5, world.b)
    third = world.publish(7, world.a)
    world.a.start()
    query.drain()
    assert query.rows == numbers(first, 10) + numbers(third, 7)
    world.b.start()
    query.drain()
    assert sorted(query.rows) == numbers(first, 10) + numbers(second, 5) + numbers(third, 7)


def write(recorder: Recorder, *parts: tuple[int, int], epoch: int = EPOCH) -> None:
    """A recorder's log of one epoch; between its parts events are lost."""
    with Peer("shop", streams=[Stream("orders.**")], discovery="none") as shop:
        recorder.start(shop.address)  # so that the folder is one of a recorder
        shop.wait_for_subscribers("orders.eu", timeout=30)
        shop.publish("orders.eu", 0)
        shop.flush(timeout=30)
        recorder.stop()
    (folder,) = recorder.folder.iterdir()
    for segment in folder.glob("*.seg"):
        segment.unlink()
    for name in (*folder.glob("*.idx"), *folder.glob("epochs*.json")):
        name.unlink()
    with Log(recorder.folder) as log:
        log.begin(epoch, parts[0][0])
        for first, stop in parts:
            if first > log.writer.next:
                log.lose(first - log.writer.next, "deadline")
            log.write(numbered(first, stop), frame_events=7)


def test_beginning_that_an_absent_recorder_has_is_read_later(world: World) -> None:
    write(world.a, (40, 60))
    write(world.b, (0, 50))
    world.a.start()
    query = world.query(peerTimeout="1s")
    query.drain()
    assert query.rows == [(EPOCH, n) for n in range(40, 60)]
    query.restart()
    world.b.start()
    query.drain()
    assert query.losses == []
    assert sorted(query.rows) == numbers(EPOCH, 60)
    assert query.run(0)[0] == [(EPOCH, n) for n in range(40, 60)]


def test_what_those_who_answer_lost_is_waited_for_and_then_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(world.a, (0, 20), (30, 60))
    write(world.b, (0, 50))
    world.a.start()
    query = world.query(peerTimeout="0.2s")
    query.drain()
    assert query.losses == [(EPOCH, 20, 30, "deadline")]
    assert len(query.rows) == 50
    other = world.query(peerTimeout="1000s")
    with monkeypatch.context() as patch:
        patch.setattr(peer_source, "time", Clock(lambda: world.b.peer or world.b.start()))
        other.drain()
    assert (other.rows, other.losses) == (numbers(EPOCH, 60), [])


def test_absent_recorder_is_waited_for_once_and_not_in_each_batch(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(world.a, *((n * 10, n * 10 + 5) for n in range(20)))
    world.a.start()
    clock = Clock()
    monkeypatch.setattr(peer_source, "time", clock)
    monkeypatch.setattr(peer_source, "RETRY_S", 1.0)  # of that clock
    query = world.query(peerTimeout="5s", maxEventsPerTrigger=20)
    query.drain()
    assert len(query.offsets) == 10
    assert sum(stop - first for _, first, stop, _ in query.losses) == 95
    assert 5 <= clock.now < 7


def test_absent_recorder_is_said_to_a_batch_query(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.publish(10, world.b)
    second = world.publish(20, world.a)
    world.a.start()
    for rows in ("events", "losses", "all"):
        with pytest.raises(ConfigError, match=world.b.address):
            read_all(peers=world.peers, rows=rows)
    with caplog.at_level(logging.WARNING):
        found = read_all(peers=world.peers, failOnLoss=False)
    assert found == (numbers(second, 20), [])
    assert any(world.b.address in record.getMessage() for record in caplog.records)
    end = json.dumps({f"{STREAM}/{second}": 5})
    world.b.start()
    rows_, _ = read_all(peers=world.peers, endingPosition=end)
    assert len(rows_) == 15


def test_start_in_a_stream_that_only_an_absent_recorder_has_names_it(world: World) -> None:
    world.publish(10, world.b)
    world.a.start()
    start = json.dumps({STREAM: "earliest"})
    with pytest.raises(ConfigError, match=f"no stream.*{world.b.address} cannot be reached"):
        read_all(peers=world.peers, startingPosition=start, failOnLoss=False)


def test_old_checkpoint_goes_on_and_what_it_has_passed_stays_passed(world: World) -> None:
    world.publish(10, world.b)
    second = world.publish(20, world.a)
    world.a.start()
    query = world.query(peerTimeout="1s")
    query.offsets.append(json.dumps({f"{STREAM}/{second}": 15}))
    query.drain()
    world.b.start()
    query.drain()
    assert query.rows == [(second, n) for n in range(15, 20)]
    third = world.publish(5, world.b)
    world.a.start()
    query.drain()
    world.b.start()
    query.drain()
    assert query.rows[5:] == numbers(third, 5)


def test_batch_that_is_run_again_waits_for_the_peer_that_has_its_beginning(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has not expired: somebody who is away has it."""
    write(world.a, (40, 60))
    write(world.b, (0, 50))
    world.a.start()
    world.b.start()
    query = world.query(rows="events", failOnLoss=True, peerTimeout="1000s")
    query.drain()
    assert query.rows == numbers(EPOCH, 60)
    world.b.stop()
    query.restart()
    with monkeypatch.context() as patch:
        patch.setattr(peer_source, "time", Clock(lambda: world.b.peer or world.b.start()))
        assert query.run(0) == (numbers(EPOCH, 60), [])


def test_planned_beginning_of_a_peer_that_does_not_come_back_is_lost_and_not_nothing(
    world: World,
) -> None:
    write(world.a, (40, 60))
    write(world.b, (0, 50))
    world.a.start()
    world.b.start()
    query = world.query(peerTimeout="0.2s")
    query.drain()
    assert query.losses == []
    world.b.stop()
    query.restart()
    assert query.run(0) == ([(EPOCH, n) for n in range(40, 60)], [(EPOCH, 0, 40, "gone")])
