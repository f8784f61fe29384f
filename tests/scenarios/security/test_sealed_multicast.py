"""Multicast with keys: what gets through, what does not, and what can be seen on the way."""

from __future__ import annotations

import itertools
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from meshmsg import ClosedError, ConfigError, Feed, Multicast, Peer, Security, Stream, Subscription
from meshmsg._wire.packet import HEAD, NACK, PacketRequest, packet_kind
from meshmsg.testing import lose_packets
from meshmsg.transports.udp.multicast import Datagram
from tests.support.captures import Capture, dissect
from tests.support.pairs import pair
from tests.support.tools import need
from tests.support.waiting import wait_until

WAIT_S = 60.0
_groups = itertools.count()


@pytest.fixture
def group() -> str:
    """A group and ports that no other test uses, nor one beside it: captures go by ports."""
    pid, number = os.getpid(), next(_groups) % 60
    port = 24_000 + 4 * (pid % 25 * 60 + number)
    return f"239.{128 + number}.{pid >> 8 & 255}.{pid & 255}:{port}"


def take(events: Subscription, count: int) -> list[Any]:
    """So many events, in the order in which they come."""
    got: list[Any] = []
    while len(got) < count:
        some = events.get_many(count - len(got), timeout=WAIT_S)
        assert some, f"{len(got)} of {count} events"
        got += [event.data for event in some]
    return got


def multicast(of: Peer | Subscription) -> dict[str, Any]:
    """The figures of the one stream that comes or goes by multicast."""
    stats = of.stats()
    if isinstance(of, Subscription):
        found: dict[str, Any] = stats["sources"][0]["multicast"]
        return found
    return next(iter(stats["streams"].values()))["multicast"]  # type: ignore[no-any-return]


REFUSALS = ("unsealed", "unknown_key", "forged", "replayed", "other_senders", "bad_packets")


def refused(of: Peer | Subscription) -> dict[str, int]:
    figures = multicast(of)
    return {name: figures[name] for name in REFUSALS if figures.get(name)}


def is_quiet(pub: Peer, events: Subscription) -> bool:
    """Whether all that was asked for has been heard, and sent again."""
    out, back = multicast(pub), multicast(events)
    answered = out.get("repairs", 0) + out.get("suppressed", 0)
    return bool(
        not back["missing"] and out["nacks"] == back["nacks"] and out["asked_packets"] == answered
    )


# What gets through ------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"parity": "4+1"}, {"second": True}])
def test_keys_change_under_way_and_nothing_is_lost(
    mesh_key: str, group: str, more: dict[str, Any]
) -> None:
    """To a subscriber with a connection and to one without, both losing packets."""
    if "second" in more:
        host, port = group.split(":")
        more = {"second": f"{host.replace('239.', '238.')}:{int(port) + 2}"}
    line = Multicast(group, **more)
    quick = Security(mesh_key=mesh_key, rotate_every="1s", rotate_overlap="1s")
    with ExitStack() as stack:
        enter = stack.enter_context
        stream = Stream("q.**", transport=line, overflow="block")
        pub = enter(Peer("pub", streams=[stream], security=quick))
        near = enter(Peer("near", connect=pub.address, security=Security(mesh_key=mesh_key)))
        far = enter(Peer("far", feeds=[Feed("pub", "q.**", line)], security=quick))
        readers = [enter(peer.subscribe("q.**")) for peer in (near, far)]
        pub.wait_for_subscribers("q.a", count=2, timeout=WAIT_S)
        for seed, peer in enumerate((near, far)):
            enter(lose_packets(peer, ratio=0.05, seed=seed))
        began, sent = multicast(pub)["generation"], 0

        def send() -> bool:
            nonlocal sent
            pub.publish_many("q.a", range(sent, sent + 2000))
            assert [take(events, 2000) for events in readers] == [
                list(range(sent, sent + 2000))
            ] * 2
            sent += 2000
            return bool(multicast(pub)["generation"] >= began + 2)

        wait_until(send, WAIT_S, "two changes of the key")
        send()
        assert [events.lost for events in readers] == [0, 0]
        assert all(multicast(events)["generation"] >= began + 2 for events in readers)
        assert [refused(events) for events in readers] == [{}] * 2
        assert set(refused(pub)) <= {"unknown_key"}  # reports that were long under way
        if "second" in more:
            assert all(
                line["again"] + line["first"] > 0
                for events in readers
                for line in multicast(events)["lines"]
            )


