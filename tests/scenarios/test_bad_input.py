"""Noise at every socket of a peer: counted, dropped, and the others are served meanwhile."""
# ruff: noqa: SIM117 - what is opened and what is expected to fail are two things

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import pytest
import zmq

import meshmsg
from meshmsg import (
    AsyncPeer,
    BindError,
    ConfigError,
    Event,
    EventTooLarge,
    NoStream,
    PayloadError,
    Peer,
    Stream,
    Subscription,
    TopicError,
)
from meshmsg._wire import control
from meshmsg._wire.frame import Heartbeat, encode_frame, encode_headers
from tests.support.pairs import pair
from tests.support.waiting import wait_until

NOISE = 2000


def noise(seed: int, count: int = NOISE) -> Iterator[bytes]:
    """Random bytes, and good messages with a few bytes changed, cut or put in."""
    rng = random.Random(seed)
    good = [
        encode_frame(7, 1, 0, ["a.b", "a.c"], [b"x", b"yy"], [1, 2], keys={0: "k"}),
        Heartbeat(7, 1, 0, 9).encode(),
        *(
            control.encode_message(message)
            for message in (
                control.Hello(peer="n", instance=1, mesh="default", streams=["s"], listen=["x"]),
                control.Subscribe(1, ["**"], [control.Start("pub/a.**", "live")]),
                control.Nack(1, "pub/a.**", 1, [(0, 5)], 1),
                control.Status(1, []),
                control.Ping(1),
                control.Ask(1, "stats"),
                control.Bye(1, []),
                control.Welcome(
                    "n", 2, "default", [], [("tcp://127.0.0.1:1", "tcp://127.0.0.1:2")]
                ),
            )
        ),
    ]
    for _ in range(count):
        if rng.random() < 0.3:
            yield rng.randbytes(rng.randrange(0, 200))
            continue
        data = bytearray(rng.choice(good))
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(data) + 1)
            kind = rng.randrange(3)
            if kind == 0 and at < len(data):
                data[at] = rng.randrange(256)
            elif kind == 1:
                del data[at : at + rng.randrange(8)]
            else:
                data[at:at] = rng.randbytes(rng.randrange(8))
            if not data:
                break
        yield bytes(data)


@contextmanager
def zmq_socket(kind: int) -> Iterator[zmq.Socket[bytes]]:
    context = zmq.Context()
    made = context.socket(kind)
    try:
        yield made
    finally:
        made.close(linger=0)
        context.term()


@contextmanager
def served() -> Iterator[Peer]:
    """A publisher; at the end a well-behaved subscriber must still be served."""
    with Peer("pub", streams=[Stream("a.**")]) as pub:
        yield pub
        with Peer("good", connect=pub.address) as good, good.subscribe("a.**") as events:
            pub.wait_for_subscribers("a.b", count=1, timeout=30)
            pub.publish("a.b", "still here")
            event = events.get(timeout=30)
            assert event is not None
            assert event.data == "still here"
        assert "io_errors" not in pub.stats()["counters"]


@pytest.mark.parametrize("seed", range(3))
def test_noise_at_the_control_socket(seed: int) -> None:
    with served() as pub, zmq_socket(zmq.DEALER) as stranger:
        stranger.connect(pub.address)
        for data in noise(seed):
            stranger.send(data)
        stranger.send_multipart([b"several", b"parts", b"at once"])
        wait_until(lambda: pub.stats()["counters"].get("bad_control", 0) > NOISE / 10)


def test_noise_at_the_data_socket() -> None:
    with served() as pub, zmq_socket(zmq.XSUB) as stranger:
        stranger.connect(pub._open_node()._fanout.addresses[0][1])
        for data in noise(1):
            stranger.send(data)
            stranger.send(b"\1" + data)
            stranger.send(b"\0" + data)
        counters = pub._open_node()._fanout.counters
        wait_until(lambda: counters["bad_upstream"] and counters["bad_prefixes"])


