"""Work groups on the command line: `sub --group`, `peers`, `ledger`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from meshmsg import Peer, Stream
from tests.support.waiting import wait_until

FREE = "tcp://127.0.0.1:*"


def publisher(**options: Any) -> Peer:
    return Peer("shop", bind=FREE, streams=Stream("jobs.**", groups="workers", **options))


def group_of(shop: Peer) -> dict[str, Any]:
    return dict(shop.stats()["streams"]["jobs.**"]["groups"][0])


def test_member_on_the_command_line_acknowledges_what_it_shows(run: Any) -> None:
    with publisher() as shop:
        shop.publish_many("jobs.x", range(100))
        result = run(
            *("sub", "jobs.**", "--group", "workers", "-c", shop.address, "--json"),
            *("--count", "100", "--timeout", "30s"),
        )
        assert result.exit_code == 0
        shown = [json.loads(line) for line in result.stdout.splitlines()]
        assert [event["data"] for event in shown] == list(range(100))
        assert "attempt" not in shown[0]
        shop.flush(30)
        assert group_of(shop)["acked"] == 100


def test_looking_only_leaves_the_work_to_others(run: Any) -> None:
    with publisher() as shop:
        shop.publish_many("jobs.x", range(3))
        command = ("sub", "jobs.**", "--group", "workers", "-c", shop.address, "--json")
        ends = ("--count", "3", "--timeout", "30s")
        assert run(*command, *ends, "--ack", "never").exit_code == 0
        wait_until(lambda: not group_of(shop)["members"])
        assert group_of(shop)["acked"] == 0
        again = run(*command, *ends)
        shown = [json.loads(line) for line in again.stdout.splitlines()]
        assert [(event["data"], event["attempt"]) for event in shown] == [(0, 2), (1, 2), (2, 2)]
        shop.flush(30)


def test_member_that_disagrees_is_told_why(run: Any) -> None:
    with (
        publisher() as shop,
        Peer("desk", connect=shop.address) as desk,
        desk.subscribe("jobs.**", group="workers", order="key"),
    ):
        shop.wait_for_subscribers("jobs.x", timeout=30)
        result = run(
            *("sub", "jobs.**", "--group", "workers", "-c", shop.address, "--order", "none")
        )
        assert result.exit_code == 1
        assert "the group has order='key'" in result.stderr


def test_peers_shows_groups_with_members_and_lag(run: Any) -> None:
    with (
        publisher() as shop,
        Peer("desk", bind=FREE, connect=shop.address) as desk,
        desk.subscribe("jobs.**", group="workers", prefetch=4, name="one") as events,
    ):
        shop.publish_many("jobs.x", range(10))
        got = events.get_many(2, timeout=30)
        events.nack(got[0])
        wait_until(lambda: group_of(shop)["redelivered"] == 1)
        result = run("peers", "-c", shop.address, "-c", desk.address)
        assert result.exit_code == 0
        assert "group workers (key): lag 10, in flight 4, acked 0, redelivered 1" in result.stdout
        (line,) = [x for x in result.stdout.splitlines() if x.startswith("      desk/one#")]
        assert line.split()[1:] == ["5", "0", "4", "4"]
        assert "workers: desk/one#" in result.stdout
        events.ack(got[1])
        while group_of(shop)["acked"] < 10:
            events.ack(events.get_many(10, timeout=0.2))


def test_peers_marks_a_group_without_members(run: Any) -> None:
    with publisher() as shop:
        result = run("peers", "-c", shop.address)
        assert "no members" in result.stdout


def test_ledger_has_a_row_for_the_group(run: Any) -> None:
    with (
        publisher() as shop,
        Peer("desk", connect=shop.address) as desk,
        desk.subscribe("jobs.**", group="workers", max_attempts=1) as events,
    ):
        shop.publish_many("jobs.x", range(10))
        got = []
        while len(got) < 10:
            got += events.get_many(10, timeout=30)
        events.ack(got[1:])
        events.nack(got[0], error="no")
        result = run("ledger", "-c", shop.address, "--settle", "30s")
        assert result.exit_code == 0
        (row,) = [line for line in result.stdout.splitlines() if "group workers" in line]
        assert row.split() == ["✔", "group", "workers", "10", "9", "0", "0", "1", "-"]


@pytest.mark.parametrize(
    ("options", "words"),
    [(["--group", "a b"], "--group: 'a b'"), (["--ack", "never"], "--ack: goes with --group")],
)
def test_what_cannot_be_is_named_by_its_option(run: Any, options: list[str], words: str) -> None:
    result = run("sub", "jobs.**", *options, "--bind", FREE, "--timeout", "1s")
    assert result.exit_code == 2
    assert words in result.stderr
