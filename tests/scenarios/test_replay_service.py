"""Plain programs read the logs of a running peer: exactly what they ask for, or why not."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from meshmsg import ConfigError, Loss, Peer, ReplayError, Stream
from meshmsg._replay import log_server as service
from meshmsg._replay.log_client import LogEpoch, ReplayClient
from meshmsg._replay.log_server import READS_EACH_MAX
from meshmsg._wire import control as c
from meshmsg.transports.zmq.replay_socket import ReplaySocket
from tests.support.remote import RemotePeer
from tests.support.waiting import wait_until

ORDERS = Stream("orders.**", durability="log", segment_bytes="64KiB")


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Peer]:
    with Peer("shop", streams=[ORDERS, Stream("other")], data_dir=tmp_path / "shop") as peer:
        yield peer


def read(client: ReplayClient, *where: Any) -> tuple[list[bytes], list[Loss]]:
    """The events of a range, and its losses; they have to be the range."""
    got: list[bytes] = []
    losses = []
    at = where[2]
    for item in client.read(*where):
        if isinstance(item, Loss):
            assert item.first == at
            losses.append(item)
            at = item.stop
        else:
            assert item.frame.first + item.lo == at
            got += item.frame.payloads.split(item.lo, item.hi)
            at = item.frame.first + item.hi
    assert at == where[3]
    return got, losses


def test_logs_tell_what_can_be_read(shop: Peer, tmp_path: Path) -> None:
    last = shop.publish_many("orders.eu", [b"x"] * 100)
    assert last is not None
    with ReplayClient(shop.address) as client:
        (log,) = client.logs()
        assert (log.stream, log.topics, log.codec) == ("shop/orders.**", "orders.**", "msgpack")
        assert log.epochs == (LogEpoch(last.epoch, 0, 100),)
        assert log.latest == (last.epoch, 100)
        assert log.open
        assert not log.recorded
        assert client.logs("orders.*.x") == [log]
        assert client.logs("quotes.**") == []


def test_a_lost_page_of_the_list_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "LOGS_A_TURN", 1)
    streams = [Stream(f"{name}.**", durability="log") for name in "abc"]
    with Peer("shop", streams=streams, data_dir=tmp_path) as shop:
        serving, losing = shop._open_node().service, [2]
        send = serving._send

        def lose(to: Any, parts: list[bytes]) -> bool:
            message = c.decode_message(parts[0])
            if isinstance(message, c.Logs) and message.page == 1 and losing[0]:
                losing[0] -= 1
                return False
            return send(to, parts)

        serving._send = lose
        with ReplayClient(shop.address) as client:
            assert [log.stream for log in client.logs()] == ["shop/a.**", "shop/b.**", "shop/c.**"]
            assert losing == [0]
            losing[0] = 1000
            with pytest.raises(ReplayError, match="are missing"):
                client.logs()


def test_ranges_come_exactly_as_asked(shop: Peer) -> None:
    payloads = [b"%d" % n for n in range(5000)]
    for at in range(0, 5000, 50):
        last = shop.publish_many("orders.eu", payloads[at : at + 50])
    assert last is not None
    with ReplayClient(shop.address, credit_bytes=1000) as client:
        for first, stop in [(0, 5000), (0, 1), (4999, 5000), (49, 51), (1234, 3210), (7, 7)]:
            got, losses = read(client, last.stream, last.epoch, first, stop)
            assert got == payloads[first:stop]
            assert losses == []


def test_a_read_that_is_given_up_does_not_disturb_the_next(shop: Peer) -> None:
    payloads = [os.urandom(1000) for _ in range(5000)]
    last = shop.publish_many("orders.eu", payloads)
    assert last is not None
    with ReplayClient(shop.address, credit_bytes=100_000) as client:
        for _ in range(3):
            next(iter(client.read(last.stream, last.epoch, 0, 5000)))
        assert read(client, last.stream, last.epoch, 10, 5000)[0] == payloads[10:]


def test_epochs_before_this_start_can_be_read(tmp_path: Path) -> None:
    for _ in range(3):
        with Peer("shop", streams=[ORDERS], data_dir=tmp_path) as shop:
            shop.publish_many("orders.eu", [b"a", b"b"])
            with ReplayClient(shop.address) as client:
                (log,) = client.logs()
    assert [(e.first, e.stop) for e in log.epochs] == [(0, 2)] * 3
    with (
        Peer("shop", streams=[ORDERS], data_dir=tmp_path) as shop,
        ReplayClient(shop.address) as client,
    ):
        assert client.logs()[0].epochs == log.epochs
        assert read(client, log.stream, log.epochs[1].epoch, 0, 2) == ([b"a", b"b"], [])


def test_what_expired_and_what_is_damaged_is_told(tmp_path: Path) -> None:
    stream = Stream("orders.**", durability="log", segment_bytes="64KiB", retention="200KB")
    with Peer("shop", streams=[stream], data_dir=tmp_path) as shop:
        for _ in range(40):
            last = shop.publish_many("orders.eu", [os.urandom(1000)] * 20)
        assert last is not None
        with ReplayClient(shop.address) as client:
            wait_until(lambda: len(list(tmp_path.glob("*/*.seg"))) <= 4, what="retention")
            (log,) = client.logs()
            first = log.epochs[0].first
            assert log.floor == (last.epoch, first)
            _, losses = read(client, last.stream, last.epoch, 0, 800)
            assert {loss.reason for loss in losses} == {"expired"}
            assert losses[-1].stop == first
            segments = sorted(tmp_path.glob("*/*.seg"))
            data = bytearray(segments[1].read_bytes())
            data[10_000] ^= 1
            segments[1].write_bytes(data)
            _, losses = read(client, last.stream, last.epoch, first, 800)
            assert [(loss.reason, loss.count) for loss in losses] == [("corrupt", 20)]


def test_a_short_log_is_an_error_not_less(shop: Peer) -> None:
    last = shop.publish_many("orders.eu", [b"x"] * 10)
    assert last is not None
    with ReplayClient(shop.address) as client:
        with pytest.raises(ReplayError, match="ends at 10"):
            read(client, last.stream, last.epoch, 5, 11)
        with pytest.raises(ReplayError, match="ends at 5"):
            read(client, last.stream, last.epoch + 1, 5, 11)
        with pytest.raises(ReplayError, match="no log of stream 'shop/other'"):
            read(client, "shop/other", 1, 5, 11)
        with pytest.raises(ConfigError):
            read(client, last.stream, last.epoch, 5, 4)
        assert read(client, last.stream, last.epoch, 5, 10)[0] == [b"x"] * 5


def test_another_mesh_and_bad_patterns_are_refused(shop: Peer) -> None:
    with (
        ReplayClient(shop.address, mesh="else") as client,
        pytest.raises(ReplayError, match="mesh"),
    ):
        client.logs()
    with ReplayClient(shop.address) as client:
        with pytest.raises(ConfigError):
            client.logs("a..b")
        client._send(c.LogsPlease(1, "default", ["a..b"]))
        client._number = 1
        answer, _ = client._receive(c.Logs)
        assert answer.error
        client._send(c.Credit(77, 5))
        client._number = 77
        assert client._receive(c.Part)[0].error.startswith("no such read")
    assert shop.stats()["counters"]["reads_refused"] == 3


def test_nonsense_is_counted_and_answered(shop: Peer) -> None:
    socket = ReplaySocket(shop.address)
    try:
        socket.send(b"nonsense")
        socket.send(c.encode_message(c.Read(1, "default", "shop/orders.**", 0, 5, 5, 100)))
        parts = socket.recv(10)
        assert parts is not None
        answer = c.decode_message(bytes(parts[0]))
        assert isinstance(answer, c.Part)
        assert "nothing to read" in answer.error
    finally:
        socket.close()
    assert shop.stats()["counters"]["bad_control"] == 1


def test_of_too_many_reads_the_one_that_took_least_gives_its_place(
    shop: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    quota = shop._open_node().service.quota
    quota.total = 2
    monkeypatch.setattr(service, "BEGUN_S", 60.0)
    last = shop.publish_many("orders.eu", [os.urandom(1000)] * 5000)
    assert last is not None
    clients = [ReplayClient(shop.address, credit_bytes=100_000) for _ in range(3)]
    try:
        readers = [iter(k.read(last.stream, last.epoch, 0, 5000)) for k in clients[:2]]
        next(readers[0])
        for _ in range(20):
            next(readers[1])  # gives credit again
        with pytest.raises(ReplayError, match="under way"):  # nobody has had time to take much
            next(iter(clients[2].read(last.stream, last.epoch, 0, 5000)))
        monkeypatch.setattr(service, "BEGUN_S", 0.0)
        assert len(list(clients[2].read(last.stream, last.epoch, 0, 5000))) > 0
        assert len(list(readers[1])) > 0
        with pytest.raises(ReplayError, match="others need the room"):
            list(readers[0])
        assert shop.stats()["counters"]["reads_evicted"] == 1
    finally:
        for client in clients:
            client.close()


def test_one_connection_has_few_reads_and_they_end_with_it(shop: Peer) -> None:
    last = shop.publish_many("orders.eu", [os.urandom(1000)] * 5000)
    assert last is not None
    reads = shop._open_node().service._reads
    socket = ReplaySocket(shop.address)
    try:
        for number in range(READS_EACH_MAX + 1):
            read = c.Read(number, "default", last.stream, last.epoch, 0, 5000, 1)
            socket.send(c.encode_message(read))
        while True:
            parts = socket.recv(10)
            assert parts is not None
            answer = c.decode_message(bytes(parts[0]))
            assert isinstance(answer, c.Part)
            if answer.error:
                break
        assert answer.number == READS_EACH_MAX
        assert "end one first" in answer.error
        assert len(reads) == READS_EACH_MAX
    finally:
        socket.close()
    wait_until(lambda: not reads)


def test_a_peer_that_goes_away_raises(tmp_path: Path) -> None:
    streams = [{"topics": "orders.**", "durability": "log"}]
    with RemotePeer("shop", streams=streams, data_dir=str(tmp_path)) as shop:
        shop.run("last = peer.publish_many('orders.eu', [b'x' * 1000] * 20_000)")
        epoch, address = shop.eval("last.epoch"), shop.address
        with ReplayClient(address, credit_bytes=100_000) as client:
            reader = client.read("shop/orders.**", epoch, 0, 20_000)
            next(reader)
            shop.kill()
            with pytest.raises(ReplayError, match="went away"):
                list(reader)


def test_nobody_there_raises() -> None:
    with ReplayClient("tcp://127.0.0.1:9", timeout=0.2) as client:
        with pytest.raises(ReplayError, match="no answer"):
            client.logs()
        assert client.address == "tcp://127.0.0.1:9"


def test_reads_do_not_stop_live_delivery(shop: Peer) -> None:
    """Readers that never give credit again, and ones that read all, beside a live subscriber."""
    last = shop.publish_many("orders.eu", [bytes(1000)] * 20_000)
    assert last is not None
    clients = [ReplayClient(shop.address, credit_bytes=10_000) for _ in range(4)]
    try:
        for client in clients[:2]:
            next(iter(client.read(last.stream, last.epoch, 0, 20_000)))
        done: list[int] = []

        def work(client: ReplayClient) -> None:
            done.append(len(read(client, last.stream, last.epoch, 0, 20_000)[0]))

        threads = [threading.Thread(target=work, args=(client,)) for client in clients[2:]]
        with (
            Peer("live", connect=shop.address) as live,
            live.subscribe("orders.**") as events,
        ):
            shop.wait_for_subscribers("orders.eu", timeout=30)
            for thread in threads:
                thread.start()
            for n in range(200):
                shop.publish("orders.eu", n)
                event = events.get(timeout=30)
                assert event is not None
                assert event.data == n
            for thread in threads:
                thread.join(60)
        assert done == [20_000, 20_000]
    finally:
        for client in clients:
            client.close()