def test_noise_from_a_publisher_at_a_subscription() -> None:
    with zmq_socket(zmq.XPUB) as fake, served() as pub:
        fake.setsockopt(zmq.SNDHWM, 0)  # all of it comes, however slow the other side is
        port = fake.bind_to_random_port("tcp://127.0.0.1")
        with Peer("sub", connect=pub.address) as sub, sub.subscribe("a.**") as events:
            pub.wait_for_subscribers("a.b", count=1, timeout=30)
            # The subscription's own socket is led to the fake, and so subscribes there too.
            with events._intake.lock:
                events._intake._client.connect(f"tcp://127.0.0.1:{port}")
            prefix = next(m[1:] for m in iter(fake.recv, b"") if len(m) == 9)
            for data in noise(2):
                fake.send(prefix + data[8:])
            pub.publish("a.b", "through the noise")
            assert events.get(timeout=30).data == "through the noise"  # type: ignore[union-attr]
            wait_until(
                lambda: (
                    events.get(timeout=0.01) is None
                    and events.stats()["counters"]["bad_messages"] > NOISE / 2
                )
            )
            assert events.losses == []


@pytest.mark.parametrize("kind", ["heartbeat", "frame"])
def test_numbers_that_another_publisher_sends_in_the_stream_s_name_are_forgotten(kind: str) -> None:
    with zmq_socket(zmq.XPUB) as fake, Peer("pub", streams=[Stream("a.**")]) as pub:
        port = fake.bind_to_random_port("tcp://127.0.0.1")
        with Peer("sub", connect=pub.address) as sub, sub.subscribe("a.**") as events:
            pub.wait_for_subscribers("a.b", count=1, timeout=30)
            pub.publish("a.b", 0)
            assert events.get(timeout=30).data == 0  # type: ignore[union-attr]
            with events._intake.lock:
                events._intake._client.connect(f"tcp://127.0.0.1:{port}")
            prefix = next(m[1:] for m in iter(fake.recv, b"") if len(m) == 9)
            stream, epoch = (
                int.from_bytes(prefix, "little"),
                pub.stats()["streams"]["a.**"]["epoch"],
            )
            if kind == "heartbeat":
                fake.send(Heartbeat(stream, epoch, 0, 1 << 62).encode())
            else:
                fake.send(encode_frame(stream, epoch, 1 << 40, "a.b", [b"\x01"] * 3, 1))
            receiver = events._intake.sources()[0].receiver
            assert receiver is not None
            wait_until(lambda: events.get(timeout=0.01) is None and receiver.counters["set_back"])
            pub.publish("a.b", 1)
            assert events.get(timeout=30).data == 1  # type: ignore[union-attr]
            assert events.losses == []


def test_noise_from_a_server_at_a_link() -> None:
    with zmq_socket(zmq.ROUTER) as fake:
        port = fake.bind_to_random_port("tcp://127.0.0.1")
        with served() as pub, Peer("sub", connect=[f"tcp://127.0.0.1:{port}", pub.address]) as sub:
            with sub.subscribe("a.**") as events:
                identity, _ = fake.recv_multipart()
                for data in noise(3):
                    fake.send_multipart([identity, data])
                pub.wait_for_subscribers("a.b", count=1, timeout=30)
                pub.publish("a.b", "heard")
                assert events.get(timeout=30).data == "heard"  # type: ignore[union-attr]
                wait_until(lambda: sub.stats()["counters"].get("bad_control", 0) > NOISE / 10)


def test_raw_tcp_noise_and_claims_of_4_gib_take_no_memory() -> None:
    with served() as pub:
        data_address = pub._open_node()._fanout.addresses[0][1]
        for address, kind in ((pub.address, b"DEALER"), (data_address, b"SUB")):
            port = int(address.rpartition(":")[2])
            rng = random.Random(4)
            for _ in range(50):
                with socket.create_connection(("127.0.0.1", port)) as line:
                    line.sendall(rng.randbytes(200))
            with socket.create_connection(("127.0.0.1", port)) as line:
                line.settimeout(60)
                # A greeting, a null handshake, then a frame that claims 4 GiB.
                line.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16 + 32))
                ready = b"\x05READY\x0bSocket-Type" + struct.pack(">I", len(kind)) + kind
                line.sendall(b"\x04" + bytes([len(ready)]) + ready)
                heard = b""
                while b"READY" not in heard:  # the other side has taken us for one of its kind
                    heard += line.recv(4096)
                # It hangs up: in order, or with a reset for what of this it has not read.
                with suppress(ConnectionResetError, BrokenPipeError):
                    line.sendall(b"\x02" + struct.pack(">Q", 4 << 30) + bytes(100))
                    while line.recv(4096):
                        pass


