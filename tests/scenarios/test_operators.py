"""Operators act on running peers: groups paused, reset, redriven; members put out; drains."""

from __future__ import annotations

import threading
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from meshmsg import (
    ConfigError,
    Event,
    Peer,
    PeerRefused,
    Position,
    Stream,
    Subscription,
    _platform,
)
from meshmsg._peer.peer import node_of
from meshmsg._wire.control import Operate, Start
from tests.support.ports import free_port
from tests.support.remote import RemotePeer
from tests.support.waiting import wait_until as wait_for

wait_until = partial(wait_for, timeout=60)  # on a machine that is busy
WAIT_S = 60
DURABILITIES = pytest.mark.parametrize("durability", ["none", "log"])


def jobs(durability: str = "none", **more: Any) -> Stream:
    return Stream("jobs.**", durability=durability, groups="g", **more)


def shop_at(path: Path, durability: str = "none", **more: Any) -> Peer:
    return Peer("shop", streams=[jobs(durability)], data_dir=path, **more)


def remote_shop(path: Path, count: int) -> RemotePeer:
    """A publisher in a process of its own, to be killed, with so many jobs more."""
    stream = {"topics": "jobs.**", "durability": "log", "groups": ["g"]}
    shop = RemotePeer("shop", streams=[stream], data_dir=str(path))
    if count:
        shop.run(f"peer.publish_many('jobs.a', range({count}))")
    return shop


def order(operator: Peer, action: str, *args: Any, **more: Any) -> list[dict[str, Any]]:
    operator.wait_for_peers(timeout=WAIT_S)
    (answer,) = operator.operate(action, *args, timeout=WAIT_S, **more).values()
    assert answer["problem"] == ""
    done: list[dict[str, Any]] = answer["done"]
    return done


def refusal(operator: Peer, action: str, *args: Any, **more: Any) -> str:
    operator.wait_for_peers(timeout=WAIT_S)
    (answer,) = operator.operate(action, *args, timeout=WAIT_S, **more).values()
    assert answer["done"] == []
    return str(answer["problem"])


def group_of(shop: Peer) -> dict[str, Any]:
    (group,) = shop.stats()["streams"]["jobs.**"]["groups"]
    return dict(group)


def take(events: Subscription, count: int) -> list[Event]:
    taken = []
    for _ in range(count):
        event = events.get(timeout=WAIT_S)
        assert event is not None, f"{len(taken)} of {count} came"
        taken.append(event)
    return taken


def rest_of(events: Subscription, shop: Peer) -> list[int]:
    """All that comes until the group has nothing more."""
    found: list[int] = []

    def done() -> bool:
        while (event := events.get(timeout=0.01)) is not None:
            found.append(event.data)
            events.ack(event)
        return group_of(shop)["lag"] == 0

    wait_until(done)
    return found


# --- pause ---


@DURABILITIES
def test_paused_group_finishes_what_it_has_and_gets_nothing_new(
    tmp_path: Path, durability: str
) -> None:
    with (
        shop_at(tmp_path, durability) as shop,
        Peer("anna", connect=shop.address) as anna,
        Peer("op", connect=shop.address) as op,
        anna.subscribe("jobs.**", group="g", prefetch=4, order="none") as events,
    ):
        shop.wait_for_subscribers("jobs.a", timeout=WAIT_S)
        shop.publish_many("jobs.a", range(20))
        (first,) = take(events, 1)
        wait_until(lambda: group_of(shop)["in_flight"] == 4)
        (row,) = order(op, "group pause", "g", dry_run=True)
        assert (row["in_flight"], row["changes"]) == (4, True)
        assert not group_of(shop)["paused"]
        order(op, "group pause", "g")
        for event in [first, *take(events, 3)]:
            events.ack(event)
        wait_until(lambda: group_of(shop)["acked"] == 4)
        shop.publish("jobs.a", 20)
        assert events.get(timeout=0.2) is None
        assert (group_of(shop)["in_flight"], group_of(shop)["lag"]) == (0, 17)
        order(op, "group resume", "g")
        assert rest_of(events, shop) == list(range(4, 21))


