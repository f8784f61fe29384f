"""Connections that say nothing, or nonsense: they do not stop a peer from serving others."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq

from meshmsg import Peer, Security, Stream, Tuning
from meshmsg._wire import control as c
from meshmsg.transports.zmq.connection_monitor import connections_allowed, cut, cut_all
from meshmsg.transports.zmq.work_queue import CONNECTIONS_MAX
from tests.support import processes
from tests.support.remote import RemotePeer
from tests.support.waiting import wait_until

WAIT_S = 60.0
CROWD = 1000


def target(address: str) -> tuple[str, int]:
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return host, int(port)


@pytest.fixture(autouse=True)
def files() -> Iterator[None]:
    """Enough of them for the crowd's own ends."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4 * CROWD if hard == resource.RLIM_INFINITY else min(hard, 4 * CROWD)
    if 0 <= soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def crowd(*addresses: str, count: int) -> Iterator[list[socket.socket]]:
    """So many connections to each address, which send nothing."""
    with ExitStack() as stack:
        found = []
        for address in addresses:
            for _ in range(count):
                one = stack.enter_context(socket.socket())
                one.settimeout(WAIT_S)
                one.connect(target(address))
                found.append(one)
        yield found


def is_cut(connection: socket.socket) -> bool:
    try:
        connection.setblocking(False)
        return connection.recv(1 << 16) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_a_thousand_silent_connections_do_not_stop_the_service(
    mesh_key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESHMSG_MESH_KEY", mesh_key)
    few_files = ["sh", "-c", 'ulimit -n 256; exec "$@"', "sh"]  # fewer than come
    with RemotePeer("pub", within=few_files, streams=[{"topics": "a.**"}]) as pub:
        pub.run("peer.publish('a.b', 0)")
        address = pub.address
        data = pub.eval("peer._open_node()._fanout.addresses[0][1]")
        with Peer("old", connect=address) as old, old.subscribe("a.**", start="earliest") as before:
            assert before.get(timeout=WAIT_S).data == 0
            with crowd(address, data, count=CROWD // 2) as silent:
                # Who came before is served, and who comes now gets in.
                with (
                    Peer("new", connect=address) as new,
                    new.subscribe("a.**", start="earliest") as after,
                ):
                    pub.run("peer.publish('a.b', 1)")
                    assert [after.get(timeout=WAIT_S).data for _ in range(2)] == [0, 1]
                    assert before.get(timeout=WAIT_S).data == 1
                assert pub.eval("peer.stats()['security']['connections_max']") == 96
                wait_until(lambda: sum(map(is_cut, silent)) >= CROWD - 2 * 96, WAIT_S)
                assert pub.eval("peer.stats()['counters']['connections_cut']") >= CROWD // 2
        wait_until(lambda: pub.eval("peer.stats()['security']['silent']") == 0, WAIT_S)
        assert pub.eval("peer.stats()['counters'].get('io_errors', 0)") == 0


def test_peers_that_are_not_where_they_say_leave_files_for_logs(tmp_path: Path) -> None:
    few_files = ["sh", "-c", 'ulimit -n 256; exec "$@"', "sh"]
    streams = [{"topics": "a.**", "durability": "log"}, {"topics": "b.**", "durability": "log"}]
    context: Any = zmq.Context()
    strangers: list[Any] = []
    with RemotePeer("pub", within=few_files, data_dir=str(tmp_path), streams=streams) as pub:
        for number in range(80):
            one = context.socket(zmq.DEALER)
            strangers.append(one)
            one.setsockopt(zmq.RCVTIMEO, 60_000)
            one.connect(pub.address)
            listen = [f"tcp://127.0.0.1:{number + 1}"]
            hello = c.Hello("x", 1000 + number, "default", "", listen, ["x/y"])
            one.send(c.encode_message(hello))
            assert isinstance(c.decode_message(one.recv()), c.Welcome)
        pub.run("peer.publish_many('a.b', range(100))")
        with (
            Peer("new", connect=pub.address) as new,
            new.subscribe("a.**", start="earliest") as events,
            new.subscribe("b.**", group="workers"),  # has a log made for its dead letters
        ):
            assert [events.get(WAIT_S).data for _ in range(100)] == list(range(100))
            pub.run("peer.wait_for_subscribers('b.c', timeout=60)")
        counters = pub.eval("peer.stats()['counters']")
        assert counters.get("accepts_failed", 0) == counters.get("io_errors", 0) == 0
        assert counters["dial_backs_dropped"] > 0
        assert pub.eval("len(__import__('os').listdir('/proc/self/fd'))") < 256 * 7 // 8
    context.destroy(linger=0)


def has_read_all(pub: RemotePeer) -> bool:
    """Return True when there was nothing to count any more in some turns of its I/O thread."""
    before = pub.eval(ACCEPTS_FAILED)
    pub.run("take_turns()")
    return bool(pub.eval(ACCEPTS_FAILED) == before)


def test_where_files_have_run_out_connections_are_cut_and_not_tried_for_ever() -> None:
    few_files = ["sh", "-c", 'ulimit -n 128; exec "$@"', "sh"]
    streams = [{"topics": "a.**"}]
    with RemotePeer("pub", within=few_files, discovery="none", streams=streams) as pub:
        address = pub.address
        pub.use("trouble")
        pub.run("files = open_files_until_none_is_left()")
        with crowd(address, count=20) as silent:
            wait_until(lambda: all(map(is_cut, silent)), WAIT_S)
        wait_until(lambda: has_read_all(pub))
        before = pub.eval(ACCEPTS_FAILED)
        assert before > 0
        pub.run("del files")
        with Peer("new", connect=address) as new, new.subscribe("a.**") as events:
            pub.run("peer.wait_for_subscribers('a.b', timeout=60); peer.publish('a.b', 1)")
            assert events.get(WAIT_S).data == 1
        assert pub.eval(ACCEPTS_FAILED) < before + 10_000


ACCEPTS_FAILED = "peer.stats()['counters']['accepts_failed']"


def test_silent_connections_to_the_port_of_a_worker_are_cut(mesh_key: str) -> None:
    keys = Security(mesh_key=mesh_key)
    with (
        Peer("shop", streams=[Stream("jobs.**")], security=keys) as shop,
        Peer("worker", connect=shop.address, security=keys) as worker,
        worker.subscribe("jobs.**", group="g", auto_ack=True) as jobs,
    ):
        shop.wait_for_subscribers("jobs.a", timeout=WAIT_S)
        member = next(iter(shop._open_node().publisher.groups.members.values()))
        with crowd(member.work.addresses[0][1], count=100) as silent:
            wait_until(lambda: sum(map(is_cut, silent)) >= 100 - 2 * CONNECTIONS_MAX, WAIT_S)
            shop.publish("jobs.a", 1)
            assert jobs.get(timeout=WAIT_S).data == 1


def test_who_does_not_get_through_the_handshake_is_disconnected(mesh_key: str) -> None:
    """Half-open, half a greeting, and one that sends a byte now and then."""
    tuning = Tuning(handshake_timeout_s=0.3)
    with (
        Peer(
            "pub", streams=[Stream("a.**")], tuning=tuning, security=Security(mesh_key=mesh_key)
        ) as pub,
        crowd(pub.address, count=3) as (silent, half, slow),
    ):
        half.sendall(b"\xff\0\0\0\0\0\0\0\x01\x7f\x03")
        slow.sendall(b"\xff")
        for connection in (silent, half, slow):
            wait_until(lambda one=connection: is_cut(one), WAIT_S)  # type: ignore[misc]
        counters = pub.stats()["counters"]
        assert counters["connections"] == 3
        wait_until(lambda: pub.stats()["counters"]["handshakes_failed"] >= 3, WAIT_S)
        wait_until(lambda: pub.stats()["security"]["control"] == 0, WAIT_S)


def test_senders_that_never_finish_a_message_hold_up_nobody() -> None:
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\0" + b"NULL".ljust(20, b"\0") + bytes(32)
    ready = b"\x05READY\x0bSocket-Type\0\0\0\x06DEALER\x08Identity\0\0\0\0"
    claim = b"\x02" + (4 << 20).to_bytes(8, "big") + b"MMC\x02"  # 4 MiB, and then silence
    with (
        Peer("pub", streams=[Stream("a.**")]) as pub,
        crowd(pub.address, count=50) as slow,
    ):
        for connection in slow:
            connection.sendall(greeting + b"\x04" + bytes([len(ready)]) + ready + claim)
        with Peer("sub", connect=pub.address) as sub, sub.subscribe("a.**") as events:
            pub.wait_for_subscribers("a.b", timeout=WAIT_S)
            for n in range(100):
                for connection in slow[:5]:
                    connection.sendall(b"x")
                pub.publish("a.b", n)
            assert [events.get(timeout=WAIT_S).data for _ in range(100)] == list(range(100))
        # A message that is larger than any request is not waited for.
        with crowd(pub.address, count=1) as (large,):
            large.sendall(greeting + b"\x04" + bytes([len(ready)]) + ready)
            large.sendall(b"\x02" + (1 << 40).to_bytes(8, "big") + b"x")
            wait_until(lambda: is_gone(large), WAIT_S)


def is_gone(connection: socket.socket) -> bool:
    """Whether the other side has closed it, after what it had to say."""
    while True:
        try:
            connection.setblocking(False)
            if not connection.recv(1 << 16):
                return True
        except BlockingIOError:
            return False
        except OSError:
            return True


def test_a_port_scan_leaves_no_trace_but_counters() -> None:
    with Peer("pub", streams=[Stream("a.**")]) as pub:
        for text in (b"GET / HTTP/1.1\r\n\r\n", b"", b"\x16\x03\x01\x02\0\x01\0", b"\0" * 64):
            with socket.create_connection(target(pub.address), timeout=WAIT_S) as scanner:
                scanner.sendall(text)
        wait_until(lambda: pub.stats()["counters"].get("connections", 0) >= 4, WAIT_S)
        wait_until(lambda: pub.stats()["security"]["control"] == 0, WAIT_S)
        with Peer("sub", connect=pub.address) as sub, sub.subscribe("a.**") as events:
            pub.wait_for_subscribers("a.b", timeout=WAIT_S)
            pub.publish("a.b", 1)
            assert events.get(timeout=WAIT_S).data == 1


def test_a_crowd_at_the_door_does_not_keep_a_peer_from_closing() -> None:
    command = processes.program("crowd_at_the_door")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "closed\n"


def test_only_connections_to_our_own_addresses_are_cut() -> None:
    """A descriptor may have become something else by now: a file, or a socket of somebody."""
    with (
        socket.create_server(("127.0.0.1", 0)) as ours,
        socket.create_server(("127.0.0.1", 0)) as other,
        open(os.devnull) as file,
    ):
        address = f"tcp://127.0.0.1:{ours.getsockname()[1]}"
        with (
            socket.create_connection(ours.getsockname()) as in_ours,
            socket.create_connection(other.getsockname()) as in_other,
            ours.accept()[0] as accepted,
            other.accept()[0] as foreign,
        ):
            strangers = [
                file.fileno(),
                foreign.fileno(),
                ours.fileno(),
                in_ours.fileno(),
                10**6,
                -1,
            ]
            assert cut(strangers, [address]) == 0
            assert cut([accepted.fileno()], [address]) == 1
            assert in_ours.recv(1) == b""
            foreign.sendall(b"x")
            assert in_other.recv(1) == b"x"
            with socket.create_connection(ours.getsockname()) as again, ours.accept()[0]:
                assert cut_all([address]) >= 1
                assert again.recv(1) == b""
    assert connections_allowed(7) == 7


def test_where_files_run_short_only_peers_that_the_user_named_are_dialled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Peer("pub", streams=[Stream("a.**")]) as pub:
        monkeypatch.setattr("meshmsg._links.outbound_peers.files_over", lambda: 1)
        streams = [Stream("b.**")]
        with Peer("sub", connect=pub.address, streams=streams) as sub, sub.subscribe("a.**") as got:
            pub.wait_for_subscribers("a.b", timeout=WAIT_S)
            pub.publish("a.b", 1)
            assert got.get(WAIT_S).data == 1  # type: ignore[union-attr]
            assert pub.stats()["links"] == [], "it is not dialled back"
