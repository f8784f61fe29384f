"""A recorder that lies, beside honest peers: order, once-ness and loss reports stay true."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from meshmsg import Peer, Security, Stream, Subscription, Tuning
from tests.scenarios.security.liars import FAR, LIES, TOPIC, Liar
from tests.support.remote import RemotePeer
from tests.support.waiting import wait_until

WAIT_S = 60.0
#: What is missing is given up soon, so that a false loss would be seen soon.
HASTY = Tuning(repair_deadline_s=0.2)


@dataclass
class Mesh:
    """An honest publisher, recorder and subscriber, and a recorder that lies."""

    pub: Peer
    rec: Peer
    sub: Peer
    liar: Liar
    events: Subscription
    published: int = 0

    def publish(self, count: int) -> None:
        first = self.published
        self.published += count
        self.pub.publish_many(TOPIC, [b"%0200d" % n for n in range(first, self.published)])

    def check(self) -> None:
        """All that was published came, once and in order, to who reads and who records it."""
        found: list[int] = []
        while len(found) < self.published - self.taken:
            some = self.events.get_many(1000, timeout=WAIT_S)
            assert some, f"{len(found)} came: {self.events.losses} {self.events.stats()}"
            found += [int(event.payload) for event in some]
        assert found == list(range(self.taken, self.published))
        self.taken = self.published
        wait_until(lambda: self.recorded["next"] >= self.published, WAIT_S, f"{self.recorded}")
        assert (self.recorded["next"], self.recorded["lost"]) == (self.published, 0)
        assert self.recorded["events"] == self.published
        assert self.events.losses == []

    def check_silence(self) -> None:
        """Nothing comes, and nothing is given up, for longer than that takes."""
        assert self.events.get(timeout=1.0) is None
        assert self.events.losses == []

    @property
    def recorded(self) -> dict[str, Any]:
        streams = self.rec.stats()["recorder"]["streams"]
        return dict(streams[0]) if streams else {"next": 0, "lost": 0, "events": 0}

    taken: int = 0


@contextlib.contextmanager
def mesh(
    tmp_path: Path,
    secured: Any = lambda name: None,
    tuning: Tuning = HASTY,
    **stream: Any,
) -> Iterator[Mesh]:
    names = ("pub", "liar", "rec", "sub")
    security: dict[str, Security | None] = {name: secured(name) for name in names}
    if stream:
        stream["overflow"] = "drop_oldest"
    with (
        Peer("pub", streams=[Stream("a.**", **stream)], security=security["pub"]) as pub,
        Peer(
            "liar",
            record="a.**",
            data_dir=tmp_path / "liar",
            connect=pub.address,
            security=security["liar"],
        ) as liar,
    ):
        pub.wait_for_subscribers(TOPIC, timeout=WAIT_S)
        with (
            Peer(
                "rec",
                record="a.**",
                data_dir=tmp_path / "rec",
                connect=[pub.address, liar.address],
                tuning=HASTY,
                security=security["rec"],
            ) as rec,
            Peer(
                "sub",
                connect=[pub.address, liar.address, rec.address],
                tuning=tuning,
                security=security["sub"],
            ) as sub,
        ):
            pub.wait_for_subscribers(TOPIC, count=2, timeout=WAIT_S)
            sub.wait_for_peers(3, timeout=WAIT_S)
            pub.publish(TOPIC, b"0")
            found = Liar(liar)
            wait_until(lambda: found.place[1] == 1, WAIT_S)
            with sub.subscribe("a.**", start="earliest") as events:
                pub.wait_for_subscribers(TOPIC, count=3, timeout=WAIT_S)
                yield Mesh(pub, rec, sub, found, events, published=1)


@pytest.mark.parametrize("kind", LIES)
def test_what_a_recorder_says_of_a_stream_does_not_count_while_its_publisher_is_there(
    kind: str, tmp_path: Path
) -> None:
    with mesh(tmp_path) as all_:
        all_.check()
        for victim in (all_.events._intake, all_.rec._open_node().recorder.intake):  # type: ignore[union-attr]
            for _ in range(3):
                LIES[kind](all_.liar, victim.sub)
        all_.publish(20)
        all_.check()
        all_.liar.lie(kind, all_.events)
        all_.check_silence()
        all_.publish(500)
        all_.check()
        assert all_.sub.ledger().reconciles
        assert "io_errors" not in all_.sub.stats()["counters"]


def test_listed_recorder_is_believed_no_more_than_others(tmp_path: Path, keys: Any) -> None:
    with mesh(tmp_path, keys.peer) as all_:
        all_.check()
        for kind in LIES:
            all_.liar.lie(kind, all_.events)
            all_.publish(20)
            all_.check()
        all_.check_silence()
        all_.publish(500)
        all_.check()
        assert all_.sub.ledger().reconciles


@pytest.mark.parametrize("answers", [True, False], ids=["refuses", "is silent"])
def test_late_subscriber_gets_all_of_the_history_past_a_recorder_that_lies(
    tmp_path: Path, answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says that there were other epochs, and that each is longer than anybody can read."""
    with mesh(tmp_path) as all_:
        all_.publish(999)
        all_.check()
        lender, liar = all_.liar.lender, all_.liar
        epoch = liar.place[0]

        def admit(identity: bytes, sub: int, start: Any, again: bool) -> None:
            liar.admit(sub, epoch - 7, 0, FAR, over=True)
            liar.admit(sub, epoch + 7, 0, FAR, over=True)
            liar.admit(sub, epoch, 0, FAR, origin=FAR)

        def refuse(identity: bytes, message: Any) -> None:
            gone = {"gone": list(message.ranges)} if answers else {}
            liar.node.publisher.control.answer_nack(identity, message, [], gone)

        monkeypatch.setattr(lender, "_admit", admit)
        monkeypatch.setattr(lender, "_answer", refuse)
        with all_.sub.subscribe("a.**", start="earliest") as events:
            found: list[int] = []
            while len(found) < 1000:
                some = events.get_many(1000, timeout=WAIT_S)
                assert some, f"{events.losses} {events.stats()}"
                found += [int(event.payload) for event in some]
            assert found == list(range(1000))
            assert events.losses == []
            all_.publish(10)
            assert int(events.get(timeout=WAIT_S).payload) == 1000


