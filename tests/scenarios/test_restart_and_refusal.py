"""Peers that come back, and peers that will not talk to each other."""

from __future__ import annotations

import time

import pytest
import zmq

import meshmsg
from meshmsg import Peer, PeerRefused, Stream
from meshmsg._wire import control
from tests.support.ports import free_port
from tests.support.remote import RemotePeer
from tests.support.waiting import wait_until


def test_killed_publisher_is_found_again_and_its_new_epoch_is_complete() -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    with Peer("sub", connect=address) as sub, sub.subscribe("a.**") as events:
        epochs = []
        for life in range(3):
            pub = RemotePeer("pub", bind=address, streams=[{"topics": "a.**"}])
            if life == 0:
                pub.run("peer.wait_for_subscribers('a.b', 1, 30)")
            # From the second life on it does not wait: a subscriber that was there before misses
            # nothing of a new epoch.
            pub.run(f"for n in range(1000): peer.publish('a.b', [{life}, n])")
            got = []
            while len(got) < 1000:
                got += events.get_many(1000, timeout=30)
            assert [event.data for event in got] == [[life, n] for n in range(1000)]
            epochs.append(got[0].position.epoch)
            pub.kill()
        assert len(set(epochs)) == 3
        assert events.losses == []


def test_what_died_with_a_killed_publisher_is_reported() -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    with Peer("sub", connect=address) as sub, sub.subscribe("a.**") as events:
        pub = RemotePeer("pub", bind=address, streams=[{"topics": "a.**"}])
        pub.run("peer.wait_for_subscribers('a.b', 1, 30)")
        pub.run("peer.publish('a.b', 'heard')")
        assert events.get(timeout=30).data == "heard"  # type: ignore[union-attr]
        # Frames are lost and repair is refused, so the subscriber knows of events it cannot get.
        pub.run("peer._open_node().publisher.subscribers.on_nack = lambda link, message: None")
        pub.run("lossy = testing.lose_frames(peer, ratio=1.0); lossy.__enter__()")
        pub.run("peer.publish_many('a.b', [1] * 10)")
        wait_until(lambda: events.get(timeout=0.01) is None and _missing(events) == 10)
        pub.kill()
        with RemotePeer("pub", bind=address, streams=[{"topics": "a.**"}]) as again:
            again.run("peer.wait_for_subscribers('a.b', 1, 30)")
            again.run("peer.publish('a.b', 'alive')")
            assert events.get(timeout=30).data == "alive"  # type: ignore[union-attr]
        ((first, stop, reason),) = [(x.first, x.stop, x.reason) for x in events.losses]
        assert (first, stop) == (1, 11)
        assert reason in ("gone", "deadline")
        assert sub.ledger().reconciles


def _missing(events: meshmsg.Subscription) -> int:
    return int(sum(source["missing"] for source in events.stats()["sources"]))


def test_subscriber_that_was_killed_is_forgotten_and_holds_nobody_up() -> None:
    stream = Stream("a.**", overflow="block", window_bytes="64KiB", buffer_bytes="1MB")
    tuning = meshmsg.Tuning(subscriber_return_s=1.0)
    with Peer("pub", streams=[stream], tuning=tuning) as pub:
        sub = RemotePeer("sub", connect=pub.address, tuning={"inbox_bytes_max": 1000})
        sub.run("events = peer.subscribe('a.**')")
        pub.wait_for_subscribers("a.b", count=1, timeout=30)
        sub.kill()
        for _ in range(1000):
            pub.publish("a.b", bytes(1000), timeout=30)
        wait_until(lambda: pub.stats()["streams"]["a.**"]["subscribers"] == [])
        (row,) = [row for row in pub.ledger().rows if row.state == "gone"] or [None]
        assert row is None or row.reconciles