def test_mesh_key_is_changed_one_peer_after_the_other(mesh_key: str, group: str) -> None:
    old, new = mesh_key, mesh_key[::-1]
    stream = Stream("q.**", transport=Multicast(group))
    both = [Security(mesh_key=old, other_keys=(new,)), Security(mesh_key=new, other_keys=(old,))]
    with (
        Peer("pub", streams=[stream], security=both[0]) as pub,
        Peer("sub", connect=pub.address, security=both[1]) as sub,
        sub.subscribe("q.**") as events,
        lose_packets(sub, ratio=0.2, seed=1),
    ):
        pub.wait_for_subscribers("q.a", timeout=WAIT_S)
        pub.publish_many("q.a", range(5000))
        assert take(events, 5000) == list(range(5000))
        wait_until(lambda: multicast(pub)["receivers"] == 1, WAIT_S)
        assert multicast(pub)["nacks"] > 0
        assert (refused(pub), refused(events)) == ({}, {})


def test_publisher_that_comes_back_is_heard_again(mesh_key: str, group: str) -> None:
    security = Security(mesh_key=mesh_key)
    line = Multicast(group, receiver_timeout="200ms")
    stream = Stream("q.**", transport=line)
    with (
        Peer("far", feeds=[Feed("pub", "q.**", line)], security=security) as far,
        far.subscribe("q.**") as events,
    ):
        for n in range(2):
            with Peer("pub", streams=[stream], security=security) as pub:
                pub.wait_for_subscribers("q.a", timeout=WAIT_S)
                pub.publish("q.a", n)
                assert take(events, 1) == [n]


# Who has no key, or another ---------------------------------------------------------------------


