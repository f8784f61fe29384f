"""`meshmsg ledger` and `meshmsg peers` against real peers, honest and otherwise."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from meshmsg import Peer
from meshmsg._model.config import Stream
from meshmsg._receive.subscription import Subscription
from meshmsg.cli.ledger import merge
from meshmsg.recovery.stream.ledger import Ledger, LedgerRow
from tests.support.waiting import wait_until

FREE = "tcp://127.0.0.1:*"


@contextmanager
def shop_and_desk() -> Iterator[tuple[Peer, Peer, Subscription]]:
    """A publisher of ten events, and a subscriber that has yet to read them."""
    with (
        Peer("shop", bind=FREE, streams=Stream("orders.**")) as shop,
        Peer("desk", bind=FREE, connect=shop.address) as desk,
        desk.subscribe("orders.eu", name="all") as events,
    ):
        shop.wait_for_subscribers("orders.eu", timeout=60)
        shop.publish_many("orders.eu", range(8))
        shop.publish_many("orders.us", range(2))
        yield shop, desk, events


def read_all(events: Subscription) -> None:
    assert [event.data for event in events.get_many(8, timeout=60)] == list(range(8))
    assert events.get(timeout=0.05) is None  # so that what is filtered is taken note of


def rows_of(result: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


# The ledger ------------------------------------------------------------------------------------


def test_a_ledger_that_adds_up_is_good(run: Any) -> None:
    with shop_and_desk() as (shop, _, events):
        read_all(events)
        result = run("ledger", "-c", shop.address, "--settle", "30s", "--json")
    assert result.exit_code == 0
    (row,) = rows_of(result)
    assert row["stream"] == "shop/orders.**"
    assert row["subscription"].startswith("desk/all#")
    assert (row["published"], row["delivered"], row["filtered"]) == (10, 8, 2)
    assert (row["lost"], row["in_flight"], row["reconciles"]) == ({}, 0, True)


def test_the_table_has_a_row_and_a_tick(run: Any) -> None:
    with shop_and_desk() as (shop, _, events):
        read_all(events)
        result = run("ledger", "-c", shop.address, "--settle", "30s")
    assert result.exit_code == 0
    assert "shop/orders.**" in result.stdout
    (row,) = [line for line in result.stdout.splitlines() if "desk/all#" in line]
    assert row.split() == ["✔", row.split()[1], "10", "8", "2", "0", "-"]


def test_what_both_ends_report_is_one_row(run: Any) -> None:
    with shop_and_desk() as (shop, desk, events):
        read_all(events)
        addresses = ("-c", shop.address, "-c", desk.address)
        both = rows_of(run("ledger", *addresses, "--settle", "30s", "--json"))
        alone = rows_of(run("ledger", "-c", desk.address, "--json"))
    assert len(both) == 1
    assert both == alone


def test_in_flight_adds_up_but_does_not_settle(run: Any) -> None:
    with shop_and_desk() as (shop, _, _):
        good = run("ledger", "-c", shop.address)
        unsettled = run("ledger", "-c", shop.address, "--settle", "100ms")
    assert good.exit_code == 0
    assert unsettled.exit_code == 1
    assert "10 events are still in flight after 0.1 s" in unsettled.stderr


def test_no_subscriptions_is_nothing_to_account_for(run: Any) -> None:
    with Peer("shop", bind=FREE, streams=Stream("orders.**")) as shop:
        shop.publish("orders.eu", 1)
        result = run("ledger", "-c", shop.address)
        as_json = run("ledger", "-c", shop.address, "--json")
    assert result.exit_code == as_json.exit_code == 0
    assert "no subscriptions" in result.stdout
    assert as_json.stdout == ""


def row(**changes: Any) -> LedgerRow:
    figures = {"published": 10, "delivered": 7, "filtered": 1, "in_flight": 1}
    return LedgerRow("shop/**", 5, "desk/-#1", lost={"gone": 1}, **(figures | changes))


def test_without_an_address_all_that_are_found_are_asked(run: Any) -> None:
    mesh = f"ledger-{uuid.uuid4().hex}"
    found: dict[str, Any] = {"mesh": mesh, "discovery": "zeroconf"}
    with (
        Peer("shop", streams=Stream("orders.**"), **found) as shop,
        Peer("desk", **found) as desk,
        desk.subscribe("orders.**", name="all") as events,
    ):
        shop.wait_for_subscribers("orders.eu", timeout=60)
        shop.publish_many("orders.eu", range(8))
        read_all(events)
        result = run("ledger", "--mesh", mesh, "--discovery", "auto", "--wait", "30s", "--json")
    assert result.exit_code == 0, result.stderr
    (row,) = rows_of(result)
    assert (row["published"], row["delivered"]) == (8, 8)


def test_without_anybody_to_ask_the_ledger_fails(run: Any) -> None:
    mesh = f"ledger-{uuid.uuid4().hex}"
    result = run("ledger", "--mesh", mesh, "--discovery", "auto", "--wait", "200ms")
    assert result.exit_code == 1
    assert f"no peer of mesh '{mesh}' was found" in result.stderr


@pytest.mark.parametrize(
    "bad", [row(delivered=6), row(delivered=8), row(in_flight=-1, delivered=9)]
)
def test_a_ledger_that_does_not_add_up_fails(
    run: Any, monkeypatch: pytest.MonkeyPatch, bad: LedgerRow
) -> None:
    with Peer("shop", bind=FREE) as shop:
        monkeypatch.setattr(shop._node.questions, "_ledger", lambda: Ledger((row(), bad)))
        result = run("ledger", "-c", shop.address, "--json")
        table = run("ledger", "-c", shop.address)
    # Rows of one subscription are one row: the first of a peer's own is taken.
    assert result.exit_code == table.exit_code == 0

    with Peer("shop", bind=FREE) as shop:
        monkeypatch.setattr(shop._node.questions, "_ledger", lambda: Ledger((bad,)))
        result = run("ledger", "-c", shop.address, "--json")
        table = run("ledger", "-c", shop.address)
    assert result.exit_code == table.exit_code == 1
    assert "does not add up: shop/** to desk/-#1: published 10, but delivered" in result.stderr
    assert rows_of(result)[0]["reconciles"] is False
    assert "✘ desk/-#1" in table.stdout


def test_merging_prefers_the_publisher_whoever_comes_first() -> None:
    def answer(peer: str, found: LedgerRow) -> dict[str, Any]:
        return {"address": "a", "peer": peer, "rows": [found.as_dict()]}

    ours, theirs = row(), row(published=9, in_flight=0)
    answers = [answer("shop", ours), answer("desk", theirs)]
    for given in (answers, answers[::-1]):
        assert merge(given).rows == (ours,)
    other = answer("desk", LedgerRow("shop/**", 6, "desk/-#1", 0, 0, 0))
    assert len(merge([*answers, other]).rows) == 2


def test_an_answer_that_is_no_ledger_fails(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Nonsense:
        rows = (type("Row", (), {"as_dict": lambda self: {"stream": 7}})(),)

    with Peer("shop", bind=FREE) as shop:
        monkeypatch.setattr(shop._node.questions, "_ledger", Nonsense)
        result = run("ledger", "-c", shop.address)
    assert result.exit_code == 1
    assert "answered with something that is not a ledger" in result.stderr


@pytest.mark.parametrize("verb", ["ledger", "peers"])
def test_an_address_where_nobody_answers_fails(run: Any, tmp_path: Path, verb: str) -> None:
    with Peer("shop", bind=FREE) as shop:
        nobody = f"ipc://{tmp_path}/nobody"
        result = run(verb, "-c", shop.address, "-c", nobody, "--timeout", "300ms")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert f"no peer answers at {nobody} (waited 0.3 s)" in result.stderr


@pytest.mark.parametrize("verb", ["ledger", "peers"])
def test_two_addresses_of_one_peer_answer_once(run: Any, verb: str, tmp_path: Path) -> None:
    with Peer("shop", bind=[FREE, f"ipc://{tmp_path}/shop"]) as shop:
        first, second = shop.addresses
        result = run(verb, "-c", first, "-c", second, "--json")
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == (0 if verb == "ledger" else 1)


# Peers -----------------------------------------------------------------------------------------


def test_peers_show_streams_and_who_reads_them(run: Any) -> None:
    with shop_and_desk() as (shop, desk, events):
        read_all(events)
        addresses = ("-c", shop.address, "-c", desk.address)
        as_json = rows_of(run("peers", *addresses, "--json"))
        shown = run("peers", *addresses)
    assert [answer["peer"] for answer in as_json] == ["shop", "desk"]
    assert as_json[0]["address"] == addresses[1]
    assert as_json[0]["streams"]["orders.**"]["published"] == 10
    assert shown.exit_code == 0
    assert f"shop at {addresses[1]}" in shown.stdout
    assert "orders.** (buffer): 10 published, 10 kept" in shown.stdout
    assert "desk/all#" in shown.stdout
    assert "to orders.eu" in shown.stdout


def test_peers_name_who_blocks(run: Any) -> None:
    stream = Stream("a.**", overflow="block", window_bytes="64KiB")
    with (
        Peer("shop", bind=FREE, streams=stream) as shop,
        Peer("desk", connect=shop.address) as desk,
        desk.subscribe("a.**", name="slow") as events,
    ):
        shop.wait_for_subscribers("a.b", timeout=60)
        shop.publish_many("a.b", [b"x" * 1000] * 60)
        shop.publish_many("a.b", [b"x" * 1000] * 60)
        wait_until(lambda: shop.stats()["streams"]["a.**"]["blocked_by"])
        result = run("peers", "-c", shop.address)
        events.get_many(120, timeout=60)
    assert result.exit_code == 0
    assert "blocked by desk/slow#" in result.stdout


def test_a_peer_that_does_nothing_says_so(run: Any) -> None:
    with Peer("idle", bind=FREE) as idle:
        result = run("peers", "-c", idle.address)
    assert "publishes nothing and subscribes to nothing" in result.stdout


def test_an_answer_that_is_no_figures_fails(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for answer in ({"peer": "shop", "streams": {"a": 1}}, [1]):
        with Peer("shop", bind=FREE) as shop:
            monkeypatch.setattr(shop._node.questions, "_stats", lambda answer=answer: answer)
            result = run("peers", "-c", shop.address)
        assert result.exit_code == 1
        assert "answered with something that is not its" in result.stderr