def test_several_binds_and_several_connects(tmp_path: object) -> None:
    binds = ["tcp://127.0.0.1:*", f"ipc://{tmp_path}/one", "tcp://127.0.0.1:*"]
    with (
        Peer("one", streams=[Stream("a.**")], bind=binds) as one,
        Peer("two", streams=[Stream("a.**")], bind=f"ipc://{tmp_path}/two") as two,
    ):
        for address in one.addresses:
            with (
                Peer("sub", connect=[address, two.address]) as sub,
                sub.subscribe("a.**") as events,
            ):
                one.wait_for_subscribers("a.b", count=1, timeout=30)
                two.wait_for_subscribers("a.b", count=1, timeout=30)
                one.publish("a.b", "from one")
                two.publish("a.b", "from two")
                got = {events.get(timeout=30).data for _ in range(2)}  # type: ignore[union-attr]
                assert got == {"from one", "from two"}
            wait_until(lambda: not one.stats()["streams"]["a.**"]["subscribers"])
            wait_until(lambda: not two.stats()["streams"]["a.**"]["subscribers"])


def test_same_peer_by_two_addresses_is_received_once() -> None:
    binds = ["tcp://127.0.0.1:*", "tcp://127.0.0.1:*"]
    with (
        Peer("pub", streams=[Stream("a.**")], bind=binds) as pub,
        Peer("sub", connect=pub.addresses) as sub,
        sub.subscribe("a.**") as events,
    ):
        wait_until(lambda: {link["state"] for link in sub.stats()["links"]} == {"up", "duplicate"})
        pub.wait_for_subscribers("a.b", count=1, timeout=30)
        pub.publish("a.b", 1)
        assert events.get(timeout=30) is not None
        assert events.get(timeout=0.1) is None


def test_peer_is_met_at_a_port_that_was_another_socket_s_before() -> None:
    """ZeroMQ gives up where it meets a socket that a DEALER does not talk to, as a data port."""
    address = f"tcp://127.0.0.1:{free_port()}"
    context = zmq.Context()
    before = context.socket(zmq.XPUB)
    before.bind(address)
    watch = before.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    with Peer("sub", connect=address) as sub, sub.subscribe("a.**") as events:
        assert watch.poll(10_000), "it was dialled, and did not talk"
        before.disable_monitor()
        watch.close(linger=0)
        before.close(linger=0)
        context.term()
        with Peer("pub", bind=address, streams=[Stream("a.**")]) as pub:
            pub.wait_for_subscribers("a.b", count=1, timeout=30)
            pub.publish("a.b", 1)
            assert events.get(timeout=30).data == 1  # type: ignore[union-attr]


def test_other_version_is_refused_and_both_sides_can_read_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    context = zmq.Context()
    with Peer("here", bind="tcp://127.0.0.1:*") as here:
        stranger = context.socket(zmq.DEALER)
        stranger.connect(here.address)
        hello = control.encode_message(
            control.Hello(peer="from the future", instance=1, mesh="default")
        )
        stranger.send(hello[:3] + b"\x09" + hello[4:])
        assert stranger.poll(5000)
        answer = stranger.recv()
        assert answer[:4] == b"MMC\x09", "in the envelope that the asker understands"
        wanted = (
            "protocol version 9 meets version 2: install the same meshmsg release on both sides"
        )
        assert wanted.encode() in answer
        assert wanted in caplog.text
        assert here.stats()["counters"]["refused"] == 1
        stranger.close(linger=0)
    context.term()


def test_refusal_by_another_version_is_raised_to_whoever_waits() -> None:
    context = zmq.Context()
    server = context.socket(zmq.ROUTER)
    port = server.bind_to_random_port("tcp://127.0.0.1")
    with (
        Peer("here", connect=f"tcp://127.0.0.1:{port}") as here,
        here.subscribe("**") as events,
    ):
        identity, _ = server.recv_multipart()
        reason = "protocol version 2 meets version 7: too old"
        server.send_multipart([identity, control.encode_refusal(reason, 2)])
        with pytest.raises(PeerRefused, match="version 2 meets version 7: too old"):
            events.get(timeout=30)
        with pytest.raises(PeerRefused):
            here.wait_for_peers(timeout=30)
        with here.subscribe("late.**") as late, pytest.raises(PeerRefused):
            late.get(timeout=30)
    server.close(linger=0)
    context.term()


