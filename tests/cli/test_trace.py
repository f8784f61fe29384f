"""`meshmsg trace`: one event, asked of real peers, their logs and a sink's table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from meshmsg import Peer, Position, Stream
from meshmsg._wire import control as c
from meshmsg.cli._traced import is_good, put_together
from meshmsg.cli.trace import ask_all
from meshmsg.spark_sink.sink.journal import Commit, Journal, Staged
from meshmsg.spark_sink.source.positions import Range
from tests.support.waiting import wait_until

PATIENCE_S = 30


@contextmanager
def mesh(folder: Path) -> Iterator[tuple[Peer, Peer, Peer]]:
    """A shop with a durable stream and one in memory, its recorder, and a desk."""
    streams = [Stream("orders.**", durability="log"), Stream("notes.**")]
    with (
        Peer("shop", streams=streams, data_dir=folder / "shop") as shop,
        Peer("keeper", connect=shop.address, record="orders.**", data_dir=folder / "k") as keeper,
        Peer("desk", connect=shop.address) as desk,
    ):
        shop.wait_for_subscribers("orders.eu", timeout=PATIENCE_S)
        yield shop, keeper, desk


def traced(run: Any, position: object, *peers: Peer, more: tuple[str, ...] = ()) -> Any:
    where = [word for peer in peers for word in ("--connect", peer.address)]
    done = run("trace", str(position), *where, "--discovery", "none", "--json", *more)
    found = json.loads(done.stdout)
    assert done.exit_code == (0 if is_good(found) else 1)
    return found


def states(found: Any, what: str) -> dict[str, str]:
    return {row["name"].partition("#")[0]: row["state"] for row in found[what]}


def test_every_subscription_group_and_log_says_what_became_of_it(run: Any, tmp_path: Path) -> None:
    with (
        mesh(tmp_path) as (shop, keeper, desk),
        desk.subscribe("orders.eu", name="eu") as eu,
        desk.subscribe("orders.**", name="slow") as slow,
        desk.subscribe("orders.**", group="billing", max_attempts=1) as billing,
    ):
        shop.wait_for_subscribers("orders.eu", count=4, timeout=PATIENCE_S)
        bought = shop.publish("orders.eu", {"id": 1}, key="ACME")
        other = shop.publish("orders.us", {"id": 2})
        assert eu.get(timeout=PATIENCE_S)
        assert eu.get(timeout=0.2) is None  # the other one was looked at, and filtered
        for done in (True, False):
            event = billing.get(timeout=PATIENCE_S)
            assert event is not None
            if done:
                billing.ack(event)
            else:
                billing.nack(event, error="no stock")
        wait_until(
            lambda: shop.stats()["streams"]["orders.**"]["groups"][0]["dead"] == 1,
            PATIENCE_S,
            "a dead letter",
        )
        wait_until(
            lambda: keeper.stats()["recorder"]["streams"][0]["events"] == 2,
            PATIENCE_S,
            "the recorder to have both",
        )
        found = traced(run, bought, shop, keeper, desk)
        known = found["published"]
        assert (known["by"], known["state"], known["topic"], known["key"]) == (
            "shop",
            "published",
            "orders.eu",
            "ACME",
        )
        assert states(found, "subscriptions") == {"desk/eu": "delivered", "desk/slow": "received"}
        assert states(found, "groups") == {"billing": "acknowledged"}
        assert [(log["peer"], log["kind"], log["state"]) for log in found["logs"]] == [
            ("shop", "publisher", "there"),
            ("keeper", "recorder", "there"),
        ]
        assert found["unknown"] == []

        found = traced(run, other, shop, keeper, desk)
        assert states(found, "subscriptions") == {"desk/eu": "filtered", "desk/slow": "received"}
        assert states(found, "groups") == {"billing": "dead"}
        assert not is_good(found)
        assert slow.get(timeout=PATIENCE_S)

        # By the publisher alone: what it knows, and said to be that.
        found = traced(run, bought, shop)
        assert {row["by"] for row in found["subscriptions"]} == {"its publisher"}


def test_a_loss_is_told_with_its_reason_and_is_not_good() -> None:
    own = {"name": "desk/-", "patterns": ["**"], "recorder": False, "filtered": 0}
    answer = {"subscriptions": [{**own, "state": "lost", "reason": "overflow"}]}
    found = put_together(Position("shop/a", 1, 2), [answer], [], [])
    (row,) = found["subscriptions"]
    assert (row["state"], row["reason"], row["by"]) == ("lost", "overflow", "itself")
    assert not is_good(found)


def test_after_a_restart_of_the_publisher_it_says_what_it_does_not_know(
    run: Any, tmp_path: Path
) -> None:
    options = {"streams": Stream("orders.**", durability="log"), "data_dir": tmp_path}
    with Peer("shop", **options) as shop:
        bought = shop.publish("orders.eu", {"id": 1})
    with Peer("shop", **options) as shop:
        found = traced(run, bought, shop)
        assert found["published"]["topic"] == "orders.eu"
        assert found["logs"][0]["state"] == "there"
        assert "has started again" in found["unknown"][0]
        never = Position(bought.stream, bought.epoch, 999)
        found = traced(run, never, shop)
        assert found["published"]["state"] == "earlier"
        assert found["logs"][0]["state"] == "absent"
        assert not is_good(found)


def test_a_stranger_to_the_stream_knows_nothing(run: Any) -> None:
    with Peer("desk") as desk:
        found = traced(run, "shop/orders.**@17:4", desk)
    assert found["published"] == {"by": "shop", "state": "unknown"}
    assert "'shop' was not asked" in found["unknown"][0]


def test_the_commit_of_a_table_is_found_in_its_journal(run: Any, tmp_path: Path) -> None:
    journal = Journal(str(tmp_path))
    journal.open({"format": "parquet"}, wait_s=0)
    files = [Staged("out", "x/1.parquet", "part-1.parquet", 10, 100)]
    stream, epoch = "shop/orders.**", 17
    journal.append(Commit(1, 0, [Range(stream, epoch, 0, 10)], files, 10, time_ns=10**18))
    journal.close()
    with Peer("desk") as desk:
        table = ("--table", str(tmp_path))
        (row,) = traced(run, f"{stream}@{epoch}:9", desk, more=table)["tables"]
        assert (row["state"], row["commit"], row["files"]) == ("committed", 1, ["part-1.parquet"])
        (row,) = traced(run, f"{stream}@{epoch}:10", desk, more=table)["tables"]
        assert row["state"] == "not in it"
        done = run("trace", f"{stream}@17:1", "-c", desk.address, "--table", str(tmp_path / "no"))
        assert done.exit_code == 2
        assert "is not a table" in done.stderr


def test_people_read_the_same(run: Any) -> None:
    with (
        Peer("shop") as shop,
        Peer("desk", connect=shop.address) as desk,
        desk.subscribe("**", name="all") as events,
    ):
        shop.wait_for_subscribers("a", timeout=PATIENCE_S)
        position = shop.publish("a", 1)
        assert events.get(timeout=PATIENCE_S)
        where = ("-c", shop.address, "-c", desk.address, "--discovery", "none")
        done = run("trace", str(position), *where)
    assert done.exit_code == 0
    assert done.stdout.splitlines()[0] == str(position)
    assert "published by shop: time 2" in done.stdout
    assert "subscription desk/all#" in done.stdout
    assert done.stdout.rstrip().endswith("delivered")


def test_a_position_that_is_none_is_an_error_in_words(run: Any) -> None:
    done = run("trace", "orders.eu", "-c", "tcp://127.0.0.1:1")
    assert done.exit_code == 2
    assert "stream@epoch:seq" in done.stderr


@pytest.mark.parametrize("body", [7, [], {}, {"publisher": 7}, {"subscriptions": [{"name": 1}]}])
def test_what_is_no_answer_is_that_of_nobody(monkeypatch: pytest.MonkeyPatch, body: Any) -> None:
    place = Position("shop/a", 1, 2)
    with Peer("shop") as shop, Peer("asker", connect=shop.address) as asker:
        asker.wait_for_peers(timeout=PATIENCE_S)
        monkeypatch.setattr(
            "meshmsg._links.peer_queries.c.encode_answer",
            lambda number, told: c.Answer(number, c._encode(body)),
        )
        answers = list(ask_all(asker, place, PATIENCE_S))
    assert len(answers) == 1
    found = put_together(place, answers, [], [])
    assert found["subscriptions"] == []