def test_recorder_that_does_not_answer_keeps_nobody_from_the_honest_one(tmp_path: Path) -> None:
    """The publisher has let go of it, one recorder is silent, the other has it."""
    with mesh(tmp_path, tuning=Tuning(), buffer_bytes="64KiB") as all_:
        all_.liar.fall_silent()
        for _ in range(100):
            all_.publish(100)
            wait_until(lambda: all_.recorded["next"] == all_.published, WAIT_S)
        all_.check()
        with all_.sub.subscribe("a.**", start="earliest") as events:
            found = 0
            while found < all_.published:
                some = events.get_many(1000, timeout=WAIT_S)
                assert some, f"{found}: {events.losses} {events.stats()}"
                assert int(some[0].payload) == found
                found += len(some)
            assert events.losses == []
            assert events.stats()["counters"]["lender_nacks"] > 0


def taken(events: Subscription, count: int) -> list[tuple[int, bytes]]:
    """Position and payload of the next events."""
    found: list[tuple[int, bytes]] = []
    while len(found) < count:
        some = events.get_many(count - len(found), timeout=WAIT_S)
        assert some, f"{len(found)} of {count}: {events.losses} {events.stats()}"
        found += [(event.seq, bytes(event.payload)) for event in some]
    return found


def test_what_recorders_claim_of_a_stream_whose_publisher_is_gone_is_no_loss(
    tmp_path: Path,
) -> None:
    pub = RemotePeer("pub", streams=[{"topics": "a.**"}])
    with (
        Peer("liar", record="a.**", data_dir=tmp_path / "l", connect=pub.address) as peer,
        Peer("sub", connect=[pub.address, peer.address], tuning=HASTY) as sub,
        sub.subscribe("a.**", start="earliest") as events,
    ):
        pub.run("peer.wait_for_subscribers('a.b', count=2, timeout=60)")
        pub.run("for n in range(100): peer.publish('a.b', b'%d' % n)")
        liar = Liar(peer)
        wait_until(lambda: liar.place[1] == 100, WAIT_S)
        assert [seq for seq, _ in taken(events, 100)] == list(range(100))
        address, epoch = pub.address, liar.place[0]
        pub.kill()
        wait_until(lambda: sub.stats()["links"][0]["state"] != "up", WAIT_S)
        while not events.stats()["counters"].get("lender_nacks", 0):
            liar.tail(epoch, FAR)
            assert events.get(timeout=0.05) is None
        assert events.get(timeout=1.0) is None
        with RemotePeer("pub", streams=[{"topics": "a.**"}], bind=address) as again:
            again.run("peer.wait_for_subscribers('a.b', count=2, timeout=60)")
            again.run("for n in range(100): peer.publish('a.b', b'%d' % n)")
            assert [seq for seq, _ in taken(events, 100)] == list(range(100))
        assert events.losses == []


