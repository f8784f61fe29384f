"""`meshmsg webhook`: registering, listing, sending again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshmsg import Peer, Stream
from tests.hooks import Receiver


def test_a_callback_is_registered_served_listed_and_forgotten(
    start: Any, run: Any, tmp_path: Path, wait_until: Any
) -> None:
    folder = ("--data-dir", str(tmp_path / "hooks"))
    orders = Stream("orders.**", durability="log")
    with (
        Receiver() as receiver,
        Peer("shop", streams=[orders], data_dir=tmp_path / "shop") as shop,
    ):
        runner = start("webhook", "run", "-c", shop.address, *folder)
        runner.wait_for_line("posting to 0 webhooks", err=True)
        # Registered by another process, while it runs.
        options = ("--topics", "orders.**", "--allow", "127.0.0.1", "--name", "hook", "--json")
        added = run("webhook", "add", receiver.url, *options, *folder)
        assert added.exit_code == 0, added.stderr
        secret = json.loads(added.stdout)["secret"]
        shop.publish("orders.eu", 7)
        wait_until(lambda: receiver.taken)
        assert receiver.taken[0].verify(secret)["data"] == 7

        wait_until(lambda: _states(run, folder) == ["delivered"])
        (delivery,) = _listed(run, folder)
        assert run("webhook", "resend", str(delivery["id"]), *folder).exit_code == 0
        wait_until(lambda: len(receiver.taken) == 2)
        wait_until(lambda: _states(run, folder) == ["delivered"] * 2)

        listed = run("webhook", "ls", "--json", *folder)
        assert listed.exit_code == 0
        one = json.loads(listed.stdout)
        assert (one["name"], one["state"], one["ledger"][0]["delivered"]) == ("hook", "active", 1)
        assert secret not in listed.stdout
        assert "hook" in run("webhook", "ls", *folder).stdout
        assert "delivered" in run("webhook", "deliveries", *folder).stdout

        rotated = run("webhook", "rotate", "hook", *folder).stdout.strip()
        assert rotated.startswith("whsec_")
        assert rotated != secret
        assert run("webhook", "enable", "hook", *folder).exit_code == 0
        assert run("webhook", "rm", "hook", *folder).exit_code == 0
        assert run("webhook", "ls", "--json", *folder).stdout == ""
        runner.interrupt()
        assert runner.end() == 130


def _listed(run: Any, folder: tuple[str, ...]) -> list[dict[str, Any]]:
    found = run("webhook", "deliveries", "--json", *folder)
    return [json.loads(line) for line in found.stdout.splitlines()]


def _states(run: Any, folder: tuple[str, ...]) -> list[str]:
    return [one["state"] for one in _listed(run, folder)]


@pytest.mark.parametrize(
    "arguments",
    [
        ("add", "https://10.0.0.1/x", "--topics", "a"),
        ("add", "http://example.com/x", "--topics", "a"),
        ("add", "https://example.com/x"),
        ("add", "https://example.com/x", "--topics", "a", "--order", "some"),
        ("add", "https://example.com/x", "--topics", "a", "--secret", "x"),
        ("rm", "nobody"),
        ("enable", "nobody"),
        ("rotate", "nobody"),
        ("deliveries", "nobody"),
        ("deliveries", "--state", "lost"),
        ("resend",),
        ("resend", "7"),
        ("resend", "7", "--dead", "x"),
        ("run",),
        ("serve", "--topic", "hooks.a", "--scheme", "none", "--remember", "0"),
        ("serve", "--topic", "hooks.a", "--scheme", "none", "--overflow", "often"),
    ],
)
def test_wrong_usage_is_said(run: Any, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    result = run("webhook", *arguments, "--data-dir", str(tmp_path))
    assert result.exit_code == 2
    assert result.stderr


def test_a_folder_has_to_be_named(run: Any) -> None:
    result = run("webhook", "ls")
    assert result.exit_code == 2
    assert "--data-dir" in result.stderr