def test_receiver_without_the_key_gets_nothing_and_is_told_why(
    mesh_key: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    line = Multicast(group, heartbeat_max="20ms")
    feed, stream = Feed("pub", "q.**", line), Stream("q.**", transport=line)
    other = Security(mesh_key=mesh_key[::-1])
    with (
        Peer("plain", feeds=[feed]) as plain,
        Peer("other", feeds=[feed], security=other) as wrong,
        plain.subscribe("q.**") as one,
        wrong.subscribe("q.**") as two,
        caplog.at_level(logging.WARNING, "meshmsg"),
        Peer("pub", streams=[stream], security=Security(mesh_key=mesh_key)) as pub,
    ):
        pub.publish_many("q.a", range(2000))
        for events, why, words in (
            (one, "sealed_packets", "give the peer its Security"),
            (two, "unknown_key", "sealed with a key that we do not have"),
        ):
            wait_until(lambda e=events, w=why: e.stats()["counters"].get(w, 0) > 20, WAIT_S)
            assert events.get(timeout=0) is None
            assert caplog.text.count(words) == 1
        assert multicast(pub)["receivers"] == 0  # neither is believed, nor says anything


def test_requests_and_reports_of_strangers_change_nothing(mesh_key: str, group: str) -> None:
    security = Security(mesh_key=mesh_key)
    stream = Stream("q.**", transport=Multicast(group, linger="1ms"), overflow="block")
    host, port = group.split(":")
    with (
        Peer("pub", streams=[stream], security=security) as pub,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ear,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as tx,
        Peer("sub", connect=pub.address, security=security) as sub,
        sub.subscribe("q.**") as events,
    ):
        ear.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        ear.bind((host, int(port) + 1))
        joined = socket.inet_aton(host) + socket.inet_aton("127.0.0.1")
        ear.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, joined)
        ear.settimeout(WAIT_S)
        for option, value in (
            (socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1")),
            (socket.IP_MULTICAST_TTL, 0),
        ):
            tx.setsockopt(socket.IPPROTO_IP, option, value)
        pub.wait_for_subscribers("q.a", timeout=WAIT_S)
        with lose_packets(sub, ratio=0.3, seed=1):
            pub.publish_many("q.a", range(5000))
            assert take(events, 5000) == list(range(5000))
        asked = ear.recv(65_535)  # a true request, recorded
        assert packet_kind(asked) == NACK
        _, _, _, _, wire_id, _, _ = HEAD.unpack_from(asked)
        plain = PacketRequest(NACK, wire_id, 1, 7, [(0, 50)]).encode()
        wait_until(lambda: is_quiet(pub, events), WAIT_S)
        before = multicast(pub)
        changed = asked[:-1] + bytes([asked[-1] ^ 1])
        foreign = asked[:16] + bytes(8) + asked[24:]
        for bad in (asked, asked, plain, changed, foreign, asked[:40], asked[:60], b"", b"?" * 99):
            tx.sendto(bad, (host, int(port) + 1))

        def all_counted() -> bool:
            figures = multicast(pub)
            grown = {name: figures.get(name, 0) - before.get(name, 0) for name in REFUSALS}
            return grown["replayed"] >= 3 and grown["unsealed"] == 1 and grown["bad_packets"] >= 1

        wait_until(all_counted, WAIT_S, "strange requests are counted")
        after = multicast(pub)
        for name in ("nacks", "asked_packets", "repairs", "receivers"):
            assert after[name] == before[name], name
        pub.publish("q.a", "end")
        assert take(events, 1) == ["end"]


@pytest.fixture
def tapped(mesh_key: str, group: str) -> Iterator[tuple[Peer, Subscription, list[Datagram]]]:
    """A publisher, a subscription, and what this received so far, as whoever listens records it."""
    security = Security(mesh_key=mesh_key)
    stream = Stream("q.**", transport=Multicast(group), overflow="block")
    with pair(
        stream, "q.**", topic="q.a", security=security, subscriber={"security": security}
    ) as (pub, sub, events):
        pub.publish("q.a", "first")
        assert take(events, 1) == ["first"]
        heard: list[Datagram] = []
        intake = next(iter(sub._open_node().intakes.values()))
        real = intake.reading.on_datagram

        def tap(line: Any, datagram: Datagram, now: float) -> None:
            heard.append(datagram)
            real(line, datagram, now)

        intake.reading.on_datagram = tap  # type: ignore[method-assign]
        pub.publish_many("q.a", range(2000))
        assert take(events, 2000) == list(range(2000))
        intake.reading.on_datagram = real  # type: ignore[method-assign]
        yield pub, events, heard


def test_recorded_and_changed_packets_are_dropped_and_provoke_nothing(
    tapped: tuple[Peer, Subscription, list[Datagram]],
) -> None:
    """Even with the sender's own address on them, which the network may keep nobody from using."""
    pub, events, heard = tapped
    intake = next(iter(events._node.intakes.values()))
    before = multicast(events)
    with intake.lock:
        line = next(iter(intake.reading.lines.values()))
        now = intake.driven_at
        for data, size, source in heard:
            intake.reading.on_datagram(line, Datagram(data, size, source), now)
            for at in (4, 20, 25, 29, 40, len(data) - 1):
                bad = bytearray(data)
                bad[at] ^= 0x41
                intake.reading.on_datagram(line, Datagram(bytes(bad), size, source), now)
            intake.reading.on_datagram(line, Datagram(data[: len(data) // 2], size, source), now)
            intake.reading.on_datagram(line, Datagram(b"MMP1" + data[4:], size, source), now)
    after = multicast(events)
    assert after["replayed"] > len(heard)
    for name in ("nacks", "asked_packets", "duplicates", "packets", "missing", "next"):
        assert after.get(name, 0) == before.get(name, 0), name
    pub.publish("q.a", "end")
    assert take(events, 1) == ["end"]
    assert not events.losses


# What can be seen -------------------------------------------------------------------------------


@pytest.mark.parametrize("sealed", [True, False])
def test_no_payload_or_topic_is_on_the_wire(mesh_key: str, group: str, sealed: bool) -> None:
    need("tshark", "dumpcap")
    security = Security(mesh_key=mesh_key) if sealed else None
    words = b"attack at dawn, by the river"
    port = int(group.split(":")[1])
    stream = Stream("plans.**", transport=Multicast(group, parity="4+1"), overflow="block")
    with (
        Capture(port, port + 1) as capture,
        Peer("pub", streams=[stream], security=security) as pub,
        Peer("sub", connect=pub.address, security=security) as sub,
        sub.subscribe("plans.**") as events,
    ):
        pub.wait_for_subscribers("plans.secret", timeout=WAIT_S)
        with lose_packets(sub, ratio=0.3, seed=2):
            pub.publish_many("plans.secret", [words] * 500)
            assert take(events, 500) == [words] * 500
    for text in (words, b"plans.secret"):
        assert (text in capture.data) is not sealed
    rows = [row for row in dissect(capture.data) if row.get("meshmsg.kind")]
    assert {"1", "3"} <= {kind for row in rows for kind in row["meshmsg.kind"]}
    for row in rows:
        assert bool(row.get("meshmsg.sealed")) is sealed
        assert not (sealed and row.get("meshmsg.payload"))


# With an allow-list -----------------------------------------------------------------------------


def test_whoever_is_taken_off_the_list_reads_no_more(keys: Any, group: str) -> None:
    shop_keys, bad_keys, good_keys = keys.peer("shop"), keys.peer("bad"), keys.peer("good")
    stream = Stream("q.**", transport=Multicast(group, receiver_timeout="500ms"), overflow="block")
    with ExitStack() as stack:
        enter = stack.enter_context
        shop = enter(Peer("shop", streams=[stream], security=shop_keys))
        bad = enter(Peer("bad", connect=shop.address, security=bad_keys))
        good = enter(Peer("good", connect=shop.address, security=good_keys))
        theirs, events = enter(bad.subscribe("q.**")), enter(good.subscribe("q.**"))
        shop.wait_for_subscribers("q.a", count=2, timeout=WAIT_S)
        shop.publish_many("q.a", range(1000))
        assert take(theirs, 1000) == take(events, 1000) == list(range(1000))
        began = multicast(shop)["generation"]
        keys.revoke("bad", at="shop")
        wait_until(lambda: multicast(shop)["generation"] > began, WAIT_S)
        wait_until(lambda: "good" in shop.stats()["clients"], WAIT_S)
        sent = list(range(1000, 3000))
        shop.publish_many("q.a", sent)
        assert take(events, 2000) == sent
        assert not events.losses
        intake = next(iter(bad._open_node().intakes.values()))
        source = next(iter(intake.incoming.by_name.values()))
        assert source.packets is not None
        wait_until(lambda: source.packets.refused()["unknown_key"] > 20, WAIT_S)
        assert source.receiver is not None
        assert source.receiver.next == 1000


def test_keys_of_an_allow_list_change_with_time_and_nothing_is_lost(keys: Any, group: str) -> None:
    for name in ("pub", "sub"):
        keys.peer(name)
    quick = {
        name: Security(key_dir=str(keys.folder / name), rotate_every="1s", rotate_overlap="1s")
        for name in ("pub", "sub")
    }
    stream = Stream("q.**", transport=Multicast(group), overflow="block")
    with (
        Peer("pub", streams=[stream], security=quick["pub"]) as pub,
        Peer("sub", connect=pub.address, security=quick["sub"]) as sub,
        sub.subscribe("q.**") as events,
        lose_packets(sub, ratio=0.05, seed=3),
    ):
        pub.wait_for_subscribers("q.a", timeout=WAIT_S)
        began, sent = multicast(pub)["generation"], 0

        def send() -> bool:
            nonlocal sent
            pub.publish_many("q.a", range(sent, sent + 1000))
            assert take(events, 1000) == list(range(sent, sent + 1000))
            sent += 1000
            return bool(multicast(pub)["generation"] >= began + 2)

        wait_until(send, WAIT_S, "two changes of the key")
        assert not events.losses


def test_fork_seals_nothing_with_the_numbers_of_its_parent(mesh_key: str, group: str) -> None:
    stream = Stream("quotes.**", transport=Multicast(group))
    with Peer("shop", streams=[stream], security=Security(mesh_key=mesh_key)) as shop:
        node = shop._open_node()
        packets = node.publisher._outlets["shop/quotes.**"].packets
        child = os.fork()
        if not child:  # nothing of the test itself may run here
            try:
                packets.seal.sealer.seal(b"x" * 40, 40)
            except ClosedError:
                os._exit(17)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17
        shop.publish("quotes.A", 1)
        shop.flush(timeout=60)


def test_feed_cannot_be_given_the_keys_of_an_allow_list(keys: Any, group: str) -> None:
    feed = Feed("pub", "q.**", Multicast(group))
    with pytest.raises(ConfigError, match="feeds: a feed has no connection"):
        Peer("far", feeds=[feed], security=keys.peer("far"))
