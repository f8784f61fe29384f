"""What once broke it: each test is a defect that a review or a simulation found."""

from __future__ import annotations

import signal
import socket
import threading
import time
from typing import Any

import pytest
import zmq

import meshmsg
from meshmsg import Peer, Stream, Tuning
from meshmsg._publish.published_stream import Outlet
from meshmsg._wire import control
from meshmsg.testing import lose_frames
from meshmsg.transports.zmq.control import join_parts, split_parts
from tests.support.pairs import pair
from tests.support.remote import RemotePeer
from tests.support.waiting import wait_until


def test_subscriptions_that_come_and_go_leave_the_peer_alive() -> None:
    """Waking a subscription that was just closed wrote to a descriptor that was somebody else's."""
    with Peer("pub", streams=[Stream("a.**")]) as pub, Peer("sub", connect=pub.address) as sub:
        until = time.monotonic() + 2.0

        def churn() -> None:
            while time.monotonic() < until:
                with sub.subscribe("a.**") as events:
                    events.get(timeout=0.002)

        threads = [threading.Thread(target=churn) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert "io_errors" not in sub.stats()["counters"]
        assert "io_errors" not in pub.stats()["counters"]
        with sub.subscribe("a.**") as events:
            events.wait_for_publishers(timeout=30)
            pub.publish("a.b", "alive")
            assert events.get(timeout=30).data == "alive"  # type: ignore[union-attr]
        assert len(sub._open_node().inlets.names) == 0


@pytest.mark.parametrize(
    "message",
    [
        control.Subscribe(1, ["a..b"], [control.Start("pub/a.**", "live")]),
        control.Subscribe(1, [], [control.Start("pub/a.**", "live")]),
        control.Subscribe(1, ["**"], [control.Start("pub/a.**", "last", (1 << 63) - 1)]),
        control.Hello(peer="x", instance=3, mesh="default", streams=["s"], listen=["tcp://h:٣٣"]),
        control.Hello(peer="x", instance=3, mesh="default", streams=["s"], listen=["tcp://h:0"]),
        control.Nack(1, "pub/a.**", 1, [(9, 9)], 1),
    ],
)
def test_well_formed_message_with_bad_content_stops_nobody(message: Any) -> None:
    context = zmq.Context()
    with Peer("pub", streams=[Stream("a.**")]) as pub:
        stranger = context.socket(zmq.DEALER)
        stranger.connect(pub.address)
        hello = control.Hello(peer="stranger", instance=2, mesh="default")
        stranger.send(control.encode_message(hello))
        stranger.send(control.encode_message(message))
        stranger.send(control.encode_message(control.Ping(7)))
        answers = []
        while not any(isinstance(answer, control.Pong) for answer in answers):
            assert stranger.poll(5000), "it went silent"
            answers.append(control.decode_message(stranger.recv()))
        assert "io_errors" not in pub.stats()["counters"]
        stranger.close(linger=0)
    context.term()


@pytest.mark.parametrize("data", ["tcp://127.0.0.1:foo", "tcp://127.0.0.1:99999", "ipc://x"])
def test_publisher_that_names_a_bad_data_address_stops_nobody(data: str) -> None:
    context = zmq.Context()
    server = context.socket(zmq.ROUTER)
    port = server.bind_to_random_port("tcp://127.0.0.1")
    with Peer("sub", connect=f"tcp://127.0.0.1:{port}") as sub, sub.subscribe("**") as events:
        identity, _ = server.recv_multipart()
        info = control.StreamInfo("x/a.**", "a.**", 1, "buffer", "msgpack", 1000)
        welcome = control.Welcome("x", 5, "default", [info], [("tcp://127.0.0.1:1", data)])
        server.send_multipart([identity, control.encode_message(welcome)])
        wait_until(lambda: sub.stats()["counters"].get("bad_control", 0) == 1)
        assert events.get(timeout=0.05) is None
        assert "io_errors" not in sub.stats()["counters"]
    server.close(linger=0)
    context.term()


def test_what_a_killed_publisher_had_sent_is_read_before_its_next_life_begins() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    tuning = Tuning(inbox_bytes_max=100_000)
    with Peer("sub", connect=address, tuning=tuning) as sub, sub.subscribe("a.**") as events:
        pub = RemotePeer("pub", bind=address, streams=[{"topics": "a.**"}])
        pub.run("peer.wait_for_subscribers('a.b', 1, 30)")
        pub.run("for n in range(200): peer.publish_many('a.b', [bytes(5000)] * 2)")
        # Sent, and on this machine; not read, since the consumer is busy.
        wait_until(lambda: any(s["received"] for s in events.stats()["sources"]))
        sent_by = time.monotonic() + 0.5
        wait_until(lambda: time.monotonic() > sent_by)
        pub.kill()
        with RemotePeer("pub", bind=address, streams=[{"topics": "a.**"}]) as again:
            again.run("peer.wait_for_subscribers('a.b', 1, 30)")
            again.run("peer.publish('a.b', 'second life')")
            seqs = []
            while (event := events.get(timeout=30)) is not None and event.data != "second life":
                seqs.append(event.seq)
            assert event is not None
            assert seqs == list(range(400))
            assert events.losses == []


def test_interrupt_while_a_frame_is_encoded_loses_no_event_and_repeats_no_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*args: Any, **kwargs: Any) -> bytes:
        monkeypatch.undo()
        raise KeyboardInterrupt

    with pair() as (pub, _, events):
        publisher = pub._open_node().publisher
        with publisher._lock:  # so that the I/O thread does not come first
            positions = [pub.publish("a.b", n, key="k").seq for n in range(6)]
            outlet = publisher._routes["a.b"]
            outlet.add("a.b", b"raw", 1)
            monkeypatch.setattr(Outlet, "encode", interrupted)
            with pytest.raises(KeyboardInterrupt):
                publisher._send_open(outlet)
        last = pub.publish_many("a.b", ["new"])
        assert last is not None
        assert positions == list(range(6))
        assert last.seq == 7
        got = [events.get(timeout=30) for _ in range(8)]
        assert [event.seq for event in got if event is not None] == list(range(8))
        assert events.losses == []
        assert pub.ledger().reconciles


