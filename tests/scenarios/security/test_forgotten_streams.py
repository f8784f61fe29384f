"""Where peers have keys of their own, a subscription has a socket for each publisher."""

from __future__ import annotations

from typing import Any

from meshmsg import Peer, Stream, Tuning
from tests.scenarios.security.conftest import WAIT_S
from tests.support.ports import free_port
from tests.support.waiting import wait_until

FORGETFUL = Tuning(ping_interval_s=0.05, peer_timeout_s=5.0, stream_forget_s=0.3)


def test_forgotten_stream_is_read_on_over_the_socket_of_its_publisher(keys: Any) -> None:
    pub_keys, sub_keys = keys.peer("pub"), keys.peer("sub")
    address = f"tcp://127.0.0.1:{free_port()}"
    with (
        Peer("sub", connect=address, security=sub_keys, tuning=FORGETFUL) as sub,
        sub.subscribe("**") as events,
    ):
        counters = events._intake.counters
        for life in range(3):
            with Peer("pub", streams=[Stream("x")], bind=address, security=pub_keys) as pub:
                if not life:
                    pub.wait_for_subscribers("x", timeout=WAIT_S)
                pub.publish("x", life)
                assert events.get(timeout=WAIT_S).data == life  # type: ignore[union-attr]
            wait_until(lambda n=life: counters["streams_forgotten"] == n + 1, WAIT_S)
        assert events.losses == []


def test_prefix_that_is_not_subscribed_to_any_more_costs_no_place(keys: Any) -> None:
    pub_keys, sub_keys = keys.peer("pub"), keys.peer("sub")
    with (
        Peer("pub", streams=[Stream("x"), Stream("y")], security=pub_keys) as pub,
        Peer("sub", connect=pub.address, security=sub_keys) as sub,
        sub.subscribe("**") as events,
    ):
        prefixes = pub._open_node()._fanout.prefixes
        wait_until(lambda: prefixes.used == 3, WAIT_S)  # two streams and a token
        intake: Any = events._intake
        wire_id = intake.incoming.by_name["pub/y"].wire_id.to_bytes(8, "little")
        with intake.lock:
            intake._client.unsubscribe(wire_id)
        wait_until(lambda: prefixes.used == 2, WAIT_S)


def test_peer_that_is_greeted_twice_proves_its_key_with_either_answer(keys: Any) -> None:
    """While an answer is on its way a peer may be greeted again: on a busy machine it often is."""
    pub_keys, sub_keys = keys.peer("pub"), keys.peer("sub")
    with (
        Peer("pub", streams=[Stream("x")], security=pub_keys) as pub,
        Peer("sub", connect=pub.address, security=sub_keys) as sub,
        sub.subscribe("**") as events,
    ):
        events.wait_for_publishers(1, timeout=WAIT_S)
        node = sub._open_node()
        (link,) = node.links.table.up()
        answers: list[str] = []
        take = node.links._on_welcome

        def note(link: Any, welcome: Any) -> None:
            take(link, welcome)
            answers.append(link.state)

        node.links._on_welcome = note  # type: ignore[method-assign]
        node.call(lambda: node.links._greet(link))
        node.call(lambda: node.links._greet(link))
        wait_until(lambda: len(answers) >= 2, WAIT_S)
        assert set(answers) == {"up"}
        assert node.counters["refused"] == 0