@pytest.mark.parametrize("kind", ["later epoch", "events to come", "start"])
def test_publisher_that_is_back_is_right_about_what_recorders_made_up_meanwhile(
    tmp_path: Path, kind: str
) -> None:
    """Every event of the publisher's comes, and none of them twice, whatever came in between."""
    tuning = Tuning(repair_deadline_s=0.2, peer_timeout_s=0.5, ping_interval_s=0.1)
    with (
        RemotePeer("pub", streams=[{"topics": "a.**"}]) as pub,
        Peer("liar", record="a.**", data_dir=tmp_path / "l", connect=pub.address) as peer,
        Peer("sub", connect=[pub.address, peer.address], tuning=tuning) as sub,
        contextlib.ExitStack() as stack,
    ):
        pub.run("peer.wait_for_subscribers('a.b', timeout=60)")
        pub.run("for n in range(100): peer.publish('a.b', b'%d' % n)")
        liar = Liar(peer)
        wait_until(lambda: liar.place[1] == 100, WAIT_S)
        epoch = liar.place[0]
        events = stack.enter_context(sub.subscribe("a.**", start="earliest"))
        assert [seq for seq, _ in taken(events, 100)] == list(range(100))
        pub.stop()
        wait_until(lambda: sub.stats()["links"][0]["state"] != "up", WAIT_S)
        if kind == "later epoch":
            while epoch_of(events) == epoch:
                liar.admit(events._intake.sub, epoch + 9, 0, 10)
                assert events.get(timeout=0.05) is None
        elif kind == "events to come":
            while (first := events.get(timeout=0.05)) is None:
                liar.tail(epoch, 150)
                liar.invent(events._intake.sub, 0)
            assert (first.seq, first.payload) == (100, b"invented")
            assert taken(events, 49)[-1] == (149, b"invented")
        else:
            liar.lender._admit = lambda identity, sub, start, again: liar.admit(  # type: ignore[method-assign]
                sub, epoch, FAR, FAR
            )
            events = stack.enter_context(sub.subscribe("a.**", start="live"))
            wait_until(lambda: epoch_of(events) == epoch, WAIT_S)
        pub.go_on()
        wait_until(lambda: sub.stats()["links"][0]["state"] == "up", WAIT_S)
        if kind != "start":  # the publisher's answer to the new subscription is in
            wait_until(
                lambda: events.get(timeout=0.01) is None and events._intake.counters["disowned"],
                WAIT_S,
            )
        subscribers = 3 if kind == "start" else 2
        pub.run("peer.wait_for_subscribers('a.b', count=count, timeout=60)", count=subscribers)
        pub.run("for n in range(100, 200): peer.publish('a.b', b'%d' % n)")
        assert taken(events, 100) == [(n, b"%d" % n) for n in range(100, 200)]
        assert events.losses == []
        assert sub.ledger().reconciles


def epoch_of(events: Subscription) -> int:
    sources = events.stats()["sources"]
    return int(sources[0]["epoch"]) if sources else 0


def test_streams_under_the_name_of_another_peer_are_nobodys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who comes first and calls them its own does not lock out whose they are."""
    with Peer("liar", streams=[Stream("a.**")]) as peer:
        publisher = peer._open_node().publisher
        claimed = [structs.replace(one, name="shop/a.**") for one in publisher.infos()]
        monkeypatch.setattr(publisher, "infos", lambda: claimed)
        with (
            Peer("sub", connect=peer.address) as sub,
            sub.subscribe("a.**") as events,
        ):
            wait_until(lambda: sub.stats()["links"][0]["state"] == "up", WAIT_S)
            assert sub.stats()["counters"]["not_permitted"] == 1
            with Peer("shop", streams=[Stream("a.**")], connect=sub.address) as shop:
                shop.wait_for_subscribers("a.b", timeout=WAIT_S)
                shop.publish("a.b", b"mine")
                event = events.get(WAIT_S)
                assert event is not None
                assert (event.position.stream, event.payload) == ("shop/a.**", b"mine")