def test_other_mesh_is_refused() -> None:
    with (
        Peer("prod", bind="tcp://127.0.0.1:*", mesh="prod") as prod,
        Peer("test", connect=prod.address, mesh="test") as test,
        pytest.raises(PeerRefused, match=r"mesh 'test' meets mesh 'prod'"),
    ):
        test.wait_for_peers(timeout=30)


def test_second_peer_of_the_same_name_and_streams_is_refused() -> None:
    with (
        Peer("twin", streams=[Stream("a.**")]) as one,
        Peer("twin", streams=[Stream("a.**")]) as two,
        Peer("sub", connect=[one.address, two.address]) as sub,
    ):
        wait_until(lambda: {x["state"] for x in sub.stats()["links"]} == {"up", "refused"})
        (reason,) = [x["reason"] for x in sub.stats()["links"] if x["state"] == "refused"]
        assert "the name 'twin' is in use" in reason


def test_first_stream_of_a_peer_that_dials_is_announced_whenever_it_is_declared() -> None:
    for n in range(40):
        with Peer("a") as a, a.subscribe("**") as events, Peer("b", connect=a.address) as b:
            time.sleep(n % 20 * 2e-4)  # at any point of the greeting
            b.wait_for_subscribers("x", count=1, timeout=30)
            b.publish("x", n)
            assert events.get(timeout=30).data == n  # type: ignore[union-attr]


def test_implicit_stream_loses_nothing_to_those_who_were_connected_before() -> None:
    with (
        Peer("pub", bind="tcp://127.0.0.1:*") as pub,
        Peer("sub", connect=pub.address) as sub,
        sub.subscribe("**") as events,
    ):
        sub.wait_for_peers(timeout=30)
        for n in range(100):
            pub.publish("never.declared", n)
        got = [events.get(timeout=30).data for _ in range(100)]  # type: ignore[union-attr]
        assert got == list(range(100))


@pytest.mark.parametrize(
    ("start", "wanted"),
    [("earliest", range(100)), ("last:7", range(93, 100)), ("live", range(100, 100))],
)
def test_late_joiner_starts_where_it_asks(start: str, wanted: range) -> None:
    with Peer("pub", streams=[Stream("a.**")]) as pub:
        for n in range(100):
            pub.publish("a.b", n)
        with (
            Peer("sub", connect=pub.address) as sub,
            sub.subscribe("a.**", start=start) as events,
        ):
            pub.wait_for_subscribers("a.b", count=1, timeout=30)
            pub.publish_many("a.b", list(range(100, 150)))
            expected = [*wanted, *range(100, 150)]
            got = [events.get(timeout=30).data for _ in expected]  # type: ignore[union-attr]
            assert got == expected
            assert events.losses == []
            assert pub.ledger().reconciles


def test_late_joiner_starts_at_a_time_or_a_position() -> None:
    with Peer("pub", streams=[Stream("a.**")]) as pub:
        positions = [pub.publish("a.b", n) for n in range(10)]
        pub.flush()
        time.sleep(0.002)
        middle = time.time()
        time.sleep(0.002)
        pub.publish_many("a.b", list(range(10, 20)))
        with Peer("sub", connect=pub.address) as sub:
            with sub.subscribe("a.**", start=middle) as events:
                assert events.get(timeout=30).data == 10  # type: ignore[union-attr]
            with sub.subscribe("a.**", start=positions[4]) as events:
                assert events.get(timeout=30).data == 4  # type: ignore[union-attr]


def test_start_before_what_is_kept_is_reported_as_expired() -> None:
    stream = Stream("a.**", overflow="drop_oldest", buffer_bytes="64KiB")
    with Peer("pub", streams=[stream]) as pub:
        first = pub.publish("a.b", bytes(1000))
        pub.publish_many("a.b", [bytes(1000)] * 999)
        held_from = pub.stats()["streams"]["a.**"]["first_available"]
        with (
            Peer("sub", connect=pub.address) as sub,
            sub.subscribe("a.**", start=first) as events,
        ):
            got = [events.get(timeout=30).seq for _ in range(held_from, 1000)]  # type: ignore[union-attr]
            assert got == list(range(held_from, 1000))
            assert [(x.first, x.stop, x.reason) for x in events.losses] == [
                (0, held_from, "expired")
            ]
            assert pub.ledger().reconciles
