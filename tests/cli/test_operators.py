"""The operators' verbs: against running peers, and on the disk of stopped ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshmsg import Peer, Stream
from tests.support.waiting import wait_until

FREE = "tcp://127.0.0.1:*"
WAIT_S = 60


def shop_at(path: Path, **more: Any) -> Peer:
    stream = Stream("jobs.**", groups="workers", durability="log")
    return Peer("shop", bind=FREE, streams=stream, data_dir=path, **more)


def group_of(shop: Peer) -> dict[str, Any]:
    return dict(shop.stats()["streams"]["jobs.**"]["groups"][0])


def rows_of(result: Any) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_group_verbs_act_on_a_running_peer(tmp_path: Path, run: Any) -> None:
    with shop_at(tmp_path) as shop:
        shop.publish_many("jobs.x", range(5))
        at = ("-c", shop.address, "--json")
        (row,) = rows_of(run("group", "ls", *at))
        assert (row["group"], row["stream"], row["lag"], row["state"]) == (
            "workers",
            "shop/jobs.**",
            5,
            "live",
        )
        (row,) = rows_of(run("group", "pause", "workers", "--dry-run", *at))
        assert (row["dry_run"], group_of(shop)["paused"]) == (True, False)
        rows_of(run("group", "pause", "workers", *at))
        (row,) = rows_of(run("group", "show", "workers", *at))
        assert (row["state"], row["each"]) == ("paused", [])
        rows_of(run("group", "resume", "workers", *at))
        assert not group_of(shop)["paused"]
        (row,) = rows_of(run("group", "reset", "workers", "--to", "last:2", *at))
        assert (row["skipped"], group_of(shop)["lag"]) == (3, 2)
        (row,) = rows_of(run("group", "redrive", "workers", *at))
        assert row["letters"] == 0


def test_tables_are_for_people(tmp_path: Path, run: Any) -> None:
    with shop_at(tmp_path) as shop:
        shown = run("group", "ls", "-c", shop.address).stdout.splitlines()
        assert [line.split()[:2] for line in shown] == [["peer", "group"], ["shop", "workers"]]
        result = run("group", "pause", "workers", "--dry-run", "-c", shop.address)
        assert "dry run: nothing was changed" in result.stderr


def test_groups_of_a_stopped_peer_are_changed_on_disk(tmp_path: Path, run: Any) -> None:
    with shop_at(tmp_path) as shop:
        shop.publish_many("jobs.x", range(5))
        on_disk = ("--data-dir", str(tmp_path), "--json")
        result = run("group", "pause", "workers", *on_disk)
        assert result.exit_code == 1
        assert "writes this log: ask that peer, with --connect" in result.stderr
    (row,) = rows_of(run("group", "ls", *on_disk))
    assert (row["name"], row["backlog"]) == ("workers", 5)
    rows_of(run("group", "pause", "workers", *on_disk))
    (row,) = rows_of(run("group", "reset", "workers", "--to", "last:2", *on_disk))
    with shop_at(tmp_path) as shop:
        assert (group_of(shop)["paused"], group_of(shop)["lag"]) == (True, 2)
        assert group_of(shop)["generation"] == row["generation"] == 1
    rows_of(run("group", "reset", "workers", "--to", "live", *on_disk))
    assert run("group", "drop", "workers", "--data-dir", str(tmp_path)).exit_code == 0
    assert rows_of(run("group", "ls", *on_disk)) == []
    assert run("group", "pause", "workers", *on_disk).exit_code == 2


def test_cursors_are_shown_moved_and_dropped(tmp_path: Path, run: Any) -> None:
    with (
        shop_at(tmp_path / "shop") as shop,
        Peer("audit", bind=FREE, connect=shop.address, data_dir=tmp_path / "audit") as audit,
    ):
        shop.publish_many("jobs.x", range(5))
        at = ("-c", audit.address, "--json")
        with audit.subscribe("jobs.**", start="committed", name="books") as events:
            assert [events.get(timeout=WAIT_S).data for _ in range(3)] == [0, 1, 2]
            events.commit()
            result = run("cursor", "reset", "books", "--to", "earliest", *at)
            assert (result.exit_code, "is in use" in result.stderr) == (1, True)
        (row,) = rows_of(run("cursor", "ls", *at))
        assert (row["name"], row["at"].endswith(":3")) == ("books", True)
        rows_of(run("cursor", "reset", "books", "--to", "earliest", *at))
        with audit.subscribe("jobs.**", start="committed", name="books") as events:
            assert events.get(timeout=WAIT_S).data == 0
    on_disk = ("--data-dir", str(tmp_path / "audit"), "--json")
    rows_of(run("cursor", "drop", "books", *on_disk))
    assert rows_of(run("cursor", "ls", *on_disk)) == []


def test_evict_and_drain(tmp_path: Path, run: Any) -> None:
    with shop_at(tmp_path) as shop, Peer("desk", bind=FREE, connect=shop.address) as desk:
        with desk.subscribe("jobs.**", group="workers", name="one"):
            shop.wait_for_subscribers("jobs.x", timeout=WAIT_S)
            (row,) = rows_of(run("evict", "desk/one", "-c", shop.address, "--json"))
            assert row["group"] == "workers"
            wait_until(lambda: not group_of(shop)["members"])
        result = run("evict", "nobody", "-c", shop.address)
        assert (result.exit_code, "nobody here is called" in result.stderr) == (1, True)
        result = run("drain", "-c", desk.address, "--within", "10s")
        assert (result.exit_code, "drained" in result.stderr) == (0, True)
        wait_until(lambda: "desk" not in shop.stats()["clients"])


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (("group", "ls"), "say which peer"),
        (("group", "pause", "g", "-c", "tcp://127.0.0.1:1", "--data-dir", "."), "--connect"),
        (("group", "reset", "g", "--to", "soon", "-c", "tcp://127.0.0.1:1"), "--to"),
        (("group", "drop", "g"), "say where the group's log is"),
        (("cursor", "reset", "g", "--to", "committed", "--data-dir", "."), "--to"),
        (("evict", "g"), "name at least one peer"),
    ],
)
def test_wrong_usage_says_what_is_right(
    command: tuple[str, ...], problem: str, run: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*command)
    assert (result.exit_code, problem in result.stderr) == (2, True), result.stderr
