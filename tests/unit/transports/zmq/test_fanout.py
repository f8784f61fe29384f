"""Fan-out: subscriptions are seen and bounded, and what is no subscription is cut."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from meshmsg.transports.zmq import fanout
from meshmsg.transports.zmq.connection_monitor import Door
from meshmsg.transports.zmq.context import Context
from meshmsg.transports.zmq.fanout import TOKEN_START, FanoutClient, FanoutServer
from meshmsg.transports.zmq.unread_limit import limits_of
from tests.support.waiting import wait_until

STREAM = b"streamid"
TOKEN = TOKEN_START + b"12345678"


class Bench:
    def __init__(self, may: Any = None) -> None:
        self.context = Context()
        self.server = FanoutServer(self.context, 1000, may)
        self.server.bind("tcp://127.0.0.1:*")
        self.address = self.server.addresses[0][1]
        self.client = FanoutClient(self.context, 1000)
        self.seen: list[tuple[bool, bytes]] = []

    def has_seen(self, *expected: tuple[bool, bytes]) -> bool:
        if self.server.door is not None:
            self.server.door.read()
        self.client.wait(0)  # what was asked of it is done meanwhile
        self.seen += self.server.drain()
        return set(expected) <= set(self.seen)

    def recv(self) -> bytes | None:
        self.client.wait(30.0)
        return self.client.recv()

    def watch(self) -> None:
        self.server.door = Door(self.server._socket, limits_of(1024, 1 << 20))

    def close(self) -> None:
        if self.server.door is not None:
            self.server.door.close()
        self.client.close()
        self.server.close(0.0)
        self.context.zmq.destroy(linger=0)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


def test_a_subscription_is_seen_and_gets_what_begins_with_its_prefix(bench: Bench) -> None:
    bench.client.subscribe(STREAM)
    bench.client.subscribe(TOKEN)
    bench.client.connect(bench.address)
    bench.client.connect(bench.address)  # again: nothing
    wait_until(lambda: bench.has_seen((True, STREAM), (True, TOKEN)))
    assert bench.server.drained
    bench.server.send(b"otherone" + b"x")
    bench.server.send(STREAM + b"frame")
    assert bench.recv() == STREAM + b"frame"
    assert bench.client.recv() is None
    bench.client.unsubscribe(STREAM)
    wait_until(lambda: bench.has_seen((False, STREAM)))


def test_a_fault_loses_messages_and_counts_them(bench: Bench) -> None:
    bench.client.subscribe(STREAM)
    bench.client.connect(bench.address)
    wait_until(lambda: bench.has_seen((True, STREAM)))
    bench.server.fault = lambda message: message.endswith(b"lost")
    bench.server.send(STREAM + b"lost")
    bench.server.send(STREAM + b"kept")
    assert bench.recv() == STREAM + b"kept"
    assert bench.server.counters["injected_drops"] == 1


def test_a_prefix_that_is_none_of_ours_is_not_told_and_cut(bench: Bench) -> None:
    bench.watch()
    bench.client.subscribe(b"x" * 100)
    bench.client.connect(bench.address)
    wait_until(lambda: bench.has_seen() and bench.server.counters["bad_prefixes"] > 0)
    assert bench.seen == [] or all(not came for came, _ in bench.seen)


def test_a_subscription_longer_than_any_of_ours_is_cut_unread(bench: Bench) -> None:
    bench.watch()
    door = bench.server.door
    assert door is not None
    bench.client.subscribe(b"x" * fanout.SUBSCRIPTION_BYTES_MAX)
    bench.client.connect(bench.address)
    wait_until(lambda: bench.has_seen() and door.counters["connections"] > 1)  # it dials again
    assert bench.seen == []
    assert bench.server.counters["bad_prefixes"] == 0


def test_one_connection_has_few_tokens(bench: Bench) -> None:
    bench.watch()
    for n in range(fanout.TOKENS_EACH_MAX + 1):
        bench.client.subscribe(TOKEN_START + b"%08d" % n)
    bench.client.connect(bench.address)
    wait_until(lambda: bench.has_seen() and bench.server.counters["prefixes_full"] > 0)


def test_a_connection_is_cut_once_a_turn_whatever_it_says(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[set[int]] = []
    monkeypatch.setattr(fanout, "cut", lambda fds, addresses: calls.append(set(fds)))
    bench.watch()
    for n in range(40):
        bench.client.subscribe(b"nonsense %d" % n)
    bench.client.connect(bench.address)
    turns: list[int] = []

    def all_read() -> bool:
        before = len(calls)
        bench.has_seen()
        turns.append(len(calls) - before)
        return bench.server.counters["bad_prefixes"] == 40

    wait_until(all_read)
    assert max(turns) == 1
    assert {len(fds) for fds in calls} == {1}


def test_what_a_connection_held_is_free_when_it_is_gone(bench: Bench) -> None:
    bench.watch()
    bench.server.door.gone = bench.server.forget  # type: ignore[union-attr]
    bench.client.subscribe(STREAM)
    bench.client.connect(bench.address)
    wait_until(lambda: bench.has_seen((True, STREAM)))
    assert sum(bench.server.prefixes.owners.values()) == 1
    bench.client.disconnect(bench.address)
    # The end of the subscription and that of the connection are told one after the other.
    wait_until(lambda: bench.has_seen() and not bench.server._held)
    assert not bench.server.prefixes.owners


def test_only_what_is_permitted_is_put_in_force() -> None:
    bench = Bench(lambda user, prefix: prefix != b"secret01")
    try:
        for prefix in (b"secret01", STREAM):
            bench.client.subscribe(prefix)
        bench.client.connect(bench.address)
        wait_until(lambda: bench.has_seen((True, STREAM)))
        wait_until(lambda: bench.has_seen() and bench.server.counters["not_permitted"] == 1)
        assert (True, b"secret01") not in bench.seen
        bench.server.send(b"secret01" + b"x")
        bench.server.send(STREAM + b"y")
        assert bench.recv() == STREAM + b"y"
    finally:
        bench.close()


def test_nonsense_is_counted_and_ends_its_connection(bench: Bench) -> None:
    bench.watch()
    stranger = bench.context.zmq.socket(zmq.XSUB)
    stranger.setsockopt(zmq.LINGER, 0)
    stranger.connect(bench.address)
    wait_until(lambda: bench.has_seen() and bool(bench.server.door.open))  # type: ignore[union-attr]
    stranger.send(b"no subscription")
    wait_until(lambda: bench.has_seen() and bench.server.counters["bad_upstream"] > 0)
    stranger.close()