def test_stranger_cannot_nack_or_report_for_somebody_else() -> None:
    with (
        served() as pub,
        Peer("sub", connect=pub.address) as sub,
        sub.subscribe("a.**") as events,
        zmq_socket(zmq.DEALER) as stranger,
    ):
        pub.wait_for_subscribers("a.b", count=1, timeout=30)
        pub.publish_many("a.b", list(range(100)))
        stranger.connect(pub.address)
        victim = events._intake.sub
        figures = control.Figures("pub/a.**", 1, 0, 10**9, 10**9, 10**9, 0, {})
        for message in (
            control.Hello(peer="x", instance=5, mesh="default"),
            control.Nack(victim, "pub/a.**", 1, [(0, 100)], 1),
            control.Status(victim, [figures], closed=True),
        ):
            stranger.send(control.encode_message(message))
        wait_until(lambda: pub.stats()["counters"].get("strange_status", 0) == 1)
        assert pub.stats()["counters"]["strange_nacks"] == 1
        assert len(pub.stats()["streams"]["a.**"]["subscribers"]) == 1
        assert len(events.get_many(100, timeout=30)) == 100


def test_undecodable_payload_raises_where_it_is_read_and_nowhere_else() -> None:
    with pair(Stream("a.**", codec="json"), options={"codec": "msgpack"}) as (pub, _, events):
        pub.publish("a.b", {"json": True})
        pub.publish("a.b", b"raw")
        bad, raw = events.get(timeout=30), events.get(timeout=30)
        assert bad is not None
        assert raw is not None
        assert raw.data == b"raw"
        assert bad.payload == b'{"json":true}'
        with pytest.raises(PayloadError, match="codec 'msgpack'"):
            bad.data  # noqa: B018


class Verbatim:
    """A codec that calls itself msgpack and sends what it is given."""

    name = "msgpack"

    def encode(self, data: str) -> bytes:
        return bytes.fromhex(data)

    def decode(self, payload: bytes) -> str:
        return payload.hex()


def test_an_event_is_the_same_to_whoever_takes_it_however() -> None:
    """Two payloads that are two values only if they are joined are no values to anybody."""

    async def awaited(address: str, ready: threading.Barrier) -> list[str]:
        async with (
            AsyncPeer("awaiting", connect=address) as peer,
            peer.subscribe("**") as events,
        ):
            await asyncio.to_thread(ready.wait, 10)
            return [_written(await events.get(timeout=30)) for _ in range(4)]

    ready = threading.Barrier(2)
    with (
        Peer("pub", streams=[Stream("**", codec=Verbatim())]) as pub,
        Peer("sub", connect=pub.address) as sub,
        sub.subscribe("**") as every,
        sub.subscribe("a.**") as some,
        sub.subscribe("**", type=int | list[int]) as typed,
        sub.subscribe("**") as columns,
        ThreadPoolExecutor() as pool,
    ):
        waiting = pool.submit(lambda: asyncio.run(awaited(pub.address, ready)))
        pub.wait_for_subscribers("a.b", count=5, timeout=30)
        ready.wait(30)
        pub.publish_many("a.b", ["9201", "0205", "07"])
        pub.publish("c", "08")
        pub.flush(timeout=30)
        wanted = ["undecodable", "undecodable", "7", "8"]
        assert [_written(event) for event in every.get_many(4, timeout=30)] == wanted
        assert [_written(event) for event in some.get_many(3, timeout=30)] == wanted[:3]
        assert [_written(event) for event in typed.get_many(4, timeout=30)] == wanted
        batched: list[object] = []
        for batch in columns.batches():
            batched += batch.data
            if len(batched) >= 4:
                break
        assert batched[2:] == [7, 8]
        assert all(type(value).__name__ == "Undecodable" for value in batched[:2])
        assert waiting.result(10) == wanted