def test_subscription_to_hundreds_of_streams_is_admitted_to_all() -> None:
    streams = [Stream(f"s{n}.**") for n in range(300)]
    tuning = Tuning(queue_frames=8)
    with (
        Peer("pub", streams=streams, tuning=tuning) as pub,
        Peer("sub", connect=pub.address, tuning=tuning) as sub,
        sub.subscribe("**") as events,
    ):
        events.wait_for_publishers(300, timeout=30)
        for n in range(300):
            pub.publish(f"s{n}.x", n)
        got = {events.get(timeout=30).data for _ in range(300)}  # type: ignore[union-attr]
        assert got == set(range(300))


def test_books_hold_when_a_frozen_subscriber_was_forgotten_and_comes_back(ledger: Any) -> None:
    short = {"peer_timeout_s": 1.0, "ping_interval_s": 0.2, "subscriber_return_s": 1.5}
    with (
        RemotePeer("pub", streams=[{"topics": "a.**"}], tuning=short) as pub,
        RemotePeer("sub", connect=pub.address, tuning=short) as sub,
    ):
        sub.run("events = peer.subscribe('a.**', name='slow')")
        pub.run("peer.wait_for_subscribers('a.b', 1, 30)")
        pub.run("peer.publish_many('a.b', list(range(5000)))")
        assert sub.eval("events.get(30).data") == 0
        sub.signal(signal.SIGSTOP)
        claims = "[s['name'] for s in peer.stats()['streams']['a.**']['subscribers']]"
        wait_until(lambda: pub.eval(claims) == [], timeout=30)
        sub.signal(signal.SIGCONT)
        wait_until(lambda: len(pub.eval(claims)) == 1, timeout=30)
        (row,) = ledger(pub.address, settle=0)
        assert (row["delivered"], row["in_flight"], row["state"]) == (1, 4999, "live")
        assert sub.eval("[events.get(30).data for _ in range(4999)] == list(range(1, 5000))")
        (row,) = ledger(pub.address)
        assert (row["delivered"], row["in_flight"]) == (5000, 0)