def test_publisher_does_not_wait_for_a_durable_group_that_is_paused(tmp_path: Path) -> None:
    stream = jobs("log", overflow="block", window_bytes=100_000, buffer_bytes=200_000)
    with (
        Peer("shop", streams=[stream], data_dir=tmp_path) as shop,
        Peer("anna", connect=shop.address) as anna,
        Peer("op", connect=shop.address) as op,
        anna.subscribe("jobs.**", group="g", prefetch=4, order="none") as events,
    ):
        shop.wait_for_subscribers("jobs.a", timeout=WAIT_S)
        shop.publish("jobs.a", b"x")
        events.ack(take(events, 1)[0])
        wait_until(lambda: group_of(shop)["acked"] == 1)
        order(op, "group pause", "g")
        for _ in range(100):
            shop.publish("jobs.a", bytes(10_000), timeout=WAIT_S)
        shop.flush(timeout=WAIT_S)
        order(op, "group resume", "g")
        assert len(rest_of(events, shop)) == 100


def test_pause_outlives_a_kill_of_the_publisher(tmp_path: Path) -> None:
    with remote_shop(tmp_path, 10) as shop:
        with Peer("op", connect=shop.address) as op:
            order(op, "group pause", "g")
        shop.kill()
    with shop_at(tmp_path, "log") as again, Peer("op", connect=again.address) as op:
        assert (group_of(again)["paused"], group_of(again)["lag"]) == (True, 10)
        order(op, "group resume", "g")
        with (
            Peer("anna", connect=again.address) as anna,
            anna.subscribe("jobs.**", group="g") as events,
        ):
            assert rest_of(events, again) == list(range(10))


# --- reset ---


@DURABILITIES
def test_reset_while_members_work_refuses_what_they_had(tmp_path: Path, durability: str) -> None:
    with (
        shop_at(tmp_path, durability) as shop,
        Peer("anna", connect=shop.address) as anna,
        Peer("op", connect=shop.address) as op,
        anna.subscribe("jobs.**", group="g", prefetch=4, order="none") as events,
    ):
        shop.wait_for_subscribers("jobs.a", timeout=WAIT_S)
        shop.publish_many("jobs.a", range(10))
        held = take(events, 3)
        events.ack(held[0])
        wait_until(lambda: group_of(shop)["acked"] == 1)
        (row,) = order(op, "group reset", "g", start="earliest", dry_run=True)
        assert (row["lag"], row["lag_after"], row["skipped"]) == (9, 10, 0)
        assert group_of(shop)["generation"] == 0
        order(op, "group reset", "g", start="earliest")
        wait_until(lambda: group_of(shop)["members"])
        for event in held[1:]:  # of before the reset: both come again all the same
            events.ack(event)
        assert sorted(rest_of(events, shop)[-10:]) == list(range(10))
        # Those of before settled nothing: else what came again had been settled twice.
        assert (group_of(shop)["acked"], group_of(shop)["stale_acks"]) == (10, 0)
        assert shop.ledger().reconciles


def test_member_that_was_away_during_a_reset_cannot_settle_what_it_had(tmp_path: Path) -> None:
    """Its connection broke before, and it speaks of what it had when it is back."""
    with (
        shop_at(tmp_path, "log") as shop,
        Peer("anna", connect=shop.address) as anna,
        anna.subscribe("jobs.**", group="g", prefetch=4, order="none") as events,
    ):
        shop.wait_for_subscribers("jobs.a", timeout=WAIT_S)
        shop.publish_many("jobs.a", range(6))
        held = take(events, 2)
        node = node_of(shop)
        done = threading.Event()

        def cut_and_reset() -> None:
            now = _platform.monotonic()
            node.reception.forget_users({b""}, now)
            start = Start("shop/jobs.**", "origin")
            wanted = Operate(1, "group reset", "g", start=start)
            node.publisher.groups.operator.reset(wanted, lambda rows, problem: done.set(), now)

        node.call(cut_and_reset)
        assert done.wait(WAIT_S)
        for event in held:
            events.ack(event)
        # From its queue it may have been given some before it heard of the reset.
        assert sorted(rest_of(events, shop)[-6:]) == list(range(6))
        assert group_of(shop)["acked"] == 6