@contextmanager
def forged_stream() -> Iterator[tuple[Callable[[bytes], None], Subscription]]:
    """Sends a subscription the next event of its stream, with any headers."""
    wire_id = control.stream_wire_id("default", "pub/a.**")
    with (
        zmq_socket(zmq.XPUB) as fake,
        Peer("pub", streams=[Stream("a.**")]) as pub,
        Peer("sub", connect=pub.address) as sub,
        sub.subscribe("a.**") as events,
    ):
        port = fake.bind_to_random_port("tcp://127.0.0.1")
        pub.wait_for_subscribers("a.b", count=1, timeout=30)
        wait_until(lambda: events._intake.sources() != [])
        with events._intake.lock:
            events._intake._client.connect(f"tcp://127.0.0.1:{port}")
        assert b"\1" + wire_id.to_bytes(8, "little") in iter(fake.recv, b"")
        (source,) = events._intake.sources()
        assert source.receiver is not None
        place = (wire_id, source.receiver.epoch, source.receiver.next)
        yield (lambda packed: fake.send(headed(place, packed))), events


def headed(place: tuple[int, int, int], packed: bytes) -> bytes:
    return encode_frame(*place, "a.b", [b""], 0, headers={0: packed})


def _written(event: Event | None) -> str:
    assert event is not None
    try:
        return repr(event.data)
    except PayloadError:
        return "undecodable"


def test_hostile_headers_cost_a_publisher_its_frame_and_the_subscriber_nothing() -> None:
    with forged_stream() as (send, events):
        send(encode_headers({"a": 1}))
        assert headers_of(events) == {"a": 1}
    for packed, seen in [(b"\x81\xa1a\xa1\xff", {}), (b"\x81\x01\x02", {})]:
        with forged_stream() as (send, events):
            send(packed)
            assert headers_of(events) == seen
    for packed in (b"\xc1", b"\x81\xa1a", encode_headers({"a": bytes(1 << 20)})):
        with forged_stream() as (send, events):
            send(packed)
            wait_until(partial(is_counted, events))


def headers_of(events: Subscription) -> Mapping[str, Any]:
    event = events.get(timeout=30)
    assert event is not None
    return event.headers


def is_counted(events: Subscription) -> bool:
    assert events.get(timeout=0.01) is None
    return events.stats()["counters"].get("bad_messages", 0) > 0  # type: ignore[no-any-return]


def test_frames_of_many_topics_are_not_remembered() -> None:
    with (
        Peer("pub") as pub,
        Peer("sub", connect=pub.address) as sub,
        sub.subscribe("**") as events,
    ):
        pub.wait_for_subscribers("a", count=1, timeout=30)
        for number in range(30):
            for n in range(1000):
                pub.publish(f"a{number}.b{n}", b"")
            pub.flush(timeout=30)
            assert len(events.get_many(1000, timeout=30)) == 1000
        (source,) = events._intake.sources()
        assert all(len(topics) <= 64 for topics in source.keeps)
        assert sum(map(len, source.keeps)) <= source.keeps.TOPICS_MAX