def test_large_events_from_many_threads_travel_apart() -> None:
    with pair(Stream("a.**", buffer_bytes="256MiB")) as (pub, _, events):
        large = bytes(9 << 20)
        threads = [
            threading.Thread(target=lambda n=n: pub.publish("a.b", large, key=f"{n}"))
            for n in range(8)
        ]
        for thread in threads:
            thread.start()
        got = {events.get(timeout=30).key for _ in range(8)}  # type: ignore[union-attr]
        for thread in threads:
            thread.join()
        assert got == {str(n) for n in range(8)}
        assert events.losses == []


def test_heartbeats_alone_find_a_lost_tail() -> None:
    """Without the tails that come with the signs of life, which find it too, but later."""
    tuning = Tuning(ping_interval_s=30.0, peer_timeout_s=60.0, heartbeat_min_s=0.02)
    with pair(tuning=tuning) as (pub, _, events), lose_frames(pub, ratio=1.0):
        pub.publish("a.b", "lost at first")
        assert events.get(timeout=30).data == "lost at first"  # type: ignore[union-attr]


def test_many_one_event_frames_are_fetched_without_asking_twice() -> None:
    with Peer("pub", streams=[Stream("a.**")]) as pub:
        publisher = pub._open_node().publisher
        for n in range(5000):
            pub.publish("a.b", n)
            publisher.flush(0.0, words=())
        with (
            Peer("sub", connect=pub.address) as sub,
            sub.subscribe("a.**", start="earliest") as events,
        ):
            got = [events.get(timeout=30).data for _ in range(5000)]  # type: ignore[union-attr]
            assert got == list(range(5000))
            assert pub.stats()["counters"]["repaired_frames"] < 10_000


def test_async_timeouts_leave_no_waiters_behind() -> None:
    import asyncio

    async def main() -> None:
        stream = Stream("a.**", overflow="block", window_bytes="64KiB", buffer_bytes="1MB")
        tuning = Tuning(inbox_bytes_max=1000, queue_frames=4)
        async with (
            meshmsg.AsyncPeer("pub", streams=[stream]) as pub,
            meshmsg.AsyncPeer("sub", connect=pub.address, tuning=tuning) as sub,
            sub.subscribe("a.**"),
        ):
            await pub.wait_for_subscribers("a.b", count=1, timeout=30)
            timeouts = 0
            while timeouts < 50:
                try:
                    await pub.publish("a.b", bytes(10_000), timeout=0.001)
                except meshmsg.PublishTimeout:
                    timeouts += 1
            waiters = pub._open_node().publisher._routes["a.b"].gate_waiters
            assert len(waiters) <= 1
            await pub.close(timeout=0.1)

    with pytest.warns(RuntimeWarning, match="closed before"):
        asyncio.run(main())


def test_control_message_with_a_frame_is_one_message_of_zeromq() -> None:
    """Of two parts, a publisher killed between them ended its subscriber's process in libzmq."""
    assert split_parts(join_parts([b"MMC\1x"])) == [b"MMC\1x"]
    for frame in (b"", b"frame", bytes(100_000)):
        assert split_parts(join_parts([b"MMC\1x", frame])) == [b"MMC\1x", frame]
    for cut in range(12):
        whole = join_parts([b"MMC\1x", b"frame"])
        assert split_parts(whole[:cut]) == [whole[:cut]]
    assert split_parts(b"MMT1\xff\xff\xff\xffx") == [b"MMT1\xff\xff\xff\xffx"]
