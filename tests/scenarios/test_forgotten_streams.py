"""Streams of publishers that are gone are forgotten, so that there is room for others.

What comes back goes on where it was left: nothing is missed, and nothing comes twice.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meshmsg import Peer, Stream, Tuning
from meshmsg._receive.incoming_stream import Lend, Sweep, TailHint
from meshmsg._receive.repair_sources import LENDERS_MAX
from meshmsg.recovery.stream import places
from tests.support.pairs import pair
from tests.support.ports import free_port
from tests.support.waiting import wait_until

#: As quick as peers can be without taking a busy machine for a dead peer.
QUICK = {"ping_interval_s": 0.05, "peer_timeout_s": 5.0}
FORGETFUL = Tuning(**QUICK, stream_forget_s=0.3)


def read(events: Any, count: int) -> list[Any]:
    found: list[Any] = []
    while len(found) < count:
        event = events.get(timeout=30)
        assert event is not None, f"{len(found)} of {count} came: {events.stats()}"
        found.append(event.data)
        if events.group:
            events.ack(event)
    return found


def counter(events: Any, name: str) -> int:
    return int(events.stats()["counters"].get(name, 0))


def wait_forgotten(events: Any, count: int = 1) -> None:
    wait_until(lambda: counter(events, "streams_forgotten") >= count, what=str(events.stats()))


@contextlib.contextmanager
def proxied(peer: Peer, tcp_proxy: Any) -> Iterator[tuple[Any, Any]]:
    """Have both ports of a peer reached through what can be cut, by those who come now."""
    addresses = peer._open_node()._fanout.addresses
    with tcp_proxy(peer.address) as control, tcp_proxy(addresses[0][1]) as data:
        addresses[:] = [(control.address, data.address)]
        yield control, data


@contextlib.contextmanager
def recording(data_dir: Path, pub: Peer) -> Iterator[Peer]:
    with Peer("rec", record="x", data_dir=data_dir, connect=pub.address) as rec:
        pub.wait_for_subscribers("x", timeout=30)
        yield rec


def cut(proxies: tuple[Any, Any]) -> None:
    for proxy in proxies:
        proxy.down = True
        proxy.cut()


def mend(proxies: tuple[Any, Any]) -> None:
    for proxy in proxies:
        proxy.down = False


# --- room for others ---


@pytest.mark.parametrize("group", [None, "workers"])
def test_short_lived_publishers_are_heard_without_end(group: str | None) -> None:
    tuning = Tuning(**QUICK, stream_forget_s=0.3, streams_max=9)
    with (
        Peer("hub", tuning=Tuning(**QUICK)) as hub,
        Peer("sub", connect=hub.address, tuning=tuning) as sub,
        sub.subscribe("job.**", group=group) as events,
    ):
        hub.wait_for_subscribers("job.hub", timeout=30)
        hub.publish("job.hub", "here")
        assert read(events, 1) == ["here"]
        hub._open_node()._fanout.prefixes.each = 20  # else it would take long until it matters
        for n in range(30):
            with Peer(f"job-{n}", connect=sub.address) as job:
                job.wait_for_subscribers(f"job.{n}", timeout=30)
                job.publish(f"job.{n}", n)
                assert read(events, 1) == [n]
        wait_forgotten(events, 30)
        wait_until(lambda: len(sub.stats()["links"]) == 1)  # nobody is dialled for ever
        assert [s["stream"] for s in events.stats()["sources"]] == ["hub/**"]
        assert hub._open_node()._fanout.counters["prefixes_full"] == 0
        hub.publish("job.hub", "still here")
        assert read(events, 1) == ["still here"]
        assert events.losses == []


def test_stream_that_there_was_no_room_for_is_taken_when_there_is() -> None:
    tuning = Tuning(**QUICK, stream_forget_s=0.3, streams_max=3)  # of others than named, two
    with (
        Peer("sub", tuning=tuning) as sub,
        sub.subscribe("**") as events,
        Peer("third", connect=sub.address) as third,
    ):
        with contextlib.ExitStack() as others:
            for n in range(2):
                other = others.enter_context(Peer(f"other-{n}", connect=sub.address))
                other.wait_for_subscribers("x", timeout=30)
            third.publish("x", "unheard")
            wait_until(lambda: sub.stats()["counters"].get("streams_full", 0) > 0)
            third._open_node().call(third._open_node()._announce)  # what it has said already
        third.wait_for_subscribers("x", timeout=30)
        third.publish("x", "heard")
        assert read(events, 1) == ["heard"]


# --- what is not forgotten ---


@pytest.mark.parametrize("lives", [1, 2])
def test_what_is_not_read_yet_is_not_forgotten(lives: int) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    with (
        Peer("sub", connect=address, tuning=FORGETFUL) as sub,
        sub.subscribe("x") as events,
        sub.subscribe("x") as other,
    ):
        for life in range(lives):
            with Peer("pub", streams=[Stream("x")], bind=address) as pub:
                pub.wait_for_subscribers("x", count=2, timeout=30)
                if life == 0:
                    for n in range(0, 10, 5):
                        pub.publish_many("x", range(n, n + 5))
                    assert read(events, 3) == [0, 1, 2]
                    assert read(other, 10) == list(range(10))
        wait_forgotten(other)
        intake: Any = events._intake
        for n in range(3, 10):
            with intake.lock:
                intake._sweep(Sweep(0.0), time.monotonic())
            assert counter(events, "streams_forgotten") == 0
            assert read(events, 1) == [n]
        wait_forgotten(events)


def test_what_only_a_log_has_is_waited_for(tmp_path: Path) -> None:
    stream, address = Stream("x", durability="log"), f"tcp://127.0.0.1:{free_port()}"
    with (
        Peer("sub", connect=address, tuning=FORGETFUL) as sub,
        sub.subscribe("**") as events,
        sub.subscribe("**") as other,
    ):
        with Peer("pub", streams=[stream], data_dir=tmp_path, bind=address) as pub:
            pub.wait_for_subscribers("x", count=2, timeout=30)
            pub.publish("x", 0)
            assert read(events, 1) == read(other, 1) == [0]
            intake: Any = events._intake
            hear = intake.notify  # but for the publisher's word that there is no more
            intake.notify = lambda said: None if isinstance(said, TailHint) else hear(said)
            with intake.lock:  # it hears of more than comes
                source = intake.incoming.by_name["pub/x"]
                source.receiver.on_tail(3, now=0.0)
        wait_forgotten(other)
        assert counter(events, "streams_forgotten") == 0
        with Peer("pub", streams=[stream], data_dir=tmp_path, bind=address) as pub:
            pub.publish("x", 1)
            assert read(other, 1) == [1]


# --- coming back ---


@pytest.mark.parametrize("forget_s", [0.3, 600.0])
@pytest.mark.parametrize("durability", ["none", "log"])
@pytest.mark.parametrize("start", ["live", "earliest"])
def test_publisher_that_is_started_again_is_read_on(
    tmp_path: Path, durability: str, start: str, forget_s: float
) -> None:
    stream, address = Stream("x", durability=durability), f"tcp://127.0.0.1:{free_port()}"
    tuning = Tuning(**QUICK, stream_forget_s=forget_s)
    with Peer("sub", connect=address, tuning=tuning) as sub, sub.subscribe("x", start=start) as e:
        for life in range(4):
            with Peer("pub", streams=[stream], data_dir=tmp_path, bind=address) as pub:
                # Before anybody is connected: "live" alone would begin after it.
                pub.publish_many("x", [(life, n) for n in range(0 if life else 5, 10)])
                if not life:
                    pub.wait_for_subscribers("x", timeout=30)
                    pub.publish_many("x", [(life, n) for n in range(10, 20)])
                first = 10 if not life and start == "live" else 5 if not life else 0
                last = 10 if life else 20
                assert read(e, last - first) == [[life, n] for n in range(first, last)]
            if forget_s < 1:
                wait_forgotten(e, life + 1)
        assert e.get(timeout=0.1) is None
        assert e.losses == []
        assert counter(e, "streams_back") == (3 if forget_s < 1 else 0)


@pytest.mark.parametrize("forget_s", [0.3, 600.0])
def test_publisher_that_was_cut_off_is_read_on_where_it_was(
    tcp_proxy: Any, ledger: Any, forget_s: float
) -> None:
    tuning = Tuning(**QUICK, stream_forget_s=forget_s)
    with (
        Peer("pub", streams=[Stream("x")]) as pub,
        proxied(pub, tcp_proxy) as proxies,
        Peer("sub", connect=proxies[0].address, tuning=tuning) as sub,
        sub.subscribe("x") as events,
    ):
        pub.publish("x", "before")
        pub.wait_for_subscribers("x", timeout=30)
        for times in range(1, 4):
            pub.publish_many("x", range(10))
            assert read(events, 10) == list(range(10))
            cut(proxies)
            wait_until(lambda: sub.stats()["links"][0]["state"] == "dialling")
            pub.publish_many("x", range(10, 20))
            if forget_s < 1:
                wait_forgotten(events, times)
            mend(proxies)
            assert read(events, 10) == list(range(10, 20))
            wait_until(lambda: sub.stats()["links"][0]["state"] == "up")
        assert events.losses == []
        (row,) = [row for row in ledger(pub.address) if row["state"] == "live"]
        assert row["delivered"] == 60


def test_member_of_a_group_gets_all_of_the_next_start_of_a_publisher_it_had_forgotten() -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    with (
        Peer("sub", connect=address, tuning=FORGETFUL) as sub,
        sub.subscribe("x", group="workers") as events,
    ):
        for life in range(3):
            with Peer("pub", streams=[Stream("x")], bind=address) as pub:
                if not life:
                    pub.wait_for_subscribers("x", timeout=30)
                pub.publish_many("x", [(life, n) for n in range(10)])
                assert read(events, 10) == [[life, n] for n in range(10)]
                wait_until(lambda pub=pub: not pub.stats()["streams"]["x"]["groups"][0]["pending"])
            # The batch in hand keeps its stream: another one takes its place.
            with Peer("other", connect=sub.address) as other:
                other.wait_for_subscribers("x", timeout=30)
                other.publish("x", "other")
                assert read(events, 1) == ["other"]
            wait_forgotten(events, life + 1)


def test_commit_keeps_the_place_in_a_stream_that_is_forgotten(tmp_path: Path) -> None:
    stream, address = Stream("x", durability="log"), f"tcp://127.0.0.1:{free_port()}"
    options: dict[str, Any] = {"connect": address, "data_dir": tmp_path / "sub"}
    named: dict[str, Any] = {"start": "committed", "name": "audit"}
    with Peer("sub", **options, tuning=FORGETFUL) as sub, sub.subscribe("x", **named) as events:
        with Peer("pub", streams=[stream], data_dir=tmp_path / "pub", bind=address) as pub:
            pub.publish_many("x", range(10))
            assert read(events, 10) == list(range(10))
        wait_forgotten(events)
        events.commit()
    with (
        Peer("pub", streams=[stream], data_dir=tmp_path / "pub", bind=address) as pub,
        Peer("sub", **options) as sub,
        sub.subscribe("x", **named) as events,
    ):
        pub.publish("x", 10)
        assert read(events, 1) == [10]


def test_recorder_that_goes_on_brings_a_forgotten_stream_back(
    tmp_path: Path, tcp_proxy: Any
) -> None:
    with (
        Peer("pub", streams=[Stream("x")]) as pub,
        recording(tmp_path, pub) as rec,
        proxied(pub, tcp_proxy) as proxies,
        Peer("sub", connect=[proxies[0].address, rec.address], tuning=FORGETFUL) as sub,
        sub.subscribe("x") as events,
    ):
        pub.wait_for_subscribers("x", count=2, timeout=30)
        pub.publish_many("x", range(10))
        assert read(events, 10) == list(range(10))
        cut(proxies)
        wait_forgotten(events)  # though the recorder has it, and is there
        pub.publish_many("x", range(10, 20))
        assert read(events, 10) == list(range(10, 20))  # by the recorder
        wait_forgotten(events, 2)
        mend(proxies)
        wait_until(lambda: counter(events, "streams_back") == 2)
        pub.publish_many("x", range(20, 30))
        assert read(events, 10) == list(range(20, 30))
        assert events.losses == []
        (source,) = events._intake.incoming.by_name.values()  # type: ignore[union-attr]
        assert source.link.peer == "pub"
        assert [link.peer for link in source.lenders] == ["rec"]  # who can be asked again


def test_recorder_has_what_a_publisher_that_comes_back_has_lost(
    tmp_path: Path, tcp_proxy: Any
) -> None:
    stream = Stream("x", overflow="drop_oldest", buffer_bytes="64KiB")
    with (
        Peer("pub", streams=[stream]) as pub,
        recording(tmp_path, pub) as rec,
        proxied(pub, tcp_proxy) as pub_proxies,
        proxied(rec, tcp_proxy) as rec_proxies,
        Peer(
            "sub", connect=[pub_proxies[0].address, rec_proxies[0].address], tuning=FORGETFUL
        ) as sub,
        sub.subscribe("x") as events,
    ):
        pub.wait_for_subscribers("x", count=2, timeout=30)
        pub.publish("x", b"first")
        assert read(events, 1) == [b"first"]
        wait_until(lambda: len(sub.stats()["links"]) == 2)
        cut(pub_proxies)
        cut(rec_proxies)
        wait_forgotten(events)
        for n in range(50):
            pub.publish_many("x", [b"%d " % (n * 100 + i) + bytes(100) for i in range(100)])
            wait_until(lambda n=n: rec.stats()["recorder"]["streams"][0]["next"] >= n * 100 + 101)
        mend(rec_proxies)
        wait_until(lambda: "up" in {link["state"] for link in sub.stats()["links"]})
        mend(pub_proxies)
        got = [int(data.split()[0]) for data in read(events, 5000)]
        assert got == list(range(5000))
        assert events.losses == []


def test_recorders_that_left_make_room_for_others() -> None:
    with pair(pattern="x", topic="x") as (_, _, events):
        intake: Any = events._intake
        info = intake.incoming.by_name["pub/x"].info
        with intake.lock:
            for _ in range(LENDERS_MAX + 1):
                recorder = SimpleNamespace(state="up", user=b"")
                intake.lending.on_lend(Lend(recorder, [info], frozenset()), time.monotonic())
                assert intake.incoming.by_name["pub/x"].lenders == [recorder]
                recorder.state = "left"


def test_only_so_many_places_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "PLACES_MAX", 2)
    with Peer("sub", tuning=FORGETFUL) as sub, sub.subscribe("x", start="earliest") as events:
        for n in range(4):
            with Peer(f"pub-{n}", streams=[Stream("x")], connect=sub.address) as pub:
                pub.publish("x", n)
                assert read(events, 1) == [n]
            wait_forgotten(events, n + 1)
        assert counter(events, "places_dropped") == 2