class TestMistakesOfTheUser:
    """Each names what was wrong and what would be right."""

    def test_port_that_is_taken(self) -> None:
        with Peer("one", bind="tcp://127.0.0.1:*") as one:
            with pytest.raises(BindError, match=r"127.0.0.1:\d+'.*the port is taken"):
                Peer("two", bind=one.address).open()

    def test_address_of_another_machine(self) -> None:
        with pytest.raises(BindError, match="no interface of this machine has that address"):
            Peer("one", bind="tcp://192.0.2.1:7000").open()

    def test_event_over_the_limit(self) -> None:
        with Peer("pub", streams=[Stream("a.**", event_bytes_max="1kB")]) as pub:
            with pytest.raises(EventTooLarge, match=r"1,001 bytes.*at most 1,000.*event_bytes_max"):
                pub.publish("a.b", bytes(1001))
            with pytest.raises(EventTooLarge):
                pub.publish_many("a.b", [b"", bytes(1001)])
            assert pub.publish("a.b", bytes(1000)).seq == 1

    def test_topic_that_no_stream_takes(self) -> None:
        with Peer("pub", streams=[Stream("a.**")]) as pub:
            with pytest.raises(NoStream, match=r"no stream of this peer takes topic 'b.c'"):
                pub.publish("b.c", 1)

    @pytest.mark.parametrize("topic", ["", "a..b", "a.*", "a b", "x" * 300])
    def test_bad_topic(self, topic: str) -> None:
        with Peer("pub") as pub, pytest.raises(TopicError):
            pub.publish(topic, 1)

    def test_bad_pattern(self) -> None:
        with Peer("sub") as sub, pytest.raises(TopicError, match="level"):
            sub.subscribe("quo*")

    def test_unknown_overflow_word(self) -> None:
        with pytest.raises(ConfigError, match=r"overflow: 'drop_old' is not one of block, buffer"):
            Stream("a.**", overflow="drop_old")

    def test_value_that_cannot_be_encoded(self) -> None:
        with Peer("pub") as pub:
            with pytest.raises(PayloadError, match="cannot encode a object"):
                pub.publish("a.b", object())

    def test_key_and_headers_of_the_wrong_type(self) -> None:
        with Peer("pub") as pub:
            with pytest.raises(ConfigError, match="key: must be a str"):
                pub.publish("a.b", 1, key=7)  # type: ignore[arg-type]
            with pytest.raises(ConfigError, match="headers"):
                pub.publish("a.b", 1, headers={1: 2})  # type: ignore[dict-item]
            deep: list[object] = []
            for _ in range(100_000):
                deep = [deep]
            with pytest.raises(ConfigError, match="headers: cannot be encoded"):
                pub.publish("a.b", 1, headers={"deep": deep})
            large = {"a": "x" * 65_536}
            for publish in (pub.publish, lambda *a, **b: pub.publish_many(a[0], [a[1]], **b)):
                with pytest.raises(ConfigError, match=r"headers: 65,544 bytes .* 65,536 of an"):
                    publish("a.b", 1, headers=large)
            with pytest.raises(ConfigError, match="1 keys for 2 events"):
                pub.publish_many("a.b", [1, 2], keys=["k"])

    def test_words_of_subscribe(self) -> None:
        with Peer("sub") as sub:
            for wrong in ("yesterday", "last:x", -1, "committed"):
                with pytest.raises(ConfigError, match="start"):
                    sub.subscribe("a", start=wrong)
            with pytest.raises(ConfigError, match="on_loss: 'explode' is not one of report, raise"):
                sub.subscribe("a", on_loss="explode")
            with pytest.raises(ConfigError, match="topics: name at least one pattern"):
                sub.subscribe()
            for group in (None, "workers"):
                with pytest.raises(ConfigError, match="1,025 patterns are more than 1,024"):
                    sub.subscribe(*(f"a{n}" for n in range(1025)), group=group)

    def test_features_of_later_releases_are_refused_not_ignored(self) -> None:
        with pytest.raises(ConfigError, match="security"):
            Peer("p", security="please")  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="durability"):
            Stream("a.**", durability="replicated")

    def test_typed_payload_of_the_wrong_shape(self) -> None:
        with (
            Peer("pub") as pub,
            Peer("sub", connect=pub.address) as sub,
            sub.subscribe("a.**", type=list[int]) as events,
        ):
            pub.wait_for_subscribers("a.b", count=1, timeout=30)
            pub.publish("a.b", [1, 2])
            pub.publish("a.b", ["x"])
            assert events.get(timeout=30).data == [1, 2]  # type: ignore[union-attr]
            event = events.get(timeout=30)
            assert event is not None
            with pytest.raises(meshmsg.PayloadError, match="Expected `int`"):
                event.data  # noqa: B018
