"""Replay from the publisher's log: who was away, or came late, gets all of it and then goes on."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from meshmsg import Event, LogError, Loss, Multicast, Peer, Record, Stream, Subscription, Tuning
from meshmsg._receive.incoming_stream import Said
from meshmsg._wire.control import Subscribed
from meshmsg.recovery.log.folder import LogFolder
from meshmsg.recovery.log.reader import LogReader
from tests.support.ports import free_port
from tests.support.remote import RemotePeer
from tests.support.waiting import wait_until

TRANSPORTS = {"zmq": None, "multicast": Multicast("239.255.7.10:30921")}
SMALL = {"buffer_bytes": "64KiB"}


def durable(**more: Any) -> Stream:
    return Stream("a.**", durability="log", **more)


def taken(events: Subscription, count: int, timeout: float = 30.0) -> list[Event]:
    got: list[Event] = []
    while len(got) < count:
        some = events.get_many(100_000, timeout=timeout)
        assert some, f"{len(got)} of {count} came"
        got += some
    return got


def command(*words: str) -> subprocess.CompletedProcess[str]:
    """`meshmsg`, as users have it."""
    call = [sys.executable, "-m", "meshmsg", *words]
    return subprocess.run(call, capture_output=True, text=True, timeout=60, check=False)


def fill(data_dir: Path, lives: int, count: int, **more: Any) -> None:
    """Lives of a publisher, one after the other, with events that say which and what number."""
    for life in range(lives):
        with Peer("pub", streams=[durable(**more)], data_dir=data_dir) as pub:
            pub.publish_many("a.b", [[life, n] for n in range(count)])


@pytest.mark.parametrize("start", ["earliest", 0.0, "last:1500"])
@pytest.mark.parametrize("gone", [0, 2])
def test_an_epoch_whose_files_are_missing_is_reported_at_either_end(
    tmp_path: Path, gone: int, start: str | float
) -> None:
    fill(tmp_path, 3, 500)
    (folder,) = tmp_path.glob("pub*")
    epochs = sorted({int(path.name.partition("-")[0]) for path in folder.glob("*.seg")})
    for path in folder.glob(f"{epochs[gone]:019d}-*"):
        path.unlink()
    assert command("log", "verify", str(tmp_path)).returncode == 1
    assert command("log", "cat", str(tmp_path)).returncode == 1
    with (
        Peer("pub", streams=[durable()], data_dir=tmp_path) as pub,
        Peer("sub", connect=pub.address) as sub,
        sub.subscribe("a.**", start=start) as events,
    ):
        got = taken(events, 1000)
        pub.publish("a.b", "live")
        assert taken(events, 1)[0].data == "live"
        assert [event.data[0] for event in got[::500]] == [n for n in range(3) if n != gone]
        assert events.losses == [Loss("pub/a.**", epochs[gone], 0, 500, "corrupt")]


def test_a_recorder_lends_what_it_has_and_says_what_files_are_missing(tmp_path: Path) -> None:
    count = 500
    record = Record("a.**", segment_bytes="64KiB")
    with (
        Peer("pub", streams=[Stream("a.**")]) as pub,
        Peer("rec", connect=pub.address, record=record, data_dir=tmp_path) as rec,
    ):
        pub.wait_for_subscribers("a.b", timeout=30)
        for n in range(count):
            pub.publish("a.b", [n, bytes(1000)])
        pub.flush(30)
        wait_until(lambda: rec.stats()["recorder"]["streams"][0]["next"] == count)
    (folder,) = tmp_path.glob("pub*")
    first, *_ = sorted(folder.glob("*.seg"))
    first.unlink()
    with (
        Peer("rec", record=record, data_dir=tmp_path) as rec,
        Peer("sub", connect=rec.address) as sub,
        sub.subscribe("a.**", start="earliest") as events,
    ):
        event = events.get(30)
        assert event is not None
        start = event.seq
        assert start > 0
        assert [(loss.first, loss.stop, loss.reason) for loss in events.losses] == [
            (0, start, "corrupt")
        ]
        got = [event.data[0], *(one.data[0] for one in taken(events, count - start - 1))]
        assert got == list(range(start, count))


@pytest.mark.parametrize("transport", list(TRANSPORTS))
def test_late_subscriber_gets_all_epochs_then_live(tmp_path: Path, transport: str) -> None:
    more = {"transport": TRANSPORTS[transport]}
    fill(tmp_path, 3, 500, **more)
    with Peer("pub", streams=[durable(**more)], data_dir=tmp_path) as pub:
        pub.publish_many("a.b", [[3, n] for n in range(500)])
        with (
            Peer("sub", connect=pub.address) as sub,
            sub.subscribe("a.**", start="earliest") as events,
        ):
            got = taken(events, 2000)
            assert [event.data for event in got] == [[e, n] for e in range(4) for n in range(500)]
            pub.publish("a.b", "live")
            (live,) = taken(events, 1)
            assert (live.data, live.position.seq) == ("live", 500)
            epochs = [event.position.epoch for event in got[::500]]
            assert epochs == sorted(set(epochs))
            assert events.losses == []
            assert pub.ledger().reconciles
            assert sub.ledger().reconciles


def test_starts_reach_into_the_log(tmp_path: Path) -> None:
    fill(tmp_path, 2, 100)
    between_s = time.time()
    fill(tmp_path, 1, 100)
    with (
        Peer("pub", streams=[durable()], data_dir=tmp_path) as pub,
        Peer("sub", connect=pub.address) as sub,
    ):
        pub.publish_many("a.b", [[3, n] for n in range(10)])
        with sub.subscribe("a.**", start="last:30") as events:
            wanted = [[0, n] for n in range(80, 100)] + [[3, n] for n in range(10)]
            got = taken(events, 30)
            assert [event.data for event in got] == wanted
        with sub.subscribe("a.**", start=between_s) as events:
            assert [e.data for e in taken(events, 110)][:2] == [[0, 0], [0, 1]]
        with sub.subscribe("a.**", start=got[5].position) as events:
            assert [e.data for e in taken(events, 25)] == wanted[5:]
        with sub.subscribe("a.**", start="live") as events:
            events.wait_for_publishers(timeout=30)
            pub.publish("a.b", "live")
            assert [event.data for event in taken(events, 1)] == ["live"]


def test_what_left_the_memory_comes_from_the_log(tmp_path: Path) -> None:
    stream = durable(overflow="drop_oldest", **SMALL)
    with Peer("pub", streams=[stream], data_dir=tmp_path) as pub:
        pub.publish_many("a.b", [b"%06d" % n + bytes(500) for n in range(10_000)])
        assert pub.stats()["streams"]["a.**"]["first_available"] > 5000
        with (
            Peer("sub", connect=pub.address) as sub,
            sub.subscribe("a.**", start="earliest") as events,
        ):
            assert [int(e.data[:6]) for e in taken(events, 10_000)] == list(range(10_000))
            assert events.losses == []


@pytest.mark.parametrize("transport", list(TRANSPORTS))
def test_connected_subscriber_misses_nothing_of_a_killed_publisher(
    tmp_path: Path, transport: str
) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    group = {"multicast": "239.255.7.10:30923"}.get(transport)
    streams: list[dict[str, Any]] = [{"topics": "a.**", "durability": "log"}]
    if group is not None:
        streams[0]["transport"] = {"group": group}
    arguments: dict[str, Any] = {"bind": address, "data_dir": str(tmp_path), "streams": streams}
    with Peer("sub", connect=address) as sub, sub.subscribe("a.**") as events:
        wanted = []
        for life in range(3):
            pub = RemotePeer("pub", **arguments)
            if life == 0:
                pub.run("peer.wait_for_subscribers('a.b', 1, 30)")
            if group is None:  # what is published is neither sent nor sent again
                pub.run(
                    "peer._open_node().publisher._send_frame = lambda outlet, frame, began=0: None"
                )
                pub.run(
                    "peer._open_node().publisher.subscribers.on_nack = lambda link, message: None"
                )
            pub.run(f"for n in range(100): peer.publish('a.b', [{life}, n])")
            wanted += [[life, n] for n in range(100)]
            pub.kill()
        with RemotePeer("pub", **arguments) as pub:
            pub.run("peer.publish('a.b', 'alive')")
            got = taken(events, 301)
            assert [event.data for event in got] == [*wanted, "alive"]
            assert events.losses == []
            assert sub.ledger().reconciles


def test_subscriber_that_was_not_told_is_not_counted_on(tmp_path: Path) -> None:
    """A publisher that died before its answer went out left one behind that started anew."""
    address = f"tcp://127.0.0.1:{free_port()}"
    streams = [{"topics": "a.**", "durability": "log"}]
    with RemotePeer("pub", bind=address, data_dir=str(tmp_path), streams=streams) as pub:
        pub.run("publisher = peer._open_node().publisher; control = publisher.control")
        pub.run("send = control.send")
        pub.run("control.send = lambda to, parts: b'subscribed' in parts[0] or send(to, parts)")
        with Peer("sub", connect=address) as sub, sub.subscribe("a.**") as events:
            admitted = "any('pub/a.**' in s.admitted for s in publisher.subscribers.subs.values())"
            wait_until(lambda: pub.eval(admitted))
            with pytest.raises(AssertionError, match="WaitTimeout"):
                pub.run("peer.wait_for_subscribers('a.b', 1, 0.3)")
            pub.run("control.send = send")
            with sub.subscribe("a.**") as other:
                pub.run("peer.wait_for_subscribers('a.b', 1, 30)")
                pub.run("peer.publish('a.b', 1)")
                assert [event.data for event in taken(other, 1)] == [1]
            assert events.get(timeout=0) is None
            pub.kill()  # it would wait for the one that was not told


def test_what_a_closed_publisher_could_not_hand_over_is_not_lost(tmp_path: Path) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    with Peer("sub", connect=address) as sub, sub.subscribe("a.**") as events:
        with Peer("pub", bind=address, streams=[durable()], data_dir=tmp_path) as pub:
            pub.wait_for_subscribers("a.b", count=1, timeout=30)
            publisher = pub._open_node().publisher
            publisher._send_frame = lambda outlet, frame, began=0: None  # type: ignore[method-assign]
            publisher.subscribers.on_nack = lambda link, message: None  # type: ignore[method-assign]
            pub.publish_many("a.b", list(range(100)))
            with pytest.warns(RuntimeWarning, match="closed before"):
                pub.close(timeout=0.3)
        assert events.get(timeout=0.5) is None
        with Peer("pub", bind=address, streams=[durable()], data_dir=tmp_path):
            assert [event.data for event in taken(events, 100)] == list(range(100))
        assert events.losses == []


def test_what_retention_removed_is_lost_with_its_exact_range(tmp_path: Path) -> None:
    stream = durable(segment_bytes="64KiB", retention="200kB", overflow="drop_oldest", **SMALL)
    with Peer("pub", streams=[stream], data_dir=tmp_path) as pub:
        first = pub.publish("a.b", bytes(1000))
        for _ in range(1000):
            pub.publish("a.b", bytes(1000))
        wait_until(lambda: len(list(tmp_path.glob("*/*.seg"))) <= 4)
        with Peer("sub", connect=pub.address) as sub:
            with sub.subscribe("a.**", start=first) as events:
                got = taken(events, 1)
                kept = got[0].position.seq
                assert 700 < kept < 1000
                got += taken(events, 1001 - kept - len(got)) if 1001 - kept > len(got) else []
                assert [event.position.seq for event in got] == list(range(kept, 1001))
                ((lo, hi, reason),) = [(x.first, x.stop, x.reason) for x in events.losses]
                assert (lo, hi, reason) == (0, kept, "expired")
            with sub.subscribe("a.**", start="earliest") as events:
                assert taken(events, 1)[0].position.seq >= kept
                assert events.losses == []


def test_retention_holds_while_events_are_published_and_read(tmp_path: Path) -> None:
    """Whoever is too slow for it gets losses, `expired`, that lie exactly between what it gets."""
    kept, segment = 1_000_000, 100_000
    stream = durable(
        segment_bytes=segment, retention=f"{kept}B", overflow="drop_oldest", buffer_bytes="256KiB"
    )
    folder = LogFolder.of(str(tmp_path), "pub/a.**")
    largest = 0
    with (
        Peer("pub", streams=[stream], data_dir=tmp_path) as pub,
        Peer("sub", connect=pub.address, tuning=Tuning(inbox_bytes_max=100_000)) as sub,
    ):
        first = pub.publish("a.b", bytes(1000))
        pub.publish_many("a.b", [bytes(1000)] * 3000)
        wait_until(lambda: folder.segments()[0].first > 0)
        with sub.subscribe("a.**", start=first) as events:
            next_ = told = 0

            def check() -> None:
                nonlocal next_, told
                event = events.get(timeout=60)
                assert event is not None
                for loss in events.losses[told:]:
                    told += 1
                    assert (loss.first, loss.reason) == (next_, "expired")
                    next_ = loss.stop
                assert event.position.seq == next_
                next_ += 1

            check()
            for _ in range(200):
                pub.publish_many("a.b", [bytes(1000)] * 100)
                largest = max(largest, sum(folder.sizes().values()))
                check()
            while next_ < 23_001:
                check()
            assert events.get(timeout=0) is None
            assert told
        assert sub.ledger().reconciles
    assert largest < 3 * kept + 2 * 1024 * 1024 + 2 * segment


def test_damage_in_the_log_is_lost_with_its_exact_range(tmp_path: Path) -> None:
    fill(tmp_path, 1, 0)
    with Peer("pub", streams=[durable()], data_dir=tmp_path) as pub:
        for n in range(100):
            pub.publish("a.b", b"%d:" % n + b"\x55" * 40_000)  # too large to share a frame
    newest = max(tmp_path.glob("*/*.seg"))
    data = bytearray(newest.read_bytes())
    data[data.index(b"50:\x55") + 20] ^= 1
    newest.write_bytes(data)
    with (
        Peer("pub", streams=[durable()], data_dir=tmp_path) as pub,
        Peer("sub", connect=pub.address) as sub,
        sub.subscribe("a.**", start="earliest") as events,
    ):
        assert len(taken(events, 99)) == 99
        assert [(x.first, x.stop, x.reason) for x in events.losses] == [(50, 51, "corrupt")]


def test_answer_of_an_earlier_life_does_not_bring_its_epoch_back(tmp_path: Path) -> None:
    """After a kill it may be read behind that of the next life: an old epoch came again."""
    fill(tmp_path, 2, 100)
    with (
        Peer("pub", streams=[durable()], data_dir=tmp_path) as pub,
        Peer("sub", connect=pub.address) as sub,
        sub.subscribe("a.**", start="earliest") as events,
    ):
        pub.publish("a.b", "last")
        got = taken(events, 201)
        intake, old = events._intake, got[0].position.epoch
        for over in (False, True):
            said = Subscribed(intake.sub, "pub/a.**", old, 0, 0, 100, 0, 0, over)
            intake.notify(Said(intake.incoming.by_name["pub/a.**"].link, "pub/a.**", said))
        wait_until(lambda: events.get(timeout=0) or intake.counters["stale_admissions"] == 2)
        began = time.monotonic()
        while time.monotonic() - began < 0.6:  # longer than an epoch that is over is waited for
            assert events.get(timeout=0.1) is None
        pub.publish("a.b", "goes on")
        assert [event.data for event in taken(events, 1)] == ["goes on"]
        assert sub.ledger().reconciles


def test_log_that_answers_late_loses_nothing(tmp_path: Path) -> None:
    """With ten consumers at once on a busy machine, millions of events were given up as lost."""
    fill(tmp_path, 1, 100)
    tuning = Tuning(repair_deadline_s=0.2, repair_retry_s=0.05)
    with (
        Peer("pub", streams=[durable()], data_dir=tmp_path) as pub,
        Peer("sub", connect=pub.address, tuning=tuning) as sub,
    ):
        publisher = pub._open_node().publisher
        asked: list[Any] = []
        answer = publisher.subscribers.on_nack
        publisher.subscribers.on_nack = lambda link, message: asked.append(message)  # type: ignore[method-assign]
        with sub.subscribe("a.**", start="earliest") as events:
            began = time.monotonic()
            while len(asked) < 5 or time.monotonic() - began < 1:
                assert events.get(timeout=0.05) is None
            assert events.losses == []
            publisher.subscribers.on_nack = answer  # type: ignore[method-assign]
            assert len(taken(events, 100)) == 100
            assert events.losses == []


def test_start_that_cannot_be_read_now_is_found_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, 2, 100)
    broken = threading.Event()
    broken.set()
    look = LogReader.refresh

    def refresh(reader: LogReader) -> bool:
        if broken.is_set():
            raise LogError(reader.folder.path, "may not be read")
        return look(reader)

    with (
        Peer("pub", streams=[durable()], data_dir=tmp_path) as pub,
        Peer("sub", connect=pub.address) as sub,
    ):
        monkeypatch.setattr(LogReader, "refresh", refresh)
        counters = pub._open_node().publisher.counters
        with sub.subscribe("a.**", start="earliest") as events:
            wait_until(lambda: counters["admission_retries"] >= 2)
            assert events.get(timeout=0) is None
            broken.clear()
            got = taken(events, 200)
            assert [event.data for event in got] == [[e, n] for e in (0, 1) for n in range(100)]
        broken.set()
        with sub.subscribe("a.**", start="earliest"):
            before = counters["admission_retries"]
            wait_until(lambda: counters["admission_retries"] > before)
        broken.clear()
        again = pub._open_node().publisher.durable._again
        wait_until(lambda: not again)  # nobody is left to be admitted
        assert pub._open_node().publisher.subscribers.subs == {}


@pytest.mark.parametrize("overflow", ["block", "buffer"])
def test_replay_does_not_hold_up_publishing(tmp_path: Path, overflow: str) -> None:
    stream = durable(overflow=overflow, window_bytes="64KiB", buffer_bytes="256KiB")
    with Peer("pub", streams=[stream], data_dir=tmp_path) as pub:
        pub.publish_many("a.b", [bytes(1000)] * 2000)
        tuning = Tuning(inbox_bytes_max=100_000)
        with (
            Peer("sub", connect=pub.address, tuning=tuning) as sub,
            sub.subscribe("a.**", start="earliest") as events,
        ):
            pub.wait_for_subscribers("a.b", count=1, timeout=30)
            pub.publish_many("a.b", [bytes(1000)] * 2000, timeout=30)  # nobody reads
            assert len(taken(events, 4000)) == 4000
            assert events.losses == []


def offline_consumer(data_dir: Path, count: int) -> None:
    """Away for so many events; back while publishing goes on, and then at the live edge."""
    with Peer("pub", streams=[durable()], data_dir=data_dir) as pub:
        numbers = iter(range(1 << 60))
        for _ in range(count // 10_000):
            pub.publish_many("a.b", [b"%d" % next(numbers) for _ in range(10_000)])
        stopped = threading.Event()

        def go_on() -> None:
            while not stopped.wait(0.001):
                pub.publish_many("a.b", [b"%d" % next(numbers) for _ in range(20)])

        thread = threading.Thread(target=go_on)
        thread.start()
        try:
            with (
                Peer("sub", connect=pub.address) as sub,
                sub.subscribe("a.**", start="earliest") as events,
            ):
                seen = 0
                ending = False
                for batch in events.batches(timeout=30):
                    payloads = [bytes(payload) for payload in batch.payloads]
                    wanted = [b"%d" % n for n in range(seen, seen + len(payloads))]
                    assert payloads == wanted
                    seen += len(payloads)
                    if seen > count + 1000 and not ending:
                        ending = True
                        stopped.set()
                        thread.join()
                    if ending and seen == pub.stats()["streams"]["a.**"]["next"]:
                        break
                assert events.losses == []
                assert sub.ledger().reconciles
        finally:
            stopped.set()
            thread.join()


def test_offline_consumer_comes_back_to_the_live_edge(tmp_path: Path) -> None:
    offline_consumer(tmp_path, 100_000)


@pytest.mark.slow
def test_offline_consumer_of_a_million_events(tmp_path: Path) -> None:
    offline_consumer(tmp_path, 1_000_000)
