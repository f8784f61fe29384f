"""Threads of a peer that fail: in a part, for a while, for good.  None of it passes in silence."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from meshmsg import AsyncPeer, AsyncSubscription, ClosedError, MeshError, Peer, Stream, WaitTimeout
from meshmsg._receive.incoming_stream import TailHint
from tests.support.pairs import pair
from tests.support.waiting import wait_until

ENDED = "the I/O thread of pub ended by an error"


def die(*_: Any, **__: Any) -> Any:
    raise SystemExit("on purpose")  # no Exception: it passes all guards but the outermost


def fail(*_: Any, **__: Any) -> Any:
    raise MemoryError("on purpose")


def end_io(peer: Peer | AsyncPeer) -> None:
    """End the I/O thread by an error, and wait until it has."""
    node = peer._open_node()
    node.call(die)
    node.stopped.wait(30)


class Waiting:
    """Somebody who waits in a thread, and how that ended."""

    def __init__(self, wait: Callable[[], Any]) -> None:
        self.error: BaseException | None = None
        self._wait = wait
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._wait()
        except BaseException as error:
            self.error = error

    def told(self) -> str:
        self._thread.join(30)
        assert not self._thread.is_alive(), "it still waits"
        assert isinstance(self.error, MeshError), repr(self.error)
        return str(self.error)


# --- the I/O thread ------------------------------------------------------------------------------


def test_whoever_waits_is_told_that_the_io_thread_has_ended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        Peer("pub", streams=[Stream("a.**"), Stream("b.**")]) as pub,
        pub.subscribe("x.**") as one,
        pub.subscribe("y.**") as two,
        pub.subscribe("z.**") as three,
    ):
        waiting = [
            Waiting(lambda: one.get()),
            Waiting(lambda: list(two)),
            Waiting(lambda: three.wait_for_publishers(timeout=None)),
            Waiting(lambda: pub.wait_for_subscribers("a.b")),
            Waiting(lambda: pub.wait_for_peers(timeout=None)),
        ]
        end_io(pub)
        for one_of_them in waiting:
            assert ENDED in one_of_them.told()
        late: list[Callable[[], Any]] = [
            lambda: pub.publish("a.b", 1),
            lambda: pub.publish_many("b.b", [1, 2]),
            lambda: pub.subscribe("c.**"),
            lambda: one.get(timeout=1),
            lambda: next(iter(two)),
            lambda: next(two.batches(timeout=1)),
        ]
        for call in late:
            with pytest.raises(ClosedError, match=ENDED):
                call()
        assert ENDED in pub.stats()["problem"]
        assert pub.stats()["counters"]["threads_ended"] == 1
    told = [record for record in caplog.records if ENDED in record.getMessage()]
    assert [record.levelname for record in told] == ["CRITICAL"]


@pytest.mark.filterwarnings("ignore:peer 'pub' closed before these had received everything")
def test_whoever_publishes_or_flushes_is_told_too() -> None:
    stream = Stream("a.**", buffer_bytes="64KiB", window_bytes="64KiB")
    with pair(stream) as (pub, _, events), events._intake.lock:  # it reads nothing
        publishing = Waiting(lambda: pub.publish_many("a.b", [b"x" * 1000] * 100_000))
        wait_until(lambda: pub.stats()["counters"].get("publish_waits", 0) > 0)
        flushing = Waiting(pub.flush)
        end_io(pub)
        assert ENDED in publishing.told()
        assert ENDED in flushing.told()


def test_a_coroutine_that_waits_is_told_too() -> None:
    async def read_all(events: AsyncSubscription) -> list[Any]:
        return [event async for event in events]

    async def main() -> None:
        async with AsyncPeer("pub") as pub, pub.subscribe("a.**") as events:
            waiting = asyncio.ensure_future(events.get())
            iterating = asyncio.ensure_future(read_all(events))
            await asyncio.sleep(0)
            await asyncio.to_thread(end_io, pub)
            for one in (waiting, iterating):
                with pytest.raises(ClosedError, match=ENDED):
                    await asyncio.wait_for(one, 20)
            with pytest.raises(ClosedError, match=ENDED):
                await pub.publish("a.b", 1)

    asyncio.run(main())


def test_a_poll_that_fails_for_good_ends_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshmsg._runtime.guard.FAILURES_MAX", 3)
    with Peer("pub") as pub:
        node = pub._open_node()
        monkeypatch.setattr(node._poller, "wait", fail)
        node.wake()
        wait_until(lambda: ENDED in (pub.stats()["problem"] or ""))
        assert node.stopped.wait(30)
        with pytest.raises(ClosedError, match=ENDED):
            pub.publish("a.b", 1)


@pytest.mark.parametrize(
    "part",
    [
        "publisher.on_tick",
        "finder.on_tick",
        "questions.on_tick",
        "links.on_ping",
        "reception.forget_silent",
        "gate.on_tick",
    ],
)
def test_a_part_of_a_turn_that_fails_costs_itself(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshmsg._runtime.guard.PROBLEM_S", 2.0)
    with pair() as (pub, _, events):
        node = pub._open_node()
        owner, name = part.split(".")
        whole, ticks = getattr(getattr(node, owner), name), node._ticks
        node._ticks = [fail if tick == whole else tick for tick in ticks]
        setattr(getattr(node, owner), name, fail)
        with Peer("late", connect=pub.address) as late:  # others are served meanwhile
            late.wait_for_peers(timeout=30)
            wait_until(lambda: "goes on without" in (pub.stats()["problem"] or ""))
            errors = pub.stats()["counters"]["io_errors"]
            while pub.stats()["counters"]["io_errors"] < errors + 3:
                assert pub.stats()["problem"], "seen only at the moment that it fails"
            assert pub.stats()["counters"]["io_errors"] > 0
        node._ticks = ticks
        setattr(getattr(node, owner), name, whole)
        wait_until(lambda: pub.stats()["problem"] is None)
        for n in range(20):
            pub.publish("a.b", n)
            event = events.get(timeout=30)
            assert event is not None
            assert event.data == n


# --- subscriptions -------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["_on_notice", "_settle", "_run_repair_timers"])
def test_a_defect_in_a_subscription_does_not_raise_in_get(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pair() as (pub, _, events):
        pub.publish("a.b", 0)
        assert events.get(timeout=30) is not None
        intake: Any = events._intake
        monkeypatch.setattr(intake, where, fail)
        with intake.lock:
            intake.incoming.settled, intake.incoming.timer_due = False, 0.0
            for source in intake.sources():
                source.due = 0.0
                intake.notify(TailHint(source.info.name, epoch=0, next=0))
        wait_until(
            lambda: (
                events.get(timeout=0.01) is None
                and events.stats()["counters"].get("io_errors", 0) > 0
            )
        )
        monkeypatch.undo()
        pub.publish("a.b", 1)
        event = events.get(timeout=30)
        assert event is not None
        assert event.data == 1


@pytest.mark.parametrize("way", ["take_next", "Frame"])
def test_a_message_that_fails_is_asked_for_again(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lost by it: the gap is found, and repaired."""
    with pair() as (pub, _, events):
        pub.publish("a.b", 0)
        assert events.get(timeout=30) is not None
        if way == "Frame":
            monkeypatch.setattr("meshmsg._receive.subscription_io.take_next", lambda *_: False)
        monkeypatch.setattr(f"meshmsg._receive.subscription_io.{way}", fail, raising=False)
        for n in range(1, 6):
            pub.publish("a.b", n)
            events.get(timeout=0.05)
        monkeypatch.undo()
        wait_until(
            lambda: events.get(timeout=0.05) is None and events._intake.positions()[0].seq == 6
        )
        assert events.losses == []