@DURABILITIES
def test_reset_to_live_skips_and_says_so(tmp_path: Path, durability: str) -> None:
    with (
        shop_at(tmp_path, durability) as shop,
        Peer("anna", connect=shop.address) as anna,
        Peer("op", connect=shop.address) as op,
    ):
        shop.publish_many("jobs.a", range(10))
        (row,) = order(op, "group reset", "g", start="live")
        assert (row["skipped"], row["lag_after"]) == (10, 0)
        shop.publish("jobs.a", 10)
        with anna.subscribe("jobs.**", group="g") as events:
            assert rest_of(events, shop) == [10]
        ledger = shop.ledger()
        (old,) = [found for found in ledger.rows if found.state == "reset"]
        assert (old.lost, ledger.reconciles) == ({"reset": 10}, True)


def test_reset_reaches_back_through_starts_to_a_time_and_a_position(tmp_path: Path) -> None:
    with shop_at(tmp_path, "log") as shop:
        places = [shop.publish("jobs.a", n) for n in range(5)]
    with (
        shop_at(tmp_path, "log") as shop,
        Peer("anna", connect=shop.address) as anna,
        Peer("op", connect=shop.address) as op,
        anna.subscribe("jobs.**", group="g") as events,
    ):
        shop.publish_many("jobs.a", range(5, 8))
        assert rest_of(events, shop) == list(range(8))
        order(op, "group reset", "g", start=places[3])
        assert rest_of(events, shop) == list(range(3, 8))
        order(op, "group reset", "g", start=0.0)
        assert rest_of(events, shop) == list(range(8))
        order(op, "group reset", "g", start="last:2")
        assert rest_of(events, shop) == [6, 7]


def test_reset_outlives_a_kill_right_after_the_answer(tmp_path: Path) -> None:
    with remote_shop(tmp_path, 10) as shop:
        with (
            Peer("anna", connect=shop.address) as anna,
            anna.subscribe("jobs.**", group="g", order="none") as events,
        ):
            for event in take(events, 10):
                events.ack(event)
        with Peer("op", connect=shop.address) as op:
            epoch = shop.eval("peer.publish('jobs.a', 10).epoch")
            position = Position("shop/jobs.**", epoch, 4)
            order(op, "group reset", "g", start=position)
        shop.kill()
    with (
        shop_at(tmp_path, "log") as again,
        Peer("anna", connect=again.address) as anna,
        anna.subscribe("jobs.**", group="g") as events,
    ):
        assert rest_of(events, again) == list(range(4, 11))


# --- dead letters ---


def fail_all(events: Subscription, count: int) -> None:
    for _ in range(count):
        (event,) = take(events, 1)
        events.nack(event, error="no")


@DURABILITIES
@pytest.mark.parametrize("gaps", ["key", "none"])
def test_redrive_twice_gives_each_dead_letter_once(
    tmp_path: Path, durability: str, gaps: str
) -> None:
    with (
        shop_at(tmp_path, durability) as shop,
        Peer("anna", connect=shop.address) as anna,
        Peer("op", connect=shop.address) as op,
        anna.subscribe("jobs.**", group="g", max_attempts=1, order=gaps) as events,
        anna.subscribe("jobs.**") as others,
    ):
        shop.wait_for_subscribers("jobs.a", count=2, timeout=WAIT_S)
        for n in range(6):
            shop.publish("jobs.a", n, key=f"k{n % 2}", headers={"own": n})
        fail_all(events, 6)
        wait_until(lambda: group_of(shop)["dead"] == 6)
        wait_until(lambda: order(op, "group redrive", "g", dry_run=True)[0]["redriven"] == 6)
        (row,) = order(op, "group redrive", "g", most=4)
        assert (row["redriven"], row["left"]) == (4, 2)
        assert [order(op, "group redrive", "g")[0]["redriven"] for _ in range(2)] == [2, 0]
        again = []
        for _ in range(6):
            again += take(events, 1)
            events.ack(again[-1])
        assert {event.attempt for event in again} == {2}
        assert [event.headers for event in sorted(again, key=lambda e: e.data)] == [
            {"own": n} for n in range(6)
        ]
        assert rest_of(events, shop) == []
        assert order(op, "group redrive", "g")[0]["redriven"] == 0  # they are done
        assert (group_of(shop)["acked"], group_of(shop)["dead"]) == (6, 0)
        assert shop.ledger().reconciles
        assert len(take(others, 6)) == 6  # who is not of the group has each event once
        assert others.get(timeout=0.1) is None


