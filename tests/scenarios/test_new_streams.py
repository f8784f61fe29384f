"""A stream that is declared when its subscribers are there loses them nothing, whatever crosses it.

Peers that declare no stream have one with their first event.  Each test forces an order of messages
that a busy machine gives now and then.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from meshmsg import Peer, Stream
from meshmsg._model.message_fields import ENTRIES_MAX
from meshmsg._peer.node import Node
from meshmsg._wire import control as c
from tests.support.waiting import wait_until

EVENTS = list(range(100))


def take_all(events: Any) -> None:
    got = []
    while len(got) < len(EVENTS) and (event := events.get(timeout=60)) is not None:
        got.append(event.data)
        if events.group:
            events.ack(event)
    assert got == EVENTS
    assert events.losses == []


@contextlib.contextmanager
def proxied(peer: Peer, tcp_proxy: Any) -> Iterator[tuple[Any, Any]]:
    """Have both ports of a peer reached through what can be cut."""
    addresses = peer._open_node()._fanout.addresses
    with tcp_proxy(peer.address) as control, tcp_proxy(addresses[0][1]) as data:
        addresses[:] = [(control.address, data.address)]
        yield control, data


def break_off(sub: Peer, proxies: Any) -> None:
    """Break the connections, let no other one be made, and wait until the subscriber knows it."""
    for proxy in proxies:
        proxy.down = True
        proxy.cut()
    wait_until(lambda: sub.stats()["links"][0]["state"] == "dialling")


def mend(proxies: Any) -> None:
    for proxy in proxies:
        proxy.down = False


@pytest.mark.parametrize("group", [None, "workers"])
def test_subscription_that_is_made_before_the_first_event_gets_it(
    monkeypatch: pytest.MonkeyPatch, group: str | None
) -> None:
    with Peer("pub") as pub, Peer("sub", connect=pub.address) as sub:
        sub.wait_for_peers(timeout=60)
        node = sub._open_node()
        late: list[Any] = []
        asked: list[str] = []
        announced, send = node.links._on_welcome, node._control.send

        def on_welcome(link: Any, welcome: c.Welcome) -> None:
            """What `subscribe` left to the I/O thread comes right behind the announcement."""
            announced(link, welcome)
            for call in late:
                call()

        def note(to: Any, parts: list[bytes]) -> bool:
            message = c.decode_message(parts[0])
            if isinstance(message, c.Subscribe | c.Join):
                asked.extend(start.kind for start in message.starts)
            return send(to, parts)

        monkeypatch.setattr(node.links, "_on_welcome", on_welcome)
        monkeypatch.setattr(node._control, "send", note)
        with monkeypatch.context() as held:
            held.setattr(node, "call", late.append)
            events = sub.subscribe("**", group=group)
        with events:
            for n in EVENTS:
                pub.publish("never.declared", n)
            take_all(events)
            assert set(asked) == {"origin"}


@pytest.mark.parametrize("group", [None, "workers"])
def test_stream_that_is_declared_while_the_connection_is_broken_is_read_from_its_first_event(
    tcp_proxy: Any, group: str | None
) -> None:
    with (
        Peer("pub") as pub,
        proxied(pub, tcp_proxy) as proxies,
        Peer("sub", connect=proxies[0].address) as sub,
        sub.subscribe("**", group=group) as events,
    ):
        sub.wait_for_peers(timeout=60)
        break_off(sub, proxies)
        for n in EVENTS:
            pub.publish("never.declared", n)
        mend(proxies)
        take_all(events)


@pytest.mark.parametrize("group", [None, "workers"])
def test_subscription_is_there_although_the_connection_breaks_before_the_io_thread_knows_of_it(
    monkeypatch: pytest.MonkeyPatch, tcp_proxy: Any, group: str | None
) -> None:
    with (
        Peer("pub") as pub,
        proxied(pub, tcp_proxy) as proxies,
        Peer("sub", connect=proxies[0].address) as sub,
    ):
        sub.wait_for_peers(timeout=60)
        node = sub._open_node()
        late: list[Any] = []
        with monkeypatch.context() as held:
            held.setattr(node, "call", late.append)
            events = sub.subscribe("**", group=group)
        with events:
            break_off(sub, proxies)
            for call in late:
                node.call(call)
            for n in EVENTS:
                pub.publish("never.declared", n)
            mend(proxies)
            take_all(events)


def test_request_that_was_lost_with_its_connection_is_repeated_as_it_was(
    monkeypatch: pytest.MonkeyPatch, tcp_proxy: Any
) -> None:
    with (
        Peer("pub") as pub,
        proxied(pub, tcp_proxy) as (control, data),
        Peer("sub", connect=control.address) as sub,
        sub.subscribe("**") as events,
    ):
        sub.wait_for_peers(timeout=60)
        node = sub._open_node()
        send = node.send
        lost: list[c.Subscribe] = []

        def lose_first(to: Any, parts: list[bytes]) -> bool:
            message = c.decode_message(parts[0])
            if isinstance(message, c.Subscribe) and not lost:
                lost.append(message)
                control.cut()
                data.cut()
                return False
            return send(to, parts)

        monkeypatch.setattr(node._control, "send", lose_first)
        for n in EVENTS:
            pub.publish("never.declared", n)
        take_all(events)
        assert [start.kind for start in lost[0].starts] == ["origin"]


@pytest.mark.parametrize("group", [None, "workers"])
def test_first_event_of_a_peer_that_dialled_us_is_not_missed(group: str | None) -> None:
    with (
        Peer("sub") as sub,
        sub.subscribe("**", group=group) as events,
        Peer("pub", connect=sub.address) as pub,
    ):
        pub.wait_for_peers(timeout=60)
        for n in EVENTS:
            pub.publish("never.declared", n)
        take_all(events)


def test_who_subscribes_after_the_first_event_starts_live() -> None:
    with (
        Peer("sub") as sub,
        Peer("pub", connect=sub.address) as pub,
        sub.subscribe("**") as early,
    ):
        pub.wait_for_peers(timeout=60)
        pub.publish("x", "first")
        assert early.get(timeout=60).data == "first"  # type: ignore[union-attr]
        with sub.subscribe("**") as events:
            pub.wait_for_subscribers("x", count=2, timeout=60)
            pub.publish("x", "second")
            assert events.get(timeout=60).data == "second"  # type: ignore[union-attr]


@pytest.mark.parametrize(("kind", "lost"), [("join", [1]), ("join", [2]), ("joined", [1, 2])])
def test_a_lost_page_of_a_join_is_said_again(
    kind: str, lost: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshmsg.recovery.stream.unconfirmed.FIRST_S", 0.2)
    said: list[c.Message] = []
    post = Node.send

    def lose(node: Node, to: Any, parts: list[bytes]) -> bool:
        message = c.decode_message(parts[0])
        if isinstance(message, c.Join if kind == "join" else c.Joined):
            said.append(message)
            if len(said) in lost:
                return False
        return post(node, to, parts)

    monkeypatch.setattr(Node, "send", lose)
    streams = [Stream(f"s{n}.**") for n in range(ENTRIES_MAX + 1)]
    with (
        Peer("pub", streams=streams) as pub,
        Peer("worker", connect=pub.address) as worker,
        worker.subscribe("**", group="g") as events,
    ):
        for n in (0, ENTRIES_MAX):
            pub.wait_for_subscribers(f"s{n}.x", timeout=60)
            pub.publish(f"s{n}.x", n)
            event = events.get(timeout=60)
            assert event is not None
            assert event.data == n
            events.ack(event)
    assert len(said) > lost[-1]


@pytest.mark.parametrize("page", [0, 1, 2])
def test_a_lost_page_of_a_welcome_is_said_again(page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshmsg._links.outbound_peers.PAGE_S", 0.2)
    lost: list[int] = []
    post = Node.send

    def lose(node: Node, to: Any, parts: list[bytes]) -> bool:
        message = c.decode_message(parts[0])
        if isinstance(message, c.Welcome) and message.page == page and not lost:
            lost.append(page)
            return False
        return post(node, to, parts)

    monkeypatch.setattr(Node, "send", lose)
    streams = [Stream(f"s{n}.**") for n in range(2 * ENTRIES_MAX + 1)]
    with (
        Peer("pub", streams=streams) as pub,
        Peer("sub", connect=pub.address) as sub,
        sub.subscribe("**") as events,
    ):
        for n in (0, ENTRIES_MAX, 2 * ENTRIES_MAX):
            pub.wait_for_subscribers(f"s{n}.x", timeout=60)
            pub.publish(f"s{n}.x", n)
            assert events.get(timeout=60).data == n
        assert lost == [page]