def test_events_that_cannot_be_handed_over_are_a_reported_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pair() as (pub, _, events):
        monkeypatch.setattr(events._intake, "_hand_over", fail)
        pub.publish("a.b", 0)
        wait_until(lambda: events.get(timeout=0.01) is None and events.lost == 1)
        monkeypatch.undo()
        pub.publish("a.b", 1)
        event = events.get(timeout=30)
        assert event is not None
        assert event.data == 1
        assert [loss.reason for loss in events.losses] == ["corrupt"]


# --- the recorder --------------------------------------------------------------------------------


def recorded(peer: Peer) -> int:
    rows = peer.stats()["recorder"]["streams"]
    return int(rows[0]["next"]) if rows else 0


def test_a_recorder_that_fails_for_a_while_says_so_and_misses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        Peer("pub", streams=[Stream("a.**")]) as pub,
        Peer("rec", connect=pub.address, record="a.**", data_dir=tmp_path) as rec,
    ):
        pub.wait_for_subscribers("a.b", timeout=30)
        recorder = rec._open_node().recorder
        assert recorder is not None
        assert recorder.intake is not None
        monkeypatch.setattr(recorder.intake, "pump", fail)
        recorder.intake.wake()
        wait_until(lambda: "MemoryError" in (rec.stats()["problem"] or ""))
        assert "MemoryError" in rec.stats()["recorder"]["problem"]
        pub.publish_many("a.b", list(range(500)))
        monkeypatch.undo()
        wait_until(lambda: recorded(rec) == 500)
        wait_until(lambda: rec.stats()["problem"] is None)
        assert rec.stats()["recorder"]["problem"] is None


def test_a_recorder_that_ends_says_so_and_nobody_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stream = Stream("a.**", buffer_bytes="64KiB", window_bytes="64KiB")
    with (
        Peer("pub", streams=[stream]) as pub,
        Peer("rec", connect=pub.address, record="a.**", data_dir=tmp_path) as rec,
    ):
        pub.wait_for_subscribers("a.b", timeout=30)
        recorder = rec._open_node().recorder
        assert recorder is not None
        assert recorder.intake is not None
        monkeypatch.setattr(recorder, "_write_ready", die)
        pub.publish("a.b", 1)
        ended = "the recorder of rec ended by an error: SystemExit"
        wait_until(lambda: (rec.stats()["recorder"]["problem"] or "").startswith(ended))
        assert rec.stats()["problem"].startswith(ended)
        pub.publish_many("a.b", [b"x" * 1000] * 1000, timeout=30)  # which would wait for it
        pub.flush(30)
        with pytest.raises(WaitTimeout):
            pub.wait_for_subscribers("a.b", timeout=0.01)
    assert ended in caplog.text