def test_redrive_reaches_letters_of_an_earlier_start_and_outlives_a_kill(tmp_path: Path) -> None:
    with remote_shop(tmp_path, 4) as shop:
        with (
            Peer("anna", connect=shop.address) as anna,
            anna.subscribe("jobs.**", group="g", max_attempts=1, order="none") as events,
        ):
            fail_all(events, 4)
        shop.kill()
    for _ in range(2):
        with remote_shop(tmp_path, 0) as shop:
            with Peer("op", connect=shop.address) as op:
                redriven = order(op, "group redrive", "g")[0]["redriven"]
            shop.kill()
        assert redriven in (4, 0)
    with (
        shop_at(tmp_path, "log") as again,
        Peer("anna", connect=again.address) as anna,
        Peer("op", connect=again.address) as op,
        anna.subscribe("jobs.**", group="g", max_attempts=1, order="none") as events,
    ):
        assert order(op, "group redrive", "g")[0]["redriven"] == 0
        assert Counter(rest_of(events, again)) == Counter(range(4))


# --- members and peers put out ---


def test_work_of_an_evicted_member_goes_to_others(tmp_path: Path) -> None:
    with (
        shop_at(tmp_path) as shop,
        Peer("anna", connect=shop.address) as anna,
        Peer("bert", connect=shop.address) as bert,
        Peer("op", connect=shop.address) as op,
        anna.subscribe("jobs.**", group="g", name="one", order="none") as one,
    ):
        shop.wait_for_subscribers("jobs.a", timeout=WAIT_S)
        shop.publish_many("jobs.a", range(5))
        held = take(one, 2)
        with bert.subscribe("jobs.**", group="g", order="none") as other:
            shop.wait_for_subscribers("jobs.a", count=2, timeout=WAIT_S)
            (row,) = order(op, "evict", "anna/one", dry_run=True)
            assert row["in_flight"] == 5
            order(op, "evict", "anna/one")
            with pytest.raises(PeerRefused, match="an operator has evicted it"):
                take(one, 4)
            one.ack(held)
            assert sorted(rest_of(other, shop)) == list(range(5))
        assert refusal(op, "evict", "nobody") == "nobody here is called 'nobody'"


def test_work_of_members_that_are_sent_away_is_no_dead_letter(tmp_path: Path) -> None:
    streams = [Stream(f"{name}.**", groups="g") for name in ("jobs", "more")]
    with (
        Peer("shop", streams=streams, data_dir=tmp_path) as shop,
        Peer("anna", connect=shop.address) as anna,
        Peer("op", connect=shop.address) as op,
        anna.subscribe("**", group="g", prefetch=1, max_attempts=1, order="none") as one,
    ):
        shop.wait_for_subscribers("more.a", timeout=WAIT_S)
        shop.publish("jobs.a", 1)
        take(one, 1)
        order(op, "group reset", "g", stream="shop/more.**", start="earliest")
        (again,) = take(one, 1)
        assert (again.topic, again.data) == ("jobs.a", 1)
        order(op, "evict", "anna/-")
        assert [group["dead"] for group in shop.stats()["streams"]["jobs.**"]["groups"]] == [0]
        with anna.subscribe("**", group="g", max_attempts=1, order="none") as other:
            assert take(other, 1)[0].data == 1


def test_evicted_peer_is_cut_off(tmp_path: Path) -> None:
    with (
        shop_at(tmp_path) as shop,
        Peer("anna", connect=shop.address) as anna,
        Peer("op", connect=shop.address) as op,
        anna.subscribe("jobs.**") as events,
    ):
        shop.wait_for_subscribers("jobs.a", timeout=WAIT_S)
        assert {"peer": "anna", "host": "127.0.0.1"} in order(op, "evict", "anna")
        with pytest.raises(PeerRefused, match="an operator has evicted it"):
            events.get(timeout=WAIT_S)
        assert shop.stats()["clients"] == ["op"]


# --- drain ---


def test_drained_peer_finishes_what_it_has_and_gives_back_the_rest(tmp_path: Path) -> None:
    with shop_at(tmp_path) as shop, Peer("bert", connect=shop.address) as bert:
        anna = Peer("anna", bind="tcp://127.0.0.1:*", connect=shop.address).open()
        with Peer("op", connect=anna.address) as op:
            events = anna.subscribe("jobs.**", group="g", prefetch=10, order="none")
            shop.wait_for_subscribers("jobs.a", timeout=WAIT_S)
            shop.publish_many("jobs.a", range(10))
            held = take(events, 2)
            order(op, "drain", within=WAIT_S)
            wait_until(lambda: group_of(shop)["in_flight"] == 2)
            with bert.subscribe("jobs.**", group="g", order="none") as other:
                events.ack(held)  # what it had in hand counts
                assert sorted(rest_of(other, shop)) == list(range(2, 10))
                wait_until(lambda: events.closed)
                assert group_of(shop)["acked"] == 10
        anna.close()


def test_drain_ends_in_time_beside_a_member_that_hangs(tmp_path: Path) -> None:
    with (
        shop_at(tmp_path, bind=f"tcp://127.0.0.1:{free_port()}") as shop,
        Peer("op", connect=shop.address) as op,
        Peer("bert", connect=shop.address) as bert,
        bert.subscribe("jobs.**", group="g") as events,
    ):
        shop.wait_for_subscribers("jobs.a", timeout=WAIT_S)
        shop.publish("jobs.a", 1)
        take(events, 1)  # and never says what became of it
        order(op, "drain", within=0.5)
        wait_until(lambda: not [link for link in op.stats()["links"] if link["state"] == "up"])


# --- who may, and what is wrong ---


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with shop_at(tmp_path) as shop, Peer("op", connect=shop.address) as op:
        assert "there is no group 'x': known are g" in refusal(op, "group pause", "x")
        assert "there is no cursor 'x'" in refusal(op, "cursor drop", "x")
        with pytest.raises(ConfigError, match="is not one of"):
            op.operate("group explode", "g")
        with pytest.raises(ConfigError, match="of another stream"):
            op.operate("group reset", "g", stream="shop/a", start=Position("shop/b", 1, 2))
        for far in (Position("shop/a", 1, 2**63), Position("shop/a", 2**63, 1), f"last:{2**63}"):
            with pytest.raises(ConfigError, match="no stream gets beyond"):
                op.operate("group reset", "g", start=far)


def test_orders_are_written_down_and_not_those_of_a_dry_run(tmp_path: Path) -> None:
    with (
        shop_at(tmp_path, audit="log") as shop,
        Peer("op", connect=shop.address) as op,
        op.subscribe("mesh.audit.**", start="earliest") as audit,
    ):
        order(op, "group pause", "g", dry_run=True)
        order(op, "group pause", "g")
        refusal(op, "group pause", "x")
        found = []
        while len(found) < 2:
            (event,) = take(audit, 1)
            if event.topic == "mesh.audit.operated":
                found.append(event.data)
        assert [(one["action"], one["name"]) for one in found] == [
            ("group pause", "g"),
            ("group pause", "x"),
        ]
        assert "there is no group" in found[1]["problem"]
        assert found[0]["peer"] == "op"
